"""A LoRA policy whose rollout servers, asked without the adapter, are the refiner: no second model, and always pi_0."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from refiner_worker.config import TEMPLATES
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.text.answer import Place, parse_answer

NUM_STEPS, MAX_NEW_TOKENS = 4, 16


@pytest.mark.e2e
@pytest.mark.slow
def test_the_rollouts_servers_refine(train_letters: Callable, tiny_llama: Path, tmp_path: Path) -> None:
    def count_engines(job: Any) -> None:
        job.wait_until((tmp_path / "run" / "metrics.jsonl").exists)
        engines = [one for one in job.descendants() if "VLLM::EngineCore" in " ".join(one.cmdline())]
        assert len(engines) == 1, "one model is loaded, not two"

    trained = train_letters(
        tmp_path,
        NUM_STEPS,
        "refiner.placement=shared",
        "refiner.template=dialogue",
        "actor_rollout_ref.rollout.max_model_len=640",
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora_alpha=64",
        "actor_rollout_ref.actor.optim.lr=0.3",
        "constraint.mode=penalty",
        "constraint.eta=0.1",
        meanwhile=count_engines,
    )
    steps = trained.steps
    assert steps[0]["kl_ref/k3"] < 1e-3 < steps[-1]["kl_ref/k3"], "the policy moves away from what refines"

    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    base = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    prompt = RefinerPrompt(TEMPLATES / "dialogue.jinja", tokenizer)
    compared = 0
    for row in trained.refinements:
        if row["refined"] is None:
            continue
        ids = torch.tensor([prompt.encode(prompt.content(row["prompt"], row["response"], row["reward"]))])
        with torch.no_grad():
            output = base.generate(ids, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)[0, ids.shape[1] :].tolist()
        place = Place(response=row["response"], stop=prompt.stop)
        answer = parse_answer(output, place, eos_token_id=tokenizer.eos_token_id, tokenizer=tokenizer)
        assert row["refined"] == answer.text, row["step"]
        compared += 1
    assert compared >= NUM_STEPS
