"""The reward of a final answer, for any verl run (docs/math.md): 1 if it equals the expected one, else 0.

Model text is never parsed in the process that calls this, nor run anywhere.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from numbers import Real

from reward.grading import Graded, require, row_check, verl_function
from reward.judge import ask
from reward.judge.math_answers import can_read, grade_answer, grade_math, grade_text, is_whole_number, load
from reward.judge.math_marks import find_marked
from reward.labels import wrong_with
from reward.limits import Limits


@dataclass(slots=True, kw_only=True, frozen=True)
class MathProblem(Graded):
    r"""A problem with one final answer; build it with `from_answer`, which checks it.

    Example: `MathProblem.from_answer("72", problem_id=1).score("So it is \boxed{72.0}.").score` is 1.0.
    """

    @classmethod
    def from_answer(cls, answer: object, *, problem_id: object) -> "MathProblem":
        """Check the expected answer: ValueError if it is no text or number, or empty, or without its parsers."""
        require("math_verify", "math-verify[antlr4_9_3]")
        require("pylatexenc", "pylatexenc")
        is_blank = isinstance(answer, str) and (not answer.strip() or find_marked(answer) == "")
        is_number = isinstance(answer, Real) and not isinstance(answer, bool) and math.isfinite(answer)
        if is_blank or not (is_number or isinstance(answer, str)):
            raise ValueError(f"problem {problem_id}: the expected answer is {answer!r}: give text or a number")
        text = str(answer)
        if isinstance(answer, float) and "e" in text:  # 1e-07 is no number in LaTeX
            text = format(Decimal(text), "f")
        return cls(problem_id=str(problem_id), ground_truth=text)

    def ask(self, response: str, limits: Limits) -> tuple[str, float, str]:
        """See `Graded.ask`."""
        if not is_whole_number(self.ground_truth):
            return ask(partial(grade_answer, response, self.ground_truth), load=load, limits=limits).value
        grade = ask(partial(grade_text, response, self.ground_truth), limits=limits).value
        if grade[0]:
            return grade
        return ask(partial(grade_math, grade[2], self.ground_truth), load=load, limits=limits).value

    def is_read(self, limits: Limits | None = None) -> bool:
        """Return whether math-verify reads the expected answer; otherwise answers are compared with it as text.

        Raises:
            UnjudgeableError, JudgeLostError: as `reward.judge.ask` does.
        """
        return ask(partial(can_read, self.ground_truth), load=load, limits=limits or Limits()).value


compute_score = verl_function(MathProblem.from_answer)
validate_row = row_check(MathProblem.from_answer, wrong_with)
