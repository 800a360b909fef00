"""Thoughts: the text that a model writes before its answer, between marks that its chat template knows."""

import os.path
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from refiner_worker.text.tokens import cut, decode, whole_text

THOUGHT, ANSWER = "A thought.", "A reply."
NAMED = re.compile(r"</([\w.:-]+)>")
MARK_TOKENS = 32
"""The most tokens that an opening mark and the white space behind it have."""


@dataclass(slots=True, frozen=True)
class Thoughts:
    """The marks of a model's thoughts.

    Example: ``Thoughts(opening="<think>", closing="</think>", is_open=True)`` for DeepSeek-R1's distillates, whose
    generation prompt ends with ``<think>``; of Qwen3's ``is_open`` is false, as the model writes the mark itself.
    """

    opening: str
    closing: str
    is_open: bool
    """Whether the generation prompt opens a thought."""
    header: str = ""
    """The text with which an answer without a thought begins, such as gpt-oss's ``<|channel|>final<|message|>``."""

    def split(self, ids: list[int], tokenizer: Any) -> "Parts":
        """Return the parts of a response."""
        text = whole_text(ids, tokenizer)
        end = self.end(text)
        if end == 0:
            return Parts(answer=decode(tokenizer, ids))
        begins = text.lstrip().startswith(self.opening.lstrip())
        opened = text.index(self.opening.lstrip()) + len(self.opening.lstrip()) if begins else 0
        if end is None:
            gap = "\n\n" if NAMED.fullmatch(self.closing) else ""
            whole = self.closing + gap
            return Parts(opening=text[:opened], thought=text[opened:], closing=whole, answer=None)
        head, rest, behind = cut(ids, end, tokenizer)
        place = max(opened, text.rfind(self.closing, 0, end))  # a header alone has no mark
        return Parts(head, rest, text[:opened], text[opened:place], text[place:end], decode(tokenizer, behind))

    def end(self, text: str) -> int | None:
        """Return the number of characters of an output's thought, closing mark included; 0: no thought; None: no end.

        All text before the last closing mark is thought, also where marks are repeated.
        """
        if (place := text.rfind(self.closing)) >= 0:
            return place + len(self.closing)
        if self.header and text.startswith(self.header):
            return len(self.header)
        return None if self.is_open or text.lstrip().startswith(self.opening.lstrip()) else 0

    def behind(self, ids: list[int], tokenizer: Any) -> tuple[list[int], list[int]] | None:
        """Return the thought of an output with its closing mark, and the rest; None if the thought does not end."""
        end = self.end(whole_text(ids, tokenizer))
        if end is None:
            return None
        head, rest, behind = cut(ids, end, tokenizer)
        return [*head, *tokenizer.encode(rest, add_special_tokens=False)], behind

    def in_turn(self, earlier_ids: list[int], tokenizer: Any) -> "Thoughts":
        """Return these thoughts for a later turn: its thought is open if the mark stands right before it."""
        before = whole_text(earlier_ids[-MARK_TOKENS:], tokenizer)
        return replace(self, is_open=before.rstrip().endswith(self.opening.strip()))

    def is_opened_in(self, ids: list[int], tokenizer: Any) -> bool:
        """Return whether an answer opens another thought."""
        return self.opening.strip() in whole_text(ids, tokenizer)

    def marks(self, tokenizer: Any) -> tuple[str | None, list[int], list[int]]:
        """Return the text at which an engine stops or, if its text does not show the mark, the token, and the rest."""
        ids: list[int] = tokenizer.encode(self.closing, add_special_tokens=False)
        if ids[0] not in tokenizer.added_tokens_decoder:
            return self.closing, [], []
        return None, ids[:1], ids[1:]


@dataclass(slots=True, frozen=True)
class Parts:
    """The parts of a response: the opening mark of its thought, the thought, the closing mark, the answer.

    Example: with a token for each mark and letter, ``head`` of ``<think>a</think>b`` has three tokens.
    """

    head: list[int] = field(default_factory=list)
    """The tokens before the answer."""
    rest: str = ""
    """The end of the closing mark, if one token has both that end and the beginning of the answer."""
    opening: str = ""
    thought: str = ""
    closing: str = ""
    """The closing mark. If the response ends within its thought, this is the mark that it lacks."""
    answer: str | None = None
    """The answer as text; None if the response ends within its thought."""


def read_thoughts(
    tokenizer: Any, chat_settings: Mapping[str, Any] | None = None, marks: list[str] | bool | None = None
) -> Thoughts | None:
    """Return how a model thinks, by rendering its chat template in several ways; None if it does not think.

    ``marks`` is the value of ``refiner.thoughts``.
    """
    if marks is False:
        return None
    settings = dict(chat_settings or {})
    begin = _begin(tokenizer, settings)
    candidates = [(marks[0], marks[1])] if isinstance(marks, list) else _candidates(tokenizer, settings)
    for opening, closing in candidates:
        opens, closes = begin.rfind(opening), begin.rfind(closing)
        if closes > opens >= 0 and not marks:
            return None  # the prompt has closed an empty thought: it is told not to think
        header = closing.partition(begin)[2] if begin else ""
        return Thoughts(opening=opening, closing=closing, is_open=opens > closes, header=header)
    return None


def _chat(tokenizer: Any, settings: Mapping[str, Any], reply: dict[str, str] | None = None, **more: Any) -> str:
    """Return the text of a chat: a question, and a reply or the beginning of one."""
    messages = [{"role": "user", "content": "x"}, *([{"role": "assistant", **reply}] if reply else [])]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **{**settings, **more}))


def _begin(tokenizer: Any, settings: Mapping[str, Any], **more: Any) -> str:
    """Return the text that the generation prompt adds after a question."""
    return _behind(_chat(tokenizer, settings, **more), _chat(tokenizer, settings, add_generation_prompt=True, **more))


def _behind(shared: str, text: str) -> str:
    """Return ``text`` without the prefix that it shares with ``shared``."""
    return text[len(os.path.commonprefix([shared, text])) :]


def _candidates(tokenizer: Any, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield pairs of opening and closing marks that a template shows, or whose thought it hides."""
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
