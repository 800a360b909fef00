"""The collapse experiment: its runs in order, what calibration and tuning choose, and the reading of its lines."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from experiments.collapse import __main__ as runner
from experiments.collapse import design, page, unrelated
from experiments.collapse.design import ARMS, RATES, SEEDS, Job
from recipe.online_refiner import config as configs
from recipe.online_refiner.config.checks import load
from recipe.preflight.rules import Run, check

CONFIG = str(Path(str(configs.__file__)).parent)
OWN = Path(__file__).parents[3] / "experiments" / "config"
SEARCHED = f"hydra.searchpath=['file://{os.environ['VERL_CONFIG']}',pkg://recipe.cpu_platform.config,'file://{OWN}']"
GOOD, BAD = [0.1, 0.4, 0.5, 0.5], [0.1, 0.5, 0.1, 0.1]


def line(job: Job, shares: list[float]) -> dict[str, Any]:
    held_out = dict(zip(("0", "4", "20", "24"), shares, strict=True))
    own = {"run": job.name, "arm": job.arm, "rate": job.rate, "seed": job.seed}
    return {**own, "held_out": held_out, "kl": 1.0, "log_loss": 0.5, "step_minutes": 1.0}


def calibrated(*failing: float, rates: tuple[float, ...] = RATES) -> list[dict[str, Any]]:
    """Return the lines of a calibration in which both runs collapse at the failing rates."""
    arms = ("none", "static_kl_0.01")
    return [line(Job(arm, rate, 201), BAD if rate in failing else GOOD) for rate in rates for arm in arms]


def complete() -> dict[str, list[Any]]:
    lines: dict[str, list[Any]] = {"calibrate": calibrated(1e-4), "tune": [], "final": []}
    lines["tune"] = [
        line(job, GOOD if "_0.1-" in job.name else [0.1, 0.4, 0.4, 0.4]) for job in design.jobs_of("tune", lines)
    ]
    steady = {"sft_1", "second_sample_1"}
    lines["final"] = [line(job, GOOD if job.arm in steady else BAD) for job in design.jobs_of("final", lines)]
    return lines


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_a_valid_configuration(arm: str) -> None:
    overrides = [SEARCHED, *Job(arm, 1e-4, 3).overrides]
    with initialize_config_dir(CONFIG, version_base=None):
        config = compose("online_refiner", overrides=overrides)
    check(Run(config=config, blocks=load(config)), "config")
    assert config.actor_rollout_ref.actor.optim.lr == 1e-4 and config.data.seed == 3
    assert config.trainer.total_training_steps == 24 and not config.algorithm.filter_groups.enable
    assert (config.refiner.template == "again") == (arm == "second_sample_1")


def test_phases_in_order() -> None:
    nothing: dict[str, list[Any]] = {phase: [] for phase in page.PHASES}
    assert len(design.jobs_of("calibrate", nothing)) == 8
    with pytest.raises(ValueError, match="2e-05 has not been calibrated: run `python -m experiments.collapse cal"):
        design.jobs_of("tune", nothing)
    with pytest.raises(ValueError, match="static KL has not been tuned"):
        design.jobs_of("final", {**nothing, "calibrate": calibrated(1e-4)})
    final = design.jobs_of("final", complete())
    assert [job.arm for job in final[: len(ARMS)]] == list(ARMS) and {job.seed for job in final} == set(SEEDS)
    assert len({job.name for job in final}) == 72 and {job.rate for job in final} == {1e-4}


def test_the_lowest_rate_at_which_both_runs_collapse() -> None:
    assert design.chosen_rate(calibrated(1e-4, 2e-4)) == 1e-4
    one = [*calibrated()[:2], line(Job("none", 5e-5, 201), BAD), *calibrated()[3:]]
    assert design.wider(one) == [4e-4]
    assert design.wider(calibrated()[:3]) == [] == design.wider(calibrated(5e-5))
    tried = (*RATES, 4e-4)
    assert design.wider(calibrated(rates=tried)) == [4e-4, 8e-4]
    assert design.wider(calibrated(4e-4, rates=tried)) == [4e-4]
    with pytest.raises(ValueError, match="at no rate up to 0.0008: the experiment ends here"):
        design.chosen_rate(calibrated(rates=(*tried, 8e-4)))


@pytest.mark.parametrize(("shares", "collapses"), [(GOOD, False), (BAD, True), ([0.2, 0.2, 0.1, 0.2], True)])
def test_collapse(shares: list[float], collapses: bool) -> None:
    assert design.collapsed(line(Job("none", 1e-4, 1), shares)) == collapses


def test_tables_from_lines(tmp_path: Path) -> None:
    lines = complete()
    for phase, own in lines.items():
        (tmp_path / f"{phase}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in own))
    text = page.tables(page.read(tmp_path))
    assert "| `none` | 0.0001 | 8 | 1.000 | 0.500 | 0.100 | 1.000 | 0.500 |" in text
    assert "| collapsed: `sft_1` − `static_kl_0.1` | −1.000 | 0.0002 | 0.0014 |" in text
    assert "| end: `sft_1` − `second_sample_1` | +0.000 | 1.0000 | 1.0000 |" in text
    assert "contrast" not in page.tables({**lines, "final": lines["final"][:-1]}), "not before all runs are there"


def test_a_line_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"step": step, "kl_ref/k3": step, "timing_s/step": 30} for step in range(1, 9)]
    rows = [{"step": 0, design.HELD_OUT: 0.1}, *rows, {"step": 9, design.HELD_OUT: 0.3}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "checkpoints" / "global_step_24" / "actor" / "huggingface").mkdir(parents=True)
    monkeypatch.setattr(unrelated, "log_loss", lambda folder, answers: 0.5)
    found = runner.line_of(Job("none", 2e-5, 1), tmp_path)
    assert found["run"] == "none-lr2e-05-seed1" and found["held_out"] == {"0": 0.1, "9": 0.3}
    assert found["kl"] == 6 and found["step_minutes"] == 4 and found["log_loss"] == 0.5


def test_the_committed_answers_are_those_to_the_prompts() -> None:
    answers = unrelated.read()
    assert [one["prompt"] for one in answers] == unrelated.PROMPTS.read_text().splitlines() and len(answers) == 64
    assert all(0 < len(one["answer"]) <= unrelated.MAX_NEW_TOKENS for one in answers)
