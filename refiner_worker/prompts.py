"""From (question, response, reward) to the refiner's prompt: Jinja2 templates through the tokenizer's chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from jinja2 import TemplateError

from refiner_worker.pictures import MARK, Pictures, Prompt, as_text, has_pictures, split
from refiner_worker.rendering import BoundedTemplate, TemplateFailedError
from refiner_worker.text.answer import CLOSE_TAG, OPEN_TAG
from refiner_worker.text.thoughts import Thoughts

Told = Literal["feedback", "sibling", "solution"]
TOLD = get_args(Told)
"""The variables of a template beside question, response and reward; a variable is empty if there is no such text."""
UNREADABLE = (TemplateFailedError, TemplateError, TypeError, UnicodeDecodeError)
"""Errors by a broken template, by a file that is no text, and by the model's chat template."""
TRIED_REWARDS = (-1.0, 0.0)
"""Rewards with which a template is rendered before a run: nearly all reward functions give one of them to a failure."""
GAP = " ... "
"""The text that replaces the middle of a text that is too long."""


class Chat:
    """The renderer of a user's turn to token ids, by the chat template; control tokens within the turn are text."""

    def __init__(self, tokenizer: Any, chat_settings: Mapping[str, Any] | None) -> None:
        self.tokenizer, self._settings = tokenizer, dict(chat_settings or {})
        self._longest_token = max(map(len, tokenizer.get_vocab()))  # characters
        self._control_tokens = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]

    def encode(self, content: str, begin: str = "", pictures: Pictures | None = None) -> Prompt:
        """Return the token ids of a chat with one user message, followed by ``begin``, the first text of the answer.

        Where there are pictures, marks in the content stand for them (:func:`~refiner_worker.pictures.split`).
        """
        if pictures is not None:
            return self._with_pictures(content, begin, pictures)
        if not any(token in content for token in self._control_tokens):
            return Prompt(self._ids(self._text(content) + begin))
        text = content.strip()  # as many chat templates do
        before, found, after = self._text(content).partition(text)
        if not found:
            return Prompt(self._ids(self._text(self._without_control(content)) + begin))
        ids = self._ids(text, split_special_tokens=True)
        return Prompt([*self._ids(before), *ids, *self._ids(after + begin)])

    def _with_pictures(self, content: str, begin: str, pictures: Pictures) -> Prompt:
        parts = split(self._without_control(content), len(pictures.images))
        shown = [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]
        return pictures.expand(self._ids(self._text(shown) + begin))

    def _without_control(self, content: str) -> str:
        """Return a text in which the tokenizer finds no token of control: none survives a space in it."""
        for token in self._control_tokens:
            content = content.replace(token, f"{token[:1]} {token[1:]}")
        return content

    def shorten(self, text: str, limit: int) -> str:
        """Return a text shortened to ``limit`` tokens: its beginning and its end."""
        most = limit * self._longest_token
        if len(text) > 2 * most:  # whatever it is, it is too long, and need not all be encoded
            text = text[:most] + text[len(text) - most :]
        ids = self._ids(text, split_special_tokens=True) if text else []
        if len(ids) <= limit:
            return text
        half = max(0, limit - len(self._ids(GAP))) // 2
        return self.tokenizer.decode(ids[:half]) + GAP + self.tokenizer.decode(ids[len(ids) - half :])

    def _text(self, content: str | list[dict[str, str]]) -> str:
        return self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False, **self._settings
        )

    def _ids(self, text: str, **settings: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False, **settings)


