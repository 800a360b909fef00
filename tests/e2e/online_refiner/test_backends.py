"""verl's engines against plain loops and autograd on a Hugging Face model: what check_backends.py prints."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "oracle" / "check_backends.py"
IN_DEFAULT_SET = ["fsdp_packed", "megatron_tp2_sp"]
FSDP = ["fsdp_1", "fsdp_packed", "fsdp_dp2"]
OTHERS = ["fsdp_1", "fsdp_dp2", "megatron_1", "megatron_dp2", "megatron_pp2", "megatron_pp2_vpp2", "megatron_cp2"]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("model", "layouts", "stride"),
    [
        ("llama", IN_DEFAULT_SET, 1),
        ("qwen3_vl", ["fsdp_1"], 2),
        pytest.param("llama", OTHERS, 1, marks=pytest.mark.slow),
        pytest.param("qwen3_moe", FSDP, 1, marks=pytest.mark.slow),
        pytest.param("qwen3_vl", FSDP, 1, marks=pytest.mark.slow),
        pytest.param("qwen2_5_vl", FSDP, 1, marks=pytest.mark.slow),
    ],
)
def test_log_probs_and_gradients(
    model: str, layouts: list[str], stride: int, start_marked: Callable, tmp_path: Path
) -> None:
    job = start_marked([str(SCRIPT), "--model", model, "--stride", str(stride), *layouts], cwd=tmp_path)
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    found = json.loads(job.output().splitlines()[-1])
    assert set(found["layouts"]) == set(layouts)
    assert found["num_cases"] == len(range(0, 21, stride)) and found["smallest_change"] > 5e-3
    for name, differences in found["layouts"].items():
        assert differences.keys() == {"log_prob_diff", "param_diff", "cross_entropy_diff"}
        assert all(0 <= value < 1e-5 for value in differences.values()), name
