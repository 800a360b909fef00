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


def parse_answer(
    token_ids: list[int],
    *,
    response: str,
    before: str | None = None,
    behind: str = "",
    eos_token_id: int,
    stop_token_ids: Collection[int] = (),
    tokenizer: Any,
    stop: str | None = None,
    may_think: bool = True,
) -> Answer:
    """Strip what is not the answer from the refiner's output and end it as the policy ends its responses.

    At its ends the answer keeps the white space that the response has there as well: an edit is what the refiner
    changed. The ids stay as the refiner generated them (the policy shares its tokenizer); only where white space is
    stripped or a token straddles the end of the answer, the rest is encoded again.

    The generated ids have the EOS token, another one of ``stop_token_ids``, or the text ``stop`` that ended them. That
    text is part of the answer, unless it is CLOSE_TAG. Then the answer was begun with OPEN_TAG, and one that the
    refiner wrote again is taken out; and so is any other special token.

    ``behind`` is the text before the answer: the mark that closes its thought, and maybe a fence that opens a program.
    ``before`` is the white space to put before the answer, copied from the response. None: keep the white space that
    response and answer share.

    If ``may_think``, an answer that begins with ``<think>`` and does not close it is a thought that was cut.

    Returns:
        The answer. It is failed if it is cut by the length limit or at a fence that opens its program, has a tag in it
        or half of one at its end, or no text; also if it ends at a closing tag that may be a copy of the response's.
    """
    stops, special = {eos_token_id, *stop_token_ids}, {*tokenizer.all_special_ids}
    end = next((place for place, token in enumerate(token_ids) if token in stops), len(token_ids))
    ended = end < len(token_ids)
    ids = [token for token in token_ids[:end] if token not in special]  # the reward does not see them either
    has_tags = stop == CLOSE_TAG
    if has_tags:
        ids = _without_open_tag(ids, tokenizer)
    own_before = edge(decode(tokenizer, ids))
    if before is None:
        before = _common_end(edge(response), own_before)
    if not before or before != own_before:
        ids = _begin_with(before, ids, tokenizer)
    text = decode(tokenizer, ids)
    if stop and stop in text:
        text, ended = _cut(text, stop, behind, response)
    after = os.path.commonprefix([_ending(response), _ending(text)])
    text = text.strip()
    is_in_thought = may_think and text.startswith("<think>") and "</think>" not in text
    if not ended or is_in_thought or (has_tags and _holds_tag(text)):
        return Answer(token_ids=[], text=decode(tokenizer, ids).strip(), failure="truncated")
    if not text:
        return Answer(token_ids=[], text="", failure="empty")
    text = before + text + after
    return Answer(token_ids=[*_encoded(text, ids, tokenizer), eos_token_id], text=text, failure=None)


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


def _cut(text: str, stop: str, earlier: str, response: str) -> tuple[str, bool]:
    """Return the text up to its stop, and whether the answer surely ends there.

    It is not sure if the stop is a bare fence without a fence before it, which opens a block instead of closing one, or
    a closing tag that the response has as well, which may be a copy of it.
    """
    text = text.partition(stop)[0]
    if stop == CLOSE_TAG:
        return text, CLOSE_TAG not in response
    return text + stop, stop.strip() != FENCE or FENCE in earlier + text


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
