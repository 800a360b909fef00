"""Text to the policy's tokens and back; a text that repeats a response gets the response's own tokens.

A policy may have written a text in other tokens than its tokenizer would. A refinement that repeats a response word for
word gets the response's tokens, so that a comparison of tokens (``constraint.alignment=diff``) finds no change there.
"""

import functools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any
from unicodedata import normalize

import numpy as np
from rapidfuzz.distance import Levenshtein

MAX_TOKENS_OF_A_CHARACTER = 4
"""The most tokens of one character: one for each of its bytes."""


def encode_like(text: str, response_ids: Sequence[int], tokenizer: Any) -> list[int] | None:
    """Return the tokens of a text; where it repeats a response, they are the response's own.

    A repeated stretch takes the response's tokens only from one shared token start to the next, so no word mixes two
    tokenisations.

    Example: a tokenizer that writes "abc" as one token gives "abc d" the tokens ["abc", " d"]. Of a response that was
    written as ["a", "bc", " e"] the result is ["a", "bc", " d"].

    Special tokens of the response, which have no text, are never taken. The result is None if the ids would not be
    decoded to the text again, as happens with the name of a control token.
    """
    try:
        ids = tokenizer.encode(text, add_special_tokens=False)
    except (TypeError, UnicodeError):  # half a character: a lone surrogate
        return None
    whole = _decode(tokenizer, ids)
    if whole.strip() not in (text.strip(), normalize("NFC", text).strip()):  # some tokenizers compose characters
        return None
    special = {one for one, token in tokenizer.added_tokens_decoder.items() if token.special}
    response = _decode(tokenizer, response_ids)
    own, new = ({place: index for index, place in starts(one, tokenizer)} for one in (response_ids, ids))
    found, done, done_at = list[int](), 0, 0
    for edit in Levenshtein.opcodes(response, whole):
        if edit.tag != "equal":
            continue
        first, last, shift = max(edit.dest_start, done_at), edit.dest_end, edit.src_start - edit.dest_start
        # " x" before which " if" stands may also be said to have "if " after its space: such a stretch is longer.
        while first > max(done_at, -shift) and whole[first - 1] == response[first - 1 + shift]:
            first -= 1
        while last < min(len(whole), len(response) - shift) and whole[last] == response[last + shift]:
            last += 1
        shared = [at for at in range(first, last + 1) if at in new and at + shift in own]
        if not shared:
            continue
        found += ids[done : new[shared[0]]]
        found += [one for one in response_ids[own[shared[0] + shift] : own[shared[-1] + shift]] if one not in special]
        done, done_at = new[shared[-1]], shared[-1]
    found += ids[done:]
    return found if _decode(tokenizer, found) == whole else ids


def starts(ids: Sequence[int], tokenizer: Any) -> Iterator[tuple[int, int]]:
    """Yield each position in a text's tokens at which a new character begins, with the index of that character.

    The first pair is the beginning of the text. The last pair is its end, unless the text ends within a character.
    Example: an emoji of four bytes may be four tokens, of which only the first begins a character.
    """
    context = done = length = 0
    yield 0, 0
    for end in range(1, len(ids) + 1):
        known, text = _piece(tokenizer, tuple(ids[context:done])), _piece(tokenizer, tuple(ids[context:end]))
        is_whole = len(text) > len(known) and not text.endswith("\N{REPLACEMENT CHARACTER}")
        if is_whole or end - done == MAX_TOKENS_OF_A_CHARACTER:
            context, done, length = done, end, length + len(text) - len(known)
            yield done, length


@functools.lru_cache(maxsize=1 << 16)  # a text has few pairs of tokens, and other texts have the same ones
def _piece(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return _decode(tokenizer, ids)


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the exact text of token ids: some tokenizers would remove spaces from it."""
    array = np.asarray(ids, dtype=np.int64)  # a list is walked through twice
    return tokenizer.decode(array, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def decode(tokenizer: Any, ids: list[int]) -> str:
    """Return the text of token ids without special tokens."""
    return tokenizer.decode(np.asarray(ids, dtype=np.int64), skip_special_tokens=True)  # a list is walked through twice


def whole_text(ids: list[int], tokenizer: Any) -> str:
    """Return the text of token ids, special ones included."""
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def cut(ids: list[int], num_characters: int, tokenizer: Any) -> tuple[list[int], str, list[int]]:
    """Split token ids at a character of their text.

    Returns:
        The ids before the cut, the characters before it of a token that the cut splits, and the ids after it.
        The rest of a split token is encoded again; so is a character of several tokens.
    """
    text = whole_text(ids, tokenizer)

    def known(length: int) -> str:
        return whole_text(ids[:length], tokenizer)

    upper = bisect_left(range(len(ids)), num_characters, key=lambda length: len(known(length)))
    while upper < len(ids) and not text.startswith(known(upper)):
        upper += 1
    lower = upper
    while len(known(lower)) > num_characters or not text.startswith(known(lower)):
        lower -= 1
    between = text[num_characters : len(known(upper))]
    behind = tokenizer.encode(between, add_special_tokens=False) if between else []
    return ids[:lower], text[len(known(lower)) : num_characters], [*behind, *ids[upper:]]


def conversation(
    tokenizer: Any, messages: list[dict[str, Any]], prompt_ids: list[int], earlier_ids: list[int]
) -> list[dict[str, Any]]:
    """Return the chat that a turn answers: the prompt's messages or, in a later turn, the session as one message.

    The messages of later turns are not kept anywhere, so the text that the policy read is decoded: the prompt's ids and
    ``earlier_ids``, the session between prompt and turn.
    """
    if not earlier_ids:
        return messages
    return [{"role": "user", "content": decode(tokenizer, prompt_ids + earlier_ids)}]
