"""With how many tokens of a response its refinement is begun (``refiner.keep_prefix``)."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from recipe.online_refiner.method.pairs import Rollout
from recipe.online_refiner.refine import num_kept_tokens, whole_characters


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2)


def rollout(session: int = 0, step: int = 1) -> Rollout:
    values = {"key": f"u_{session}_0", "messages": [], "prompt_ids": [1], "response_ids": [5] * 6, "reward": 0.0}
    return Rollout(**values, request={"global_steps": step})


def logs(*probabilities: float) -> list[float]:
    return [math.log(one) for one in probabilities]


def test_the_refiner_keeps_what_it_would_write_itself() -> None:
    """The place is drawn by its probabilities, and is the same wherever and at whichever temperature that is done."""
    log_probs, members = logs(0.9, 0.5, 1.0, 0.25), [rollout(n, step) for n in range(50) for step in range(80)]
    places = [num_kept_tokens(one, log_probs, list(range(6)), 99, 1.0) for one in members]
    assert places == [num_kept_tokens(one, log_probs, list(range(6)), 99, 0.7) for one in members]
    expected = [0.1, 0.9 * 0.5, 0, 0.9 * 0.5 * 0.75, 0.9 * 0.5 * 0.25]
    found = Counter(places)
    assert [found[place] / len(places) for place in range(5)] == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    ("log_probs", "whole", "limit", "expected"),
    [
        ([], [0, 1, 2], 99, 0),  # nobody answered
        (logs(0.4), [0, 1], 99, 0),
        (logs(0.6, 0.51, 0.49, 0.9), [0, 1, 2, 3], 99, 2),  # greedy: what is more likely than not
        (logs(0.6, 0.51, 0.49, 0.9), [0, 1, 3], 99, 1),  # a character of two tokens is not cut
        (logs(0.9, 0.9, 0.9), [0, 1, 2], 99, 2),  # never all of a turn
        (logs(0.9, 0.9, 0.9), [0, 1, 2], 2, 1),  # one is left to write
        (logs(0.9, 0.9, 0.9), [0, 1, 2], 0, 0),
    ],
)
def test_a_greedy_refiner_by_hand(log_probs: list[float], whole: list[int], limit: int, expected: int) -> None:
    assert num_kept_tokens(rollout(), log_probs, whole, limit, 0.0) == expected


@given(text=st.text(st.sampled_from("ab.\n é日本語😀ñ\t"), min_size=1))
def test_characters_begin_where_the_text_before_them_is_whole(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    expected = [place for place in range(len(ids)) if text.startswith(tokenizer.decode(ids[:place]))]
    assert whole_characters(ids, tokenizer) == expected
    assert expected[0] == 0


@given(ids=st.lists(st.integers(0, 49_151), min_size=1, max_size=60))
def test_any_token_ids_have_places(tokenizer: Any, ids: list[int]) -> None:
    """A policy that falls apart writes bytes that are no text."""
    places = whole_characters(ids, tokenizer)
    assert places == sorted({*places}) and places[0] == 0 and places[-1] < len(ids)
    assert all(b - a <= 4 for a, b in zip(places, [*places[1:], len(ids)], strict=True))
