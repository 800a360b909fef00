"""The refiner gives the same refinements for the same rollouts, wherever it lives and whichever trainer asks it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

DEDICATED = ["refiner.placement=dedicated", "refiner.n_gpus_per_node=1", "ray_kwargs.ray_init.num_gpus=2"]
PLACEMENTS = {
    "colocated": [],
    "dedicated, after the rollout": [*DEDICATED, "refiner.streaming=false"],
    "dedicated, streaming": DEDICATED,
    "shared": [
        "refiner.placement=shared",
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora_alpha=8",
    ],
    "external": ["refiner.placement=external", "refiner.url={url}", "measure.num_kl_rollouts=0"],
    "colocated, asynchronous trainer": ["trainer.v1.trainer_mode=colocate_async"],
    "dedicated, asynchronous trainer": [*DEDICATED, "trainer.v1.trainer_mode=colocate_async"],
}
COMPARED = ("response", "reward", "refined", "refined_reward", "verdict")


@pytest.fixture
def babbler(tiny_llama: Path, tmp_path: Path) -> Path:
    """Save a model that has learned nothing, and writes something else to each prompt."""
    folder = tmp_path / "babbler"
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(tiny_llama, initializer_range=0.2)
    model, tokenizer = AutoModelForCausalLM.from_config(config), AutoTokenizer.from_pretrained(tiny_llama)
    with torch.no_grad():
        half = [one for token, one in tokenizer.get_vocab().items() if not token.isascii() and token not in "ĠĊ"]
        model.lm_head.weight[half] = 0  # bytes that alone are no text: a server by URL sends text
        model.lm_head.weight[config.eos_token_id] *= 3  # it comes to an end
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.e2e
@pytest.mark.slow
def test_all_placements_give_the_same_refinements(
    train_letters: Callable, serve_chats: Callable, babbler: Path, tmp_path: Path
) -> None:
    """Greedy rollouts and refinements of a policy that stays as it is (a learning rate of zero)."""
    found: dict[str, dict[str, tuple]] = {}
    for placement, overrides in PLACEMENTS.items():
        overrides = [one.format(url=serve_chats(babbler, "")) if "{url}" in one else one for one in overrides]
        folder = tmp_path / placement.replace(", ", "-").replace(" ", "-")
        folder.mkdir()
        rows = train_letters(
            folder,
            2,
            "actor_rollout_ref.rollout.top_k=1",
            "actor_rollout_ref.rollout.n=2",
            "refiner.temperature=0",
            "refiner.template=math",  # tags are begun for replicas only
            "constraint.mode=penalty",
            "constraint.eta=0.1",
            "actor_rollout_ref.actor.optim.lr=0",
            f"actor_rollout_ref.model.path={babbler}",
            "actor_rollout_ref.rollout.max_model_len=640",
            "data.shuffle=false",
            *overrides,
        ).refinements
        assert len({row["key"] for row in rows}) == len(rows), "each response is refined once"
        found[placement] = {str(row["prompt"]): tuple(row[name] for name in COMPARED) for row in rows}
        assert len(found[placement]) >= 8
        assert all(tuple(row[name] for name in COMPARED) == found[placement][str(row["prompt"])] for row in rows)

    expected = found["colocated"]
    assert len({row[COMPARED.index("verdict")] for row in expected.values()}) > 1
    assert len({row[COMPARED.index("refined")] for row in expected.values()}) > 4
    for placement, refinements in found.items():
        both = refinements.keys() & expected.keys()
        assert len(both) >= 8, placement
        assert {prompt: refinements[prompt] for prompt in both} == {prompt: expected[prompt] for prompt in both}
