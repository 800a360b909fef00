"""What of a turn is kept when it is refined block-wise."""

import math
import time
from collections import Counter
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from recipe.online_refiner.boundary import (
    CHOICES,
    SEPARATORS,
    block_starts,
    departure,
    num_kept_tokens,
    token_at,
    token_offsets,
)
from recipe.online_refiner.rollout import Rollout
from refiner_worker.config import RefinerConfig

PROGRAM = "\ndef f(x):\n    y = x\n\n    return y + é\n\n\nprint(f(1))\n\n"
EOS = 2


def blockwise(block: str = "line", block_choice: str = "random") -> RefinerConfig:
    return RefinerConfig(**{"block": block, "block_choice": block_choice})


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


def rollout(tokenizer: Any, text: str, session: int = 0, step: int = 1, **more: Any) -> Rollout:
    ids = [*tokenizer.encode(text, add_special_tokens=False), EOS]
    values = {"key": f"u_{session}_0", "messages": [], "prompt_ids": [1], "response_ids": ids, "reward": 0.0}
    return Rollout(**{**values, "request": {"global_steps": step}, **more})


def kept_text(config: Any, one: Rollout, tokenizer: Any, limit: int = 1000) -> str:
    return tokenizer.decode(one.turn_ids[: num_kept_tokens(config, one, tokenizer, limit)])


@pytest.mark.parametrize(
    ("block", "text", "blocks"),
    [
        ("line", "", [""]),
        ("line", " \n", [" \n"]),
        ("line", "a = 1\n\n  b = 2\n", ["a = 1\n\n", "  b = 2\n"]),
        ("line", "\n\na\n \nb", ["\n\na\n \n", "b"]),
        ("paragraph", "a\nb\n \n\n  c\n\nd\n\n", ["a\nb\n \n\n", "  c\n\n", "d\n\n"]),
        (
            "sentence",
            'He said "go." Then... he went! 1.5 m?\nFar',
            ['He said "go." ', "Then... ", "he went! ", "1.5 m?\n", "Far"],
        ),
        ("sentence", "一。二！？ 三", ["一。", "二！？ ", "三"]),
        ("sentence", "  no end", ["  no end"]),
    ],
)
def test_a_text_is_its_blocks(block: str, text: str, blocks: list[str]) -> None:
    starts = block_starts(text, block)
    assert [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)] == blocks


@pytest.mark.parametrize("block", SEPARATORS)
@given(text=st.text(st.sampled_from("ab.!\n \té。'"), max_size=40))
def test_every_block_has_text_and_none_is_lost(block: str, text: str) -> None:
    starts = block_starts(text, block)
    assert starts[0] == 0 and starts == sorted(set(starts))
    blocks = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    assert len(blocks) == 1 or all(one.strip() for one in blocks)


