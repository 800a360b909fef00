"""From (question, response, reward) to the refiner's prompt: Jinja2 templates through the tokenizer's chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from jinja2 import Environment, StrictUndefined, TemplateError, meta

OPEN_TAG = "<refined>"
CLOSE_TAG = "</refined>"
Told = Literal["feedback", "sibling", "solution"]
TOLD = get_args(Told)
"""What a template may be given beside question, response and reward; empty where there is none."""
GAP = " ... "
"""Stands for the middle of a text that is too long."""


class RefinerPrompt:
    """Renders refiner prompts.

    A template sees ``messages`` (the chat prompt, a list of role and content), ``question`` (its last user message),
    ``response`` (text), ``reward`` (float), ``open_tag`` and ``close_tag``. As far as ``refiner.context`` asks for
    them, else empty, it sees ``feedback`` (what the reward function says of the response), ``sibling`` (the best
    response of its group, if that is better) and ``solution`` (the data set's). In a later turn of a session the prompt
    and the turns before are one user message (``parsing.conversation``).

    One that mentions the tags has its answer started for the refiner with the opening tag and read up to the closing
    one. One that has ``{% set stop = "..." %}`` has it end with that text, which is part of it, such as the closing
    fence of a program. Otherwise all output is the answer.

    Args:
        path: The template's file.
        tokenizer: The reference model's Hugging Face tokenizer, with a chat template.
        chat_settings: What the chat template is given beside messages, as the policy's prompts are
            (``data.apply_chat_template_kwargs``), for example ``{"enable_thinking": False}``.
        limits: Tokens, at most, of each text of TOLD that is to be shown.

    Raises:
        ValueError: If the template is broken, uses a variable that it is not given, or has no place for a solution or
            a sibling that is to be shown.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Any,
        chat_settings: Mapping[str, Any] | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        """Parse the template and try it once."""
        environment = Environment(undefined=StrictUndefined, keep_trailing_newline=False, autoescape=False)
        source = path.read_text(encoding="utf-8")
        self.tokenizer, self._chat_settings = tokenizer, dict(chat_settings or {})
        self._control_tokens = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        try:
            self._template = environment.from_string(source)
            used = meta.find_undeclared_variables(environment.parse(source))
            self.uses_tags = "close_tag" in used
            self.limits = {name: limit for name, limit in (limits or {}).items() if name in used}
            empty = [{"role": "user", "content": ""}]
            tried = self.encode(empty, "", -1.0, told=dict.fromkeys(TOLD, " "))
            stop = getattr(self._template.make_module(self._variables(empty, "", -1.0, {})), "stop", None)
        except TemplateError as error:
            raise ValueError(f"refiner.template: {path}: {error}") from error
        self._num_overhead_tokens = len(tried)
        if stop is not None and not isinstance(stop, str):
            raise ValueError(f"refiner.template: {path}: stop is a {type(stop).__name__}; set one text")
        self.stop: str | None = CLOSE_TAG if self.uses_tags else stop
        if unseen := {"sibling", "solution"} & {*(limits or {})} - used:
            name = sorted(unseen)[0]
            raise ValueError(f"refiner.context has {name}, but refiner.template {path} does not show {{{{ {name} }}}}")

    def encode(
        self,
        messages: list[dict[str, Any]],
        response: str,
        reward: float,
        *,
        told: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Return the token ids of one refiner prompt; control tokens that stand in its texts are text."""
        content = self.content(messages, response, reward, told=told)
        begin = f"{OPEN_TAG}\n" if self.uses_tags else ""
        if not any(token in content for token in self._control_tokens):
            return self._ids(self._chat(content) + begin)
        before, _, after = self._chat(GAP).partition(GAP)
        return [*self._ids(before), *self._ids(content, split_special_tokens=True), *self._ids(after + begin)]

    def content(
        self, messages: list[dict[str, Any]], response: str, reward: float, *, told: Mapping[str, str] | None = None
    ) -> str:
        """Return one refiner prompt as the words of a user message."""
        return self._template.render(self._variables(messages, response, reward, told or {}))

    def max_tokens(self, max_prompt_tokens: int, max_response_tokens: int) -> int:
        """Return the length of the longest refiner prompt, in tokens.

        Text that is decoded and encoded again, inside other text, can come out a few tokens longer: 2 % are added.
        """
        texts = max_prompt_tokens + max_response_tokens + sum(self.limits.values())
        return self._num_overhead_tokens + int(1.02 * texts) + 8

    def _variables(
        self, messages: list[dict[str, Any]], response: str, reward: float, told: Mapping[str, str]
    ) -> dict[str, Any]:
        questions = [message["content"] for message in messages if message["role"] == "user"]
        return {
            "messages": messages,
            "question": questions[-1] if questions else "",
            "response": response,
            "reward": reward,
            "open_tag": OPEN_TAG,
            "close_tag": CLOSE_TAG,
            **{name: self._shorten(told.get(name, ""), self.limits.get(name, 0)) for name in TOLD},
        }

    def _shorten(self, text: str, limit: int) -> str:
        """Return a text of at most so many tokens: its beginning and its end."""
        if len(text) > 16 * limit:  # whatever it is, it need not all be encoded
            text = text[: 8 * limit] + text[-8 * limit :] if limit else ""
        ids = self._ids(text, split_special_tokens=True) if text else []
        if len(ids) <= limit:
            return text
        half = (limit - len(self._ids(GAP))) // 2
        return self.tokenizer.decode(ids[:half]) + GAP + self.tokenizer.decode(ids[-half:])

    def _chat(self, content: str) -> str:
        return self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False, **self._chat_settings
        )

    def _ids(self, text: str, **settings: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False, **settings)
