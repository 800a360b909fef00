"""A reward model scores the end of a turn, where a library looks for the last token that is no padding."""

import importlib.util
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

SCRIPT = Path(__file__).parents[2] / "scripts" / "get_smollm2.py"


def test_the_reward_of_a_turn_is_that_of_its_last_token(tiny_llama: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("get_smollm2", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copytree(tiny_llama, tmp_path / "chat")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "chat")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "chat")
    tokenizer.pad_token, model.config.pad_token_id = tokenizer.eos_token, tokenizer.eos_token_id
    tokenizer.save_pretrained(tmp_path / "chat")
    model.save_pretrained(tmp_path / "chat")
    module.add_reward_head(tmp_path / "chat", tmp_path / "reward")
    scorer = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "reward")
    ids = tokenizer(f"abc{tokenizer.eos_token}", return_tensors="pt").input_ids
    with torch.no_grad():
        hidden = scorer.model(ids).last_hidden_state
        assert torch.allclose(scorer(ids).logits[0], scorer.score(hidden)[0, -1], atol=1e-6)
