"""verl's settings hold for the refiner as they do for the actor, and its data may be all that verl reads."""

import json
import shutil
import tempfile
from pathlib import Path

import fsspec
import pandas
import pytest
from checked_run import checked, error_of
from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer
from verl.utils import hdfs_io
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import RLHFDataset

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.verl_glue.model_configs import plan_run


def test_data_of_every_kind_that_verl_reads(config: DictConfig, tmp_path: Path) -> None:
    good = Path(config.data.train_files)
    pandas.read_parquet(good).to_json(tmp_path / "good.jsonl", orient="records", lines=True)
    with fsspec.open("memory://bucket/good.parquet", "wb") as file:
        file.write(good.read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    for path in ("memory://bucket/good.parquet", f"file://{good}", f"{tmp_path}/g*.parquet", f"{tmp_path}/good.jsonl"):
        config.data.train_files = path
        assert checked(config).files.num_prompts == 4
        assert len(RLHFDataset(path, tokenizer, config.data)) == 4


@pytest.fixture
def hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand a script for Hadoop's client in its place, and return the folder that it serves."""
    script, root = tmp_path / "hdfs", tmp_path / "served"
    script.write_text(f'#!/bin/sh\ntest "$2" = -get && cp -r "{root}/${{3#hdfs://}}" "$4"\n')
    script.chmod(0o755)
    monkeypatch.setattr(hdfs_io, "_HDFS_BIN_PATH", str(script))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return root


def test_models_and_data_on_hdfs(config: DictConfig, hdfs: Path, tiny_llama: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama, hdfs / "models" / "tiny")
    shutil.move(config.data.train_files, hdfs / "good.parquet")
    OmegaConf.update(config, "data.cache_dir", str(tmp_path / "cache"), force_add=True)
    config.data.train_files = config.data.val_files = "hdfs://good.parquet"
    config.actor_rollout_ref.model.path = "hdfs://models/tiny"
    run = checked(config)
    assert run.files.num_prompts == 4
    assert run.plan.common.model.path == "hdfs://models/tiny"
    config.actor_rollout_ref.model.path = "hdfs://models/none"
    assert "no tokenizer there" in error_of(config)


def test_the_refiner_reads_its_model_as_the_actor_does(config: DictConfig, tiny_llama: Path, tmp_path: Path) -> None:
    settings = json.loads((tiny_llama / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "max_position_embeddings": 512}))
    model = config.actor_rollout_ref.model
    blocks = load(config)
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    needed = plan_run(config, blocks, tokenizer=tokenizer).max_model_len

    model.hf_config_path, model.use_shm, config.refiner.max_model_len = str(tmp_path), True, 513
    assert plan_run(config, load(config), tokenizer=tokenizer).common.max_positions == 512
    OmegaConf.update(model, "override_config", {"max_position_embeddings": needed - 1}, force_add=True)
    plan = plan_run(config, blocks, tokenizer=tokenizer)
    assert plan.max_model_len == needed - 1
    assert (plan.common.model.hf_config_path, plan.common.model.use_shm) == (str(tmp_path), True)
    assert plan.common.model.override_config == model.override_config

    shutil.copytree(tiny_llama, tmp_path / "other")
    config.refiner.model_path, config.refiner.max_model_len = str(tmp_path / "other"), None
    plan = plan_run(config, load(config), tokenizer=tokenizer)
    assert plan.max_model_len == needed, "another model is not what the actor's block describes"
    model.override_config = {"text_config": {"max_position_embeddings": 512}}
    config.refiner.model_path = model.path
    with pytest.raises(ValueError, match="override_config.text_config="):
        plan_run(config, load(config), tokenizer=tokenizer)


def test_the_refiners_engine_is_plain_where_the_policys_is_not(config: DictConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    rollout.quantization, rollout.qat, rollout.enable_rollout_routing_replay = "fp8", {"enable": True}, True
    rollout.disaggregation.enabled, rollout.checkpoint_engine.backend = True, "nccl"
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    made = omega_conf_to_dataclass(plan_run(config, load(config), tokenizer=tokenizer).common.rollout)
    assert (made.quantization, made.qat, made.enable_rollout_routing_replay) == (None, None, False)
    assert (made.disaggregation.enabled, made.checkpoint_engine.backend) == (False, "naive")
    config.refiner.rollout = {"quantization": "fp8"}
    with pytest.raises(ValueError, match="refiner.rollout.quantization is for servers that a trainer sends weights"):
        plan_run(config, load(config), tokenizer=tokenizer)


def test_a_tokenizer_and_a_chat_template_apart_from_the_model(
    config: DictConfig, tiny_llama: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_llama, bare, ignore=shutil.ignore_patterns("*token*", "*.jinja"))
    model = config.actor_rollout_ref.model
    model.path, model.tokenizer_path, model.custom_chat_template = (
        str(bare),
        str(tiny_llama),
        "{{ messages[0].content }}",
    )
    run = checked(config)
    assert run.files.tokenizer.chat_template == model.custom_chat_template
    plan = run.plan
    assert (plan.common.model.path, plan.common.model.tokenizer_path) == (str(bare), str(tiny_llama))


def test_the_refiners_context_has_room_for_its_thought(config: DictConfig, tiny_llama: Path) -> None:
    thinker = AutoTokenizer.from_pretrained(tiny_llama)
    config.refiner.thoughts, config.refiner.thought_length = ["<think>", "</think>"], 40
    longer = plan_run(config, load(config), tokenizer=thinker).max_model_len
    config.refiner.thought_length = 30
    assert longer - plan_run(config, load(config), tokenizer=thinker).max_model_len == 10
