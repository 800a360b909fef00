"""What the smoke test finds wrong with a run, from its metrics."""

from pathlib import Path
from typing import Any

import pytest

from recipe.online_refiner.metrics import MEANING
from recipe.smoke.cases import CASES
from recipe.smoke.verdict import COLUMNS, LIMITS, faults, table

COLOCATED, RESUMED, DEDICATED, SHARED = CASES


def steps_of(case: Any, **last: Any) -> list[dict[str, Any]]:
    """Return the metrics of a run in which all is well, but for some numbers of its last step."""
    right = {
        **dict.fromkeys(MEANING, 0.0),
        **{"actor/grad_norm": 0.5, "training/rollout_probs_diff_mean": 1e-6, "kl_ref/k3": 0.05, "timing_s/step": 2.0},
        **{"refiner/num_accepted": 3.0, "refiner/drafted_tokens": 9.0, "refiner/num_replicas": 1.0},
        **{"constraint/penalty": -0.01, "actor/sft_cross_entropy": 0.2},
        **{"memory_gb/rollout": 45.0, "memory_gb/asleep": 5.0, "memory_gb/refine": 44.0, "memory_gb/refined": 5.5},
    }
    steps = [{**right, "step": number} for number in case.steps]
    if not case.goes_on:
        steps[0]["kl_ref/k3"] = 1e-5
    steps[-1].update(last)
    return steps


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("platform", LIMITS)
def test_nothing_is_wrong_with_a_good_run(case: Any, platform: str) -> None:
    assert faults(case, steps_of(case), LIMITS[platform]) == []


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"actor/grad_norm": None}, "no finite gradient in step 3"),
        ({"kl_ref/k3": 1e-6}, "the policy has not moved"),
        ({"training/rollout_probs_diff_mean": 0.3}, "differ by 0.3 on average: are weights synced?"),
        ({"training/rollout_probs_diff_mean": None}, "differ by inf"),
        ({"refiner/failed/timeout": 2.0}, "2 refinements failed (timeout)"),
        ({"refiner/num_restarts": 1.0}, "1 replicas of the refiner died"),
        ({"memory_gb/asleep": 44.5}, "the rollout keeps its memory asleep: 45.0 and 44.5 GiB"),
        ({"memory_gb/refined": 44.0}, "the refiner keeps its memory asleep: 44.0 and 44.0 GiB"),
        ({"step": 4}, "its steps are [1, 2, 4], not [1, 2, 3]"),
    ],
)
def test_each_fault_is_one_line(wrong: dict[str, Any], line: str) -> None:
    (found,) = faults(COLOCATED, steps_of(COLOCATED, **wrong), LIMITS["gpu"])
    assert line in found


def test_what_has_to_happen_once_in_a_run() -> None:
    def without(name: str, case: Any) -> list[str]:
        return faults(case, [{**step, name: 0.0} for step in steps_of(case)], LIMITS["gpu"])

    assert without("actor/grad_norm", COLOCATED) == ["no gradient in any step"]
    assert without("refiner/num_accepted", COLOCATED) == ["no refinement was accepted"]
    assert without("constraint/penalty", COLOCATED) == ["constraint/penalty is 0 in all steps"]
    assert without("actor/sft_cross_entropy", RESUMED) == ["actor/sft_cross_entropy is 0 in all steps"]
    assert without("refiner/drafted_tokens", DEDICATED) == ["nothing was drafted"]
    assert without("refiner/drafted_tokens", SHARED) == []


def test_a_refiner_of_other_weights_is_seen() -> None:
    steps = steps_of(COLOCATED)
    steps[0]["kl_ref/k3"] = 0.3
    (found,) = faults(COLOCATED, steps, LIMITS["gpu"])
    assert "the refiner does not have the initial weights" in found


def test_a_step_of_a_run_that_resumed_in_vain_is_missing() -> None:
    assert faults(RESUMED, [], LIMITS["cpu"]) == ["its steps are [], not [4, 5, 6]"]


def test_table() -> None:
    results = {"a": (steps_of(COLOCATED), []), "b": (steps_of(SHARED), ["broken"]), "c": ([], [])}
    header, _, right, wrong, left_out = table(results).splitlines()
    assert header.count("|") == right.count("|") == len(COLUMNS) + 3
    assert (
        right.startswith("| a | right | 2.0 |") and "1e-05 to 0.05" in right and "| 45.0 | 5.0 | 44.0 | 5.5 |" in right
    )
    assert wrong.startswith("| b | wrong | ") and left_out.startswith("| c | left out | ")


def test_gpus_are_shared_out() -> None:
    def sizes(case: Any, num_gpus: int) -> set[str]:
        words = case.command(Path("/x"), platform="gpu", num_gpus=num_gpus)
        return {word for word in words if "n_gpus_per_node" in word}

    assert sizes(COLOCATED, 8) == {"trainer.n_gpus_per_node=8"}
    assert sizes(DEDICATED, 8) == {"trainer.n_gpus_per_node=4", "refiner.n_gpus_per_node=4"}
    assert sizes(DEDICATED, 3) == {"trainer.n_gpus_per_node=2", "refiner.n_gpus_per_node=1"}
