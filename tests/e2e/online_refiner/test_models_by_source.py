"""Two hosted refiners in a whole job, one for each data source: a death, a kill and a resume."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.runs.files import Records, read_rows

SOURCES = ["programs", "open/sums", "programs", "rest"]
"""The data sources of a step's prompts."""
NUM_ROLLOUTS = 4
"""The number of rollouts of each prompt."""
ANSWERS = {"programs": "abcdz", "open/sums": "abcz"}
"""The refinements of each source by its own model; nothing of the third source is refined."""
ETAS = {"open/sums": 0.05, "rest": 0.0}
NUM_STEPS, KILLED_AFTER = 8, 4


@pytest.fixture
def brief_llama(tiny_llama: Path, tmp_path: Path) -> Path:
    """Save the tiny model with one change: it leaves out the letter d."""
    folder = tmp_path / "brief"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_llama), AutoTokenizer.from_pretrained(tiny_llama)
    ids = {letter: tokenizer.convert_tokens_to_ids(letter) for letter in "cdDzCZ"}
    with torch.no_grad():
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        for letter in "cC":
            column = int(embedding[ids[letter]].argmax())
            head[ids["z"], column] = head[ids["d"], column] * 1.5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def command_of(folder: Path, model: Path, prompts: Path, job: list[str]) -> list[str]:
    """Return the command: one of three data sources has its own model, another one no weight."""
    rows = pandas.read_parquet(prompts)
    rows["data_source"] = [SOURCES[n % len(SOURCES)] for n in range(len(rows))]
    rows.to_parquet(folder / "sources.parquet")
    weights = ",".join(f"{source}:{{eta:{eta}}}" for source, eta in ETAS.items())
    return [
        "-m",
        "recipe.online_refiner.main",
        "platform=cpu",
        f"run_dir={folder}/run",
        *job,
        f"data.train_files={folder}/sources.parquet",
        "data.shuffle=False",  # each step has all sources
        "refiner.placement=dedicated",
        "refiner.n_gpus_per_node=2",
        "ray_kwargs.ray_init.num_gpus=3",
        "refiner.template=dialogue",
        f"refiner.by_source={{programs:{{}},open/sums:{{model_path:{model}}},rest:{{}}}}",
        "constraint.mode=lagrangian",
        "constraint.eta=0.1",
        f"constraint.by_source={{{weights}}}",
        "actor_rollout_ref.actor.optim.lr=5e-4",  # at the task's own rate nothing is left to refine
        f"trainer.total_training_steps={NUM_STEPS}",
        "trainer.total_epochs=99",
        "trainer.save_freq=1",
    ]


def has_steps(metrics: Path, number: int) -> Callable[[], bool]:
    """Return a condition: a run has written the metrics of a number of steps."""
    return lambda: metrics.exists() and metrics.read_text().count("\n") >= number


@pytest.mark.e2e
@pytest.mark.slow
def test_each_source_has_the_model_and_the_weight_of_its_own(
    start_marked: Callable, letters_job: list[str], letter_prompts: Path, brief_llama: Path, tmp_path: Path
) -> None:
    """The server of one source's model is killed in a step, and the whole job later on; the same command resumes it."""
    command, metrics = command_of(tmp_path, brief_llama, letter_prompts, letters_job), tmp_path / "run/metrics.jsonl"
    first = start_marked(command, cwd=tmp_path)
    first.wait_until(has_steps(metrics, 1))
    (pid,) = re.findall(r"refiner of open/sums replica 0: server process (\d+)", first.output())
    assert re.findall(r"\brefiner replica 0: server process (\d+)", first.output()) not in ([], [pid])
    psutil.Process(int(pid)).kill()
    first.wait_until(has_steps(metrics, KILLED_AFTER))
    first.kill_all()
    assert not has_steps(metrics, NUM_STEPS)(), "the run ended before it was killed"
    second = start_marked(command, cwd=tmp_path)
    assert second.wait() == 0, second.output()[-6000:]
    assert second.survivors() == []

    steps = list(read_rows(metrics))
    assert [step["step"] for step in steps] == list(range(1, NUM_STEPS + 1))
    assert sum(step["refiner/num_restarts"] for step in steps[:KILLED_AFTER]) == 1
    for step in steps:
        assert step["refiner/source_failed_ratio/programs"] == step["refiner/source_failed_ratio/rest"] == 0
        assert (
            step["refiner/source_improvement_ratio/programs"] > 0 and step["refiner/source_improvement_ratio/rest"] == 0
        )
        assert step["refiner/skipped/not_asked"] == SOURCES.count("rest") * NUM_ROLLOUTS
        assert step["refiner/source_replicas/programs"] == step["refiner/source_replicas/rest"] == 1
        assert step["constraint/penalty"] < 0 and step["actor/sft_cross_entropy"] > 0 and step["kl_ref/k3"] >= 0
        assert {source: step[f"constraint/source_eta/{source}"] for source in ETAS} == pytest.approx(ETAS)
    of_own = [step["refiner/source_improvement_ratio/open/sums"] for step in steps]
    assert sum(of_own[:KILLED_AFTER]) > 0 and sum(of_own[KILLED_AFTER:]) > 0
    _assert_refined_by_own_models(list(map(json.loads, Records(f"{tmp_path}/run/refinements").lines())))


def _assert_refined_by_own_models(rows: list[dict[str, Any]]) -> None:
    refined = {source: {row["refined"] for row in rows if row["data_source"] == source} for source in {*SOURCES}}
    assert {source: texts - {None} for source, texts in refined.items()} == {
        **{source: {answer} for source, answer in ANSWERS.items()},
        "rest": set(),
    }
