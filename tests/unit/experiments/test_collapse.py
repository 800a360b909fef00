"""The collapse experiment: its runs in order, what calibration and tuning choose, and the reading of its lines."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from hydra import compose, initialize_config_dir

from experiments.collapse import design, page, runner, unrelated
from experiments.collapse.design import ARMS, RATES, SEEDS, Job
from experiments.gpu_quarter.learning import PAIR
from recipe.data_preparation.command import main as prepare
from recipe.online_refiner import config as configs
from recipe.online_refiner.config.checks import load
from recipe.preflight.rules import PlannedRun, check

CONFIG = str(Path(str(configs.__file__)).parent)
OWN = Path(__file__).parents[3] / "experiments" / "config"
SEARCHED = f"hydra.searchpath=['file://{os.environ['VERL_CONFIG']}',pkg://recipe.cpu_platform.config,'file://{OWN}']"
REAL = Path(__file__).parent / "collapse"
"""The metrics of a real run with four steps and a validation after the last, and the first lines of that validation."""
GOOD, BAD = [0.4, 0.5, 0.5, 0.5], [0.5, 0.4, 0.1, 0.1]


def line(job: Job, shares: list[float]) -> dict[str, Any]:
    held_out = dict(zip(map(str, design.VALIDATIONS), shares, strict=True))
    own = {"run": job.name, "arm": job.arm, "rate": job.rate, "seed": job.seed}
    return {**own, "start": 0.15, "held_out": held_out, "kl": 1.0, "log_loss": 0.5, "tokens": 9000, "cpu_s": 600}


def calibrated(*failing: str) -> dict[str, list[Any]]:
    """Return the lines of a calibration that goes on until it has chosen a rate, or found none."""
    lines: dict[str, list[Any]] = {phase: [] for phase in page.PHASES}
    while (job := design.calibrate(lines["calibrate"])[1]) is not None:
        lines["calibrate"].append(line(job, BAD if job.name.split("-seed")[0] in failing else GOOD))
    return lines


FAILING = ("static_kl_0.01-lr0.0001", "none-lr0.0001")


def complete() -> dict[str, list[Any]]:
    """Return the lines of an experiment in which two arms hold and the others collapse."""
    lines = calibrated(*FAILING)
    while (following := design.next_run(lines)) is not None:
        phase, job = following
        shares = GOOD if job.arm in ("sft_1", "second_sample_1") else BAD
        lines[phase].append(line(job, [0.5, 0.4, 0.11, 0.1] if job.arm == "static_kl_0.1" else shares))
    return lines


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_a_valid_configuration(arm: str) -> None:
    overrides = [SEARCHED, *Job(arm, 1e-4, 3).overrides]
    with initialize_config_dir(CONFIG, version_base=None):
        config = compose("online_refiner", overrides=overrides)
    check(PlannedRun(config=config, blocks=load(config)), "config")
    assert config.actor_rollout_ref.actor.optim.lr == 1e-4 and config.data.seed == 3
    assert config.trainer.total_training_steps == 24 and not config.algorithm.filter_groups.enable
    assert (config.refiner.template == "again") == (arm == "second_sample_1")
    assert config.refiner.response_length == config.data.max_response_length
    assert config.refiner.temperature == 0 and config.actor_rollout_ref.rollout.temperature == 1
    steps = range(config.trainer.test_freq, 25, config.trainer.test_freq)
    assert tuple(steps) == design.VALIDATIONS and design.VALIDATIONS[-2:] == design.END


@pytest.mark.parametrize("arm", PAIR)
def test_the_pair_on_a_gpu_is_a_valid_configuration(arm: str) -> None:
    with initialize_config_dir(CONFIG, version_base=None):
        overrides = [SEARCHED, *design.overrides(PAIR[arm], 1e-4, 3), "platform=gpu"]
        config = compose("online_refiner", overrides=overrides)
    blocks = load(config)
    check(PlannedRun(config=config, blocks=blocks), "config")
    assert blocks.refines == (arm == "sft") and config.trainer.device == "cuda"
    rollout = config.actor_rollout_ref.rollout
    assert rollout.dtype == "bfloat16" and rollout.tensor_model_parallel_size == 1 and rollout.free_cache_engine
    assert "attn_implementation" not in config.actor_rollout_ref.model.override_config


def test_the_protocol_and_the_code_write_the_same_questions() -> None:
    protocol = (Path(design.__file__).parent / "PROTOCOL.md").read_text().replace("\\\n", "")
    assert f"online-refiner prepare {design.QUESTIONS}" in " ".join(protocol.split())


def test_the_questions_for_a_machine_without_their_generator_are_the_protocols(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    assert prepare([*design.QUESTIONS.split(), f"--output={tmp_path}"]) == 0
    for name in ("train.parquet", "val.parquet"):
        kept = pandas.read_parquet(page.RESULTS / "questions" / name)
        assert kept.to_json() == pandas.read_parquet(tmp_path / name).to_json()


def test_phases_in_order() -> None:
    lines = complete()
    assert [len(lines[phase]) for phase in page.PHASES] == [3, 72]
    final = [Job(one["arm"], one["rate"], one["seed"]) for one in lines["final"]]
    assert final == design.final(1e-4) and [job.arm for job in final[: len(ARMS)]] == list(ARMS)
    assert [job.seed for job in final[:: len(ARMS)]] == list(SEEDS) and len({job.name for job in final}) == 72
    lines["final"].pop(2)
    assert design.next_run(lines) == ("final", Job("static_kl_0.1", 1e-4, 1)), "a run that was cut off begins anew"


def test_the_lowest_rate_at_which_both_runs_collapse() -> None:
    lines = calibrated(*FAILING, "static_kl_0.01-lr5e-05")["calibrate"]
    names = ["static_kl_0.01-lr5e-05", "none-lr5e-05", "static_kl_0.01-lr0.0001", "none-lr0.0001"]
    assert [one["run"] for one in lines] == [f"{name}-seed201" for name in names], "and no higher rate"
    assert design.calibrate(lines) == (1e-4, None)
    held = calibrated("none-lr0.0002")
    assert [one["arm"] for one in held["calibrate"]] == ["static_kl_0.01"] * len(RATES), "static KL holds"
    assert design.calibrate(held["calibrate"]) == (None, None) and design.next_run(held) is None


@pytest.mark.parametrize(
    ("lower", "rate", "number"), [((), 5e-5, 3), (("2e-05",), 2e-5, 5), (("2e-05", "1e-05"), 1e-5, 6)]
)
def test_lower_rates_follow_if_the_lowest_one_collapses(lower: tuple[str, ...], rate: float, number: int) -> None:
    failing = [f"{arm}-lr{own}" for arm in ("static_kl_0.01", "none") for own in ("5e-05", *lower)]
    lines = calibrated(*failing)["calibrate"]
    assert design.calibrate(lines) == (rate, None) and len(lines) == number


@pytest.mark.parametrize(("shares", "collapses"), [(GOOD, False), (BAD, True), ([0.2, 0.2, 0.1, 0.18], True)])
def test_collapse(shares: list[float], collapses: bool) -> None:
    assert design.collapsed(line(Job("none", 1e-4, 1), shares)) == collapses


def test_the_page_from_lines(tmp_path: Path) -> None:
    lines = complete()
    for phase, own in lines.items():
        (tmp_path / f"{phase}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in own))
    (tmp_path / page.START).write_text('{"solved": 0.15, "answers": 560}\n')
    page.write(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "All 72 runs of the final phase are there." in text and "solves 0.150 of the held-out questions (560" in text
    assert "| `none` | 0.0001 | 8 | 1.000 | 0.500 | 0.100 | 1.000 | 0.500 | 9000 | 600 |" in text
    assert "| collapsed: `sft_1` − `static_kl_0.1` | −1.000 | 0.0002 | 0.0014 |" in text
    assert "| end: `sft_1` − `second_sample_1` | +0.000 | 1.0000 | 1.0000 |" in text
    early = {**lines, "final": lines["final"][:-1]}
    assert "71 of 72 runs" in page.text_of(early, None) and "| contrast |" not in page.text_of(early, None)


def test_a_line_of_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(REAL / "metrics.jsonl", tmp_path)
    (tmp_path / "checkpoints" / "global_step_4" / "actor" / "huggingface").mkdir(parents=True)
    monkeypatch.setattr(unrelated, "log_loss", lambda folder, answers: 0.5)
    found = runner.line_of(Job("sft_1", 2e-5, 999), tmp_path, start=0.12, steps=(4,))
    assert found["run"] == "sft_1-lr2e-05-seed999" and found["held_out"] == {"4": pytest.approx(0.3857, abs=1e-4)}
    assert (found["kl"], found["log_loss"], found["tokens"], found["start"]) == (0.0787, 0.5, 3848, 0.12)
    with pytest.raises(ValueError, match=r"after the steps \[4\], where \[6, 12, 18, 24\] are planned: run the same"):
        runner.line_of(Job("sft_1", 2e-5, 999), tmp_path, start=0.12)


def test_the_share_of_a_real_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = REAL / "validation.jsonl"
    monkeypatch.setattr(design, "NUM_HELD_OUT", 2)
    assert runner.solved(path) == {"solved": 0.3125, "answers": 16}
    cut = tmp_path / "0.jsonl"
    cut.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match="has 15 answers, where 16 are planned: run the same command again"):
        runner.solved(cut)


def test_the_cpu_seconds_of_processes_below() -> None:
    clock = runner.CpuClock()
    spend = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", spend], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        assert clock.stop() >= 0.28, "which is counted in ticks of 10 ms, user and system apart"
        job.communicate(b"\n")


def test_the_committed_answers_are_those_to_the_prompts() -> None:
    answers = unrelated.read()
    assert [one["prompt"] for one in answers] == unrelated.PROMPTS.read_text().splitlines() and len(answers) == 64
    assert all(0 < len(one["answer"]) <= unrelated.MAX_NEW_TOKENS for one in answers)
