"""Several refinements of each response by one request, in whole jobs: the best of them is the best of single runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rapidfuzz.distance import Levenshtein
from transformers import AutoModelForCausalLM, AutoTokenizer

K, SEED = 4, 7


@pytest.fixture(scope="module")
def babbler(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model that writes letters, of which some are capitals, and others behind another prompt."""
    folder = tmp_path_factory.mktemp("babbler")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_llama), AutoTokenizer.from_pretrained(tiny_llama)
    with torch.no_grad():
        for layer in model.model.layers:
            for part in (layer.self_attn.v_proj, layer.self_attn.o_proj):
                part.weight *= 8  # it sees more of the prompt than the last letter
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(["B", "C"])] *= 1.1  # the likeliest
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def train_babbler(train_letters: Callable, babbler: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """Return a function that refines greedy rollouts of a policy that stays as it is, by draws at temperature 1."""

    def train(*overrides: str) -> Any:
        return train_letters(
            tmp_path_factory.mktemp("job"),
            1,
            "actor_rollout_ref.rollout.top_k=1",
            "actor_rollout_ref.rollout.n=1",
            "refiner.temperature=1",
            "refiner.template=dialogue",
            "constraint.mode=penalty",
            "actor_rollout_ref.actor.optim.lr=0",
            f"actor_rollout_ref.model.path={babbler}",
            "actor_rollout_ref.rollout.max_model_len=640",
            "data.train_batch_size=16",
            "actor_rollout_ref.actor.ppo_mini_batch_size=16",
            "measure.num_kl_rollouts=0",
            *overrides,
        )

    return train


@pytest.mark.e2e
@pytest.mark.slow
def test_the_best_of_four_is_the_best_of_four_single_runs(
    train_babbler: Callable, serve_chats: Callable, babbler: Path
) -> None:
    """A server of vLLM's draws sample n of a request with seed s as the only one of a request with seed s + n."""
    by_url = ["refiner.placement=external", f"refiner.url={serve_chats(babbler, '')}"]
    many = train_babbler(*by_url, f"refiner.samples={K}", f"refiner.extra_body={{seed: {SEED}}}")
    single = [train_babbler(*by_url, f"refiner.extra_body={{seed: {SEED + n}}}") for n in range(K)]
    (step,), steps = many.steps, [one.steps[0] for one in single]
    ratios = [one["refiner/improvement_ratio"] for one in steps]
    assert "refiner/improvement_ratio_at_1" not in steps[0]
    assert step["refiner/improvement_ratio_at_1"] == pytest.approx(sum(ratios) / K)
    assert step["refiner/improvement_ratio"] > step["refiner/improvement_ratio_at_1"] > 0
    assert step["tokens/refine_prompt"] == steps[0]["tokens/refine_prompt"] > 0, "once for all samples"
    assert step["tokens/refine"] == sum(one["tokens/refine"] for one in steps)

    encode = AutoTokenizer.from_pretrained(babbler).encode
    drawn = {str(row["prompt"]): [] for row in many.refinements}
    for one in single:
        for row in one.refinements:
            drawn[str(row["prompt"])].append(row)
    num_ties = 0
    for row in many.refinements:
        own = drawn[str(row["prompt"])]
        assert [one["response"] for one in own] == [row["response"]] * K
        highest = max((one["refined_reward"] for one in own if one["refined"] is not None), default=None)
        best = [one for one in own if one["refined_reward"] == highest] if highest is not None else own[:1]
        best.sort(key=lambda one: Levenshtein.distance(encode(one["response"]), encode(one["refined"] or "")))
        num_ties += len({one["refined"] for one in best}) > 1
        names = ("refined", "refined_reward", "verdict")
        assert [row[name] for name in names] == [best[0][name] for name in names]
    assert num_ties, "the nearest was told from others"


DEDICATED = ["refiner.placement=dedicated", "refiner.n_gpus_per_node=1", "ray_kwargs.ray_init.num_gpus=2"]
HOSTED = {
    "colocated, drafts": ["refiner.draft=ngram"],
    "dedicated, streaming, prefixes kept": [*DEDICATED, "refiner.keep_prefix=true"],
    "shared": [
        "refiner.placement=shared",
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora_alpha=8",
    ],
}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("placement", HOSTED)
def test_replicas_draw_as_often_as_asked(train_babbler: Callable, placement: str) -> None:
    one, many = (train_babbler(f"refiner.samples={num}", *HOSTED[placement]).steps[0] for num in (1, K))
    assert one["refiner/num_attempted"] == many["refiner/num_attempted"] == 16
    assert many["refiner/failed/request"] == many["refiner/failed/timeout"] == 0
    if "kept" not in placement:  # what is kept is drawn anew, and the rest not written
        assert many["tokens/refine_prompt"] == one["tokens/refine_prompt"], "once for all samples"
        assert many["tokens/refine"] > one["tokens/refine"]
    assert many["refiner/improvement_ratio"] > many["refiner/improvement_ratio_at_1"] > 0
