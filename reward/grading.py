"""The score that all rewards return, and the grading by a judge that mathematics and puzzles share."""

import asyncio
import functools
import importlib.util
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from reward.judge import JudgeLostError, UnjudgeableError
from reward.limits import Limits

_FEEDBACK = {
    "fail": "The final answer is wrong: {}",
    "no_answer": "No final answer was found.",
    "unreadable": "The final answer cannot be read: {}",
}
_MAX_FEEDBACK = 300  # characters of what was found


@dataclass(slots=True, kw_only=True, frozen=True)
class Score:
    """The reward of one answer, and why."""

    score: float | None  # in [-1, 1]; None only for infra_error, which is no statement about the answer
    outcome: str  # pass, fail, or the verdict of the first error
    num_passed: int  # tests passed, counted until the first error
    num_tests: int  # tests of the problem
    detail: str = ""  # one line for people
    feedback: str = ""  # what its author may be told of it (`reward.feedback`)


@dataclass(slots=True, kw_only=True, frozen=True)
class Graded:
    """A problem whose answers a judge grades, by `ask`."""

    problem_id: str  # names the problem in errors
    ground_truth: str  # what the task needs beside the response

    def ask(self, response: str, limits: Limits) -> tuple[str, float, str]:
        """Return the outcome, the points and the answer found; may raise the errors of `reward.judge.ask`."""
        raise NotImplementedError

    def score(self, response: str, limits: Limits | None = None) -> Score:
        """Grade one response in a judge, within `limits.test_s` CPU seconds and `limits.judge_bytes`; blocks.

        Points are in [0, 1], outcomes pass, fail, no_answer, unreadable, and infra_error without points.
        """
        limits = limits or Limits()
        try:
            outcome, points, found = self.ask(response, replace(limits, judge_s=limits.test_s))
        except UnjudgeableError as error:
            outcome, points, found = "unreadable", 0.0, str(error)
        except JudgeLostError as error:
            return Score(score=None, outcome="infra_error", num_passed=0, num_tests=1, detail=str(error))
        num_passed = int(outcome == "pass")
        told = _FEEDBACK.get(outcome, "").format(found[:_MAX_FEEDBACK])
        return Score(score=points, outcome=outcome, num_passed=num_passed, num_tests=1, detail=found, feedback=told)


def require(package: str, install: str) -> None:
    """Raise ValueError, which says how to install the package, if a package that judges import is missing."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"grading these answers needs the package {package} on every node: pip install {install}")


def row_check(
    problem_of: Callable[..., Graded], wrong_with: Callable[[str], str | None] = lambda _: None
) -> Callable[..., None]:
    """Return `validate_row(row, *, limits=None)` for one kind of problems: ValueError where it cannot be graded.

    `wrong_with` says why no answer can meet a ground truth, or None.
    """

    def validate_row(row: Mapping[str, Any], *, limits: Mapping[str, Any] | None = None) -> None:
        Limits.given(limits)
        where = f"of {row.get('data_source') or 'unnamed data source'}"
        problem = problem_of(row["reward_model"]["ground_truth"], problem_id=where)
        if wrong := wrong_with(problem.ground_truth):
            raise ValueError(f"problem {where}: no answer can be equal to the expected one: {wrong}")

    return validate_row


def verl_function(problem_of: Callable[..., Graded]) -> Callable[..., Awaitable[dict[str, float | int | str | None]]]:
    """Return verl's `compute_score` for one kind of problem; `problem_of` takes a ground truth and a `problem_id`."""

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
        """Grade one response without blocking verl's event loop; errors are those of `problem_of`, `score_in_thread`.

        The arguments are those that verl passes, and two of `reward_kwargs`: `max_concurrency`, the number of judges
        that grade at the same time (each takes some 70 MB), and `limits`, the fields of `Limits` that differ from their
        defaults. The result has score (points), acc (1.0 if all points are given), outcome, and feedback (one line for
        a refiner, or "").
        """
        bounds = Limits.given(limits)

        def score() -> tuple[str, Score]:
            problem = problem_of(ground_truth, problem_id=f"of {data_source or 'unnamed data source'}")
            return problem.problem_id, problem.score(solution_str, bounds)

        return said_of(await score_in_thread(score, bounds, max_concurrency))

    return compute_score


def said_of(result: Score) -> dict[str, float | int | str | None]:
    """Return the fields of a score that verl records."""
    acc = float(result.outcome == "pass")
    return {"score": result.score, "acc": acc, "outcome": result.outcome, "feedback": result.feedback}


async def score_in_thread(score: Callable[[], tuple[str, Score]], limits: Limits, max_concurrency: int) -> Score:
    """Run `score`, which returns a problem's id and a score, in a thread; at most `max_concurrency` run at a time.

    Raises:
        ValueError: `max_concurrency` is below 1.
        RuntimeError: no verdict came (infra_error): that must not become a reward. verl leaves the response out then.
    """
    problem_id, result = await asyncio.get_running_loop().run_in_executor(_thread_pool(max_concurrency), score)
    if result.score is None:
        raise RuntimeError(
            f"problem {problem_id}: the answer could not be run in {limits.infra_attempts} attempts ({result.detail}): "
            "check free processes, memory and disk of the reward workers, or lower max_concurrency"
        )
    return result


@functools.lru_cache
def _thread_pool(max_concurrency: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max_concurrency, thread_name_prefix="reward")


os.register_at_fork(after_in_child=_thread_pool.cache_clear)  # a child has none of its threads
