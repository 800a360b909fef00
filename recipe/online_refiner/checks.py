"""Checks before Ray starts that need the files of a run: models, tokenizers, data, machine."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from omegaconf import DictConfig, ListConfig, OmegaConf
from ray._private.utils import read_ray_address

from recipe.online_refiner.blocks import CRITIC_ESTIMATORS, RefinementConfig
from refiner_worker.drafts import SUFFIX_PACKAGE
from reward.limits import Limits
from reward.verl_reward import parse_ground_truth

REWARD_OF_THIS_PROJECT = "pkg://reward.verl_reward"


@dataclass(slots=True, kw_only=True)
class Checked:
    """What the checks found out."""

    tokenizer: Any
    """The actor's and the refiner's."""
    max_positions: int
    """Longest context of the reference model, in tokens."""
    num_train_rows: int
    num_val_rows: int


def check(config: DictConfig, blocks: RefinementConfig) -> Checked:
    """Check a run's files and machine.

    Raises:
        ValueError: One line that names the key and says what to set.
    """
    _check_machine(config, blocks)
    model = config.actor_rollout_ref.model
    _local_folder(model.path, "actor_rollout_ref.model.path")
    if blocks.hosts_refiner:
        _local_folder(blocks.refiner.model_path, "refiner.model_path")
    name = "path" if model.tokenizer_path is None else "tokenizer_path"
    tokenizer = _load_tokenizer(model, model[name], f"actor_rollout_ref.model.{name}")
    if blocks.hosts_refiner and blocks.refiner.model_path != model.path:
        _check_same_tokenizer(tokenizer, _load_tokenizer(model, blocks.refiner.model_path, "refiner.model_path"))
    if blocks.hosts_refiner and blocks.refiner.draft == "suffix" and find_spec(SUFFIX_PACKAGE) is None:
        raise ValueError(
            "refiner.draft=suffix needs the package arctic-inference on every node: pip install arctic-inference, or "
            "set refiner.draft=ngram"
        )
    if config.algorithm.adv_estimator in CRITIC_ESTIMATORS:
        _local_folder(config.critic.model.path, "critic.model.path")
    if config.reward.reward_model.enable:
        _local_folder(config.reward.reward_model.model_path, "reward.reward_model.model_path")
    num_train, num_val = (_check_data(config, blocks, key) for key in ("train_files", "val_files"))
    if config.data.train_max_samples > 0:
        num_train = min(num_train, config.data.train_max_samples)
    if num_train < config.data.train_batch_size:
        raise ValueError(
            f"data.train_files has {num_train} rows, less than one batch; lower data.train_batch_size="
            f"{config.data.train_batch_size}, add data or raise data.train_max_samples"
        )
    return Checked(
        tokenizer=tokenizer,
        max_positions=max_positions(config, blocks.refiner.model_path),
        num_train_rows=num_train,
        num_val_rows=num_val,
    )


def _check_machine(config: DictConfig, blocks: RefinementConfig) -> None:
    num_workers = config.trainer.n_gpus_per_node
    if num_workers < 1 or config.trainer.nnodes < 1:
        raise ValueError("trainer.n_gpus_per_node and trainer.nnodes: set at least 1")
    ray_init = config.ray_kwargs.ray_init
    if os.environ.get("RAY_ADDRESS") or ray_init.get("address") or read_ray_address(ray_init.get("_temp_dir")):
        return  # verl joins a cluster, which may be more than this machine
    if config.trainer.device == "cpu":
        num_there, what = len(os.sched_getaffinity(0)), "CPU cores"
    else:
        import torch

        num_there, what = torch.cuda.device_count(), "GPUs"
    if num_workers > num_there:
        raise ValueError(
            f"trainer.n_gpus_per_node={num_workers} workers, but this machine has {num_there} {what}; lower it"
            + (", or set platform=cpu" if num_there == 0 else "")
        )
    if config.trainer.device == "cpu":
        num_there, what = ray_init.get("num_gpus") or 0, "logical GPUs (ray_kwargs.ray_init.num_gpus)"
    pools = _gpus_by_pool(config, blocks)
    if sum(pools.values()) > num_there:
        total, wanted = sum(pools.values()), ", ".join(f"{number} for {who}" for who, number in pools.items())
        on_cpu = config.trainer.device == "cpu"
        raise ValueError(
            f"the run needs {total} GPUs ({wanted}), but this machine has {num_there} {what}; lower them, or "
            + (f"set ray_kwargs.ray_init.num_gpus={total}" if on_cpu else "start Ray on every node first")
        )


def _gpus_by_pool(config: DictConfig, blocks: RefinementConfig) -> dict[str, int]:
    pools = {"training": config.trainer.nnodes * config.trainer.n_gpus_per_node}
    if blocks.hosts_refiner and blocks.refiner.is_dedicated:
        pools["the refiner"] = blocks.refiner.nnodes * (blocks.refiner.n_gpus_per_node or 0)
    model = config.reward.reward_model
    if model.enable and model.enable_resource_pool:
        if model.nnodes < 1:
            raise ValueError(f"reward.reward_model.nnodes={model.nnodes}: set at least 1 for GPUs of its own")
        pools["the reward model"] = model.nnodes * model.n_gpus_per_node
    return pools


def _load_tokenizer(model: DictConfig, path: str, key: str) -> Any:
    """Return a tokenizer, read as verl's model block says (``HFModelConfig`` in ``verl/workers/config/model.py``)."""
    from transformers import AutoTokenizer

    folder = str(Path(path).expanduser())
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(f"{key}={path}: no tokenizer there ({str(error).splitlines()[0]})") from error
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    if not tokenizer.chat_template:
        raise ValueError(f"{key}={path}: its tokenizer has no chat template; use an instruct model, or add one to it")
    if tokenizer.eos_token_id is None:
        raise ValueError(f"{key}={path}: its tokenizer has no EOS token; set eos_token in tokenizer_config.json")
    return tokenizer


