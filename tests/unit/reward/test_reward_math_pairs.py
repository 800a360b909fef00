r"""Pairs of an expected answer and a response, by kinds of notation: `pairs/*.txt` hold them with their verdicts.

A line `= LABEL` is followed by answers in a box, `+ RIGHT` and `- WRONG`, or whole responses, `+> RIGHT` and
`-> WRONG`, whose line ends are `\n`; `<U+200B>` is a character that is not seen.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reward.judge.math_forms import clean
from reward.judge.math_latex import MAX_DEPTH, UnreadableError, depth
from reward.limits import Limits
from reward.math import MathProblem

PAIRS = sorted((Path(__file__).parent / "pairs").glob("*.txt"))


def cases() -> Iterator[tuple[str, dict[str, float]]]:
    for path in PAIRS:
        verdicts: dict[str, float] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            mark, _, text = re.sub(r"<U\+([0-9A-F]+)>", lambda code: chr(int(code[1], 16)), line).partition(" ")
            if mark == "=":
                verdicts = {}
                yield text, verdicts
            elif mark != "#":
                response = text.replace("\\n", "\n") if mark.endswith(">") else f"\\boxed{{{text}}}"
                verdicts[response] = float(mark[0] == "+")


@pytest.mark.usefixtures("judged_here")
@pytest.mark.parametrize(("label", "verdicts"), list(cases()))
def test_pairs(label: str, verdicts: dict[str, float]) -> None:
    problem = MathProblem.from_answer(label, problem_id="pairs")
    assert {response: problem.score(response, Limits()).score for response in verdicts} == verdicts


@pytest.mark.parametrize(
    "text",
    [
        *(part * 400 for part in (r"\frac", r"\sqrt", r"\not", r"\text", r"\left", "^_", "x^-", r"\over ", "1,")),
        *(part * 100 for part in (r"\{x|", r"\begin{a}", r"\left(", r"\mathbb", "½", "x<1 or ", r"\ldots,", "mod 7 ")),
        r"\begin{pmatrix}" * MAX_DEPTH, r"\end{x}", "\\", r"\frac",
        r"\sqrt[", "}{", r"\binom1", r"\verb|", "\ud800", "\0",
    ],
)  # fmt: skip
def test_what_is_no_latex_is_read_or_is_too_deep(text: str) -> None:
    try:
        assert isinstance(clean(text), str)
    except UnreadableError:
        assert depth(text) > MAX_DEPTH


@pytest.mark.parametrize(
    "response", ["{" * 100_000 + "}" * 100_000, r"\boxed{" * 100_000, r"\boxed{" + r"\frac" * 390 + "}"]
)
def test_hostile_responses_get_a_verdict(response: str) -> None:
    assert MathProblem.from_answer(r"\frac12", problem_id=1).score(response, Limits()).score == 0.0


def test_a_label_that_is_nested_too_deeply_is_met_by_none() -> None:
    problem = MathProblem.from_answer(r"\frac{" * 500 + "}" * 500, problem_id=1)
    assert problem.score(r"\boxed{1}", Limits()).outcome == "fail"


@pytest.mark.parametrize(
    ("label", "is_read"), [(r"\frac12", True), ("x=2", True), (r"p\to q", False), (r"AB\perp CD", False)]
)
def test_a_problem_says_whether_its_label_is_read(label: str, is_read: bool) -> None:
    assert MathProblem.from_answer(label, problem_id=1).is_read() is is_read
