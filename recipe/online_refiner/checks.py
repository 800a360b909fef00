"""Checks before Ray starts that need the files of a run: models, tokenizers, data, machine."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
from ray._private.utils import read_ray_address
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.fs import copy_to_local
from verl.utils.import_utils import import_external_libs

from recipe.online_refiner.blocks import CRITIC_ESTIMATORS, RefinementConfig
from refiner_worker.drafts import SUFFIX_PACKAGE
from reward.limits import Limits
from reward.math import MathProblem
from reward.puzzle import Puzzle
from reward.verl_reward import parse_ground_truth

CHECKS: dict[str, Callable[[Any, str, Any, Limits], object]] = {
    "pkg://reward.verl_reward": lambda ground_truth, source, extra_info, limits: parse_ground_truth(
        ground_truth, data_source=source, extra_info=extra_info, limits=limits
    ),
    "pkg://reward.math": lambda answer, source, *_: MathProblem.from_answer(answer, problem_id=f"of {source}"),
    "pkg://reward.puzzle": lambda entry, source, *_: Puzzle.from_ground_truth(entry, problem_id=f"of {source}"),
}
"""By reward function of this project: what raises ValueError for a ground truth that it cannot use."""
_NUMINA = ("aops_forum", "synthetic_math", "amc_aime", "synthetic_amc", "cn_k12", "olympiads")
RUN_BY_VERL = {f"numina_{name}" for name in _NUMINA}
"""Data sources whose answers verl's own grader evaluates as Python (``verl/utils/reward_score/prime_math``)."""
CACHE_OF_VERL = "~/.cache/verl/rlhf"
"""Where ``RLHFDataset`` copies ``hdfs://`` files without ``data.cache_dir``."""


def check(config: DictConfig, blocks: RefinementConfig) -> tuple[Any, int]:
    """Check a run's files and machine; return the tokenizer, the actor's and the refiner's, and the number of prompts.

    Raises:
        ValueError: One line that names the key and says what to set.
    """
    _check_machine(config, blocks)
    model = config.actor_rollout_ref.model
    import_external_libs(model.external_lib)
    _check_folder(model.path, "actor_rollout_ref.model.path")
    if blocks.hosts_refiner:
        _check_folder(blocks.refiner.model_path, "refiner.model_path")
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
        _check_folder(config.critic.model.path, "critic.model.path")
    if config.reward.reward_model.enable:
        _check_folder(config.reward.reward_model.model_path, "reward.reward_model.model_path")
    num_train, _ = (_check_data(config, blocks, key, tokenizer) for key in ("train_files", "val_files"))
    if config.data.train_max_samples > 0:
        num_train = min(num_train, config.data.train_max_samples)
    if num_train < config.data.train_batch_size:
        raise ValueError(
            f"data.train_files has {num_train} rows, less than one batch; lower data.train_batch_size="
            f"{config.data.train_batch_size}, add data or raise data.train_max_samples"
        )
    return tokenizer, num_train


def _check_machine(config: DictConfig, blocks: RefinementConfig) -> None:
    num_workers, on_cpu = config.trainer.n_gpus_per_node, config.trainer.device == "cpu"
    if num_workers < 1 or config.trainer.nnodes < 1:
        raise ValueError("trainer.n_gpus_per_node and trainer.nnodes: set at least 1")
    ray_init = config.ray_kwargs.ray_init
    if os.environ.get("RAY_ADDRESS") or ray_init.get("address") or read_ray_address(ray_init.get("_temp_dir")):
        return  # verl joins a cluster, which may be more than this machine
    num_there = len(os.sched_getaffinity(0)) if on_cpu else torch.cuda.device_count()
    if num_workers > num_there:
        raise ValueError(
            f"trainer.n_gpus_per_node={num_workers} workers, but this machine has {num_there} "
            f"{'CPU cores' if on_cpu else 'GPUs'}; lower it" + (", or set platform=cpu" if num_there == 0 else "")
        )
    pools = _gpus_by_pool(config, blocks)
    total, wanted = sum(pools.values()), ", ".join(f"{number} for {who}" for who, number in pools.items())
    key = "ray_kwargs.ray_init.num_gpus"
    what, way_out = "GPUs", "start Ray on every node first"
    if on_cpu:
        num_there, what, way_out = ray_init.get("num_gpus") or 0, f"logical GPUs ({key})", f"set {key}={total}"
    if total > num_there:
        raise ValueError(
            f"the run needs {total} GPUs ({wanted}), but this machine has {num_there} {what}; lower them, or {way_out}"
        )


