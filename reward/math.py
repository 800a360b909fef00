r"""The reward of a final answer: 1 if it equals the expected one by math-verify, else 0.

For any verl run:

reward.custom_reward_function.path=pkg://reward.math
reward.custom_reward_function.name=compute_score

`reward_model.ground_truth` is the expected answer (`72`, `\frac{1}{2}`, `(3, \frac{\pi}{2})`), or a solution that gives
it in a `\boxed{}` or behind `####`: verl's own GSM8K, MATH and DAPO data run as they are, whatever their `data_source`.
The answer in a response is found as `reward.judge.math_marks.find_answer` says. Model text is never parsed in the
process that calls this, nor run anywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from reward.grading import Graded, ask_grade, require, reward
from reward.limits import Limits


@dataclass(slots=True, kw_only=True, frozen=True)
class MathProblem(Graded):
    r"""A problem with one final answer; build it with `from_answer`, which checks it.

    Example: `MathProblem.from_answer("72", problem_id=1).score("So it is \boxed{72.0}.").score` is 1.0.
    """

    @classmethod
    def from_answer(cls, answer: object, *, problem_id: object) -> "MathProblem":
        """Check the expected answer, text or a number.

        Raises:
            ValueError: it is neither, or empty, or math-verify is not installed.
        """
        require("math_verify", "math-verify[antlr4_9_3]")
        if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not str(answer).strip():
            raise ValueError(f"problem {problem_id}: the expected answer is {answer!r}: give text or a number")
        text = str(answer)
        if isinstance(answer, float) and "e" in text:  # 1e-07 is no number in LaTeX
            text = format(Decimal(text), "f")
        return cls(problem_id=str(problem_id), ground_truth=text)

    def ask(self, response: str, limits: Limits) -> tuple[str, float, str]:
        """See `Graded.ask`."""
        outcome, points, found = ask_grade("grade_text", response, self.ground_truth, limits=limits)
        return (outcome, points, found) if outcome else ask_grade("grade_math", found, self.ground_truth, limits=limits)


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, Any] | None = None,
    *,
    max_concurrency: int = 4,
    limits: Mapping[str, Any] | None = None,
    reward_router_address: object = None,
    reward_model_tokenizer: object = None,
) -> dict[str, float | int | str | None]:
    """Grade one response.

    Args:
        data_source: the row's, used in errors only.
        solution_str: the decoded response.
        ground_truth: the expected answer.
        extra_info: unused.
        max_concurrency: responses graded at once by this process, each by a judge of some 70 MB.
        limits: fields of `Limits` that differ from their defaults; a grade may take `test_s` and `judge_bytes`.
        reward_router_address: given by verl when a reward model runs beside; unused.
        reward_model_tokenizer: as above.

    Returns:
        See `reward.grading.reward`, whose errors are this one's.

    Raises:
        ValueError: the expected answer is malformed.
    """

    def problem() -> MathProblem:
        return MathProblem.from_answer(ground_truth, problem_id=f"of {data_source or 'unnamed data source'}")

    return await reward(problem, solution_str, max_concurrency=max_concurrency, limits=Limits(**dict(limits or {})))
