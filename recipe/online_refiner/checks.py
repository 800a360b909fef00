"""Checks before Ray starts that need the files of a run: models, tokenizers, data, machine."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from omegaconf import DictConfig, ListConfig

from recipe.online_refiner.schema import CRITIC_ESTIMATORS, RefinementConfig
from refiner_worker.drafts import SUFFIX_PACKAGE
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
    _check_machine(config)
    actor_path = config.actor_rollout_ref.model.path
    tokenizer = _load_tokenizer(actor_path, "actor_rollout_ref.model.path")
    if blocks.hosts_refiner and blocks.refiner.model_path != actor_path:
        _check_same_tokenizer(tokenizer, _load_tokenizer(blocks.refiner.model_path, "refiner.model_path"))
    if blocks.hosts_refiner and blocks.refiner.draft == "suffix" and find_spec(SUFFIX_PACKAGE) is None:
        raise ValueError(
            "refiner.draft=suffix needs the package arctic-inference on every node: pip install arctic-inference, or "
            "set refiner.draft=ngram"
        )
    if config.algorithm.adv_estimator in CRITIC_ESTIMATORS:
        _local_folder(config.critic.model.path, "critic.model.path")
    if config.reward.reward_model.enable:
        _local_folder(config.reward.reward_model.model_path, "reward.reward_model.model_path")
    num_train, num_val = (_check_data(config, key) for key in ("train_files", "val_files"))
    if num_train < config.data.train_batch_size:
        raise ValueError(
            f"data.train_files has {num_train} rows, less than one batch; lower data.train_batch_size="
            f"{config.data.train_batch_size} or add data"
        )
    return Checked(
        tokenizer=tokenizer,
        max_positions=max_positions(blocks.refiner.model_path),
        num_train_rows=num_train,
        num_val_rows=num_val,
    )


def _check_machine(config: DictConfig) -> None:
    num_workers = config.trainer.n_gpus_per_node
    if num_workers < 1 or config.trainer.nnodes < 1:
        raise ValueError("trainer.n_gpus_per_node and trainer.nnodes: set at least 1")
    if os.environ.get("RAY_ADDRESS") or config.ray_kwargs.ray_init.get("address"):
        return  # the cluster is not this machine
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


def _load_tokenizer(path: str, key: str) -> Any:
    from transformers import AutoTokenizer

    local = _local_folder(path, key)
    try:
        tokenizer = AutoTokenizer.from_pretrained(local)
    except (OSError, ValueError) as error:
        raise ValueError(f"{key}={path}: no tokenizer there ({str(error).splitlines()[0]})") from error
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


def max_positions(path: str) -> int:
    """Return the longest context of a model, in tokens."""
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(Path(path).expanduser()).get_text_config().max_position_embeddings)


def _check_data(config: DictConfig, key: str) -> int:
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
    if config.reward.custom_reward_function.path == REWARD_OF_THIS_PROJECT:
        for path in paths:
            for row in _rows(path):
                _check_problem(row, path)
    return num_rows


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    file = pq.ParquetFile(path)
    columns = [name for name in ("data_source", "reward_model", "extra_info") if name in file.schema_arrow.names]
    for batch in file.iter_batches(batch_size=256, columns=columns):
        yield from batch.to_pylist()


def _check_problem(row: dict[str, Any], path: Path) -> None:
    try:
        ground_truth = row["reward_model"]["ground_truth"]
    except (KeyError, TypeError):
        raise ValueError(
            f"{path}: a row has no reward_model.ground_truth; make the file with scripts/prepare_data.py"
        ) from None
    try:
        parse_ground_truth(ground_truth, data_source=row.get("data_source") or "", extra_info=row.get("extra_info"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
