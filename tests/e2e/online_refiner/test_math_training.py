"""A plain GSM8K parquet, as verl's own example writes it, trains with our entry point and grader."""

from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

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
        f"data.train_files={gsm8k}",
        f"data.val_files={gsm8k}",
        "refiner.skip_reward_at_least=1.0",
        "reward.custom_reward_function.path=pkg://reward.math",
        "refiner.template=math",
        "data.max_prompt_length=128",
        "actor_rollout_ref.rollout.max_model_len=256",
    )
    steps, records = trained.steps, trained.refinements
    assert all(0 < step["reward/mean"] < 1 for step in steps)
    assert {row["reward"] for row in records} == {0.0, 1.0}
    assert all((row["response"].lower() == "abcdz") == (row["reward"] == 1.0) for row in records)
    assert any(row["refined_reward"] == 1.0 for row in records if row["reward"] == 0.0)