def _gpus_by_pool(config: DictConfig, blocks: RefinementConfig) -> dict[str, int]:
    pools = {"training": config.trainer.nnodes * config.trainer.n_gpus_per_node}
    if config.trainer.v1.trainer_mode == "separate_async":
        rollout = config.actor_rollout_ref.rollout
        pools["the rollout"] = rollout.nnodes * rollout.n_gpus_per_node
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

    try:
        tokenizer = AutoTokenizer.from_pretrained(copy_to_local(path), trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, AssertionError) as error:
        raise ValueError(f"{key}={path}: no tokenizer there ({str(error).splitlines()[0]})") from error
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    if not tokenizer.chat_template:
        raise ValueError(f"{key}={path}: its tokenizer has no chat template; use an instruct model, or add one to it")
    if tokenizer.eos_token_id is None:
        raise ValueError(f"{key}={path}: its tokenizer has no EOS token; set eos_token in tokenizer_config.json")
    return tokenizer


def _check_folder(path: str, key: str) -> None:
    if path.startswith(("/", ".", "~")) and not Path(path, "config.json").is_file():
        raise ValueError(f"{key}={path}: no model folder there (config.json is missing)")


def _check_same_tokenizer(actor: Any, refiner: Any) -> None:
    if actor.get_vocab() != refiner.get_vocab() or actor.eos_token_id != refiner.eos_token_id:
        raise ValueError(
            "refiner.model_path: its tokenizer differs from the actor's, but refined token ids are the policy's "
            "targets; set a model of the same family, or leave refiner.model_path at the actor's"
        )


def _check_data(config: DictConfig, blocks: RefinementConfig, key: str, tokenizer: Any) -> int:
    """Check what verl will read, and return the number of its rows."""
    files = config.data[key]
    if OmegaConf.select(config, "data.custom_cls.path"):  # a class of the user's, which alone knows its files
        return len(create_rl_dataset(files, config.data, tokenizer, None))
    parts = [_read(config, key, file) for file in (files if isinstance(files, ListConfig) else [files]) if file]
    num_rows = sum(part.num_rows for part in parts)
    if num_rows == 0:
        raise ValueError(f"data.{key}: the data set is empty: {files}")
    if key == "train_files" and blocks.hosts_refiner:
        for part in parts:
            _check_columns(config, part)
    custom = config.reward.custom_reward_function.path
    if custom is None and not config.reward.reward_model.enable:
        for part in parts:
            _check_sources(part, key)
    if reward := CHECKS.get(custom):
        limits = Limits(**(OmegaConf.select(config, "reward.custom_reward_function.reward_kwargs.limits") or {}))
        for part in parts:
            columns = {"data_source", "reward_model", "extra_info"}.intersection(part.column_names)
            for row in part.select_columns(sorted(columns)):
                _check_problem(row, key, limits, reward)
    return num_rows


def _check_sources(part: datasets.Dataset, key: str) -> None:
    sources = part.unique("data_source") if "data_source" in part.column_names else []
    if found := sorted(RUN_BY_VERL.intersection(sources)):
        raise ValueError(
            f"data.{key}: verl's grader of {', '.join(found)} runs what the model writes as code; set "
            "reward.custom_reward_function.path=pkg://reward.math and reward.custom_reward_function.name=compute_score"
        )


def _check_columns(config: DictConfig, part: datasets.Dataset) -> None:
    media = {config.data.get(name) for name in ("image_key", "video_key", "audio_key")}
    if found := sorted(media.intersection(part.column_names)):
        raise ValueError(
            f"data.train_files: its {found[0]} would not reach the refiner, which reads text; drop the column"
        )


def _read(config: DictConfig, key: str, file: str) -> datasets.Dataset:
    """Read a file as verl does (``RLHFDataset`` in ``verl/utils/dataset/rl_dataset.py``), which finds it in the cache.

    Its path may be an URL that fsspec knows, or a pattern.
    """
    datasets.disable_progress_bars()
    try:
        cache = OmegaConf.select(config, "data.cache_dir") or CACHE_OF_VERL
        local = copy_to_local(file, cache_dir=os.path.expanduser(cache))
        return datasets.load_dataset("parquet" if local.endswith(".parquet") else "json", data_files=local)["train"]
    except Exception as error:  # each storage's package has errors of its own
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(f"data.{key}: {file} is empty or cannot be read: {reason}") from error


def _check_problem(row: dict[str, Any], key: str, limits: Limits, reward: Callable[..., object]) -> None:
    try:
        ground_truth = row["reward_model"]["ground_truth"]
    except (KeyError, TypeError):
        raise ValueError(
            f"data.{key}: a row has no reward_model.ground_truth; make the file with scripts/prepare_data.py"
        ) from None
    source, extra_info = row.get("data_source") or "", row.get("extra_info")
    try:
        reward(ground_truth, source, extra_info, limits)
    except ValueError as error:
        raise ValueError(f"data.{key}: {error}") from error
