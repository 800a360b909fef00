"""What a step costs, by stage: the parts add up, and CPU seconds fall to the stage in which they were used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.bench_overhead import by_stage, summarise, table, watch
from recipe.runs.files import RunDir

JOB = """
import sys, time
from recipe.runs.files import RunDir
from waiting import comes_true

run_dir = RunDir(sys.argv[1])
looks = run_dir.path / "looks"
def begin(stage, step):
    run_dir.write_stage(stage, step)
    before = looks.stat().st_size
    assert comes_true(lambda: looks.stat().st_size > before + 4)  # at most four fall to one round of the watch
for step in (1, 2):
    begin("the policy answers", step)
    begin("the policy learns", step)
    until = time.process_time() + step
    while time.process_time() < until:
        pass
begin("saving", 2)
"""


class Looked(RunDir):
    """A run directory that lets its job see when somebody looks at the stage."""

    @property
    def stage(self) -> Path:  # type: ignore[override]
        """Path of the stage's file. Each look adds a byte to a file beside it."""
        with (self.path / "looks").open("ab") as looks:
            looks.write(b".")
        return self.path / "stage.json"

    @stage.setter
    def stage(self, path: Path) -> None:
        self.path.joinpath("looks").touch()


def test_cpu_seconds_are_those_of_the_stage(tmp_path: Path) -> None:
    run_dir, repository = Looked(tmp_path), Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{repository}{os.pathsep}{repository}/tests/helpers"}
    job = subprocess.Popen([sys.executable, "-c", JOB, str(tmp_path)], env=environment)
    (first, second), memory_gb = watch(job, run_dir)
    assert job.returncode == 0
    assert first["the policy learns"] == pytest.approx(1, abs=0.3)
    assert second["the policy learns"] == pytest.approx(2, abs=0.3)
    assert 0.005 < memory_gb < 2
    assert max(first["the policy answers"], second["the policy answers"]) < 0.3


def test_the_parts_of_a_step_add_up() -> None:
    step = {
        "timing_s/step": 10.0,
        "timing_s/gen": 2.0,
        "timing_s/refine": 3.0,
        "timing_s/refine_log_prob": 0.5,
        "timing_s/kl_ref": 0.5,
        "timing_s/update_actor": 2.9,
        "timing_s/update_weights": 0.9,
        "tokens/rollout": 100.0,
        "tokens/refine_prompt": 70.0,
        "tokens/refine": 30.0,
        "refiner/num_rollouts": 8.0,
        "refiner/num_attempted": 4.0,
        "refiner/num_accepted": 2.0,
    }
    cost = summarise([step], [{"the policy answers": 3.0}, {"the policy answers": 5.0, "the policy learns": 6.0}])
    assert by_stage({"sft": cost}).splitlines()[-1] == (
        "| sft, the default; solved responses are skipped | 2.0 / 4.0 / 100 | 3.0 / 0.0 / 100 | 1.0 / 0.0 / 0 "
        "| 3.8 / 6.0 / 0 | 2.0% |"
    )
    lines = table({"none": {**cost, "step_s": 5.0}, "sft": {**cost, "memory_gb": 4.0}, "trl": {"step_s": 20.0}})
    assert lines.splitlines()[3:] == [
        "| sft, the default; solved responses are skipped | 10.0 | 2.00 |  | 2.0 |  |  | 50% | 50 |  | 4.0 |",
        "| TRL's GRPOTrainer | 20.0 | 4.00 |  |  |  |  |  |  |  |  |",
    ]