def _local_folder(path: str, key: str) -> str:
    folder = Path(path).expanduser()
    looks_local = path.startswith(("/", ".", "~"))
    if looks_local and not (folder / "config.json").is_file():
        raise ValueError(f"{key}={path}: no model folder there (config.json is missing)")
    return str(folder) if folder.is_dir() else path


def _check_same_tokenizer(actor: Any, refiner: Any) -> None:
    if actor.get_vocab() != refiner.get_vocab() or actor.eos_token_id != refiner.eos_token_id:
        raise ValueError(
            "refiner.model_path: its tokenizer differs from the actor's, but refined token ids are the policy's "
            "targets; set a model of the same family, or leave refiner.model_path at the actor's"
        )


def max_positions(config: DictConfig, path: str) -> int:
    """Return the longest context of a model, in tokens."""
    from transformers import AutoConfig

    trusted = config.actor_rollout_ref.model.trust_remote_code
    model = AutoConfig.from_pretrained(Path(path).expanduser(), trust_remote_code=trusted)
    return int(model.get_text_config().max_position_embeddings)


def _check_data(config: DictConfig, blocks: RefinementConfig, key: str) -> int:
    files = config.data[key]
    paths = [Path(file).expanduser() for file in (files if isinstance(files, ListConfig) else [files]) if file]
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        raise ValueError(f"data.{key}: no such file: {missing[0] if missing else files}")
    if any(path.suffix != ".parquet" for path in paths):
        return len(paths)  # verl reads other formats itself; only parquet can be looked into cheaply
    num_rows = sum(pq.read_metadata(path).num_rows for path in paths)
    if num_rows == 0:
        raise ValueError(f"data.{key}: the data set is empty: {paths[0]}")
    media = {config.data.get(name) for name in ("image_key", "video_key", "audio_key")}
    found = sorted(media.intersection(name for path in paths for name in pq.read_schema(path).names))
    if found and blocks.hosts_refiner and key == "train_files":
        raise ValueError(f"data.{key}: its {found[0]} would not reach the refiner, which reads text; drop the column")
    if config.reward.custom_reward_function.path == REWARD_OF_THIS_PROJECT:
        limits = Limits(**(OmegaConf.select(config, "reward.custom_reward_function.reward_kwargs.limits") or {}))
        for path in paths:
            for row in _rows(path):
                _check_problem(row, path, limits)
    return num_rows


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    file = pq.ParquetFile(path)
    columns = [name for name in ("data_source", "reward_model", "extra_info") if name in file.schema_arrow.names]
    for batch in file.iter_batches(batch_size=256, columns=columns):
        yield from batch.to_pylist()


def _check_problem(row: dict[str, Any], path: Path, limits: Limits) -> None:
    try:
        ground_truth = row["reward_model"]["ground_truth"]
    except (KeyError, TypeError):
        raise ValueError(
            f"{path}: a row has no reward_model.ground_truth; make the file with scripts/prepare_data.py"
        ) from None
    try:
        parse_ground_truth(
            ground_truth,
            data_source=row.get("data_source") or "",
            extra_info=row.get("extra_info"),
            limits=limits,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
