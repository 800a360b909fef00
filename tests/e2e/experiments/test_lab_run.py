"""The lab's command: cut-off runs go on, complete ones are not run again, failed ones name their log."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from experiments.lab import metrics
from experiments.lab.arms import TUNED
from experiments.lab.run import BASE
from recipe.runs.files import read_rows

RUN = ["-m", "experiments.lab.run"]


@pytest.mark.e2e
@pytest.mark.slow
def test_experiments_go_on_where_they_were_cut_off(start_marked: Callable, tmp_path: Path) -> None:
    rules = tmp_path / "protocol.yaml"
    settings = {"num_steps": 3, "outcome_steps": [3], "learning_rate": 1e-3, "weights": dict.fromkeys(TUNED, 0.1)}
    rules.write_text(yaml.safe_dump(settings))
    command = [*RUN, "final", "--only", "dapo-sft-seed1", "--protocol", str(rules)]
    command += ["--output", str(tmp_path / "lab"), "trainer.save_freq=1", "trainer.test_freq=3"]
    first = start_marked(command, cwd=tmp_path)
    run_dir = tmp_path / "lab" / "final" / "dapo-sft-seed1"
    first.wait_until((run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").exists)
    first.kill_all()
    num_done = len(list(read_rows(run_dir / "metrics.jsonl")))
    assert num_done < 3, "the run ended before it was killed"

    second = start_marked(command, cwd=tmp_path)
    assert second.wait() == 0, second.output()[-6000:]
    assert [row["step"] for row in read_rows(run_dir / "metrics.jsonl")] == [1, 2, 3]
    assert "dapo-sft-seed1: done" in second.output()
    assert f"`{metrics.fingerprint(BASE)}`" in (BASE / "README.md").read_text(), "the weights of the committed runs"
    log = Path(f"{run_dir}.log").read_text()
    assert "setting global step to" in log, "it started from the beginning"

    third = start_marked(command, cwd=tmp_path)
    assert third.wait() == 0, third.output()[-6000:]
    assert Path(f"{run_dir}.log").read_text() == log, "it ran again"


@pytest.mark.e2e
def test_a_run_that_fails_names_its_own_log(start_marked: Callable, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("experiment: lab_sums")  # `lab` needs weights that a shallow clone lacks
    command = [*RUN, "calibrate", "--only", "lr0.001-seed101", "--output", str(tmp_path)]
    # No run of this protocol is known; and a mistake that is found before anything is imported.
    command += ["--protocol", str(rules), "console=none"]
    job = start_marked(command, cwd=tmp_path)
    assert job.wait() == 1, job.output()
    log = tmp_path / "calibrate" / "lr0.001-seed101.log"
    assert f"lr0.001-seed101: FAILED, see {log}" in job.output()
    assert "error: console=none is not known; set one of: " in log.read_text()
