"""The APPS reward as verl's `reward.custom_reward_function`.

reward.custom_reward_function.path=pkg://reward.verl_reward
reward.custom_reward_function.name=compute_score
+reward.custom_reward_function.reward_kwargs.max_concurrency=4
+reward.custom_reward_function.reward_kwargs.limits.test_s=4
+reward.custom_reward_function.reward_kwargs.sandbox.backend=remote
+reward.custom_reward_function.reward_kwargs.sandbox.url=http://host:8080
"""

import asyncio
import functools
import json
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from reward.apps import Score, score_response
from reward.limits import Limits
from reward.problem import Problem
from reward.sandbox import Execution, Program, Sandbox, SandboxConfig, shared_sandbox

logger = logging.getLogger(__name__)
_RUNS_PER_LOG_LINE = 1000
_next_log_at_runs = 0.0
_num_restarts_told = 0.0


@dataclass(slots=True, kw_only=True)
class _Meter:
    """A sandbox whose runs for one answer are counted."""

    sandbox: Sandbox
    num_runs: int = 0
    seconds: float = 0.0  # time used by all runs

    def execute(self, program: Program, *, limits: Limits, timeout_s: float) -> Execution:
        execution = self.sandbox.execute(program, limits=limits, timeout_s=timeout_s)
        self.num_runs += 1
        self.seconds += execution.seconds
        return execution

    def metrics(self) -> dict[str, float]:
        return self.sandbox.metrics()

    def close(self) -> None:
        self.sandbox.close()


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

    Args:
        data_source: the row's, used in errors only.
        solution_str: the decoded answer.
        ground_truth: JSON text of the problem's `input_output`; may hold `problem_id`.
        extra_info: the row's; its `problem_id` names the problem where `ground_truth` does not.
        max_concurrency: answers run at once by this process. verl has `reward.num_workers` such processes on a node:
            keep the product near the number of cores, or time-outs hit correct programs.
        limits: fields of `Limits` that differ from their defaults.
        sandbox: fields of `SandboxConfig` that differ from their defaults; num_slots is `max_concurrency`.
        reward_router_address: given by verl when a reward model runs beside; unused.
        reward_model_tokenizer: as above.

    Returns:
        Always the same keys: score (Eq. 7, 8), acc (1.0 if all tests passed, else 0.0), outcome, num_passed, num_tests,
        first_error (character of the answer at which the line begins that did not compile or raised; None if none is
        known), feedback (how it failed, in words: `reward.feedback`; empty if it passed), sandbox_runs, sandbox_run_s
        (time used by all runs), sandbox_restarts (of this process, since its last answer).

    Raises:
        ValueError: the problem is malformed, see `parse_ground_truth`.
        RuntimeError: the code could not be run (infra_error) after all attempts: that must not become a reward. verl
            then leaves this response out of the update.
    """
    resolved_limits = Limits(**dict(limits or {}))
    config = SandboxConfig(**{"num_slots": max_concurrency, **dict(sandbox or {})})

    def score() -> tuple[Problem, Score, _Meter]:
        # Test code is tried when it is first seen, which takes time.
        problem = parse_ground_truth(
            ground_truth, data_source=data_source, extra_info=extra_info, limits=resolved_limits
        )
        meter = _Meter(sandbox=shared_sandbox(config))
        return problem, score_response(problem, solution_str, resolved_limits, sandbox=meter), meter

    problem, result, meter = await asyncio.get_running_loop().run_in_executor(thread_pool(max_concurrency), score)
    if result.score is None:
        raise RuntimeError(
            f"problem {problem.problem_id}: the answer could not be run in {resolved_limits.infra_attempts} attempts "
            f"({result.detail}): check free processes, memory and disk of the reward workers, or lower max_concurrency"
        )
    said = {name: getattr(result, name) for name in ("outcome", "num_passed", "num_tests", "first_error", "feedback")}
    return {"score": result.score, "acc": float(result.outcome == "pass"), **said, **_account(meter)}


def parse_ground_truth(
    ground_truth: str,
    *,
    data_source: str = "",
    extra_info: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
) -> Problem:
    """The checked problem of a row's `reward_model.ground_truth`, for answers that run under these limits.

    Raises:
        ValueError: not JSON, or no problem that can be scored, see `Problem.from_input_output`.
    """
    problem_id = (extra_info or {}).get("problem_id", f"of {data_source or 'unnamed data source'}")
    try:
        fields = json.loads(ground_truth)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"problem {problem_id}: reward_model.ground_truth is not JSON ({error}): "
            "set it to the JSON text of input_output"
        ) from error
    if isinstance(fields, dict):
        problem_id = fields.get("problem_id", problem_id)
    return Problem.from_input_output(fields, problem_id=problem_id, limits=limits)


def validate_rows(rows: Iterable[Mapping[str, Any]]) -> int:
    """Check rows in verl's schema before training; returns how many there are.

    Raises:
        ValueError: the first malformed problem, as `parse_ground_truth`.
    """
    num_rows = 0
    for row in rows:
        parse_ground_truth(
            row["reward_model"]["ground_truth"],
            data_source=row.get("data_source", ""),
            extra_info=row.get("extra_info"),
        )
        num_rows += 1
    return num_rows


def _account(meter: _Meter) -> dict[str, float]:
    """What one answer cost, and the restarts that no answer has told of yet; logs all counts once in a while."""
    global _next_log_at_runs, _num_restarts_told
    totals = meter.sandbox.metrics()
    if totals["runs"] >= _next_log_at_runs:
        _next_log_at_runs = totals["runs"] + _RUNS_PER_LOG_LINE
        logger.info("sandbox: %s", ", ".join(f"{name} {value:.4g}" for name, value in sorted(totals.items())))
    told, _num_restarts_told = _num_restarts_told, totals.get("restarts", 0.0)
    return {
        "sandbox_runs": meter.num_runs,
        "sandbox_run_s": meter.seconds,
        "sandbox_restarts": _num_restarts_told - told,
    }


@functools.lru_cache
def thread_pool(max_concurrency: int) -> ThreadPoolExecutor:
    """The threads that score so many answers at once; ValueError if that is none."""
    if max_concurrency < 1:
        raise ValueError(f"max_concurrency is {max_concurrency}: set reward_kwargs.max_concurrency to at least 1")
    return ThreadPoolExecutor(max_workers=max_concurrency, thread_name_prefix="reward")
