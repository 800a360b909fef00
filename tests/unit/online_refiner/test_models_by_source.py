"""Runs that host a model of its own for a data source: their plan, and what is refused with the key to set."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from checked_run import checked, error_of
from omegaconf import DictConfig

from recipe.online_refiner.method.constraint import OfSource


@pytest.fixture
def brief(tiny_llama: Path, tmp_path: Path) -> Path:
    """Return the folder of a model of the same family that reads only 300 tokens."""
    folder = tmp_path / "brief"
    shutil.copytree(tiny_llama, folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "max_position_embeddings": 300}))
    return folder


@pytest.fixture
def two(config: DictConfig, brief: Path) -> DictConfig:
    """Return a config whose data source has a model of its own, beside another data source."""
    config.refiner.update(placement="dedicated", n_gpus_per_node=3, template="dialogue")
    config.ray_kwargs.ray_init.num_gpus = 4
    config.refiner.by_source = {"mini_apps": {"model_path": str(brief), "template": "apps"}, "later": {}}
    return config


def change(two: DictConfig, **changes: Any) -> None:
    """Change keys of the data source."""
    own = {**two.refiner.by_source.mini_apps, **changes}
    two.refiner.by_source = {"mini_apps": own, "later": {}}


def test_the_plan_has_a_line_for_each_model(two: DictConfig, brief: Path, tiny_llama: Path) -> None:
    run = checked(two)
    common, own = run.plan.hosted
    assert (common.num_replicas, own.num_replicas) == (2, 1) and (common.first_gpu, own.first_gpu) == (0, 2)
    assert (common.model.path, own.model.path) == (str(tiny_llama), str(brief))
    assert own.max_model_len == own.rollout.max_model_len == 300 == own.max_positions < common.max_model_len
    plan = run.plan.describe(two, run.blocks, 4)
    assert f"refiner        {tiny_llama}, 2 vllm replicas, dedicated, streaming, context" in plan
    by_own = f"template apps; by {brief}, 1 vllm replicas, context 300 tokens"
    assert f"\n- mini_apps    {by_own}\n- later        nothing differs; by the common refiner\n" in plan
    run.blocks.constraint.by_source = {"later": OfSource(eta=0)}
    assert "\n- later        not refined (constraint.by_source)\n" in run.plan.describe(two, run.blocks, 4)


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"model_path": "/nowhere"},
        "refiner.by_source.mini_apps.model_path=/nowhere: no model folder there (config.json ",
    ),
    ({"max_model_len": 301}, "refiner.by_source.mini_apps.max_model_len=301 must be between "),
    (
        {"num_replicas": 3},
        "refiner.num_replicas=1 of 1 GPUs, refiner.by_source.mini_apps.num_replicas=3 of 1 GPUs: replicas do not fit "
        "on 3 GPUs; lower refiner.by_source.mini_apps.num_replicas, or the GPUs of one (+refiner.by_source.mini_apps.",
    ),
    (
        {"rollout": {"gpu_memory": 0.5}},
        "refiner.by_source.mini_apps.rollout has keys that verl's rollout block does not know: gpu_memory",
    ),
    (
        {"rollout": {"max_num_seqs": -1}},
        "refiner.by_source.mini_apps.rollout.max_num_seqs=-1: set a whole number of at least 1",
    ),
    (
        {"rollout": {"enforce_eager": "no"}},
        "refiner.by_source.mini_apps.rollout.enforce_eager=no: set true or false",
    ),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_what_is_wrong_with_a_model_is_told_with_its_own_key(
    two: DictConfig, changes: dict[str, Any], said: str
) -> None:
    change(two, **changes)
    assert error_of(two).startswith(said)


def test_a_model_has_the_policys_tokens(two: DictConfig, brief: Path) -> None:
    tokenizer = json.loads((brief / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (brief / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert error_of(two).startswith(f"refiner.by_source.mini_apps.model_path={brief}: its tokenizer differs from the ")


def test_weights_of_each_model_are_read(two: DictConfig, brief: Path) -> None:
    (brief / "model.safetensors").write_bytes(b"cut")
    assert error_of(two).startswith(f"refiner.by_source.mini_apps.model_path={brief}: ")


@pytest.mark.parametrize(
    ("per_node", "nnodes", "size", "num_replicas", "is_refused"),
    [(4, 1, 2, 1, False), (3, 2, 2, 1, False), (3, 2, 2, 2, True), (2, 2, 4, 1, True), (2, 3, 4, 1, False)],
)
def test_a_replica_is_in_one_node_or_in_whole_nodes(
    two: DictConfig, tmp_path: Path, per_node: int, nnodes: int, size: int, num_replicas: int, is_refused: bool
) -> None:
    """Larger replicas come first, and the common model has one GPU or more behind them."""
    brief = Path(two.refiner.by_source.mini_apps.model_path)
    settings = json.loads((brief / "config.json").read_text())
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": settings["hidden_size"] // 4}
    (brief / "config.json").write_text(json.dumps({**settings, **heads}))
    (brief / "model.safetensors").unlink()
    two.dry_run, two.sizing.gpu_memory_gib = True, 80
    two.refiner.update(n_gpus_per_node=per_node, nnodes=nnodes)
    change(two, num_replicas=num_replicas, rollout={"tensor_model_parallel_size": size})
    if is_refused:
        assert error_of(two).endswith(" [replicas-fit]")
    else:
        assert checked(two).plan.hosted[1].first_gpu == 0
