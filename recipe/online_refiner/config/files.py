"""Models, data and machine of a run, read as verl reads them when a rule asks for them."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
from ray._private.utils import read_ray_address
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.fs import copy_to_local
from verl.utils.import_utils import import_external_libs, load_module

from recipe.online_refiner.config.fields import RefinementConfig

CACHE_OF_VERL = "~/.cache/verl/rlhf"
"""Where ``RLHFDataset`` copies ``hdfs://`` files without ``data.cache_dir``."""


class Files:
    """What stands outside of a config.

    Attributes raise ValueError, one line that names the key, where something cannot be read.
    """

    def __init__(self, config: DictConfig, blocks: RefinementConfig) -> None:
        """Import what the policy's model needs."""
        self._config, self._blocks = config, blocks
        self._data: dict[str, list[datasets.Dataset]] = {}
        import_external_libs(config.actor_rollout_ref.model.external_lib)

    @cached_property
    def num_devices(self) -> int | None:
        """GPUs of this machine, or cores for a run on CPUs; None where verl joins a cluster, which may have more.

        None too for a dry run that says which GPUs it means: they are elsewhere.
        """
        if self._config.dry_run and self._config.sizing.gpu_memory_gib:
            return None
        ray_init = self._config.ray_kwargs.ray_init
        if os.environ.get("RAY_ADDRESS") or ray_init.get("address") or read_ray_address(ray_init.get("_temp_dir")):
            return None
        on_cpu = self._config.trainer.device == "cpu"
        return len(os.sched_getaffinity(0)) if on_cpu else torch.cuda.device_count()

    def is_model(self, path: str) -> bool:
        """Tell whether a path is a model folder, or no folder of this machine."""
        return not path.startswith(("/", ".", "~")) or Path(path, "config.json").is_file()

    @cached_property
    def tokenizer(self) -> Any:
        """The policy's."""
        model = self._config.actor_rollout_ref.model
        name = "path" if model.tokenizer_path is None else "tokenizer_path"
        return self._load_tokenizer(model[name], f"actor_rollout_ref.model.{name}")

    @cached_property
    def refiner_tokenizer(self) -> Any:
        """The refiner's, which is the policy's where the model is."""
        path = self._blocks.refiner.model_path
        if path == self._config.actor_rollout_ref.model.path:
            return self.tokenizer
        return self._load_tokenizer(path, "refiner.model_path")

    def _load_tokenizer(self, path: str, key: str) -> Any:
        """Read it as verl's model block says (``HFModelConfig`` in ``verl/workers/config/model.py``)."""
        from transformers import AutoTokenizer

        model = self._config.actor_rollout_ref.model
        try:
            tokenizer = AutoTokenizer.from_pretrained(copy_to_local(path), trust_remote_code=model.trust_remote_code)
        except (OSError, ValueError, AssertionError) as error:
            raise ValueError(f"{key}={path}: no tokenizer there ({str(error).splitlines()[0]})") from error
        if model.custom_chat_template is not None:
            tokenizer.chat_template = model.custom_chat_template
        return tokenizer

    @cached_property
    def num_rows(self) -> dict[str, int]:
        """Rows of ``train_files`` and ``val_files``."""
        keys = ("train_files", "val_files")
        if OmegaConf.select(self._config, "data.custom_cls.path"):  # a class of the user's alone knows its files
            data = self._config.data
            return {key: len(create_rl_dataset(data[key], data, self.tokenizer, None)) for key in keys}
        return {key: sum(part.num_rows for part in self.data(key)) for key in keys}

    @cached_property
    def num_prompts(self) -> int:
        """Rows to train on."""
        num_rows, most = self.num_rows["train_files"], self._config.data.train_max_samples
        return min(num_rows, most) if most > 0 else num_rows

    def data(self, key: str) -> list[datasets.Dataset]:
        """Return what verl will read of ``train_files`` or ``val_files``; nothing if a class of the user's does."""
        if OmegaConf.select(self._config, "data.custom_cls.path"):
            return []
        if key not in self._data:
            files = self._config.data[key]
            names = files if isinstance(files, ListConfig) else [files]
            self._data[key] = [self._read(key, file) for file in names if file]
        return self._data[key]

    def _read(self, key: str, file: str) -> datasets.Dataset:
        """Read a file as verl does (``RLHFDataset`` in ``verl/utils/dataset/rl_dataset.py``), which finds it cached.

        Its path may be an URL that fsspec knows, or a pattern.
        """
        datasets.disable_progress_bars()
        try:
            cache = OmegaConf.select(self._config, "data.cache_dir") or CACHE_OF_VERL
            local = copy_to_local(file, cache_dir=os.path.expanduser(cache))
            kind = "parquet" if local.endswith(".parquet") else "json"
            return datasets.load_dataset(kind, data_files=local)["train"]
        except Exception as error:  # each storage's package has errors of its own
            reason = str(error.__cause__ or error).partition("\n")[0]
            raise ValueError(f"data.{key}: {file} is empty or cannot be read: {reason}") from error

    def validate_rows(self, key: str) -> None:
        """Let the reward function's module check each row, if it has a function ``validate_row(row, limits=None)``.

        Raises:
            ValueError: If the module cannot be loaded, or what is wrong with the first row that cannot be rewarded.
        """
        reward = self._config.reward.custom_reward_function
        if reward.path is None:
            return
        try:
            validate = getattr(load_module(reward.path), "validate_row", None)
        except Exception as error:  # a user's module may raise anything
            raise ValueError(f"reward.custom_reward_function.path={reward.path}: {error}") from error
        limits = OmegaConf.select(reward, "reward_kwargs.limits")
        if validate is None:
            return
        for part in self.data(key):
            names = sorted({"data_source", "reward_model", "extra_info"} & {*part.column_names})
            for row in part.select_columns(names):
                if not isinstance(row.get("reward_model"), dict) or "ground_truth" not in row["reward_model"]:
                    raise ValueError("a row has no reward_model.ground_truth; see scripts/prepare_data.py")
                validate(row, limits=limits)
