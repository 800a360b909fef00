"""Thoughts: what a model writes before its answer, between marks that its chat template knows."""

import os.path
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

THOUGHT, ANSWER = "A thought.", "A reply."
NAMED = re.compile(r"</([\w.-]+)>")


@dataclass(slots=True, frozen=True)
class Thoughts:
    """How a model thinks.

    Example: ``Thoughts(opening="<think>", closing="</think>", is_open=True)`` for DeepSeek-R1's distillates, whose
    generation prompt ends with ``<think>``; of Qwen3's ``is_open`` is false, as the model writes the mark itself.
    """

    opening: str
    closing: str
    is_open: bool
    """Whether the generation prompt opens a thought."""
    header: str = ""
    """What an answer without a thought begins with, such as gpt-oss's ``<|channel|>final<|message|>``."""

    def split(self, ids: list[int], tokenizer: Any) -> "Parts":
        """Return the parts of a response."""
        end = self.end(ids, tokenizer)
        if end == 0:
            return Parts(answer=ids)
        text = self._text(ids[:end], tokenizer)
        opens = text.find(self.opening) if text.lstrip().startswith(self.opening.lstrip()) else -1
        first = self._length(ids, opens + len(self.opening), tokenizer) if opens >= 0 else 0
        if end is None:
            gap = "\n\n" if NAMED.fullmatch(self.closing) else ""
            return Parts(ids[:first], ids[first:], tokenizer.encode(self.closing + gap, add_special_tokens=False), None)
        place = text.rfind(self.closing)
        if place < 0:  # a header alone
            return Parts(closing=ids[:end], answer=ids[end:])
        last = self._length(ids, place, tokenizer) if place else 0
        if len(self._text(ids[:last], tokenizer)) == place:
            return Parts(ids[:first], ids[first:last], ids[last:end], ids[end:])
        before = text[:place][
            len(self._text(ids[: last - 1], tokenizer)) :
        ]  # of a token that is a part of the mark too
        cut = [*ids[first : last - 1], *tokenizer.encode(before, add_special_tokens=False)]
        behind = text[place:]
        return Parts(ids[:first], cut, tokenizer.encode(behind, add_special_tokens=False), ids[end:])

    def end(self, ids: list[int], tokenizer: Any) -> int | None:
        """Return how many tokens of an output are its thought, closing mark included; 0: none; None: it does not end.

        What stands before the last closing mark is thought, also where marks are repeated.
        """
        if length := self.before_mark(ids, tokenizer):
            return length
        text = self._text(ids, tokenizer)
        if self.header and text.startswith(self.header):
            return self._length(ids, len(self.header), tokenizer)
        return None if self.is_open or text.lstrip().startswith(self.opening.lstrip()) else 0

    def is_opened_in(self, ids: list[int], tokenizer: Any) -> bool:
        """Tell whether an answer opens another thought."""
        return self.opening.strip() in self._text(ids, tokenizer)

    def before_mark(self, ids: list[int], tokenizer: Any) -> int:
        """Return how many tokens stand before the end of the last closing mark; 0: there is none."""
        place = self._text(ids, tokenizer).rfind(self.closing)
        if place < 0:
            return 0
        return self._length(ids, place + len(self.closing), tokenizer)

    def _length(self, ids: list[int], num_characters: int, tokenizer: Any) -> int:
        """Return the fewest tokens whose text has so many characters."""
        lengths = range(1, len(ids) + 1)
        return bisect_left(lengths, num_characters, key=lambda length: len(self._text(ids[:length], tokenizer))) + 1

    def marks(self, tokenizer: Any) -> tuple[str | None, list[int], list[int]]:
        """Return at what an engine stops, as text or as tokens that its text does not show, and what follows there."""
        ids: list[int] = tokenizer.encode(self.closing, add_special_tokens=False)
        if ids[0] not in tokenizer.added_tokens_decoder:
            return self.closing, [], []
        return None, ids[:1], ids[1:]

    @staticmethod
    def _text(ids: list[int], tokenizer: Any) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False))


@dataclass(slots=True, frozen=True)
class Parts:
    """A response in token ids: what opens its thought, the thought, what closes it, the answer.

    Example: of ``<think>a</think>b``, where each mark and letter is a token, they have one token each.
    """

    opening: list[int] = field(default_factory=list)
    thought: list[int] = field(default_factory=list)
    closing: list[int] = field(default_factory=list)
    """The mark; of a response that ends within its thought the one that it lacks."""
    answer: list[int] | None = None
    """None if the response ends within its thought."""

    @property
    def head(self) -> list[int]:
        """All before the answer."""
        return [*self.opening, *self.thought, *self.closing]


def read_thoughts(
    tokenizer: Any, chat_settings: Mapping[str, Any] | None = None, marks: list[str] | bool | None = None
) -> Thoughts | None:
    """Return how a model thinks by its chat template, which is rendered in several ways; None: it does not.

    Args:
        tokenizer: With a chat template.
        chat_settings: What the template is given beside messages (``data.apply_chat_template_kwargs``).
        marks: ``refiner.thoughts``: opening and closing mark, or False.
    """
    if marks is False:
        return None
    settings = dict(chat_settings or {})
    begin = _begin(tokenizer, settings)
    candidates = [(marks[0], marks[1])] if isinstance(marks, list) else _candidates(tokenizer, settings)
    for opening, closing in candidates:
        opens, closes = begin.rfind(opening), begin.rfind(closing)
        if closes > opens >= 0:
            return None  # the prompt has closed an empty thought: it is told not to think
        header = closing.partition(begin)[2] if begin else ""
        return Thoughts(opening=opening, closing=closing, is_open=opens >= 0, header=header)
    return None


def _chat(tokenizer: Any, settings: Mapping[str, Any], reply: dict[str, str] | None = None, **more: Any) -> str:
    """Return a question, and a reply or what a reply is begun with."""
    messages = [{"role": "user", "content": "x"}, *([{"role": "assistant", **reply}] if reply else [])]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **{**settings, **more}))


def _begin(tokenizer: Any, settings: Mapping[str, Any], **more: Any) -> str:
    """Return what the generation prompt adds behind a question."""
    return _behind(_chat(tokenizer, settings, **more), _chat(tokenizer, settings, add_generation_prompt=True, **more))


def _behind(shared: str, text: str) -> str:
    """Return what a text has behind what it begins with as another one does."""
    return text[len(os.path.commonprefix([shared, text])) :]


def _candidates(tokenizer: Any, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield opening and closing marks, as a template shows or hides a thought."""
    for key in ("reasoning_content", "thinking"):
        text = _chat(tokenizer, settings, {"content": ANSWER, key: THOUGHT})
        before, _, behind = text.partition(THOUGHT)
        closing = behind.partition(ANSWER)[0].strip()
        if ANSWER in behind and closing:
            if named := NAMED.fullmatch(closing):
                yield f"<{named[1]}>", closing
            else:  # marks without names, such as gpt-oss's channels
                shown = _behind(_chat(tokenizer, settings), before)
                yield _behind(_begin(tokenizer, settings), shown) or shown, closing
    names = dict.fromkeys(NAMED.findall(str(tokenizer.chat_template)))
    prompts = [_begin(tokenizer, settings), _begin(tokenizer, settings, enable_thinking=False)]
    for name in names:
        opening, closing = f"<{name}>", f"</{name}>"
        if any(prompt.rstrip().endswith((opening, closing)) for prompt in prompts):
            yield opening, closing
        hidden = _chat(tokenizer, settings, {"content": f"{THOUGHT}{closing}{ANSWER}"})
        if ANSWER in hidden and THOUGHT not in hidden:
            yield opening, closing
