"""Answers that were written to run, stall, fill, crash or fool what grades them. None of them is right: that is 4."""

import resource
from pathlib import Path

import pytest

from reward.judge.no_code import eval_formula
from reward.limits import Limits
from reward.math import MathProblem

FILE = "/tmp/an-answer-ran"
LIMITS = Limits(test_s=1.0, judge_bytes=256 << 20)
RUN = f"open('{FILE}','w')"
MEGABYTE = 1 << 20
CODE = {
    "import": f'\\boxed{{__import__("os").system("touch {FILE}")}}',
    "list for eval, as matrices are in verl's grader": f"\\boxed{{[{RUN}, 4]}}",
    "pi for eval, as in verl's grader": f"\\boxed{{{RUN} and 4*\\pi}}",
    "behind hashes": f'#### exec("{RUN}")',
    "stated": f'The answer is eval("{RUN}")',
    "plain": RUN,
    "subclasses": "\\boxed{().__class__.__base__.__subclasses__()}",
    "lambda": f"\\boxed{{(lambda: {RUN})()}}",
    "equal to all": "\\boxed{type('X', (), {'__eq__': lambda s, o: True})()}",
    "format": "\\boxed{f'{" + RUN + "}'}",
    "digits and calls": "\\boxed{4(4)(4)}",
    "tex writes": f"\\boxed{{\\immediate\\write18{{touch {FILE}}}4}}",
    "tex reads": "\\boxed{\\input{/etc/passwd}}",
    "tex macro": "\\boxed{\\def\\x{\\x\\x}\\x}",
    "sympy by name": f"\\boxed{{\\operatorname{{sympify}}('{RUN}')}}",
    "sympy attribute": "\\boxed{\\operatorname{S.__class__}(4)}",
    "quotes": "\\boxed{'''4'''); import os #}",
}
SIZES = {
    "tower": "\\boxed{9^{9^{9^{9^9}}}}",
    "tower of plain powers": "\\boxed{9**9**9**9}",
    "factorials": "\\boxed{(10^9)!}",
    "binomial": "\\boxed{\\binom{10^{9}}{10^{8}}}",
    "sum": "\\boxed{\\sum_{n=1}^{10^{12}} \\sin(n^n)}",
    "integral": "\\boxed{\\int_0^{9^9} \\sin(x^{x^x})dx}",
    "large matrix": "\\boxed{\\operatorname{eye}(100000)}",
    "determinant": "\\boxed{\\det(\\operatorname{ones}(300,300))}",
    "long exponent": "\\boxed{4E99999999999}",
    "a megabyte of digits": "1" * MEGABYTE,
    "a megabyte of digits in a box": f"\\boxed{{{'1' * MEGABYTE}}}",
    "a megabyte of boxes": "\\boxed{" * (MEGABYTE // 7),
    "a megabyte of closed boxes": "\\boxed{1}" * (MEGABYTE // 9),
    "a megabyte of dollars": "$" * MEGABYTE,
    "a megabyte of brackets": "\\[" * (MEGABYTE // 2),
    "a megabyte of backslashes": "\\" * MEGABYTE,
    "a megabyte of hashes": "#" * MEGABYTE,
    "a megabyte of answers": "answer is " * (MEGABYTE // 10),
    "brackets": f"\\boxed{{{'(' * 400}4{')' * 400}}}",
    "fractions": "\\boxed{" + "\\frac{1}{" * 200 + "4" + "}" * 201,
    "roots": "\\boxed{" + "\\sqrt{" * 19 + "5" + "}" * 20,
    "minus signs": f"\\boxed{{{'-' * 1501}4}}",
    "an expression that is long to simplify": "\\boxed{(\\sin x+\\cos y+z)^{40}/(x+y)^{39}-(x-y)^{41}}",
}  # fmt: skip
TEXTS = {
    "right to left": "\\boxed{\u202e4\u202c5}",
    "nothing wide": "\\boxed{\u200b}",
    "half a character": "\\boxed{\ud800}",
    "zero byte": "\\boxed{\x00}",
    "accents": "\\boxed{" + "e" + "\u0301" * 1000 + "}",
}
TRICKS = {
    "boxes with or": "\\boxed{3} or \\boxed{4}",
    "boxes in a row": "".join(f"\\boxed{{{n}}}" for n in range(10)),
    "boxes with commas": "$\\boxed{4}$, $\\boxed{5}$",
    "boxes with TeX's or": "\\boxed{4} \\text{ or } \\boxed{5}",
    "last box is empty": "\\boxed{4} \\boxed{}",
    "no end": "\\boxed{4\n",
    "empty": "\\boxed{}",
    "empty in a box": "\\boxed{\\boxed{}}",
    "every number": f"\\boxed{{{','.join(map(str, range(50)))}}}",
    "set": "\\boxed{\\{4, 5\\}}",
    "union": "\\boxed{\\{4\\} \\cup \\{5\\}}",
    "interval": "\\boxed{[0, 10]}",
    "all numbers": "\\boxed{\\mathbb{R}}",
    "of a set": "\\boxed{x \\in \\{4, 5\\}}",
    "plus or minus": "\\boxed{4 \\pm 1}",
    "or": "The answer is 3 or 4.",
    "maybe": "The answer is 4, or maybe 5.",
    "not": "The answer is not 4.",
    "two formulas": "It is $4$. Or $5$.",
    "letter": "\\boxed{x}",
    "two equations": "\\boxed{x = 4, x = 5}",
    "unequal": "\\boxed{x \\neq 5}",
    "inequality": "\\boxed{3 < x < 5}",
    "false equation": "\\boxed{4 = 5}",
    "not a number": "\\boxed{\\frac{0}{0}}",
    "infinity": "\\boxed{\\infty}",
    "alternatives": "\\boxed{4 | 5}",
    "nothing": "",
    "words": "Four, I think.\nOr five.",
}
HOSTILE = {**CODE, **SIZES, **TEXTS, **TRICKS}


@pytest.mark.e2e
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answer_neither_runs_nor_hangs_nor_passes(name: str) -> None:
    problem = MathProblem.from_answer("4", problem_id=name)
    assert problem.score("\\boxed{2+2=4}", LIMITS).outcome == "pass"  # and has its judge ready for mathematics
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = problem.score(HOSTILE[name], LIMITS)
    assert (result.score, result.outcome in ("fail", "no_answer", "unreadable")) == (0.0, True), result
    assert not Path(FILE).exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 50 << 10  # KiB, in this process
    assert problem.score("\\boxed{4}", LIMITS).outcome == "pass"


@pytest.mark.e2e
def test_hostile_answers_do_not_pass_as_words_or_matrices_either() -> None:
    for answer in (r"\begin{pmatrix}1&0\\0&1\end{pmatrix}", r"\frac{\pi}{2}", r"\text{four}", "x^2+1"):
        problem = MathProblem.from_answer(answer, problem_id=answer)
        assert [name for name, text in CODE.items() if problem.score(text, LIMITS).score != 0.0] == []
    assert not Path(FILE).exists()


@pytest.mark.e2e
@pytest.mark.parametrize(
    "text",
    [RUN, "().__class__", "(lambda: 4)()", "__import__('os')", "f'{open}'", "(x := 4)", "print"],
)
def test_formulas_only_are_evaluated(text: str) -> None:
    with pytest.raises(ValueError, match="no formula"):
        eval_formula(text)
    assert eval_formula(" (1 + 2) * 0x10 ") == 48 and eval_formula("['a', 'b']") == ["a", "b"]
    assert not Path(FILE).exists()
