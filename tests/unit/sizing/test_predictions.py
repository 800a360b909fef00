"""Runs of a machine whose constants are known: they are found again, and what others take is predicted."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipe.online_refiner.sizing import fitting
from recipe.online_refiner.sizing.fleet import Group, Pool, Setting, simulate
from recipe.online_refiner.sizing.measured import read_run
from recipe.online_refiner.sizing.replicas import Pace, Request

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
    pool = Pool(num_replicas=1, pace=pace)
    setting = Setting(rollout=pool, refiner=pool, placement=placement, stage_s=stage_s, shares_cores=True)  # type: ignore[arg-type]
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
    played = simulate(setting, groups)
    return {
        **{"step": step, "prompt_length/mean": 80.0, "tokens/refine": written, "timing_s/gen": played.rollout_s},
        **{"refiner/drafted_tokens": drafts * written / gained, "refiner/spec_accept_rate": 0.5 if drafts else 0.0},
        **{"refiner/exposed_s": played.exposed_s, "refiner/num_replicas": 1.0, "tokens/update_actor": 1000.0},
        **{"timing_s/update_actor": 10.0, "tokens/rollout": sum(sum(answers) for answers, _ in lengths)},
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
    found, predictions = fitting.predict([read_run(path) for path in sorted(runs.iterdir())], ["paper", "cap"])
    assert found.refiner.pass_s == pytest.approx(0.05, rel=1e-6) and found.refiner.token_s == pytest.approx(0.004)
    assert found.stage_s == pytest.approx(1.5) and found.rollout_width == pytest.approx(1.5)
    assert found.train_tokens_per_s == 100.0
    errors = {one.name: one.error for one in predictions}
    assert errors["none"] == 0.0 and max(map(abs, errors.values())) < 0.02
    assert [one.name for one in predictions if one.is_fitted] == ["cap", "paper"]


def test_a_run_without_numbers_of_tokens_is_refused(runs: Path) -> None:
    path = runs / "paper/refinements/000001.w0.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "refine_tokens"}) + "\n" for row in rows))
    with pytest.raises(ValueError, match="paper: its records have no numbers of tokens"):
        read_run(runs / "paper")


def test_mistakes_of_the_user_are_one_line(runs: Path) -> None:
    with pytest.raises(ValueError, match="no run called else"):
        fitting.predict([read_run(runs / "cap")], ["else"])
    with pytest.raises(ValueError, match="dedicated: constants are fitted to runs with refiner.placement=colocated"):
        fitting.fit([read_run(runs / "dedicated")])
    with pytest.raises(ValueError, match="nowhere: no run of two steps"):
        read_run(runs / "nowhere")


def run(*arguments: str) -> tuple[int, list[str]]:
    command = [sys.executable, "scripts/size_fleet.py", *arguments]
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    return answer.returncode, (answer.stdout + answer.stderr).splitlines()


def test_the_command(runs: Path) -> None:
    code, lines = run("--validate", str(runs), "--fit", "paper", "cap", "--output", str(runs / "constants.json"))
    found = json.loads(lines[-1])
    assert code == 0 and found["num_predicted"] == 2 and found["worst"] < 0.02
    given = ("--gpus", "1", "2", "--run", str(runs / "cap"), "--constants", str(runs / "constants.json"))
    code, lines = run(*given)
    fleets = json.loads(lines[-1])["fleets"]
    assert code == 0 and len(fleets) == 6 and math.isfinite(fleets[0]["step_s"])
    assert run("--gpus", "8")[1] == [
        "error: --model: set the folder of a model, or --constants to a file with measured ones"
    ]


LLAMA_70B = {
    **{"model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64},
    **{"num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256},
}


def test_a_model_that_leaves_no_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    given = ("--model", str(tmp_path), "--gpus", "8", "--placement", "colocated")
    assert run(*given) == (
        2,
        [
            "error: the rollout's weights take 131.4 GiB a GPU, its engine has 40.0 of 80; raise its tensor "
            "parallelism (--tensor-parallel, tensor_model_parallel_size), now 1"
        ],
    )
    code, lines = run(*given, "--tensor-parallel", "8", "--mode", "sft", "--used", "0.5")
    assert code == 0 and json.loads(lines[-1])["fleets"][0]["refined_s"] > 0
    code, lines = run("--model", "Qwen2.5-7B")
    assert code == 2 and "Qwen2.5-7B: no such folder with a config.json on this machine" in lines[0]
