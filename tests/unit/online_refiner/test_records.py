"""Metrics, run directory and the worker's batch, on a small refined step worked out by hand."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from recipe.online_refiner import metrics
from recipe.online_refiner.console import print_summary, step_line
from recipe.online_refiner.groups import Member
from recipe.online_refiner.records import Records, choose
from recipe.online_refiner.rollout import Outcome
from recipe.online_refiner.run_dir import RunDir, read_rows, refinement_lines
from recipe.online_refiner.step import StepState


def test_sandbox_metrics() -> None:
    assert metrics.sandbox_metrics([{"score": 1.0}], 2.0) == {}, "a reward that runs no programs"
    infos = [
        {"outcome": outcome, "sandbox_runs": runs, "sandbox_run_s": seconds, "sandbox_restarts": restarts}
        for outcome, runs, seconds, restarts in [
            ("pass", 4, 0.2, 0.0),
            ("time_out", 1, 1.0, 1.0),
            ("compile_error", 0, 0.0, 0.0),
        ]
    ]
    found = metrics.sandbox_metrics(infos, 2.0)
    assert found["sandbox/runs_per_s"] == 2.5
    assert found["sandbox/seconds_per_run"] == pytest.approx(0.24)
    assert found["sandbox/restarts"] == 1
    counts = {name.rpartition("/")[2]: count for name, count in found.items() if "outcome" in name and count}
    assert counts == {"pass": 1, "time_out": 1, "compile_error": 1}
    assert found.keys() <= metrics.MEANING.keys()


@pytest.fixture
def state() -> StepState:
    """Return a step: one refinement accepted, one cut, one verbatim, one rollout that needs none."""
    written = {"num_prompt_tokens": 9}
    outcomes = [
        Outcome(
            verdict="accepted",
            is_used=True,
            refined_reward=1.0,
            num_refined_tokens=3,
            num_generated_tokens=3,
            **written,
        ),
        Outcome(verdict="truncated", detail="loop", num_generated_tokens=16, **written),
        Outcome(
            verdict="not_better",
            refined_reward=0.2,
            num_refined_tokens=4,
            is_verbatim=True,
            num_generated_tokens=4,
            **written,
        ),
        Outcome(verdict="max_reward"),
    ]
    rewards = {0: -0.3, 1: -0.6, 2: 0.2, 4: 1.0}
    return StepState(
        step=3,
        rows=[0, 1, 2, 4],
        rewards=rewards,
        outcomes=dict(zip((0, 1, 2, 4), outcomes, strict=True)),
    )


def test_stage_metrics_by_hand(state: StepState) -> None:
    values = metrics.stage_metrics(state, [1, 0])
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


def test_what_is_copied_is_a_share_of_the_refinements_that_could_be(state: StepState) -> None:
    assert metrics.stage_metrics(state, [])["refiner/copied"] == 0.0
    state.outcomes[0].num_copied_tokens, state.outcomes[2].num_copied_tokens = 2, 0
    numbers = state.outcomes[0].num_refined_tokens, state.outcomes[2].num_refined_tokens
    assert metrics.stage_metrics(state, [])["refiner/copied"] == 2 / sum(numbers)


def test_a_run_without_the_gate_has_the_same_improvement_ratio(state: StepState) -> None:
    before = metrics.stage_metrics(state, [])
    state.outcomes[2].is_used = True
    assert metrics.stage_metrics(state, []) == before


def test_constraint_metrics_by_hand(state: StepState) -> None:
    state.nll, state.divergences = {0: 6.0, 2: 2.0}, {0: 5.0, 2: 0.0}
    state.members = [Member("a", -0.3, 5.0, 2), *[Member("a", 0.0, None, 3)] * 3]
    values = metrics.constraint_metrics(state, is_due=True)
    assert values == {
        "constraint/divergence": 1.25,  # 5 nats, four rollouts
        "constraint/divergence_per_token": 0.625,  # 5 nats on two tokens, four rollouts
        "constraint/cross_entropy_accepted": 2.0,
        "constraint/cross_entropy_all": pytest.approx(8 / 7),
        "tokens/refine_log_prob": 7,
    }
    del state.nll[2], state.divergences[2]
    assert metrics.constraint_metrics(state, is_due=False) == {
        "constraint/divergence": 1.25,
        "constraint/divergence_per_token": 0.625,
        "constraint/cross_entropy_accepted": 2.0,
        "tokens/refine_log_prob": 3,
    }
    assert set(metrics.constraint_metrics(StepState(), is_due=True).values()) == {0.0}


def test_reward_metrics_by_hand() -> None:
    rewards = {"a_0_0": 1.0, "a_1_0": 0.0, "b_0_0": 0.5, "b_1_0": 0.5}
    values = metrics.reward_metrics(rewards, {})
    assert values == {"reward/mean": 0.5, "reward/group_std": 0.25, "reward/zero_std_groups": 0.5}

    # Three groups more, of two responses each, were filtered: two all right, one all wrong.
    values = metrics.reward_metrics(rewards, {1.0: 2, -1.0: 1})
    assert values["reward/mean"] == pytest.approx((2 * 0.5 + 2 * 1.0 - 1.0) / 5)
    assert values["reward/group_std"] == 0.25


def record(key: str, verdict: str = "accepted") -> dict[str, Any]:
    texts = {"prompt": [{"role": "user", "content": "Add \ud800."}], "response": "3", "refined": "4", "detail": ""}
    return {"key": key, "verdict": verdict, "reward": -0.3, "refined_reward": 1.0, **texts}


def test_parts_are_kept_by_step_and_those_of_steps_to_be_done_again_are_put_aside(tmp_path: Path) -> None:
    records = Records(str(tmp_path / "run" / "refinements"))
    records.forget_after(0)
    assert list(records.lines()) == []
    for step in (2, 11, 10):
        for writer in ("w0", "w1"):
            records.write(step, writer, [record(f"{writer}_0_0"), record(f"{writer}_1_0")])
    records.write(12, "w0", [])
    rows = [json.loads(line) for line in refinement_lines(tmp_path / "run")]
    assert [row["step"] for row in rows] == [2] * 4 + [10] * 4 + [11] * 4
    assert [row["key"] for row in rows[:4]] == ["w0_0_0", "w0_1_0", "w1_0_0", "w1_1_0"]
    assert rows[0]["prompt"][0]["content"] == "Add \ud800."
    for _ in range(2):  # what was undone before stays
        records.forget_after(10)
        assert [json.loads(line)["step"] for line in records.lines()] == [2] * 4 + [10] * 4
        assert len(list((tmp_path / "run" / "refinements" / "undone").glob("*/*.jsonl"))) == 2
    records.write(11, "w0", [record("w0_0_0")])
    records.forget_after(10)
    assert len(list((tmp_path / "run" / "refinements" / "undone").glob("*/*.jsonl"))) == 3


def test_records_on_another_file_system(tmp_path: Path) -> None:
    records = Records("memory://bucket/run/refinements")
    records.write(1, "w0", [record("a_0_0")])
    records.write(2, "w0", [record("a_0_0")])
    records.forget_after(1)
    assert [json.loads(line)["step"] for line in refinement_lines(tmp_path, "memory://bucket/run/refinements")] == [1]


def test_which_rollouts_are_recorded() -> None:
    outcomes = {row: Outcome(verdict="accepted" if row % 5 == 0 else "not_better") for row in range(20)}
    assert choose(outcomes, None, seed=1) == choose(outcomes, 20, seed=1) == list(range(20))
    assert choose(outcomes, 0, seed=1) == []
    assert choose(outcomes, 4, seed=1) == [0, 5, 10, 15]
    some = choose(outcomes, 7, seed=1)
    assert len(some) == 7 and {0, 5, 10, 15} < set(some) and some != choose(outcomes, 7, seed=2)


def test_lines_of_steps_to_be_done_again_are_cut_off_without_reading_the_others(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    for step in (1, 2, 3):
        run_dir.write_metrics(step, {"loss": 0.5, "nan": float("nan"), "text": "no number"})
        run_dir.append_tokens(step, [{"key": "a_0_0", "response": [["x" * 70_000, -0.5]]}] * 2)
    (run_dir.path / "refinements.jsonl").write_text('this is not read\n{"step": 2}\n{"step": 3}\n{"step": 3}\n')
    with run_dir.metrics.open("a") as file:
        file.write('{"step": 4, "cut off')
    run_dir.forget_after(2)
    assert list(read_rows(run_dir.metrics)) == [{"step": step, "loss": 0.5, "nan": None} for step in (1, 2)]
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.undone.jsonl")] == [3]
    assert [row["step"] for row in read_rows(run_dir.tokens)] == [1, 1, 2, 2]
    assert [row["step"] for row in read_rows(tmp_path / "run" / "tokens.undone.jsonl")] == [3, 3]
    assert (run_dir.path / "refinements.jsonl").read_text() == 'this is not read\n{"step": 2}\n'
    run_dir.forget_after(2)
    assert [row["step"] for row in read_rows(run_dir.metrics)] == [1, 2]
    (run_dir.path / "refinements.jsonl").unlink()
    run_dir.forget_after(0)
    assert run_dir.metrics.read_bytes() == b""


def bytes_read() -> int:
    """Return how many bytes this process has read, from disk or from the page cache."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_resuming_reads_the_last_lines_only(tmp_path: Path) -> None:
    run_dir, records = RunDir(tmp_path), Records(str(tmp_path / "refinements"))
    for step in range(1, 41):
        run_dir.append_tokens(step, [{"key": "a_0_0", "response": [["x" * 500_000, -0.5]]}])
        records.write(step, "w0", [{"key": "a_0_0", "response": "y" * 500_000}])
    shutil.copy(run_dir.tokens, tmp_path / "refinements.jsonl")
    before = bytes_read()
    run_dir.forget_after(39)
    records.forget_after(39)
    # Two lines of 0.5 MB in each of two files: found from the end, read, and the undone one copied.
    assert bytes_read() - before < 10_000_000 < sum(file.stat().st_size for file in tmp_path.rglob("*.jsonl")) / 5
    assert [row["step"] for row in read_rows(run_dir.tokens)] == list(range(1, 40))
    assert len(records.parts()) == 39


