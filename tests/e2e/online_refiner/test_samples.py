"""Several refinements per response by one request, in whole jobs: their best is the best of single draws."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from rapidfuzz.distance import Levenshtein
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.runs.files import read_rows

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
def test_the_best_of_four_is_the_best_of_four_single_draws(
    train_babbler: Callable, start_marked: Callable, serve_chats: Callable, babbler: Path, tmp_path: Path
) -> None:
    """A vLLM server draws sample n of a request with seed s as it draws the only one of a request with seed s + n.

    A job draws four by one request; then ``online-refiner refine`` draws each of them for the job's responses.
    """
    url = serve_chats(babbler, "")
    by_url = ["refiner.placement=external", f"refiner.url={url}", f"refiner.extra_body={{seed: {SEED}}}"]
    many = train_babbler(*by_url, f"refiner.samples={K}")
    rows = [{"data_source": "letters", "reward_model": {"ground_truth": ""}} for _ in many.refinements]
    for row, one in zip(rows, many.refinements, strict=True):
        row |= {"prompt": one["prompt"], "responses": [one["response"]]}
    pandas.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    ways = [f"dialogue+feedback+temperature=1+extra_body={{seed: {SEED + n}}}" for n in range(K)]
    options = ["--model", str(babbler), "--data", str(tmp_path / "rows.parquet"), "--refiner", f"url={url}"]
    options += [
        "--reward",
        "recipe.smoke.letters:compute_score",
        "--max-response-tokens",
        "16",
        "--max-new-tokens",
        "16",
    ]
    job = start_marked(["-m", "recipe.commands", "refine", *ways, *options], cwd=tmp_path)
    assert job.wait() == 0, job.output()[-3000:]
    journal = read_rows(tmp_path / "refined" / "journal.jsonl")
    single = {line["row"]: [line["refined"]["0"][way] for way in ways] for line in journal if "refined" in line}

    (step,), drawn = many.steps, [one for own in single.values() for one in own]
    ratio = sum(one["verdict"] == "accepted" for one in drawn) / len(drawn)
    assert step["refiner/improvement_ratio_at_1"] == pytest.approx(ratio)
    assert step["refiner/improvement_ratio"] > step["refiner/improvement_ratio_at_1"] > 0
    prompt_tokens = [{one["num_prompt_tokens"] for one in own} for own in single.values()]
    assert step["tokens/refine_prompt"] == sum(num for (num,) in prompt_tokens) > 0, "once for all samples"
    assert step["tokens/refine"] == sum(one["num_generated_tokens"] for one in drawn)

    encode, num_ties = AutoTokenizer.from_pretrained(babbler).encode, 0
    for number, row in enumerate(many.refinements):
        own = single[number]
        scored = [one for one in own if one["reward"] is not None]
        best = [one for one in scored if one["reward"] == max(other["reward"] for other in scored)] or own[:1]
        best.sort(key=lambda one: Levenshtein.distance(encode(row["response"]), encode(one["text"])))
        num_ties += len({one["text"] for one in best}) > 1
        assert (row["refined"] or "", row["verdict"]) == (best[0]["text"] if scored else "", best[0]["verdict"])
        assert row["refined_reward"] == pytest.approx(best[0]["reward"])  # verl's are float32
    assert num_ties, "the nearest was told from others"


DEDICATED = ["refiner.placement=dedicated", "refiner.n_gpus_per_node=1", "ray_kwargs.ray_init.num_gpus=2"]
HOSTED = {
    "colocated": [],
    "dedicated, streaming": DEDICATED,
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
