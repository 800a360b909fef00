"""A plain GSM8K parquet, as verl's own example writes it, trains with no change but the entry point and the grader."""

from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

from recipe.online_refiner.run_dir import read_rows

NUM_STEPS = 2


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
    print(sorted({(row["response"], row["reward"]) for row in records})[:8])
    assert {row["reward"] for row in records} == {0.0, 1.0}
    assert all((row["response"].lower() == "abcdz") == (row["reward"] == 1.0) for row in records)
    assert any(row["refined_reward"] == 1.0 for row in records if row["reward"] == 0.0)
