"""The numbers that a run records of each token are those of a Hugging Face model with the weights that it has saved."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.report.reading import read_run

STEP = 2
"""Its rollouts and its update begin with what the step before it has saved."""
OVERRIDES = [
    "refiner.template=dialogue",
    "trainer.save_freq=1",
    "measure.cross_entropy_all_every=0",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
]


def model_of(folder: Path, run_dir: Path) -> Any:
    """Return the model as it was before STEP."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (file,) = (run_dir / "checkpoints" / f"global_step_{STEP - 1}" / "actor").glob("model_world_size_*_rank_*.pt")
    saved = torch.load(file, weights_only=False)
    model.load_state_dict({name: getattr(value, "_local_tensor", value) for name, value in saved.items()})
    return model


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["penalty", "in_place", "sft", "lagrangian"])
def test_the_heat_map_has_the_numbers_of_a_forward_pass(
    mode: str, train_letters: Callable, tiny_llama: Path, tmp_path: Path
) -> None:
    """The numbers come from the update's own pass in mode ``sft``; in place, no numbers of a' are needed."""
    chosen = (
        ["constraint.mode=penalty", "constraint.target=in_place"] if mode == "in_place" else [f"constraint.mode={mode}"]
    )
    trained = train_letters(tmp_path, STEP, *chosen, *OVERRIDES)
    is_eq6 = mode in ("penalty", "lagrangian")
    assert (trained.steps[-1]["tokens/refine_log_prob"] > 0) == is_eq6
    run = read_run(str(tmp_path / "run"))
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_llama), model_of(tiny_llama, tmp_path / "run")
    ids_of = {tokenizer.decode([number]): number for number in range(len(tokenizer))}
    assert all(one["data_source"] for one in run.records)
    prompts = {(one["step"], one["key"]): one["prompt"] for one in run.records}
    num_compared = 0
    for key, found in run.tokens.items():
        if key[0] != STEP:
            continue
        chat = tokenizer.apply_chat_template(prompts[key], add_generation_prompt=True, tokenize=False)
        prompt = tokenizer.encode(chat, add_special_tokens=False)
        sides = [side for side in (found["response"], found["refined"]) if side and side["log_probs"]]
        for side in sides:
            ids = [ids_of[text] for text in side["tokens"]]
            with torch.no_grad():
                table = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            expected = table.gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()
            assert side["log_probs"] == pytest.approx(expected, abs=1e-4)
        charged, is_whole = found["response"]["charged"], len(sides) == 2
        num_compared += charged is not None if mode == "in_place" else is_whole
        if mode != "in_place":
            assert (charged is not None) == (is_eq6 and is_whole)
        if charged and is_eq6:
            own = dict(enumerate(found["refined"]["log_probs"])) | {-1: 0.0}
            assert charged == pytest.approx([own[place] for place in found["response"]["counterparts"]], abs=1e-5)
    assert num_compared >= 2, "too few accepted refinements to show anything"
