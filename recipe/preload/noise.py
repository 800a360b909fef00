"""Warnings of other packages, at each start, about conditions that are intended."""

import logging

EXPECTED = {
    # The CPU platform's vLLM computes without Triton.
    "vllm.triton_utils.importing": "Triton is installed, but doesn't include CPU backend",
    # An import of a package that a text model does not use.
    "transformers.utils.import_utils": "`Qwen2VLImageProcessor` requires torchvision",
    # Ray makes the token for its own cluster and uses it.
    "ray._private.authentication.authentication_token_setup": "Token authentication is enabled for this Ray cluster",
}
"""The beginnings of the lines, by the logger that writes them."""


def drop_expected() -> None:
    """Drop these lines, and no other, in this process and its forks."""
    for name in EXPECTED:
        logging.getLogger(name).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(EXPECTED[record.name])
