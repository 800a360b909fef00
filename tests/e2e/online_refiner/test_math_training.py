"""A plain GSM8K parquet, as verl's own example writes it, trains with our entry point and grader; so do puzzles."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

from recipe.runs.files import read_rows
from reward.puzzle import compute_score

NUM_STEPS = 2
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    """Write verl's columns, with an answer that the tiny model's policy gives now and then."""
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"Write the letters, {n}."}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "abcdz"},
            "extra_info": {"split": "train", "index": n, "answer": "#### abcdz", "question": "Write the letters"},
        }
        for n in range(16)
    ]
    file = tmp_path / "gsm8k.parquet"
    pandas.DataFrame(rows).to_parquet(file)
    return file


@pytest.mark.e2e
@pytest.mark.slow
def test_gsm8k_data_trains(letters_job: list[str], gsm8k: Path, start_marked: Callable, tmp_path: Path) -> None:
    command = [
        *("-m", "recipe.online_refiner.main", "platform=cpu", *letters_job),
        *(f"data.train_files={gsm8k}", f"data.val_files={gsm8k}", f"run_dir={tmp_path}/run"),
        *("reward.custom_reward_function.path=pkg://reward.math", "refiner.template=math"),
        *("data.max_prompt_length=128", "actor_rollout_ref.rollout.max_model_len=256"),
        *("refiner.skip_reward_at_least=1.0", f"trainer.total_training_steps={NUM_STEPS}", "trainer.save_freq=-1"),
    ]
    job = start_marked(command, cwd=tmp_path)
    assert job.wait(900) == 0, job.output()[-6000:]
    steps = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert len(steps) == NUM_STEPS
    assert all(0 < step["reward/mean"] < 1 for step in steps)
    records = [row for file in (tmp_path / "run" / "refinements").glob("**/*.jsonl") for row in read_rows(file)]
    assert {row["reward"] for row in records} == {0.0, 1.0}
    assert all((row["response"].lower() == "abcdz") == (row["reward"] == 1.0) for row in records)
    assert any(row["refined_reward"] == 1.0 for row in records if row["reward"] == 0.0)


@pytest.mark.e2e
@pytest.mark.slow
def test_the_preset_of_puzzles_trains(tiny_llama: Path, start_marked: Callable, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="the optional package reasoning-gym is not installed")
    prepare = [
        sys.executable,
        str(REPOSITORY / "scripts" / "prepare_data.py"),
        "reasoning-gym",
        "--output",
        str(tmp_path),
    ]
    subprocess.run(
        [*prepare, "--tasks", "chain_sum,spell_backward,countdown", "--number", "20"], check=True, timeout=200
    )
    command = [
        *("-m", "recipe.online_refiner.main", "experiment=reasoning_gym", "twin=puzzles", f"run_dir={tmp_path}/run"),
        *(f"data.{split}_files={tmp_path}/{split}.parquet" for split in ("train", "val")),
        *(f"{model}={tiny_llama}" for model in ("actor_rollout_ref.model.path", "reward.reward_model.model_path")),
        *("data.max_prompt_length=640", "actor_rollout_ref.rollout.max_model_len=704"),
    ]
    job = start_marked(command, cwd=tmp_path)
    assert job.wait(900) == 0, job.output()[-6000:]
    assert len(list(read_rows(tmp_path / "run" / "metrics.jsonl"))) == NUM_STEPS
    puzzles = pandas.read_parquet(tmp_path / "train.parquet")
    by_question = {row["prompt"][-1]["content"]: row for row in puzzles.to_dict("records")}
    records = [row for file in (tmp_path / "run" / "refinements").glob("**/*.jsonl") for row in read_rows(file)]
    assert len(records) >= 8
    for row in records[:8]:
        puzzle = by_question[row["prompt"][-1]["content"]]
        scored = compute_score(puzzle["data_source"], row["response"], puzzle["reward_model"]["ground_truth"])
        assert asyncio.run(scored)["score"] == pytest.approx(row["reward"])
