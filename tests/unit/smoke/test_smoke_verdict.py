"""What the smoke test finds wrong with a run, from its metrics."""

from typing import Any

import pytest

from recipe.online_refiner.metric_names import MEANING
from recipe.smoke.cases import CASES, LIMITS, faults

COLOCATED, RESUMED, DEDICATED, SHARED = CASES


def steps_of(case: Any, kl_at_start: float = 1e-5, **last: Any) -> list[dict[str, Any]]:
    """Return the metrics of a run in which all is well, except for the first KL and some numbers of its last step."""
    right = {
        **dict.fromkeys(MEANING, 0.0),
        "actor/grad_norm": 0.5,
        "training/rollout_probs_diff_mean": 1e-6,
        "kl_ref/k3": 0.05,
        "timing_s/step": 2.0,
        "refiner/num_accepted": 3.0,
        "refiner/num_replicas": 1.0,
        "constraint/penalty": -0.01,
        "actor/sft_cross_entropy": 0.2,
        "memory_gb/rollout": 45.0,
        "memory_gb/asleep": 5.0,
        "memory_gb/refine": 44.0,
        "memory_gb/refined": 5.5,
    }
    steps = [{**right, "step": number} for number in case.steps]
    if not case.goes_on:
        steps[0]["kl_ref/k3"] = kl_at_start
    steps[-1].update(last)
    return steps


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("platform", LIMITS)
def test_nothing_is_wrong_with_a_good_run(case: Any, platform: str) -> None:
    assert [*faults(case, steps_of(case), LIMITS[platform])] == []


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"actor/grad_norm": None}, "no finite gradient in step 3"),
        ({"kl_ref/k3": 1e-6}, "1e-06"),
        ({"kl_at_start": 0.3}, "before training is 0.3"),
        ({"training/rollout_probs_diff_mean": 0.3}, "differ by 0.3"),
        ({"training/rollout_probs_diff_mean": None}, "differ by inf"),
        ({"refiner/failed/timeout": 2.0}, "refiner/failed/timeout is 2"),
        ({"refiner/num_restarts": 1.0}, "refiner/num_restarts is 1"),
        ({"memory_gb/asleep": 44.5}, "memory_gb/rollout and memory_gb/asleep are 45.0 and 44.5"),
        ({"memory_gb/refined": 44.0}, "memory_gb/refine and memory_gb/refined are 44.0 and 44.0"),
        ({"step": 4}, "[1, 2, 4]"),
    ],
)
def test_each_fault_is_one_line(wrong: dict[str, Any], line: str) -> None:
    (found,) = faults(COLOCATED, steps_of(COLOCATED, **wrong), LIMITS["gpu"])
    assert line in found


@pytest.mark.parametrize(
    ("case", "name"),
    [
        *((COLOCATED, name) for name in ("actor/grad_norm", "refiner/num_accepted", "constraint/penalty")),
        (RESUMED, "actor/sft_cross_entropy"),
    ],
)
def test_what_has_to_happen_once_in_a_run(case: Any, name: str) -> None:
    never = [{**step, name: 0.0} for step in steps_of(case)]
    assert [*faults(case, never, LIMITS["gpu"])] == [f"{name} is 0 in all steps"]
