"""Metrics, run directory and the worker's batch, on a small refined step worked out by hand."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from verl.utils import tensordict_utils as tu

from recipe.online_refiner import metrics
from recipe.online_refiner.console import print_summary, step_line
from recipe.online_refiner.refine_stage import Refinement, Rollout, StageResult
from recipe.online_refiner.run_dir import RunDir, read_rows
from recipe.online_refiner.workers import refined_sequences


def rollout(key: str, response_ids: list[int], reward: float) -> Rollout:
    messages = [{"role": "user", "content": "Add 1 and 2 \ud800."}]  # a lone surrogate: models write them
    return Rollout(
        key=key,
        group=key[0],
        messages=messages,
        prompt_ids=[1],
        response_ids=response_ids,
        reward=reward,
        sample={"uid": key[0]},
    )


def test_sandbox_metrics() -> None:
    rollouts = [rollout("a0", [5], 1.0), rollout("a1", [5], -0.6), rollout("b0", [5], -1.0)]
    assert metrics.sandbox_metrics(rollouts, 2.0) == {}, "a reward that runs no programs"
    for one, (outcome, runs, seconds, restarts) in zip(
        rollouts, [("pass", 4, 0.2, 0.0), ("time_out", 1, 1.0, 1.0), ("compile_error", 0, 0.0, 0.0)], strict=True
    ):
        one.reward_extra_info = {
            **{"score": one.reward, "outcome": outcome},
            **{"sandbox_runs": runs, "sandbox_run_s": seconds, "sandbox_restarts": restarts},
        }
    found = metrics.sandbox_metrics(rollouts, 2.0)
    assert found["sandbox/runs_per_s"] == 2.5
    assert found["sandbox/seconds_per_run"] == pytest.approx(0.24)
    assert found["sandbox/restarts"] == 1
    counts = {name.rpartition("/")[2]: count for name, count in found.items() if "outcome" in name and count}
    assert counts == {"pass": 1, "time_out": 1, "compile_error": 1}
    assert found.keys() <= metrics.MEANING.keys()


@pytest.fixture
def result() -> StageResult:
    return StageResult(
        rollouts=[
            rollout("a0", [5, 6, 2], -0.3),
            rollout("a1", [5, 6, 2], -0.6),
            rollout("b0", [5, 6, 7, 2], 0.2),
            rollout("b1", [9, 2], 1.0),
        ],
        refinements=[
            Refinement(
                verdict="accepted",
                token_ids=[5, 8, 2],
                text="4",
                reward=1.0,
                num_prompt_tokens=9,
                num_generated_tokens=3,
            ),
            Refinement(verdict="truncated", text="loop", num_prompt_tokens=9, num_generated_tokens=16),
            Refinement(
                verdict="not_better",
                token_ids=[5, 6, 7, 2],
                text="3",
                reward=0.2,
                num_prompt_tokens=9,
                num_generated_tokens=4,
            ),
            Refinement(verdict="max_reward"),
        ],
        responses=["3", "3", "33", "9"],
    )


def test_stage_metrics_by_hand(result: StageResult) -> None:
    values = metrics.stage_metrics(result)
    assert values["refiner/num_attempted"] == 3
    assert values["refiner/num_accepted"] == 1
    assert values["refiner/improvement_ratio"] == 0.25
    assert values["refiner/num_verbatim"] == 1
    assert values["refiner/reward_gain"] == pytest.approx(1.3)
    assert values["refiner/edit_distance"] == 0.5  # one token replaced, none
    assert values["refiner/skipped/max_reward"] == 1
    assert values["refiner/failed/truncated"] == 1
    assert (values["tokens/refine_prompt"], values["tokens/refine"]) == (27, 23)
    assert set(values) <= set(metrics.MEANING)


def test_reward_metrics_by_hand() -> None:
    rewards = {"a0": 1.0, "a1": 0.0, "b0": 0.5, "b1": 0.5}
    rollouts = [rollout(key, [2], reward) for key, reward in rewards.items()]
    values = metrics.reward_metrics(rollouts, {})
    assert values == {"reward/mean": 0.5, "reward/group_std": 0.25, "reward/zero_std_groups": 0.5}

    # Three groups more, of two responses each, were filtered: two all right, one all wrong.
    values = metrics.reward_metrics(rollouts, {1.0: 2, -1.0: 1})
    assert values["reward/mean"] == pytest.approx((2 * 0.5 + 2 * 1.0 - 1.0) / 5)
    assert values["reward/group_std"] == 0.25


def test_run_dir_keeps_every_rollout_and_forgets_steps_to_be_done_again(result: StageResult, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    for step in (1, 2, 3):
        run_dir.write_metrics(step, {"loss": 0.5, "nan": float("nan"), "text": "no number"})
        run_dir.append_refinements(step, result)
    with run_dir.metrics.open("a") as file:
        file.write('{"step": 4, "cut off')
    run_dir.forget_after(2)
    assert list(read_rows(run_dir.metrics)) == [{"step": step, "loss": 0.5, "nan": None} for step in (1, 2)]
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.undone.jsonl")] == [3]
    assert [row["step"] for row in read_rows(tmp_path / "run" / "refinements.undone.jsonl")] == [3] * 4
    rows = list(read_rows(run_dir.refinements))
    assert [row["verdict"] for row in rows] == ["accepted", "truncated", "not_better", "max_reward"] * 2
    assert (rows[0]["refined"], rows[0]["reward"], rows[0]["refined_reward"]) == ("4", -0.3, 1.0)
    assert (rows[1]["refined"], rows[1]["detail"]) == (None, "loop")


def test_a_step_is_written_again_in_its_place(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step, loss in ((1, 0.5), (1, 0.25), (2, 0.125)):
        run_dir.write_metrics(step, {"loss": loss})
    RunDir(tmp_path).write_metrics(3, {"loss": 0.0})  # a resumed run
    rows = [(row["step"], row["loss"]) for row in read_rows(run_dir.metrics)]
    assert rows == [(1, 0.25), (2, 0.125), (3, 0.0)]


def test_the_summary_shows_the_table_and_a_diff(result: StageResult, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.write_metrics(1, {**metrics.zeros(), "reward/mean": -0.25, "timing_s/step": 7.0})
    run_dir.append_refinements(1, result)
    output = io.StringIO()
    print_summary(Console(file=output, width=120), run_dir)
    text = output.getvalue()
    assert "-0.250" in text and "reward -0.30 -> +1.00" in text
    assert "- 3" in text and "+ 4" in text
    step = json.loads(run_dir.metrics.read_text())
    assert step_line(step, 8).startswith("step  1/8  reward -0.250")


def test_worker_batch_has_prompt_and_refinement_or_two_tokens() -> None:
    def jagged(*rows: list[int]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)

    data = tu.get_tensordict(
        {"prompts": jagged([3, 4], [5]), "refine_ids": jagged([7, 8, 2], [0]), "refine_mask": jagged([1, 1, 1], [0])},
        {"temperature": 0.5},
    )
    batch = refined_sequences(data)
    assert [row.tolist() for row in batch["input_ids"].unbind()] == [[3, 4, 7, 8, 2], [0, 0]]
    assert [row.tolist() for row in batch["position_ids"].unbind()] == [[0, 1, 2, 3, 4], [0, 1]]
    assert [row.tolist() for row in batch["loss_mask"].unbind()] == [[0, 0, 1, 1, 1], [0, 0]]
    assert [row.tolist() for row in batch["responses"].unbind()] == [[7, 8, 2], [0]]
    assert tu.get(batch, "temperature") == 0.5
