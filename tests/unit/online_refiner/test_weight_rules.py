"""Weights that a run could not load, or would load in part, are one line that names the file."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checked_run import checked, error_of
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file, save_file
from sparse_weights import write_sparse
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    GemmaConfig,
    LlamaConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3MoeConfig,
)

from recipe.online_refiner.verl_glue.preflight import weights
from recipe.online_refiner.verl_glue.preflight.cautions import cautions

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "pad_token_id": None,
}
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
FIRST = "model-00001-of-00002.safetensors"


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny model's folder."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def shard(folder: Path) -> None:
    """Write a model's weights as two shards with an index."""
    tensors = load_file(folder / FILE)
    (folder / FILE).unlink()
    names = sorted(tensors)
    parts = {FIRST: names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for name, own in parts.items():
        save_file({tensor: tensors[tensor] for tensor in own}, folder / name, metadata={"format": "pt"})
    weight_map = {tensor: name for name, own in parts.items() for tensor in own}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def shard_below(folder: Path) -> None:
    """Write the shards into a folder within the model's."""
    shard(folder)
    (folder / "parts").mkdir()
    for path in folder.glob("model-*.safetensors"):
        path.rename(folder / "parts" / path.name)
    (folder / INDEX).write_text((folder / INDEX).read_text().replace('"model-', '"parts/model-'))


def change(folder: Path, do: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a model's file."""
    tensors = load_file(folder / FILE)
    do(tensors)
    save_file(tensors, folder / FILE, metadata={"format": "pt"})


def as_pickle(folder: Path, **settings: Any) -> Path:
    """Write a model's weights as a pickle, and return it."""
    torch.save(load_file(folder / FILE), folder / "pytorch_model.bin", **settings)
    (folder / FILE).unlink()
    return folder / "pytorch_model.bin"


def as_model(folder: Path) -> None:
    """Write a whole model as a pickle."""
    torch.save(AutoModelForCausalLM.from_pretrained(folder), folder / "pytorch_model.bin")
    (folder / FILE).unlink()


def cut(path: Path) -> None:
    """Cut a file in half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


WHOLE: dict[str, Callable[[Path], object]] = {
    "as it was saved": lambda folder: None,
    "shards": shard,
    "shards in a folder below": shard_below,
    "a pickle": as_pickle,
    "a pickle of an old format": lambda folder: as_pickle(folder, _use_new_zipfile_serialization=False),
    "a pickle of protocol 3": lambda folder: as_pickle(folder, _use_new_zipfile_serialization=False, pickle_protocol=3),
    "a broken pickle beside it": lambda folder: (folder / "pytorch_model.bin").write_bytes(b"PK"),
    "more tensors than the model has": lambda folder: change(
        folder, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    ),
    "files of other formats beside it": lambda folder: (folder / "model.gguf").write_bytes(b"GGUF"),
    "names of the body alone": lambda folder: change(
        folder,
        lambda tensors: [
            tensors.update({name.removeprefix("model."): tensors.pop(name)})
            for name in list(tensors)
            if name != "lm_head.weight"
        ],
    ),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_weights_that_verl_loads(config: DictConfig, folder: Path, kind: str) -> None:
    WHOLE[kind](folder)
    config.actor_rollout_ref.model.path = str(folder)
    checked(config)


def pop(name: str) -> Callable[[Path], None]:
    return lambda folder: change(folder, lambda tensors: tensors.pop(name))


def in_shards(do: Callable[[Path], object]) -> Callable[[Path], None]:
    def both(folder: Path) -> None:
        shard(folder)
        do(folder)

    return both


def index_without(folder: Path) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = FIRST
    (folder / INDEX).write_text(json.dumps(index))
    tensors = load_file(folder / FIRST)
    tensors.pop("model.norm.weight", None)
    save_file(tensors, folder / FIRST, metadata={"format": "pt"})


K_PROJ = "model.layers.1.self_attn.k_proj.weight"
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda folder: cut(folder / FILE), f"/{FILE} is cut off"),
    "a byte short": (
        lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-1]),
        f"/{FILE} is cut off",
    ),
    "a byte long": (
        lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes() + b"0"),
        f"/{FILE} is cut off, or no safetensors file",
    ),
    "empty": (lambda folder: (folder / FILE).write_bytes(b""), f"/{FILE} is empty"),
    "a pointer": (lambda folder: (folder / FILE).write_text(POINTER), f"/{FILE} is a pointer of Git LFS"),
    "a web page": (lambda folder: (folder / FILE).write_text("<!DOCTYPE html><html>"), f"/{FILE} is cut off, or no"),
    "absent": (lambda folder: (folder / FILE).unlink(), f"/{FILE} is missing"),
    "GGUF alone": (lambda folder: (folder / FILE).rename(folder / "m.gguf"), "(m.gguf is not a name that "),
    "another name": (lambda folder: (folder / FILE).rename(folder / "a.safetensors"), "(a.safetensors is not a name"),
    "a tensor short": (pop(K_PROJ), f"in {FILE}, 20 tensors are there, but {K_PROJ} of LlamaForCausalLM is not"),
    "a head short": (
        lambda folder: [pop("lm_head.weight")(folder), rewrite(folder, tie_word_embeddings=False)],
        "lm_head.weight of LlamaForCausalLM is not",
    ),
    "a layer short": (lambda folder: rewrite(folder, num_hidden_layers=3), "and 8 more of LlamaForCausalLM is not"),
    "another shape": (
        lambda folder: change(folder, lambda tensors: tensors.update({K_PROJ: torch.ones(3, 4)})),
        f"its {K_PROJ} is 3 x 4, and its config.json asks for ",
    ),
    "names of another framework": (
        lambda folder: change(
            folder, lambda tensors: [tensors.update({f"x.{name}": tensors.pop(name)}) for name in list(tensors)]
        ),
        "of LlamaForCausalLM is not",
    ),
    "a shard cut": (in_shards(lambda folder: cut(folder / FIRST)), f"/{FIRST} is cut off"),
    "a shard empty": (in_shards(lambda folder: (folder / FIRST).write_bytes(b"")), f"/{FIRST} is empty"),
    "a shard absent": (in_shards(lambda folder: (folder / FIRST).unlink()), f"/{FIRST} is missing"),
    "a shard without its tensor": (in_shards(index_without), f"/{FIRST} lacks the tensor model.norm.weight, which "),
    "an index cut": (in_shards(lambda folder: cut(folder / INDEX)), f"/{INDEX} is no index of shards"),
    "an index of another kind": (
        in_shards(lambda folder: (folder / INDEX).write_text('{"weight_map": [1]}')),
        f"/{INDEX} is no index of shards",
    ),
    "a pickle cut": (lambda folder: cut(as_pickle(folder)), "/pytorch_model.bin is cut off"),
    "a pickle empty": (lambda folder: as_pickle(folder).write_bytes(b""), "/pytorch_model.bin is empty"),
    "a pickle that is a pointer": (lambda folder: as_pickle(folder).write_text(POINTER), "is a pointer of Git LFS"),
    **{
        f"a pickle that torch.load does not read ({name})": (do, f"/pytorch_model.bin {words}")
        for name, do, words in (
            ("protocol 4", lambda folder: as_pickle(folder, pickle_protocol=4), "cannot be read as transformers"),
            (
                "an old one of protocol 4",
                lambda folder: as_pickle(folder, pickle_protocol=4, _use_new_zipfile_serialization=False),
                "is a pickle that torch.load does not read as weights; save the model as safetensors",
            ),
            ("pickle.dump", lambda folder: as_pickle(folder).write_bytes(pickle.dumps({}, 2)), "is a pickle that "),
            ("a list", lambda folder: torch.save([1], as_pickle(folder)), "holds a list, not tensors by name"),
            ("a model", as_model, "cannot be read as transformers"),
        )
    },
    "a link to nothing": (
        lambda folder: [(folder / FILE).unlink(), (folder / FILE).symlink_to("gone")],
        f"/{FILE} is a link to a file that is gone",
    ),
    "a folder of its name": (lambda folder: [(folder / FILE).unlink(), (folder / FILE).mkdir()], "shards; fetch "),
    "a pickle a tensor short": (
        lambda folder: [pop(K_PROJ)(folder), as_pickle(folder)],
        f"in pytorch_model.bin, 20 tensors are there, but {K_PROJ} of ",
    ),
}


def rewrite(folder: Path, **changes: Any) -> None:
    """Change a model's config."""
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**found, **changes}))


