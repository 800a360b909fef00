"""A plain GSM8K parquet, as verl's own example writes it, trains with our entry point and grader; so do puzzles."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

from recipe.online_refiner.run_files import read_rows

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
def test_gsm8k_data_trains(train_letters: Callable, gsm8k: Path, tmp_path: Path) -> None:
    trained = train_letters(
        tmp_path,
        NUM_STEPS,
        *(f"data.train_files={gsm8k}", f"data.val_files={gsm8k}", "refiner.skip_reward_at_least=1.0"),
        *("reward.custom_reward_function.path=pkg://reward.math", "refiner.template=math"),
        *("data.max_prompt_length=128", "actor_rollout_ref.rollout.max_model_len=256"),
    )
    steps, records = trained.steps, trained.refinements
    assert all(0 < step["reward/mean"] < 1 for step in steps)
    assert {row["reward"] for row in records} == {0.0, 1.0}
    assert all((row["response"].lower() == "abcdz") == (row["reward"] == 1.0) for row in records)
    assert any(row["refined_reward"] == 1.0 for row in records if row["reward"] == 0.0)


@pytest.mark.e2e
@pytest.mark.slow
def test_the_preset_of_puzzles_trains(tiny_llama: Path, start_marked: Callable, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="the optional package reasoning-gym is not installed")
    prepare = [sys.executable, str(REPOSITORY / "scripts" / "prepare_data.py"), "reasoning-gym"]
    options = ["--output", str(tmp_path), "--tasks", "chain_sum,spell_backward,countdown", "--number", "20"]
    subprocess.run([*prepare, *options], check=True, timeout=200)
    command = [
        *("-m", "recipe.online_refiner.main", "experiment=reasoning_gym", "twin=puzzles", f"run_dir={tmp_path}/run"),
        *(f"data.{split}_files={tmp_path}/{split}.parquet" for split in ("train", "val")),
        *(f"{model}={tiny_llama}" for model in ("actor_rollout_ref.model.path", "reward.reward_model.model_path")),
        *("data.max_prompt_length=640", "actor_rollout_ref.rollout.max_model_len=704"),
    ]
    job = start_marked(command, cwd=tmp_path)
    assert job.wait(900) == 0, job.output()[-6000:]
    assert len(list(read_rows(tmp_path / "run" / "metrics.jsonl"))) == NUM_STEPS
    records = [row for file in (tmp_path / "run" / "refinements").glob("**/*.jsonl") for row in read_rows(file)]
    assert len(records) >= 8 and all(0 <= row["reward"] <= 1 for row in records)