def test_a_step_is_written_again_in_its_place(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step, loss in ((1, 0.5), (1, 0.25), (2, 0.125)):
        run_dir.write_metrics(step, {"loss": loss})
    RunDir(tmp_path).write_metrics(3, {"loss": 0.0})  # a resumed run
    rows = [(row["step"], row["loss"]) for row in read_rows(run_dir.metrics)]
    assert rows == [(1, 0.25), (2, 0.125), (3, 0.0)]


def test_the_summary_shows_the_table_and_a_diff(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    refined = {"refiner/num_attempted": 4, "refiner/failed/truncated": 1}
    run_dir.write_metrics(1, {**metrics.zeros(), "reward/mean": -0.25, "timing_s/step": 7.0, **refined})
    Records(str(tmp_path / "refinements")).write(1, "w0", [record("a_0_0"), record("a_1_0", "not_better")])
    output = io.StringIO()
    print_summary(Console(file=output, width=120), run_dir)
    text = output.getvalue()
    assert "-0.250" in text and "reward -0.30 -> +1.00" in text
    assert "- 3" in text and "+ 4" in text and "refinements cut by refiner.response_length: 25%" in text
    step = json.loads(run_dir.metrics.read_text())
    assert step_line(step, 8).startswith("step  1/8  reward -0.250")
