"""The APPS reward as verl's `reward.custom_reward_function`.

reward.custom_reward_function.path=pkg://reward.verl_reward
reward.custom_reward_function.name=compute_score
+reward.custom_reward_function.reward_kwargs.max_concurrency=4
+reward.custom_reward_function.reward_kwargs.limits.test_s=4
"""

from collections.abc import Mapping
from typing import Any

from reward.apps import score_response
from reward.grading import Score, said_of, score_in_thread
from reward.limits import Limits
from reward.problem import Problem, read_json
from reward.sandbox import shared_sandbox


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    max_concurrency: int = 4,
    limits: Mapping[str, Any] | None = None,
    sandbox: Mapping[str, Any] | None = None,
    reward_router_address: object = None,
    reward_model_tokenizer: object = None,
) -> dict[str, float | int | str | None]:
    """Score one answer without blocking the event loop.

    The arguments are those that verl passes, and those of `reward_kwargs`:
        max_concurrency: number of answers that this process runs at the same time. verl starts `reward.num_workers`
            such processes on a node; keep the product near the number of cores.
        limits: fields of `Limits` that differ from their defaults.
        sandbox: arguments of `shared_sandbox` that differ from their defaults; num_slots is `max_concurrency`.

    Returns:
        A dict with always the same keys: score (Eq. 7, 8), acc (1.0 if all tests passed, else 0.0), outcome,
        num_passed, num_tests, feedback (`reward.feedback`: how the answer failed, in words; empty if it passed).

    Raises:
        ValueError: the problem is malformed, see `Problem.from_input_output`, or a limit does not exist.
        TypeError: a setting of the sandbox does not exist.
        RuntimeError: see `score_in_thread`.
    """
    bounds = Limits.given(limits)
    settings: dict[str, Any] = {"num_slots": max_concurrency, **(sandbox or {})}

    def score() -> tuple[str, Score]:
        # Test code is tried when it is first seen, which takes time.
        problem = parse_ground_truth(ground_truth, data_source=data_source, extra_info=extra_info, limits=bounds)
        return problem.problem_id, score_response(problem, solution_str, bounds, sandbox=shared_sandbox(**settings))

    result = await score_in_thread(score, bounds, max_concurrency)
    return {**said_of(result), "num_passed": result.num_passed, "num_tests": result.num_tests}


def parse_ground_truth(
    ground_truth: str,
    *,
    data_source: str = "",
    extra_info: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
) -> Problem:
    """Return the problem of a row's `reward_model.ground_truth`; errors as `Problem.from_input_output`."""
    problem_id = (extra_info or {}).get("problem_id", f"of {data_source or 'unnamed data source'}")
    fields = read_json(ground_truth, f"problem {problem_id}: reward_model.ground_truth")
    if isinstance(fields, dict):
        problem_id = fields.get("problem_id", problem_id)
    return Problem.from_input_output(fields, problem_id=problem_id, limits=limits)


def validate_row(row: Mapping[str, Any], *, limits: Mapping[str, Any] | None = None) -> None:
    """Raise what `parse_ground_truth` does for a row in verl's schema; `limits` as `compute_score` takes them."""
    parse_ground_truth(
        row["reward_model"]["ground_truth"],
        data_source=row.get("data_source", ""),
        extra_info=row.get("extra_info"),
        limits=Limits.given(limits),
    )