@pytest.mark.parametrize("kind", BROKEN)
def test_weights_that_verl_cannot_load(config: DictConfig, folder: Path, kind: str) -> None:
    do, words = BROKEN[kind]
    do(folder)
    config.actor_rollout_ref.model.path = str(folder)
    found = error_of(config)
    assert found.startswith(f"actor_rollout_ref.model.path={folder}: ") and words in found
    assert found.endswith(" [weights-are-the-models]")


@pytest.mark.parametrize("key", ["refiner.model_path", "critic.model.path"])
def test_each_model_has_its_weights(config: DictConfig, folder: Path, key: str) -> None:
    OmegaConf.update(config, key, str(folder))
    if key.startswith("critic"):
        config.algorithm.adv_estimator, config.critic.ppo_micro_batch_size_per_gpu = "gae", 2
    checked(config)
    cut(folder / FILE)
    assert error_of(config).startswith(f"{key}={folder}: {folder}/{FILE} is cut off")


def test_an_engine_reads_files_of_any_name(config: DictConfig, folder: Path) -> None:
    (folder / FILE).rename(folder / "consolidated.safetensors")
    config.refiner.model_path = str(folder)
    checked(config)
    cut(folder / "consolidated.safetensors")
    assert "/consolidated.safetensors is cut off" in error_of(config)


