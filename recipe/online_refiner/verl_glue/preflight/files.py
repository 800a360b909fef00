"""A run's models, data and machine, which are read in verl's way, and only when a rule needs them."""

import contextlib
import copy
import io
import os
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
from omegaconf import DictConfig, ListConfig, OmegaConf
from ray._private.utils import read_ray_address
from transformers import PretrainedConfig
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.dataset.rl_dataset import RLHFDataset, get_dataset_class
from verl.utils.fs import copy_to_local
from verl.utils.import_utils import import_external_libs
from verl.utils.tokenizer import hf_processor

from recipe.data_preparation.cache import wrong_with_cache
from recipe.online_refiner.verl_glue.preflight.devices import num_devices
from recipe.online_refiner.verl_glue.sight import Sight
from recipe.preflight.rules import SET_A_MODEL, is_elsewhere

FORMATS = (".parquet", ".json", ".jsonl")
CACHE_OF_VERL = "~/.cache/verl/rlhf"
"""The folder to which ``RLHFDataset`` copies ``hdfs://`` files if ``data.cache_dir`` is not set."""


def wrong_with_extra_info(row: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a row's ``extra_info``, which verl reads as an object, or None."""
    info = row.get("extra_info")
    return None if isinstance(info, dict | None) else f"extra_info is {type(info).__name__}; give an object, or nothing"


def one_line(error: BaseException) -> str:
    """Return the message of an error, or of its cause, in one line, with the error's type if that helps."""
    error = error.__cause__ or error
    said = str(error).strip().partition("\n")[0]
    return (
        said
        if said and isinstance(error, ValueError | AssertionError)
        else f"{type(error).__name__}: {said}".removesuffix(": ")
    )


def read_tokenizer(path: str, named: str, *, trust_remote_code: bool = False) -> Any:
    """Read the tokenizer of a model.

    Args:
        path: A folder, a hub id, or a URL that verl copies.
        named: The key or option with its value, for the error message.
        trust_remote_code: Whether code in the model's folder may run.

    Raises:
        ValueError: If there is no tokenizer, or its library cannot read it; the message begins with ``named``.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(copy_to_local(path), trust_remote_code=trust_remote_code)
    except Exception as error:  # a file that its library cannot read raises a plain Exception
        said = str(error).partition("\n")[0]
        raise ValueError(f"{named}: no tokenizer there ({said}); {SET_A_MODEL}") from error


class Files:
    """The models, data and machine that a config refers to.

    An attribute that cannot be read raises ValueError, one line that names the key.
    """

    wrong_with_processor = ""
    """Why there is no processor."""

    def __init__(self, config: DictConfig) -> None:
        """Import the modules that the policy's model needs."""
        self._config = config
        self._data: dict[str, dict[str, datasets.Dataset]] = {}
        self._datasets: dict[str, Any] = {}
        try:
            import_external_libs(config.actor_rollout_ref.model.external_lib)
        except BaseException as error:  # a user's module may raise anything, and end
            raise ValueError(f"actor_rollout_ref.model.external_lib: {one_line(error)}") from error

    @cached_property
    def num_devices(self) -> int | None:
        """The number of devices that verl counts here, or cores; None if the run is for another machine or cluster."""
        if is_elsewhere(self._config):
            return None
        ray_init = self._config.ray_kwargs.ray_init
        if os.environ.get("RAY_ADDRESS") or ray_init.get("address") or read_ray_address(ray_init.get("_temp_dir")):
            return None
        on_cpu = self._config.trainer.device == "cpu"
        return len(os.sched_getaffinity(0)) if on_cpu else num_devices()

    @cached_property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        model = self._config.actor_rollout_ref.model
        name = "path" if model.tokenizer_path is None else "tokenizer_path"
        return self.load_tokenizer(model[name], f"actor_rollout_ref.model.{name}")

    def load_tokenizer(self, path: str, key: str) -> Any:
        """Read a tokenizer as verl's model block does (``HFModelConfig`` in ``verl/workers/config/model.py``)."""
        model = self._config.actor_rollout_ref.model
        tokenizer = read_tokenizer(path, f"{key}={path}", trust_remote_code=model.trust_remote_code)
        if model.custom_chat_template is not None:
            tokenizer.chat_template = model.custom_chat_template
        return tokenizer

    @cached_property
    def num_rows(self) -> dict[str, int]:
        """The numbers of rows of ``train_files`` and ``val_files``, too long rows included."""
        keys = ("train_files", "val_files")
        if OmegaConf.select(self._config, "data.custom_cls.path"):  # a class of the user's alone knows its files
            return {key: len(self.dataset(key)) for key in keys}
        return {key: sum(part.num_rows for part in self.data(key).values()) for key in keys}

    @cached_property
    def num_prompts(self) -> int:
        """The number of rows to train on."""
        num_rows, most = self.num_rows["train_files"], self._config.data.train_max_samples
        return min(num_rows, most) if most > 0 else num_rows

    def data(self, key: str) -> dict[str, datasets.Dataset]:
        """Return the rows of ``train_files`` or ``val_files``, by file; empty if a class of the user reads them."""
        if OmegaConf.select(self._config, "data.custom_cls.path"):
            return {}
        if key not in self._data:
            files = self._config.data[key]
            names = files if isinstance(files, ListConfig) else [files]
            self._data[key] = {file: self._read(key, file) for file in names if file}
        return self._data[key]

    @cached_property
    def media(self) -> list[str]:
        """The columns of ``train_files`` that hold pictures or other media."""
        names = {self._config.data.get(name) for name in ("image_key", "video_key", "audio_key")}
        parts = self.data("train_files").values()
        return sorted(names.intersection(name for part in parts for name in part.column_names))

    def reads_images(self, path: str) -> bool:
        """Return whether a model has a part that sees."""
        return "vision_config" in PretrainedConfig.get_config_dict(copy_to_local(path))[0]

    @cached_property
    def processor(self) -> Any:
        """The policy's processor if the data have images; None if they have none, or verl knows none for the model."""
        if not self.media:
            return None
        model = self._config.actor_rollout_ref.model
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = hf_processor(copy_to_local(model.path), trust_remote_code=model.trust_remote_code)
        if found is None:
            reasons = [str(one.message) for one in said if "processor" in str(one.message)]
            self.wrong_with_processor = (reasons or ["it has none"])[-1].partition("\n")[0]
        elif model.custom_chat_template is not None:
            found.chat_template = model.custom_chat_template
        return found

    @cached_property
    def sight(self) -> Sight | None:
        """What reads the images of prompts; None if the data have none, or have videos or sounds."""
        if self.media != [self._config.data.get("image_key", "images")] or self.processor is None:
            return None
        with contextlib.redirect_stdout(io.StringIO()):  # it says which class it is
            dataset_class = get_dataset_class(self._config.data)
        return Sight(processor=self.processor, data=self._config.data, dataset_class=dataset_class)

    @property
    def has_other_media(self) -> bool:
        """Whether the data have more than texts and images that can be read here."""
        return bool(self.media) and self.sight is None

    def dataset(self, key: str) -> Any:
        """Return the data set that the run draws rows from, by verl's class (without its filter) or the user's."""
        if key not in self._datasets:
            data = copy.deepcopy(self._config.data)
            data.tool_config_path = None  # its tools would be made, of which some start Ray
            is_own = bool(OmegaConf.select(data, "custom_cls.path"))
            try:
                with contextlib.redirect_stdout(io.StringIO()):  # it says how many rows there are
                    if issubclass(get_dataset_class(data), RLHFDataset):
                        data.filter_overlong_prompts = False
                    self._datasets[key] = create_rl_dataset(data[key], data, self.tokenizer, self.processor)
            except BaseException as error:  # a user's class may raise anything, and end
                raise ValueError(f"data.{'custom_cls' if is_own else key}: {one_line(error)}") from error
        return self._datasets[key]

    def _read(self, key: str, file: str) -> datasets.Dataset:
        """Read a file as verl does (``RLHFDataset`` in ``verl/utils/dataset/rl_dataset.py``), into the same cache.

        The path may be a URL that fsspec knows, or a pattern.
        """
        if not file.endswith(FORMATS):
            raise ValueError(
                f"data.{key}: verl reads files that end in {', '.join(FORMATS)}, not {file}; write them by "
                "online-refiner prepare"
            )
        datasets.disable_progress_bars()
        try:
            cache = OmegaConf.select(self._config, "data.cache_dir") or CACHE_OF_VERL
            local = copy_to_local(file, cache_dir=os.path.expanduser(cache))
            kind = "parquet" if local.endswith(".parquet") else "json"
            return datasets.load_dataset(kind, data_files=local)["train"]
        except Exception as error:  # each storage's package has errors of its own
            if Path(file).is_file() and (signs := set("[]*?").intersection(file)):
                said = f"{file} has {' and '.join(sorted(signs))} in its name, which datasets takes for a pattern"
                raise ValueError(f"data.{key}: {said}; rename it") from error
            wrong = wrong_with_cache() if isinstance(error.__cause__ or error, OSError) else None
            example = f"data/{key.removesuffix('_files')}.parquet"
            said = wrong or (
                f"{file} is empty or cannot be read: {one_line(error)}; set data.{key} to a file of "
                f"`online-refiner prepare`, such as {example}"
            )
            raise ValueError(f"data.{key}: {said}") from error
