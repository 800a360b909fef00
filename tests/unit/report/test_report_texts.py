"""Refinements and tokens as the page shows them: counts of all, a fair sample, diffs, and texts that can be shown."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.online_refiner.rollout import FAILED, SCORED, SKIPPED
from recipe.report import refinements, token_maps
from recipe.report.diff import KEPT, PUT_IN, TAKEN_OUT, pieces
from recipe.report.refinements import Index
from recipe.report.runs import printable, read_run


def test_every_verdict_of_the_refine_stage_is_explained() -> None:
    assert set(refinements.VERDICTS) == {*SCORED, *FAILED, *SKIPPED}


@pytest.mark.parametrize(
    ("total", "sizes", "shares"),
    [(10, [2, 9, 9], [2, 4, 4]), (100, [2, 9, 9], [2, 9, 9]), (2, [5, 5, 5], [0, 1, 1]), (3, [], []), (0, [4], [0])],
)
def test_a_total_is_shared_out_equally(total: int, sizes: list[int], shares: list[int]) -> None:
    assert refinements.split(total, sizes) == shares


def test_the_sample_has_equal_shares_of_runs_and_verdicts_and_is_always_the_same() -> None:
    small = Index(verdicts=["accepted"] * 3)
    large = Index(verdicts=["not_better"] * 900 + ["accepted"] * 4 + ["truncated"] * 100)
    first, second = chosen = refinements.choose([small, large], 50)
    assert first == {0, 1, 2}
    assert Counter(large.verdicts[line] for line in second) == {"not_better": 22, "truncated": 21, "accepted": 4}
    assert max(second) - min(second) > 600, "from the whole run"
    assert refinements.choose([small, large], 50) == chosen


def test_verdicts_are_counted_over_all_rows_in_the_order_of_the_table() -> None:
    found = refinements.counts([Index(verdicts=["new", "max_reward", "accepted"]), Index(verdicts=["accepted"])])
    assert list(found.items()) == [("accepted", 2), ("max_reward", 1), ("new", 1)]


def test_a_scored_row_has_a_diff_and_a_failed_one_what_is_known(write_run: Callable, refinement: Callable) -> None:
    rows = [refinement(1, "accepted"), refinement(2, "max_reward"), refinement(3, "truncated", reward=float("nan"))]
    run = read_run(write_run("a", [0.0], refinements=rows))
    table = refinements.table([run], [{0, 2}])
    assert table["prompts"] == ["Add them."]
    scored, failed = table["rows"]
    assert scored["pieces"] == [KEPT, "x ", TAKEN_OUT, "-", PUT_IN, "+", KEPT, " y"]
    assert (scored["reward"], scored["refined_reward"]) == (-0.3, 1.0)
    assert (failed["step"], failed["response"], failed["detail"], failed["reward"]) == (3, "x - y", "x +", None)


@given(st.text("ab \n"), st.text("ab \n"))
def test_a_diff_loses_nothing(before: str, after: str) -> None:
    found = pieces(before, after)
    assert "".join(text for kind, text in found if kind != PUT_IN) == before
    assert "".join(text for kind, text in found if kind != TAKEN_OUT) == after


def test_a_diff_keeps_lines_and_words_but_no_shreds() -> None:
    assert pieces("a = 1\nb = 2\n", "a = 1\nb = 3\n") == [
        *((KEPT, "a = 1\nb = "), (TAKEN_OUT, "2"), (PUT_IN, "3"), (KEPT, "\n")),
    ]
    assert pieces("it is what it is", "def f(x): return x") == [
        *((TAKEN_OUT, "it is what it is"), (PUT_IN, "def f(x): return x")),
    ]


def test_a_chat_of_several_messages_names_the_roles() -> None:
    one = {"role": "user", "content": "Hi"}
    assert refinements.prompt_text([one]) == "Hi"
    assert refinements.prompt_text([{"role": "system", "content": "Be kind."}, one]) == "system: Be kind.\n\nuser: Hi"


def test_a_long_text_says_how_much_is_left_out() -> None:
    text = refinements.prompt_text([{"role": "user", "content": "x" * 9500}])
    assert text == "x" * 8000 + "\n[1,500 more characters are in the run's records]"


def test_what_cannot_be_seen_is_shown_by_its_number() -> None:
    assert printable("a\tb\r\nc\x00\x1b[1m\u202e\ud800") == "a\tb\nc⟨00⟩⟨1B⟩[1m⟨202E⟩⟨D800⟩"


def test_token_maps_are_spread_over_the_steps_and_know_their_rewards(write_run: Callable, refinement: Callable) -> None:
    tokens = [
        {"step": step, "key": f"u_{step}", "response": [["x", -0.5]], "refined": [["\x00", float("-inf")]]}
        for step in range(1, 10)
    ]
    rows = [refinement(step, "accepted") for step in range(1, 9)]
    run = read_run(write_run("a", [0.0], tokens=tokens, refinements=rows))
    chosen = token_maps.choose([run], 3)
    assert [pair["step"] for pair in chosen[0]] == [1, 5, 9]
    found = refinements.index(run, {(1, "u_1"), (9, "u_9")})
    first, _, last = token_maps.table(chosen, [found])
    assert first == {
        **{"run": 0, "step": 1, "rewards": [-0.3, 1.0]},
        **{"response": [["x", -0.5]], "refined": [["⟨00⟩", None]]},
    }
    assert last["rewards"] == [] and token_maps.gain(last) == 0.0
    assert token_maps.gain(first) == 1.3