def test_a_plan_for_another_machine_needs_no_weights_and_says_so(config: DictConfig, folder: Path) -> None:
    (folder / FILE).unlink()
    config.actor_rollout_ref.model.path = str(folder)
    config.dry_run, config.sizing.gpu_memory_gib = True, 80
    config.actor_rollout_ref.rollout.gpu_memory_utilization = 0.1
    said = f"actor_rollout_ref.model.path={folder}: there are no weights, so only the config was checked"
    assert said in cautions(checked(config))
    (folder / FILE).write_bytes(b"")
    assert "is empty" in error_of(config)


@pytest.mark.parametrize(
    ("name", "is_whole"), [("adapter_model.safetensors", True), ("adapter_model.bin", True), ("other.bin", False)]
)
def test_an_adapter_to_go_on_with(config: DictConfig, folder: Path, name: str, is_whole: bool) -> None:
    (folder / "adapter_config.json").write_text("{}")
    config.actor_rollout_ref.model.lora_rank, config.actor_rollout_ref.model.lora_adapter_path = 8, str(folder)
    write = save_file if name.endswith(".safetensors") else torch.save
    write({"lora_A.weight": torch.ones(8, 32)}, folder / name)
    if is_whole:
        checked(config)
        cut(folder / name)
    said = f"{folder}/{name} is cut off" if is_whole else f"{folder}/adapter_model.safetensors is missing"
    found = error_of(config)
    assert found.startswith(f"actor_rollout_ref.model.lora_adapter_path={folder}: {said}")
    assert found.endswith(" [adapter-is-whole]")


FAMILIES: list[Any] = [
    LlamaConfig(**SIZES),
    Qwen2Config(**SIZES, tie_word_embeddings=True),
    GemmaConfig(**SIZES, head_dim=8),
    MixtralConfig(**SIZES, num_local_experts=4),
    Qwen3MoeConfig(**SIZES, num_experts=4, moe_intermediate_size=16, head_dim=8),
]


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.model_type)
def test_a_family_with_tied_or_stacked_tensors(config: Any, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path, max_shard_size="20KB")
    shapes = weights.model_shapes(weights.find_weights(tmp_path))
    config.architectures = [f"{type(config).__name__.removesuffix('Config')}ForCausalLM"]
    assert shapes is not None
    assert weights.wrong_with_shapes(config, shapes) is None
    assert weights.wrong_with_shapes(config, shapes, is_critic=True) is None
    name = next(name for name in shapes if "mlp" in name or "expert" in name)
    for others in ({}, {name: (1, 1)}):
        found = weights.wrong_with_shapes(config, {**{one: shapes[one] for one in shapes if one != name}, **others})
        assert found is not None and "\n" not in found


def test_a_critic_that_was_saved_as_one(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES, num_labels=1)
    AutoModelForTokenClassification.from_config(config).save_pretrained(tmp_path)
    shapes = weights.model_shapes(weights.find_weights(tmp_path))
    assert shapes is not None and weights.wrong_with_shapes(config, shapes, is_critic=True) is None


def test_weights_that_are_larger_than_memory(tmp_path: Path) -> None:
    """Headers are read without memory for the whole file."""
    sizes = {**SIZES, "hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 80}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes}
    write_sparse(tmp_path, config)
    assert (tmp_path / FILE).stat().st_size > 5e11
    shapes = weights.model_shapes(weights.find_weights(tmp_path))
    assert shapes is not None and shapes["model.norm.weight"] == (16384,)


def test_a_file_may_have_both_of_tied_weights() -> None:
    """Transformers then compares them, which tensors without memory cannot be."""
    config = LlamaConfig(tie_word_embeddings=True, architectures=["LlamaForCausalLM"], **SIZES)
    shapes = {name: tuple(one.shape) for name, one in AutoModelForCausalLM.from_config(config).state_dict().items()}
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= shapes.keys()
    assert weights.wrong_with_shapes(config, shapes) is None
