"""Runs of a machine whose constants are known: they are found again, and what others take is predicted."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipe.sizing.measured import Constants, fit, read_run
from recipe.sizing.replay import Group, Pace, Request, Setting, replay

REPOSITORY = Path(__file__).parents[3]


GIVEN = {
    "trainer": {"nnodes": 1, "n_gpus_per_node": 1, "device": "cpu"},
    "data": {"train_batch_size": 2},
    "actor_rollout_ref": {
        "model": {"lora_rank": 0},
        "rollout": {"n": 8, "tensor_model_parallel_size": 1, "max_num_seqs": 256},
    },
}
Lengths = list[tuple[list[int], list[int]]]
"""Of two groups: their responses' and their refinements'."""


def write_run(folder: Path, placement: str, *, refined: int, pace: Pace, stage_s: float, drafts: float = 0.0) -> None:
    """Write a run directory whose seconds are those of a machine with these constants: four steps of two groups."""
    folder.mkdir(parents=True)
    refiner = {"placement": placement, "streaming": None, "max_requests_in_flight": 256}
    config = {**GIVEN, "constraint": {"mode": "penalty" if refined else "none"}, "refiner": refiner}
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    draw, lines, records = random.Random(refined), [], []
    setting = Setting(pace=pace, placement=placement, stage_s=stage_s, shares_cores=True)  # type: ignore[arg-type]
    for step in (1, 2, 3, 4):
        lengths = [
            ([draw.randint(20, 48) for _ in range(8)], [draw.randint(20, 90) for _ in range(refined)]) for _ in "ab"
        ]
        lines.append(metrics_of(step, lengths, setting, drafts))
        records += [row for name, one in zip("ab", lengths, strict=True) for row in records_of(step, name, *one)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if refined:
        (folder / "refinements").mkdir()
        (folder / "refinements/000001.w0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))


def metrics_of(step: int, lengths: Lengths, setting: Setting, drafts: float) -> dict[str, float]:
    gained, computed = 1 + drafts / 2, 1 + drafts
    written = sum(sum(refined) for _, refined in lengths)
    groups = [
        Group(
            responses=[Request(prompt=80, answer=one, computed=1.5) for one in answers],
            refinements=[Request(prompt=190, answer=one, gained=gained, computed=computed) for one in refined],
        )
        for answers, refined in lengths
    ]
    rollout_s, exposed_s = replay(setting, groups)
    return {
        **{"step": step, "prompt_length/mean": 80.0, "tokens/refine": written, "timing_s/gen": rollout_s},
        **{"refiner/drafted_tokens": drafts * written / gained, "refiner/spec_accept_rate": 0.5 if drafts else 0.0},
        **{"refiner/exposed_s": exposed_s, "refiner/num_replicas": 1.0},
        **{"response_length/mean": 34.0, "response_length/max": 48.0, "response_length/clip_ratio": 0.1},
    }


def records_of(step: int, name: str, answers: list[int], refined: list[int]) -> list[dict[str, object]]:
    """Return a group's records; its first responses are refined. A token is one character of the texts."""
    return [
        {
            **{"step": step, "key": f"{name}{step}_{index}_0", "response": "x" * one, "detail": ""},
            **{"verdict": "accepted" if written else "not_chosen", "prompt_tokens": 80, "response_tokens": one},
            **{"refined": "y" * written if written else None, "refine_tokens": written},
            "refine_prompt_tokens": 190 if written else 0,
        }
        for index, (one, written) in enumerate(zip(answers, refined + [0] * (8 - len(refined)), strict=True))
    ]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    truth = {"pace": Pace(pass_s=0.05, token_s=0.004), "stage_s": 1.5}
    write_run(tmp_path / "paper", "colocated", refined=8, **truth)
    write_run(tmp_path / "cap", "colocated", refined=1, **truth)
    write_run(tmp_path / "draft", "colocated", refined=1, drafts=2.0, **truth)
    write_run(tmp_path / "dedicated", "dedicated", refined=1, **truth)
    write_run(tmp_path / "none", "colocated", refined=0, **truth)
    return tmp_path


