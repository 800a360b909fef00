"""From (question, response, reward) to the refiner's prompt: Jinja2 templates through the tokenizer's chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError, meta

OPEN_TAG = "<refined>"
CLOSE_TAG = "</refined>"


class RefinerPrompt:
    """Renders refiner prompts.

    A template sees ``messages`` (the chat prompt, a list of role and content), ``question`` (its last user message),
    ``response`` (text), ``reward`` (float), ``is_begun`` (whether the answer is begun with the beginning of the
    response, which is kept), ``open_tag`` and ``close_tag``. In a later turn of a session the prompt and
    the turns before are one user message (``parsing.conversation``). One that mentions the tags has its answer
    started for the refiner with the opening tag and read up to the closing one; otherwise all output is the answer.

    Args:
        path: The template's file.
        tokenizer: The reference model's Hugging Face tokenizer, with a chat template.
        chat_settings: What the chat template is given beside messages, as the policy's prompts are
            (``data.apply_chat_template_kwargs``), for example ``{"enable_thinking": False}``.

    Raises:
        ValueError: If the template is broken or uses a variable that it is not given.
    """

    def __init__(self, path: Path, tokenizer: Any, chat_settings: Mapping[str, Any] | None = None) -> None:
        """Parse the template and try it once."""
        environment = Environment(undefined=StrictUndefined, keep_trailing_newline=False, autoescape=False)
        source = path.read_text(encoding="utf-8")
        self.tokenizer, self._chat_settings = tokenizer, dict(chat_settings or {})
        try:
            self._template = environment.from_string(source)
            self.uses_tags = "close_tag" in meta.find_undeclared_variables(environment.parse(source))
            empty = [{"role": "user", "content": ""}]
            self._num_overhead_tokens = max(len(self.encode(empty, "", -1.0, is_begun=one)) for one in (False, True))
        except TemplateError as error:
            raise ValueError(f"refiner.template: {path}: {error}") from error

    @property
    def stop(self) -> list[str]:
        """Strings at which the refiner stops."""
        return [CLOSE_TAG] if self.uses_tags else []

    def encode(
        self, messages: list[dict[str, Any]], response: str, reward: float, *, is_begun: bool = False
    ) -> list[int]:
        """Return the token ids of one refiner prompt."""
        questions = [message["content"] for message in messages if message["role"] == "user"]
        text = self._template.render(
            messages=messages,
            question=questions[-1] if questions else "",
            response=response,
            reward=reward,
            is_begun=is_begun,
            open_tag=OPEN_TAG,
            close_tag=CLOSE_TAG,
        )
        chat = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False, **self._chat_settings
        )
        if self.uses_tags:
            chat += f"{OPEN_TAG}\n"
        return self.tokenizer.encode(chat, add_special_tokens=False)

    def max_tokens(self, max_prompt_tokens: int, max_response_tokens: int) -> int:
        """Return the length of the longest refiner prompt, in tokens.

        Text that is decoded and encoded again, inside other text, can come out a few tokens longer: 2 % are added.
        """
        return self._num_overhead_tokens + int(1.02 * (max_prompt_tokens + max_response_tokens)) + 8
