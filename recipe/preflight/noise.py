"""Messages of packages during import, about parts that a run does not use."""

import logging
import warnings

from omegaconf import DictConfig, OmegaConf

LOGGERS = {
    "verl.plugin.platform.platform_manager": logging.ERROR,  # no GPU: a rule says so where one is needed
    "transformers.tokenization_utils_tokenizers": logging.ERROR,  # clean_up_tokenization_spaces of a BPE tokenizer
}
OF_MEGATRON = dict.fromkeys(
    (
        f"megatron.core.distributed.fsdp.src.megatron_fsdp.{name}"
        for name in ("mixed_precision", "megatron_fsdp", "param_and_grad_buffer")
    ),
    logging.WARNING,
)
"""The loggers of Megatron's FSDP, which report on import; verl imports Megatron wherever it is installed."""


def quieten(config: DictConfig) -> None:
    """Silence warnings of verl and of packages that it imports; a run on Megatron keeps Megatron's warnings.

    verl warns of each engine that is not installed, and of a critic that no critic-free estimator has. Megatron warns
    in six modules that Apex and Transformer Engine are missing.
    """
    warnings.filterwarnings("ignore", category=UserWarning, module=r"verl\.|recipe\.|__main__")
    levels = dict(LOGGERS)
    if OmegaConf.select(config, "actor_rollout_ref.actor.strategy") != "megatron":
        warnings.filterwarnings("ignore", "(Transformer Engine and )?Apex (is|are) not installed", module=r"megatron\.")
        levels |= OF_MEGATRON
    for name, level in levels.items():
        # A filter, since verl's logger sets a level of its own when it is imported.
        logging.getLogger(name).addFilter(lambda record, level=level: record.levelno >= level)  # type: ignore[misc]
