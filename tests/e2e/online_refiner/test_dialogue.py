"""The dialogue preset's CPU twin: PPO with a critic, and a reward model that vLLM serves, beside it or colocated."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from recipe.online_refiner.metric_names import COUNTS
from recipe.runs.files import Records, read_rows


@pytest.fixture(scope="module")
def reward_model(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the tiny model with a scalar head that tells texts apart, and return its folder."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_llama, num_labels=1, dtype=torch.float32)
    folder = tmp_path_factory.mktemp("reward_model")
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_llama).save_pretrained(folder)
    return folder


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("on_its_own_pool", [True, False])
def test_a_reward_model_scores_responses_and_refinements(
    on_its_own_pool: bool,
    start_marked: Callable,
    tiny_llama: Path,
    reward_model: Path,
    letter_prompts: Path,
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    job = start_marked(
        [
            "-m",
            "recipe.online_refiner.main",
            "experiment=dialogue_ppo",
            "twin=cpu",
            f"run_dir={run_dir}",
            f"actor_rollout_ref.model.path={tiny_llama}",
            f"reward.reward_model.model_path={reward_model}",
            f"data.train_files={letter_prompts}",
            f"data.val_files={letter_prompts}",
            f"reward.reward_model.enable_resource_pool={on_its_own_pool}",
            "data.max_prompt_length=64",
            "data.max_response_length=16",
            "measure.cross_entropy_all_every=1",
        ],
        cwd=tmp_path,
    )
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    steps = list(read_rows(run_dir / "metrics.jsonl"))
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        for name in (*COUNTS, "actor/grad_norm", "critic/vf_loss", "critic/grad_norm"):
            assert math.isfinite(step[name]), name
        assert step["critic/grad_norm"] > 0

    tokenizer = AutoTokenizer.from_pretrained(reward_model)
    model = AutoModelForSequenceClassification.from_pretrained(reward_model, dtype=torch.float32)
    scored = 0
    for line in Records(f"{run_dir}/refinements").lines():
        row = json.loads(line)
        for text, reward in ((row["response"], row["reward"]), (row["refined"], row["refined_reward"])):
            if reward is None:
                continue
            chat = [*row["prompt"], {"role": "assistant", "content": text}]
            ids = tokenizer.apply_chat_template(chat, return_dict=True, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                assert reward == pytest.approx(model(ids).logits.item(), abs=1e-4), "responses and refinements alike"
            scored += 1
        if row["refined_reward"] is not None:
            assert (row["verdict"] == "accepted") == (row["refined_reward"] > row["reward"])
    assert scored >= 8
