"""From the refiner's output to a refined response a' as token ids, or the reason why there is none."""

import os.path
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from refiner_worker.text.tokens import cut, decode

FENCE = "```"
OPEN_TAG = "<refined>"
CLOSE_TAG = "</refined>"


@dataclass(slots=True, kw_only=True)
class Answer:
    """A refined response, or why there is none.

    Example: ``Answer(token_ids=[19, 4, 2], text="x = 1", failure=None)`` with the policy's EOS id 2.
    """

    token_ids: list[int]
    """a', ended as a is; empty if failed."""
    text: str
    """a' without special tokens; what was written, if failed."""
    failure: str | None
    """``truncated`` or ``empty``; None if there is an answer."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Place:
    """The place in a response for which a text is written: what stands there now, and what stands around it."""

    response: str
    """The text that stands there: the answer of the response, or its thought."""
    before: str | None = None
    """White space to put before the new text, copied from the response. None: keep what both texts begin with."""
    behind: str = ""
    """The text before the place: the mark that closes a thought, and maybe a fence that opens a program."""
    stop: str | None = None
    """The text that ends the new one. It is part of it, unless it is CLOSE_TAG: then OPEN_TAG was before the place."""

    @property
    def has_tags(self) -> bool:
        """Whether the text is written between OPEN_TAG and CLOSE_TAG."""
        return self.stop == CLOSE_TAG


def parse_answer(
    token_ids: list[int],
    place: Place,
    *,
    eos_token_id: int,
    stop_token_ids: Collection[int] = (),
    tokenizer: Any,
    may_think: bool = True,
) -> Answer:
    """Strip what is not the answer from the refiner's output and end it as the policy ends its responses.

    At its ends the answer keeps the white space that the response has there as well: an edit is what the refiner
    changed. The ids stay as the refiner generated them (the policy shares its tokenizer); only where white space is
    stripped or a token straddles the end of the answer, the rest is encoded again. Special tokens and an opening tag
    that the refiner wrote again are taken out.

    Args:
        token_ids: The generated ids with what ended them: EOS, another one of ``stop_token_ids``, or ``place.stop``.
        place: The place in the response for which they were generated.
        eos_token_id: The token that ends a'.
        stop_token_ids: Other tokens that end a turn.
        tokenizer: The policy's tokenizer.
        may_think: Whether an answer that begins with ``<think>`` and does not close it is a thought that was cut.

    Returns:
        The answer. It is failed if it is cut by the length limit or at a fence that opens its program, has a tag in it
        or half of one at its end, or no text; also if it ends at a closing tag that may be a copy of the response's.
    """
    ids, ended = _before_end(token_ids, {eos_token_id, *stop_token_ids}, tokenizer)
    ids, before = _begun(ids, place, tokenizer)
    text = decode(tokenizer, ids)
    if place.stop and place.stop in text:
        text, ended = _cut(text, place.stop, place)
    answer = text.strip()
    if not ended or (may_think and _is_in_thought(answer)) or (place.has_tags and _holds_tag(answer)):
        return Answer(token_ids=[], text=decode(tokenizer, ids).strip(), failure="truncated")
    if not answer:
        return Answer(token_ids=[], text="", failure="empty")
    whole = before + answer + os.path.commonprefix([_ending(place.response), _ending(text)])
    return Answer(token_ids=[*_encoded(whole, ids, tokenizer), eos_token_id], text=whole, failure=None)


def _before_end(token_ids: list[int], stops: set[int], tokenizer: Any) -> tuple[list[int], bool]:
    """Return the ids before the first stop, without special tokens, and whether there is a stop."""
    end = next((place for place, token in enumerate(token_ids) if token in stops), len(token_ids))
    special = {*tokenizer.all_special_ids}  # the reward does not see them either
    return [token for token in token_ids[:end] if token not in special], end < len(token_ids)


def _begun(ids: list[int], place: Place, tokenizer: Any) -> tuple[list[int], str]:
    """Return the ids without an opening tag, with the white space that belongs before them, and that white space."""
    if place.has_tags:
        ids = _without_open_tag(ids, tokenizer)
    own = edge(decode(tokenizer, ids))
    before = _common_end(edge(place.response), own) if place.before is None else place.before
    return (ids if before and before == own else _begin_with(before, ids, tokenizer)), before


def _is_in_thought(text: str) -> bool:
    """Return whether a text begins with a thought that it does not close."""
    return text.startswith("<think>") and "</think>" not in text


def _begin_with(space: str, ids: list[int], tokenizer: Any) -> list[int]:
    """Return ids that begin with this white space and no other."""
    while ids and not decode(tokenizer, ids[:1]).strip():
        ids = ids[1:]
    prefixes = (ids[:length] for length in range(1, len(ids) + 1))  # to the end of a character
    head = next((one for one in prefixes if not decode(tokenizer, one).endswith("\ufffd")), ids)
    first = decode(tokenizer, head)
    if not space and first == first.lstrip():
        return ids
    return [*tokenizer.encode(space + first.lstrip(), add_special_tokens=False), *ids[len(head) :]]


def _without_open_tag(ids: list[int], tokenizer: Any) -> list[int]:
    """Return ids without the opening tag that they begin with, if they do, and without the white space before it."""
    text = decode(tokenizer, ids)
    if not text.lstrip().startswith(OPEN_TAG):
        return ids
    _, _, behind = cut(ids, text.index(OPEN_TAG) + len(OPEN_TAG), tokenizer)
    return behind


def _holds_tag(text: str) -> bool:
    """Return whether a text holds a tag, or ends with the beginning of one, as in ``The hare.</refi``."""
    halves = (tag[:length] for tag in (OPEN_TAG, CLOSE_TAG) for length in range(len("</re"), len(tag)))
    return OPEN_TAG in text or CLOSE_TAG in text or text.endswith(tuple(halves))


def _cut(text: str, stop: str, place: Place) -> tuple[str, bool]:
    """Return the text up to its stop, and whether the answer surely ends there.

    It is not sure if the stop is a bare fence without a fence before it, which opens a block instead of closing one, or
    a closing tag that the response has as well, which may be a copy of it.
    """
    text = text.partition(stop)[0]
    if place.has_tags:
        return text, CLOSE_TAG not in place.response
    return text + stop, stop.strip() != FENCE or FENCE in place.behind + text


def edge(text: str) -> str:
    """Return the white space that a text begins with."""
    return text[: len(text) - len(text.lstrip())]


def _ending(text: str) -> str:
    """Return the white space that a text ends with."""
    return text[len(text.rstrip()) :]


def _common_end(one: str, other: str) -> str:
    return os.path.commonprefix([one[::-1], other[::-1]])[::-1]


def _encoded(text: str, ids: list[int], tokenizer: Any) -> list[int]:
    """Return a text's ids: the longest prefix of ``ids`` that decodes to a prefix of ``text``, then the rest encoded.

    The prefix of ``ids`` may be empty.
    """
    fitting = bisect_right(range(len(ids) + 1), len(text), key=lambda length: len(decode(tokenizer, ids[:length])))
    most = min(len(ids), fitting + 3)  # a part of a character may be decoded to more characters than the whole
    prefixes = (ids[:length] for length in range(most, -1, -1))
    texts = ((prefix, decode(tokenizer, prefix)) for prefix in prefixes)
    own, found = next((prefix, found) for prefix, found in texts if text.startswith(found))
    rest = text[len(found) :]
    return [*own, *tokenizer.encode(rest, add_special_tokens=False)] if rest else own