def whole(messages: list[dict[str, Any]]) -> str:
    """Return the chat of texts that a response answers, s0: one message as it is, several with their roles."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n".join(f"{message['role']}: {message['content'] or ''}" for message in messages)


class RefinerPrompt:
    """The renderer of refiner prompts. ``docs/refiner.md`` lists what a template sees.

    If it mentions the tags, its answer is started with the opening tag and read up to the closing one. With
    ``{% set stop = "..." %}`` the answer ends with that text, which is part of it, such as the closing fence of a
    program. Otherwise all output is the answer. In a later turn of a session the prompt and the turns before are one
    user message (``parsing.conversation``).

    ``chat_settings`` is what the chat template is given beside messages, as the policy's prompts are
    (``data.apply_chat_template_kwargs``), ``limits`` has the tokens, at most, of each text of TOLD that is to be shown.
    Where the reference model has ``thoughts``, an answer begins behind its thought.

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
        thoughts: Thoughts | None = None,
    ) -> None:
        self.tokenizer, self._chat = tokenizer, Chat(tokenizer, chat_settings)
        self.thoughts = thoughts
        try:
            self._template = BoundedTemplate(path.read_text(encoding="utf-8"))
            used = self._template.used
            self.uses_tags = "close_tag" in used
            self.limits = {name: limit for name, limit in (limits or {}).items() if name in used}
            empty = [{"role": "user", "content": ""}]
            told, thought = dict.fromkeys(TOLD, " "), "" if thoughts else None
            tried = [self.content(empty, "", reward, told=told, thought=thought) for reward in TRIED_REWARDS]
            self._num_overhead_tokens = max(len(self.encode(text)) for text in tried)
            stop = self._template.stop(**self._variables(empty, "", -1.0, {}))
        except UNREADABLE as error:
            raise ValueError(f"refiner.template: {path}: {error}") from error
        if "open_tag" in used and not self.uses_tags:
            raise ValueError(f"refiner.template: {path} shows {{{{ open_tag }}}}, and so must show {{{{ close_tag }}}}")
        self.stop: str | None = CLOSE_TAG if self.uses_tags else stop
        if unseen := {"sibling", "solution"} & {*(limits or {})} - used:
            name = sorted(unseen)[0]
            raise ValueError(f"refiner.context has {name}, but refiner.template {path} does not show {{{{ {name} }}}}")
        if "response" not in used:
            raise ValueError(f"refiner.template: {path} does not show {{{{ response }}}}, which is to be refined")

    def encode(self, content: str, pictures: Pictures | None = None) -> Prompt:
        """Return the token ids of a refiner prompt with this content; control tokens within the content are text."""
        begin = f"{OPEN_TAG}\n" if self.uses_tags and not self.thoughts else ""
        return self._chat.encode(content, begin, pictures)

    def content(
        self,
        messages: list[dict[str, Any]],
        response: str,
        reward: float,
        *,
        told: Mapping[str, str] | None = None,
        thought: str | None = None,
    ) -> str:
        """Return one refiner prompt as the words of a user message, from s0, the response's answer and its reward.

        If ``thought`` is given, the refiner rewrites thought and answer, each between tags. A picture of s0 is a mark
        in the words, and the only one.
        """
        if has_pictures(messages):
            response, thought = response.replace(MARK, ""), thought and thought.replace(MARK, "")
            told = {name: text.replace(MARK, "") for name, text in (told or {}).items()}
        messages = as_text(messages)
        if thought is not None:
            response = f"Reasoning:\n{thought}\n\nAnswer:\n{response.strip()}"
        text = self._template.render(**self._variables(messages, response, reward, told or {}))
        if thought is None:
            return text
        asked = "First write the reasoning again, corrected, then the answer"
        return f"{text}\n\n{asked}: each between {OPEN_TAG} and {CLOSE_TAG}."

    def own_words(self, reward: float, told: Mapping[str, str]) -> str:
        """Return the words of the prompt that stand in neither question, response nor solutions.

        They are the words of the template, and the feedback if ``told`` has it.
        """
        empty = [{"role": "user", "content": ""}]
        thought = None if self.thoughts is None else ""
        shown = {name: text if name == "feedback" else " " for name, text in told.items()}
        return self.content(empty, "", reward, told=shown, thought=thought)

    def max_tokens(self, max_prompt_tokens: int, max_response_tokens: int) -> int:
        """Return the length of the longest refiner prompt, in tokens.

        Text that is decoded and encoded again, inside other text, can come out a few tokens longer: 2 % are added.
        """
        texts = max_prompt_tokens + max_response_tokens + sum(self.limits.values())
        return self._num_overhead_tokens + int(1.02 * texts) + 8

    @staticmethod
    def _without_thought(message: dict[str, Any], closing: str) -> dict[str, Any]:
        if message["role"] != "assistant":
            return message
        return {**message, "content": (message["content"] or "").rpartition(closing)[2].lstrip()}

    def _variables(
        self, messages: list[dict[str, Any]], response: str, reward: float, told: Mapping[str, str]
    ) -> dict[str, Any]:
        if self.thoughts is not None:  # chat templates leave thoughts out of earlier replies
            messages = [self._without_thought(message, self.thoughts.closing) for message in messages]
        return {
            "messages": messages,
            "question": whole(messages),
            "response": response,
            "reward": reward,
            "open_tag": OPEN_TAG,
            "close_tag": CLOSE_TAG,
            **{name: self._chat.shorten(told.get(name, ""), self.limits.get(name, 0)) for name in TOLD},
        }


SHOWN = {"refined", "sibling", "solution"}


class InPlacePrompt:
    """The renderer of what pi_0 reads before it scores the policy's own tokens (``constraint.target=in_place``).

    A template sees ``messages``, ``question``, ``refined`` (the accepted a'), ``sibling`` (the best response of the
    group, if that is better) and ``solution`` (the data set's); what there is not is empty. It never sees the response,
    nor what was said of it: pi_0 would copy it, and the constraint would have the wrong sign.

    The arguments are those of :class:`RefinerPrompt`, except ``limit``: the largest number of tokens of each text of
    SHOWN.

    Raises:
        ValueError: If the template is broken, or uses a variable that it is not given.
    """

    def __init__(self, path: Path, tokenizer: Any, chat_settings: Mapping[str, Any] | None, limit: int) -> None:
        self._chat, self._limit = Chat(tokenizer, chat_settings), limit
        try:
            self._template = BoundedTemplate(path.read_text(encoding="utf-8"))
            self.uses = SHOWN & self._template.used
            empty = [{"role": "user", "content": ""}]
            tried = self._template.render(messages=empty, question="", **dict.fromkeys(SHOWN, " "))
        except UNREADABLE as error:
            raise ValueError(f"constraint.in_place_template: {path}: {error}") from error
        self._num_overhead_tokens = len(self._chat.encode(tried))

    def encode(self, messages: list[dict[str, Any]], shown: Mapping[str, str]) -> list[int] | None:
        """Return the token ids of the prompt; None if there is nothing of SHOWN that the template could show."""
        texts = {name: self._chat.shorten(shown.get(name, ""), self._limit) for name in SHOWN}
        if self.uses and not any(texts[name] for name in self.uses):
            return None
        messages = as_text(messages)
        return self._chat.encode(self._template.render(messages=messages, question=whole(messages), **texts))

    def max_tokens(self, max_prompt_tokens: int) -> int:
        """Return the length of the longest such prompt, in tokens, as :meth:`RefinerPrompt.max_tokens` counts."""
        return self._num_overhead_tokens + int(1.02 * (max_prompt_tokens + len(self.uses) * self._limit)) + 8
