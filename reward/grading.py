"""Grades of answers that a judge reads without running anything: what mathematics and puzzles share."""

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from reward.apps import Score
from reward.judge import JudgeLostError, UnjudgeableError, ask
from reward.limits import Limits
from reward.verl_reward import thread_pool

_FEEDBACK = {
    "fail": "The final answer is wrong: {}",
    "no_answer": "No final answer was found.",
    "unreadable": "The final answer cannot be read: {}",
}
_MAX_FEEDBACK = 300  # characters of what was found


@dataclass(slots=True, kw_only=True, frozen=True)
class Graded:
    """A problem whose answers are graded by a task of `reward.judge.tasks`."""

    problem_id: str  # names the problem in errors
    ground_truth: str  # what the task needs beside the response
    num_tests: int = 1

    def ask(self, response: str, limits: Limits) -> tuple[str, float, str]:
        """Outcome, points, and what was found in the response; may raise what `reward.judge.ask` raises."""
        raise NotImplementedError

    def score(self, response: str, limits: Limits | None = None) -> Score:
        """Grade one response in a judge, within `limits.test_s` CPU seconds and `limits.judge_bytes`; blocks.

        Returns:
            Points in [0, 1], with the outcome pass, fail, no_answer or unreadable; None with infra_error.
        """
        limits = limits or Limits()
        try:
            outcome, points, found = self.ask(response, replace(limits, judge_s=limits.test_s))
        except UnjudgeableError as error:
            outcome, points, found = "unreadable", 0.0, str(error)
        except JudgeLostError as error:
            return Score(score=None, outcome="infra_error", num_passed=0, num_tests=1, detail=str(error))
        return Score(score=points, outcome=outcome, num_passed=int(outcome == "pass"), num_tests=1, detail=found)


def ask_grade(task: str, *arguments: str, limits: Limits) -> tuple[str, float, str]:
    """Have a judge do one of the tasks `grade_...` of `reward.judge.tasks`; errors as `reward.judge.ask`."""
    outcome, points, found = ask(task, *arguments, limits=limits).value
    return outcome, points, found


def require(package: str, install: str) -> None:
    """Raise ValueError if a package is missing that judges import; says how to install it."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"grading these answers needs the package {package} on every node: pip install {install}")


def verl_function(problem_of: Callable[..., Graded]) -> Callable[..., Awaitable[dict[str, float | int | str | None]]]:
    """Return verl's `compute_score` for one kind of problems.

    Args:
        problem_of: makes a problem of a ground truth and a `problem_id`, or raises ValueError.
    """

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
        """Grade one response without blocking verl's event loop.

        Args:
            data_source: the row's, used in errors only.
            solution_str: the decoded response.
            ground_truth: what the response is compared with.
            extra_info: unused.
            max_concurrency: responses graded at once by this process, each by a judge of some 70 MB.
            limits: fields of `Limits` that differ from their defaults; a grade may take `test_s` and `judge_bytes`.
            reward_router_address: given by verl when a reward model runs beside; unused.
            reward_model_tokenizer: as above.

        Returns:
            score (points), acc (1.0 if they are full), outcome, and feedback (one line for a refiner, or "").

        Raises:
            ValueError: the ground truth is malformed.
            RuntimeError: no judge answered (infra_error): that must not become a reward.
        """
        bounds = Limits(**dict(limits or {}))

        def score() -> tuple[str, Score]:
            problem = problem_of(ground_truth, problem_id=f"of {data_source or 'unnamed data source'}")
            return problem.problem_id, problem.score(solution_str, bounds)

        problem_id, result = await asyncio.get_running_loop().run_in_executor(thread_pool(max_concurrency), score)
        if result.score is None:
            raise RuntimeError(
                f"problem {problem_id}: the answer could not be graded in {bounds.infra_attempts} attempts "
                f"({result.detail}): check free processes and memory of the reward workers, or lower max_concurrency"
            )
        return {
            "score": result.score,
            "acc": float(result.outcome == "pass"),
            "outcome": result.outcome,
            "feedback": _FEEDBACK.get(result.outcome, "").format(result.detail[:_MAX_FEEDBACK]),
        }

    return compute_score
