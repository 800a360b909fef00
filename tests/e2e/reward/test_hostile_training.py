"""A run whose responses are all hostile programs, some of which the sandbox cannot run: right rewards, nothing left."""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hostile_programs import HOSTILE_PROGRAMS, Hostile

from recipe.runs.files import read_rows
from reward.apps import score_from_verdicts

NUM_STEPS, NUM_ROLLOUTS = 2, 16
REWARD = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_hostile_training import LOST, TRUTH, is_lost, program_of
from reward.verl_reward import compute_score as score_program

async def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    code = program_of(solution_str).code
    limits = {{"test_s": 0.8, "memory_bytes": 256 << 20, "infra_attempts": 1}}
    limits |= LOST if is_lost(solution_str) else {{}}
    return await score_program(data_source, f"```python\\n{{code}}\\n```", TRUTH, limits=limits)
"""
TRUTH = json.dumps({"inputs": ["3 4"], "outputs": ["EXPECTED-7391"], "problem_id": "hostile"})
LOST = {"startup_s": 1e-6}  # no child gets ready in it: an infra_error


def number_of(response: str) -> int:
    return int.from_bytes(hashlib.sha256(response.encode()).digest()[:4], "big")


def program_of(response: str) -> Hostile:
    return HOSTILE_PROGRAMS[number_of(response) % len(HOSTILE_PROGRAMS)]


def is_lost(response: str) -> bool:
    return number_of(response) // 1000 % 4 == 0


def scores_of(outcomes: tuple[str, ...]) -> set[float | None]:
    verdicts = {"pass": "passed", "fail": "wrong"}
    return {score_from_verdicts([verdicts.get(name, name)], num_tests=1).score for name in outcomes}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.alone  # it looks for processes of all sandboxes
def test_steps_of_hostile_programs(start_marked: Callable, letters_job: list[str], tmp_path: Path) -> None:
    reward = tmp_path / "hostile_reward.py"
    reward.write_text(REWARD)
    run_dir, rollouts = tmp_path / "run", tmp_path / "rollouts"
    started_at = time.time()
    job = start_marked(
        [
            "-m",
            "recipe.online_refiner.main",
            "platform=cpu",
            f"run_dir={run_dir}",
            *letters_job,
            "constraint.mode=none",
            "measure.num_kl_rollouts=0",
            "trainer.save_freq=-1",
            f"trainer.total_training_steps={NUM_STEPS}",
            f"trainer.rollout_data_dir={rollouts}",
            f"reward.custom_reward_function.path={reward}",
        ],
        cwd=tmp_path,
    )
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    left = [
        process.info
        for process in psutil.process_iter(["pid", "cmdline", "uids", "create_time"])
        if process.info["create_time"] > started_at
        and (
            process.info["uids"].real not in (0, psutil.Process().uids().real)
            or {"slot.py", "worker.py"} & {Path(word).name for word in process.info["cmdline"] or ()}
        )
    ]
    assert left == []

    steps = list(read_rows(run_dir / "metrics.jsonl"))
    assert [step["step"] for step in steps] == list(range(1, NUM_STEPS + 1))
    for step in steps:
        rows = [row for row in read_rows(rollouts / f"{step['step']}.jsonl") if not row["uid"].startswith("pad")]
        assert len(rows) == NUM_ROLLOUTS - step["reward/num_lost"]
        assert step["reward/extra/acc"] == 0
        for row in rows:
            assert not is_lost(row["output"])
            allowed = scores_of(program_of(row["output"]).outcomes)
            assert any(row["score"] == pytest.approx(score) for score in allowed), row
    assert 0 < sum(step["reward/num_lost"] for step in steps) < NUM_STEPS * NUM_ROLLOUTS
    assert "could not be run in 1 attempts" in job.output(), "a lost response is not passed over in silence"
