"""A text in the policy's tokens: a response's own where it repeats that, and none that reads otherwise."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from refiner_worker.text.tokens import cut, encode_like, starts


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


def ids_of(tokenizer: Any, *pieces: str) -> list[int]:
    """Return the token of each piece, one by one."""
    found = [tokenizer.encode(piece, add_special_tokens=False) for piece in pieces]
    assert all(len(one) == 1 for one in found)
    return [one for (one,) in found]


@pytest.mark.parametrize(
    ("response", "text", "expected"),
    [
        (["Hel", "lo", " world"], "Hello world", ["Hel", "lo", " world"]),  # all of it
        (["Hel", "lo", " world"], "Hello there", ["Hel", "lo", " there"]),
        (["Hel", "lo", " world"], "Hello worldly", ["Hel", "lo", " worldly"]),  # no word is cut where neither cuts it
        (["Hel", "lo", " world"], "So, Hello world", ["So", ",", " Hello", " world"]),  # it begins within a token
        (["Hel", "lo", " world"], "So\nHello world", ["So", "\n", "Hel", "lo", " world"]),
        ([" ret", "urn", " x"], " if return x", [" if", " ret", "urn", " x"]),
        (["a", "<|im_end|>", " b"], "a b", ["a", " b"]),  # a control token has no text, and is not repeated
        ([" x"] * 3, " x x", [" x"] * 2),
        (["no"], "", []),
    ],
)
def test_tokens_of_a_repeated_stretch(smol: Any, response: list[str], text: str, expected: list[str]) -> None:
    assert encode_like(text, ids_of(smol, *response), smol) == ids_of(smol, *expected)


@pytest.mark.parametrize("text", ["a <|im_end|>", "<|im_start|>x", "half \ud83d"])
def test_a_text_that_would_be_read_otherwise(smol: Any, text: str) -> None:
    assert encode_like(text, [5], smol) is None


def test_bytes_that_are_no_text_are_divided_after_as_many_tokens_as_a_character_has(smol: Any) -> None:
    """A policy that falls apart may write thousands of them, which would all be decoded again for each."""
    byte = smol.convert_tokens_to_ids("Ģ")  # 0x80, which is never the first byte of a character
    assert [place for place, _ in starts([byte] * 9, smol)] == [0, 4, 8]


PIECES = st.lists(st.text(st.sampled_from("ab. \né日😀ñ_1"), max_size=6), min_size=1, max_size=6)


@given(pieces=PIECES, others=PIECES, kept=st.integers(0, 6))
def test_any_edit_of_any_tokens(smol: Any, pieces: list[str], others: list[str], kept: int) -> None:
    """A response in tokens of somebody's own, and an answer that repeats a part of it."""
    ids = [one for piece in pieces for one in smol.encode(piece, add_special_tokens=False)]
    response = "".join(pieces)
    assert encode_like(response, ids, smol) == ids, "a text that is the response is its tokens"
    text = "".join([*others, *pieces[:kept], *others])
    found = encode_like(text, ids, smol)
    assert found is not None and smol.decode(found) == text
    end = smol.eos_token_id
    assert encode_like(text, [*ids, end], smol) == found, "its end of turn is not its text"


@given(ids=st.lists(st.integers(0, 49_151), max_size=40))
def test_any_token_ids(smol: Any, ids: list[int]) -> None:
    """A policy that falls apart writes bytes that are no text, and control tokens."""
    text = smol.decode(ids, skip_special_tokens=True)
    found = encode_like(text, ids, smol)
    if found is not None:
        assert smol.decode(found) == text
    places = list(starts(ids, smol))
    assert places[0] == (0, 0) and places == sorted({*places}) and places[-1][0] <= len(ids)


@given(pieces=PIECES, place=st.integers(0, 36))
def test_a_text_is_cut_at_any_of_its_characters(smol: Any, pieces: list[str], place: int) -> None:
    """The cut may be within a token, or behind a character of several tokens."""
    ids = [one for piece in pieces for one in smol.encode(piece, add_special_tokens=False)]
    text = "".join(pieces)
    before, rest, behind = cut(ids, min(place, len(text)), smol)
    assert (smol.decode(before) + rest, smol.decode(behind)) == (text[:place], text[place:])