def test_constants_that_made_runs_are_found_again(runs: Path) -> None:
    found = fit([read_run(runs / name) for name in ("paper", "cap")])
    assert (found.pace.pass_s, found.pace.token_s) == (pytest.approx(0.05, rel=1e-6), pytest.approx(0.004))
    assert found.stage_s == pytest.approx(1.5) and found.width == pytest.approx(1.5) == found.adapter_width
    assert read_run(runs / "none").predict_s(found) == 0 == read_run(runs / "none").measured_s
    for name in ("draft", "dedicated"):
        run = read_run(runs / name)
        assert run.predict_s(found) == pytest.approx(run.measured_s, rel=0.02), name
    found.write(runs / "constants.json")
    assert Constants.read(runs / "constants.json") == found


def test_a_dedicated_refiner_is_predicted_from_a_colocated_run(runs: Path) -> None:
    known, paper = fit([read_run(runs / "paper"), read_run(runs / "cap")]), read_run(runs / "paper")
    paper.config.trainer.device = "cuda"  # else the engines share the machine's cores, and more replicas are no faster
    one, two = (paper.predict_s(known, placement="dedicated", streams=True, num_refiners=number) for number in (1, 2))
    assert known.stage_s < two < one < paper.measured_s


def test_records_of_an_earlier_release_are_refused(runs: Path) -> None:
    path = runs / "paper/refinements/000001.w0.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "refine_tokens"}) + "\n" for row in rows))
    with pytest.raises(ValueError, match="no numbers of tokens"):
        read_run(runs / "paper")


def test_a_refiner_that_was_not_hosted_is_refused(runs: Path) -> None:
    path = runs / "cap/config.yaml"
    path.write_text(path.read_text().replace("placement: colocated", "placement: external"))
    with pytest.raises(ValueError, match="refiner.placement=external"):
        read_run(runs / "cap")


def run(*arguments: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "recipe.sizing", *arguments]
    answer = subprocess.run(command, cwd=REPOSITORY, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    return answer.returncode, (answer.stdout + answer.stderr).splitlines()


def test_the_command(runs: Path) -> None:
    folders = [str(runs / name) for name in ("paper", "cap", "draft")]
    constants = str(runs / "constants.json")
    code, lines = run(*folders, "--fit", "paper", "cap", "--output", constants, "--replicas", "1", "2")
    found = json.loads(lines[-1])["runs"]
    assert code == 0 and [one["is_fitted"] for one in found.values()] == [True, True, False]
    assert found["draft"]["predicted_s"] == pytest.approx(found["draft"]["measured_s"], rel=0.02)
    known, paper = Constants.read(runs / "constants.json"), read_run(runs / "paper")
    expected = [paper.predict_s(known, placement="dedicated", streams=True, num_refiners=number) for number in (1, 2)]
    assert list(found["paper"]["dedicated_s"].values()) == pytest.approx(expected)
    code, lines = run(folders[2], "--constants", constants)
    assert code == 0 and json.loads(lines[-1])["runs"]["draft"]["predicted_s"] == found["draft"]["predicted_s"]


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("cap", ("--fit", "else"), "--fit else"),
        ("dedicated", ("--fit", "dedicated"), "refiner.placement=colocated"),
        ("nowhere", (), "nowhere"),
        ("none", (), "refined"),
        ("cap", ("--constants", "nowhere.json"), "--constants nowhere.json"),
    ],
)
def test_mistakes_of_the_user_are_one_line(runs: Path, name: str, arguments: tuple[str, ...], reason: str) -> None:
    code, lines = run(str(runs / name), *arguments)
    assert code == 2 and len(lines) == 1 and lines[0].startswith("error: ") and reason in lines[0]
