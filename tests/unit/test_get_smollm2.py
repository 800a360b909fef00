"""Who writes a model beside others, and a reward model, which scores the end of a turn."""

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

SCRIPT = Path(__file__).parents[2] / "scripts" / "get_smollm2.py"
SPEC = importlib.util.spec_from_file_location("get_smollm2", SCRIPT)
assert SPEC and SPEC.loader
module = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(module)


def test_of_two_processes_that_write_a_model_the_first_one_has(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "config.json").write_text("second")
        if not (tmp_path / "model").exists():
            module.save(tmp_path / "model", lambda other: (other / "config.json").write_text("first"))

    module.save(tmp_path / "model", write)
    assert (tmp_path / "model" / "config.json").read_text() == "first"
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_has_other_files_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(OSError):
        module.save(tmp_path, lambda folder: (folder / "config.json").write_text("mine"))
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_the_reward_of_a_turn_is_that_of_its_last_token(tiny_llama: Path, tmp_path: Path) -> None:
    # A library looks for the last token that is no padding.
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
