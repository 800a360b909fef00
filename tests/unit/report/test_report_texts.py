"""Refinements and tokens as the page shows them: counts of all, a fair sample, diffs, and texts that can be shown."""

from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from recipe.report import refinements
from recipe.report.refinements import KEPT, PUT_IN, TAKEN_OUT, pieces
from recipe.report.runs import printable, read_run


def test_the_sample_has_equal_shares_of_runs_and_verdicts_and_is_always_the_same() -> None:
    small, large = ["accepted"] * 3, ["not_better"] * 900 + ["accepted"] * 4 + ["truncated"] * 100
    first, second = chosen = refinements.choose([small, large], 50)
    assert first == {0, 1, 2}
    assert Counter(large[row] for row in second) == {"not_better": 22, "truncated": 21, "accepted": 4}
    assert max(second) - min(second) > 600, "from the whole run"
    assert refinements.choose([small, large], 50) == chosen
    assert refinements.counts([small, large]) == {"accepted": 7, "not_better": 900, "truncated": 100}


def test_a_scored_row_has_a_diff_and_a_failed_one_what_is_known(write_run: Callable, refinement: Callable) -> None:
    rows = [refinement(1, "accepted"), refinement(2, "max_reward"), refinement(3, "truncated", reward=float("nan"))]
    run = read_run(write_run("a", [0.0], refinements=rows))
    table = refinements.table([run], [{0, 2}])
    assert table["prompts"] == ["Add them."]
    scored, failed = table["rows"]
    assert scored["pieces"] == [KEPT, "x ", PUT_IN, "+", TAKEN_OUT, "-", KEPT, " y"]
    assert (scored["reward"], scored["refined_reward"]) == (-0.3, 1.0)
    assert (failed["step"], failed["response"], failed["detail"], failed["reward"]) == (3, "x - y", "x +", None)


@given(st.text("ab \n"), st.text("ab \n"))
def test_a_diff_loses_nothing(before: str, after: str) -> None:
    found = pieces(before, after)
    assert "".join(text for kind, text in found if kind != PUT_IN) == before
    assert "".join(text for kind, text in found if kind != TAKEN_OUT) == after


def test_a_diff_keeps_lines_and_words_but_no_shreds() -> None:
    assert pieces("a = 1\nb = 2\n", "a = 1\nb = 3\n") == [
        *((KEPT, "a = 1\nb = "), (PUT_IN, "3"), (TAKEN_OUT, "2"), (KEPT, "\n")),
    ]
    assert pieces("it is what it is", "def f(x): return x") == [
        *((TAKEN_OUT, "it is what it is"), (PUT_IN, "def f(x): return x")),
    ]


def test_a_chat_names_the_roles_of_several_messages_and_what_cannot_be_shown() -> None:
    one = {"role": "user", "content": "x" * 9500}
    cut = "x" * 8000 + "\n[1,500 more characters are in the run's records]"
    assert refinements.prompt_text([one]) == cut
    two = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert refinements.prompt_text(two) == "system: Be kind.\n\nuser: Hi"
    assert printable("a\tb\r\nc\x00\x1b[1m\u202e\ud800") == "a\tb\nc⟨00⟩⟨1B⟩[1m⟨202E⟩⟨D800⟩"
