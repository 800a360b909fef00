"""Where the time and the tokens of a step go."""

import statistics
from dataclasses import dataclass
from typing import Any

from recipe.report.arms import Arm
from recipe.report.runs import Run

STAGES = {
    "timing_s/gen": "rollout",
    "timing_s/reward": "reward",
    "timing_s/refine": "refine",
    "timing_s/kl_ref": "KL to reference",
    "timing_s/old_log_prob": "log-probs",
    "timing_s/refine_log_prob": "log-probs of refinements",
    "timing_s/ref": "reference log-probs",
    "timing_s/values": "values",
    "timing_s/update_critic": "critic update",
    "timing_s/update_actor": "actor update",
    "timing_s/update_weights": "weight sync",
    "timing_s/testing": "validation",
    "timing_s/save_checkpoint": "checkpoint",
}
"""In the order of a step. What is left of ``timing_s/step`` is `other`."""
TOKENS = {
    "tokens/rollout": "policy writes",
    "tokens/refine_prompt": "refiner reads",
    "tokens/refine": "refiner writes",
    "tokens/refine_log_prob": "log-probs of refinements",
    "tokens/kl_ref": "KL to reference",
    "tokens/update_actor": "actor update",
}
OTHER = "other"


@dataclass(slots=True, kw_only=True)
class Costs:
    """What a step of an arm costs, mean over the steps of its runs.

    Example: ``Costs(seconds={"rollout": 14.0, "other": 1.5}, tokens={"policy writes": 2297.0}, hours=0.22, ...)``.
    """

    seconds: dict[str, float]
    """By stage; stages that took no time in any arm are left out."""
    tokens: dict[str, float]
    hours: float
    """Time of all steps of a run, mean over runs."""


def costs(arms: list[Arm]) -> list[Costs]:
    """Measure the arms; all of them have the same stages and kinds of tokens."""
    measured = [_costs(arm.runs) for arm in arms]
    for part in ("seconds", "tokens"):
        for name in list(getattr(measured[0], part)):
            if not any(getattr(one, part)[name] for one in measured):
                for one in measured:
                    del getattr(one, part)[name]
    return measured


def _costs(runs: list[Run]) -> Costs:
    rows = [row for run in runs for row in run.metrics]
    timed = [row for row in rows if row.get("timing_s/step")] or rows  # a step that was killed late has no end
    seconds = {name: _mean(timed, metric) for metric, name in STAGES.items()}
    seconds[OTHER] = max(0.0, _mean(timed, "timing_s/step") - sum(seconds.values()))
    return Costs(
        seconds=seconds,
        tokens={name: _mean(rows, metric) for metric, name in TOKENS.items()},
        hours=statistics.fmean(sum(row.get("timing_s/step") or 0.0 for row in run.metrics) for run in runs) / 3600,
    )


def _mean(rows: list[dict[str, Any]], metric: str) -> float:
    return statistics.fmean(row.get(metric) or 0.0 for row in rows)
