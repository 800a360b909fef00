"""Rules on the folders of models: they exist, and their weights are complete and fit the model's class."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils import SAFE_WEIGHTS_NAME
from verl.utils.fs import copy_to_local

from recipe.online_refiner.verl_glue.preflight.weights import (
    ADAPTER_FILES,
    find_weights,
    model_shapes,
    shapes_of,
    wrong_with_shapes,
)
from recipe.preflight.rules import PlannedRun, has_critic, is_elsewhere, rule

ADAPTER_KEY = "actor_rollout_ref.model.lora_adapter_path"
WEIGHT_ENDS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
"""The suffixes of weight files, for the text of a refusal."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that a run loads."""

    key: str
    """The key of the model's path."""
    path: str | None
    is_trained: bool
    """Whether transformers loads it for a trainer, not an engine that serves it."""
    config: Any = None
    """The model's config as verl changes it; None if it is not known."""

    def folder(self) -> Path | None:
        """The folder with the model's files; None for a hub id, or if the folder holds an adapter."""
        folder = Path(copy_to_local(self.path))
        return folder if folder.is_dir() and not (folder / "adapter_config.json").is_file() else None


def models_of(run: PlannedRun) -> Iterator[Model]:
    """Yield the models of a run, each path once; their configs are known once there is a plan."""
    config, actor = run.config, run.config.actor_rollout_ref.model
    found = getattr(run, "plan", None)
    configs = found.model_configs if found else {}

    def model(key: str, path: str | None, *, is_trained: bool) -> Model:
        return Model(key=key, path=path, is_trained=is_trained, config=configs.get(key))

    yield model("actor_rollout_ref.model.path", actor.path, is_trained=True)
    for use in run.blocks.refiner.models:
        if run.blocks.hosts_refiner and run.blocks.refiner.has_replicas and use.path != actor.path:
            yield model(use.path_key, use.path, is_trained=False)
    if has_critic(config):
        yield model("critic.model.path", config.critic.model.path, is_trained=True)
    if config.reward.reward_model.enable:
        yield model("reward.reward_model.model_path", config.reward.reward_model.model_path, is_trained=False)


@rule("files")
def adapter_is_whole(run: PlannedRun) -> str | None:
    """The adapter that a run continues to train has its file of weights, and the file is complete."""
    path = run.config.actor_rollout_ref.model.lora_adapter_path
    if path is None or not (folder := Path(copy_to_local(path))).is_dir():
        return None
    weights = next((folder / name for name in ADAPTER_FILES if (folder / name).is_file()), folder / ADAPTER_FILES[0])
    try:
        shapes_of(weights)
    except ValueError as error:
        return f"{ADAPTER_KEY}={path}: {error}"
    return None


@rule("sizes")
def weights_are_the_models(run: PlannedRun) -> str | None:
    """The files of each model's weights are complete and hold its class's tensors; only headers are read."""
    for model in models_of(run):
        if (folder := model.folder()) is None:
            continue
        named = f"{model.key}={model.path}"
        try:
            wrong = _wrong_with_weights(model, folder, may_lack=is_elsewhere(run.config))
        except ValueError as error:
            wrong = str(error)
        if wrong:
            return f"{named}: {wrong}"
    return None


def _wrong_with_weights(model: Model, folder: Path, *, may_lack: bool) -> str | None:
    weights = find_weights(folder, any_name=not model.is_trained)
    if not weights:  # a caution says so
        return None if may_lack else _no_weights(folder)
    shapes = model_shapes(weights)
    if shapes is None or model.config is None:
        return None
    wrong = wrong_with_shapes(model.config, shapes, is_critic=model.key.startswith("critic"))
    first, num_others = min(weights), len(weights) - 1
    files = first.name if num_others == 0 else f"{first.name} and {num_others} other files"
    return wrong and f"in {files}, {wrong}; fetch the model again, or correct its config.json"


def _no_weights(folder: Path) -> str:
    if (file := folder / SAFE_WEIGHTS_NAME).is_symlink():
        return f"{file} is a link to a file that is gone; fetch the model again"
    others = sorted(path.name for path in folder.iterdir() if path.suffix in WEIGHT_ENDS and path.is_file())
    beside = f" ({others[0]} is not a name that transformers looks for)" if others else ""
    return f"{folder / 'model.safetensors'} is missing, as is an index of shards{beside}; fetch the model again"


def without_weights(run: PlannedRun) -> list[str]:
    """Return the folders of models that hold no weights at all, each with its key."""
    folders = ((model, model.folder()) for model in models_of(run))
    return [
        f"{model.key}={model.path}"
        for model, folder in folders
        if folder and not find_weights(folder, any_name=not model.is_trained)
    ]