@given(text=st.text(st.sampled_from("ab.\n é日本語😀ñ\t")))
def test_a_token_begins_where_the_text_before_it_ends(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    offsets = token_offsets(ids, tokenizer)
    assert offsets == sorted(offsets)
    for character in range(len(text)):
        token = token_at(offsets, character)
        before = tokenizer.decode(ids[:token])
        assert text.startswith(before) and len(before) == offsets[token] <= character
        after = [offset for offset in [*offsets, len(text)] if offset > offsets[token]]
        assert not after or character < after[0]


@given(ids=st.lists(st.integers(0, 49_151), max_size=60))
def test_any_token_ids_have_offsets(tokenizer: Any, ids: list[int]) -> None:
    """A policy that falls apart writes bytes that are no text."""
    offsets = token_offsets(ids, tokenizer)
    assert len(offsets) == len(ids) and offsets == sorted(offsets)


def test_tokens_that_are_no_text_take_no_time(tokenizer: Any) -> None:
    part = next(token for token in tokenizer.encode("日本語") if tokenizer.decode([token]) == "\ufffd")
    begin = time.process_time()
    assert token_offsets([part] * 4000, tokenizer)[-1] > 0
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("choice", ["first_failure", "random"])
@pytest.mark.parametrize("block", SEPARATORS)
@given(
    text=st.text(st.sampled_from("ab. \n\té日"), min_size=1, max_size=60),
    session=st.integers(0, 9),
    limit=st.integers(1, 30),
)
def test_whole_blocks_are_kept_as_far_as_tokens_allow(
    tokenizer: Any, block: str, choice: str, text: str, session: int, limit: int
) -> None:
    one = rollout(tokenizer, text, session, first_error=session * 5)
    number = num_kept_tokens(blockwise(block, choice), one, tokenizer, limit)
    kept = tokenizer.decode(one.turn_ids[:number])
    assert number < limit and text.startswith(kept) and (not kept or len(kept) < len(text.rstrip()))
    next_token = len(tokenizer.decode(one.turn_ids[: number + 1]))
    assert any(len(kept) <= start and (start < next_token or start == 0) for start in block_starts(text, block))


def test_the_token_in_which_a_block_begins_is_not_kept(tokenizer: Any) -> None:
    """The line break and the indentation behind it are one token."""
    one = rollout(tokenizer, "def f(x):\n    return x", first_error=14)
    assert kept_text(blockwise(block_choice="first_failure"), one, tokenizer) == "def f(x):"


@pytest.mark.parametrize(
    ("first_error", "kept"),
    [
        (None, ""),
        (0, ""),
        (4, ""),
        (PROGRAM.index("    y"), "\ndef f(x):"),
        (PROGRAM.index("y ="), "\ndef f(x):"),
        (PROGRAM.index("    return"), "\ndef f(x):\n    y = x"),
        (PROGRAM.index("print"), PROGRAM[: PROGRAM.index("print")]),
        (len(PROGRAM), PROGRAM[: PROGRAM.index("print")]),
    ],
)
def test_the_block_that_fails_first(tokenizer: Any, first_error: int | None, kept: str) -> None:
    one = rollout(tokenizer, PROGRAM, first_error=first_error)
    assert kept_text(blockwise(block_choice="first_failure"), one, tokenizer) == kept


def test_a_failure_is_counted_in_the_whole_response_of_a_session(tokenizer: Any) -> None:
    one = rollout(tokenizer, "call\ntool\na = 1\nb = 2\nc = 3")
    one.start = len(tokenizer.encode("call\ntool\n"))
    config = blockwise(block_choice="first_failure")
    for first_error, kept in ((19, "a = 1\n"), (24, "a = 1\nb = 2\n"), (3, "")):
        one.first_error = first_error
        assert kept_text(config, one, tokenizer) == kept


def test_the_block_that_the_policy_was_least_sure_of(tokenizer: Any) -> None:
    one = rollout(tokenizer, "a a a\nb b\nc c c", start=0)
    texts = [tokenizer.decode([token]) for token in one.turn_ids]
    one.log_probs = [{" a": -1.0, " b": -2.0, " c": -1.2}.get(text, -0.1) for text in texts]
    assert kept_text(blockwise(block_choice="uncertainty"), one, tokenizer) == "a a a\n", "means -0.55, -0.73, -0.65"
    assert kept_text(blockwise(block_choice="uncertainty"), one, tokenizer, limit=2) == ""
    assert kept_text(blockwise(block_choice="uncertainty"), one, tokenizer, limit=5) == "a a a\n"
    one.log_probs[0] = -9.0
    assert kept_text(blockwise(block_choice="uncertainty"), one, tokenizer) == ""
    one.log_probs = [{" a": -0.8, " b": -0.4, " c": -2.0}.get(text, -0.1) for text in texts]
    assert kept_text(blockwise(block_choice="uncertainty"), one, tokenizer, limit=5) == "", "the last line is no part"


def test_a_random_block_is_the_same_wherever_it_is_drawn(tokenizer: Any) -> None:
    def drawn(session: int, step: int) -> int:
        return num_kept_tokens(blockwise(), rollout(tokenizer, "a\nb\nc\nd", session, step), tokenizer, 1000)

    found = {(session, step): drawn(session, step) for session in range(8) for step in range(8)}
    assert set(found.values()) == {0, 2, 4, 6}, "also the first: everything is written"
    assert all(drawn(*place) == number for place, number in found.items())
    assert len({tuple(found[session, step] for step in range(8)) for session in range(8)}) > 1


def test_the_block_in_which_the_refiner_departs(tokenizer: Any) -> None:
    one, config = rollout(tokenizer, "a b\nc d\ne f", first_error=0), blockwise(block_choice="refiner")
    texts = [tokenizer.decode(one.turn_ids[: num_kept_tokens(config, one, tokenizer, 99, n)]) for n in range(10)]
    assert texts == [""] * 3 + ["a b\n"] * 3 + ["a b\nc d\n"] * 4
    assert num_kept_tokens(config, one, tokenizer, 99, None) == 0 == num_kept_tokens(config, one, tokenizer, 3, 9)


def test_a_block_of_one_token(tokenizer: Any) -> None:
    """All ids before the token are kept, but for the parts of a character."""
    one, config = rollout(tokenizer, "a b\nc日"), blockwise("token", "refiner")
    kept = [num_kept_tokens(config, one, tokenizer, 99, n) for n in range(len(one.turn_ids) + 1)]
    whole = len(tokenizer.encode("a b\nc", add_special_tokens=False))
    assert kept == [*range(whole), *[whole] * (len(one.turn_ids) - 1 - whole), *[len(one.turn_ids) - 1] * 2]
    assert len(one.turn_ids) - 1 - whole > 1, "the last letter is several tokens"


def test_the_refiner_keeps_what_it_would_write_itself(tokenizer: Any) -> None:
    """The place is drawn by its probabilities, and is the same wherever that is done."""
    probabilities = [0.9, 0.5, 1.0, 0.25]
    log_probs = [math.log(one) for one in probabilities]
    members = [rollout(tokenizer, "a", session, step) for session in range(50) for step in range(80)]
    places = [departure(one, log_probs, 1.0) for one in members]
    assert places == [departure(one, log_probs, 0.7) for one in members]
    expected = [0.1, 0.9 * 0.5, 0, 0.9 * 0.5 * 0.75, 0.9 * 0.5 * 0.25]
    found = Counter(places)
    assert [found[place] / len(places) for place in range(5)] == pytest.approx(expected, abs=0.03)


def test_a_greedy_refiner_keeps_what_is_more_likely_than_not(tokenizer: Any) -> None:
    one = rollout(tokenizer, "a")
    for probabilities, place in (([], 0), ([0.6, 0.51, 0.49, 0.9], 2), ([0.4], 0), ([0.9, 0.8], 2)):
        assert departure(one, [math.log(value) for value in probabilities], 0.0) == place


def test_every_choice_is_known_to_the_config() -> None:
    known = get_type_hints(RefinerConfig)
    assert get_args(known["block_choice"]) == tuple(CHOICES)
    assert get_args(get_args(known["block"])[0]) == ("token", *SEPARATORS)


@pytest.mark.parametrize(
    "text", ["!" * 20_000, "\n" * 20_000 + "a", " \n" * 10_000, "\n" + " " * 20_000 + "a", '"' * 20_000]
)
@pytest.mark.parametrize("block", SEPARATORS)
def test_a_response_that_repeats_one_character_takes_no_time(block: str, text: str) -> None:
    begin = time.process_time()
    block_starts(text, block)
    assert time.process_time() - begin < 0.5
