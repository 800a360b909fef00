"""Rules on the checkpoint that a run resumes from: it exists, is complete, and holds all that the run loads.

Only the end of each file is read, so that checkpoints of any size take milliseconds. The layouts are defined by verl's
``fsdp_checkpoint_manager.py`` and ``megatron_checkpoint_manager.py``.
"""

import json
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from verl.utils.checkpoint.checkpoint_manager import get_checkpoint_tracker_filename

from recipe.online_refiner.verl_glue.preflight.files import one_line
from recipe.online_refiner.verl_glue.preflight.weights import (
    LFS_POINTER,
    find_weights,
    model_shapes,
    wrong_with_torch_file,
)
from recipe.preflight.rules import PlannedRun, has_critic, rule
from recipe.runs.files import BUDGET_FILE, ETA_FILE

RESUME_MODES = ("auto", "disable", "resume_path")
FSDP_NAMES = {"model": "model", "optimizer": "optim", "extra": "extra_state"}
"""The prefixes of files in FSDP's checkpoint, by the words of ``load_contents``."""
STEP_FOLDER = re.compile(r"global_step_(\d+)")
SHARD = re.compile(rb"__\d+_\d+\.distcp")
"""The names of files in the metadata of a distributed checkpoint."""


@rule("files")
def checkpoint_can_be_resumed(run: PlannedRun) -> str | None:
    """The checkpoint to resume is complete and has as many workers, and no complete one is passed over."""
    trainer = run.config.trainer
    mode, path = trainer.resume_mode, trainer.resume_from_path or None
    if mode not in RESUME_MODES:
        return f"trainer.resume_mode={mode}: set one of {', '.join(RESUME_MODES)}"
    if (mode == "resume_path") != (path is not None):
        return (
            f"trainer.resume_from_path={path} with trainer.resume_mode={mode}: set trainer.resume_mode=resume_path "
            "with a path, or neither"
        )
    roles = list(_roles(run.config))
    if mode == "auto":
        return _wrong_with_latest(Path(trainer.default_local_dir), roles)
    if path is None:
        return None
    name, folder = "trainer.resume_mode=resume_path", Path(path)
    if not folder.is_dir():
        return f"{name}: {path}: no such folder; give the folder of a checkpoint, such as checkpoints/global_step_10"
    if re.fullmatch(r".*global_step_\d+", path) is None:
        return f"{name}: {path}: give a folder whose name ends with global_step_ and the step"
    wrong = wrong_with_checkpoint(folder, roles)
    return wrong and f"{name}: {wrong}{_way_out(folder.parent, roles, folder)}"


@dataclass(frozen=True, kw_only=True)
class Role:
    """A model whose state a checkpoint holds."""

    name: str
    """The folder of the model's state within a checkpoint."""
    key: str
    """The key of the block with ``save_contents`` and ``load_contents``."""
    contents: tuple[str, ...]
    """The parts of the state that the run loads."""
    engine: DictConfig | None
    """The block of Megatron's settings; None for other engines."""
    strategy: str
    num_workers: int
    has_adapter: bool
    """Whether Megatron trains an adapter, whose weights it keeps apart."""


def _roles(config: DictConfig) -> Iterator[Role]:
    """Yield the actor, and the critic if one is trained."""
    trainer, actor = config.trainer, config.actor_rollout_ref
    blocks = {"actor": ("actor_rollout_ref.actor", actor.actor, actor.model)}
    if has_critic(config):
        blocks["critic"] = ("critic", config.critic, config.critic.model)
    for name, (key, block, model) in blocks.items():
        contents = OmegaConf.select(block, "checkpoint.load_contents")
        yield Role(
            name=name,
            key=f"{key}.checkpoint",
            contents=tuple(FSDP_NAMES if contents is None else contents),
            engine=block.megatron if block.strategy == "megatron" else None,
            strategy=block.strategy,
            num_workers=trainer.nnodes * trainer.n_gpus_per_node,
            has_adapter=OmegaConf.select(model, "lora.rank", default=0) > 0,
        )


def _wrong_with_latest(folder: Path, roles: list[Role]) -> str | None:
    """Return what is wrong with the checkpoint that verl finds in a folder by itself, or why it finds none."""
    tracker, name = Path(get_checkpoint_tracker_filename(str(folder))), "trainer.resume_mode=auto"
    again = "and training would begin again from step 0"
    if not tracker.exists():
        # A first checkpoint that was never finished is no loss: there the run does begin again.
        missed = newest_whole(folder, roles) is not None
        return f"{name}: {tracker} is missing, {again}{_way_out(folder, roles)}" if missed else None
    try:
        latest = folder / f"global_step_{int(tracker.read_text())}"
    except ValueError:
        return f"{name}: {tracker} holds no step; write one into it, or remove it"
    if not latest.is_dir():
        said = f"{name}: {latest}, which {tracker.name} names, does not exist"
        return f"{said}, {again}{_way_out(folder, roles, latest)}"
    wrong = wrong_with_checkpoint(latest, roles)
    return wrong and f"{name}: {wrong}{_way_out(folder, roles, latest)}"


def _way_out(folder: Path, roles: list[Role], broken: Path | None = None) -> str:
    """Return the keys that resume from the newest complete checkpoint of a folder, and the keys that begin again."""
    whole = newest_whole(folder, roles, broken)
    anew = "trainer.resume_mode=disable to begin again"
    if whole is None:
        return f"; no other checkpoint in {folder} is complete: restore it, or set {anew}"
    return f"; set trainer.resume_mode=resume_path trainer.resume_from_path={whole}, which is complete, or {anew}"


def newest_whole(folder: Path, roles: list[Role], broken: Path | None = None) -> Path | None:
    """Return the complete checkpoint with the most steps in a folder, or None.

    Args:
        folder: The folder of a run's checkpoints.
        roles: The models that are trained.
        broken: A checkpoint to leave out.
    """
    found = ((path, STEP_FOLDER.fullmatch(path.name)) for path in folder.glob("global_step_*"))
    steps = {path: int(match[1]) for path, match in found if match}
    newest = sorted(steps, key=lambda path: -steps[path])
    return next((path for path in newest if path != broken and wrong_with_checkpoint(path, roles) is None), None)


def wrong_with_checkpoint(folder: Path, roles: list[Role]) -> str | None:
    """Return the first fault of a checkpoint, with the name of the file, or None."""
    for role in roles:
        own = folder / role.name
        if not own.is_dir() or not any(own.iterdir()):
            return f"{folder} has no folder {role.name}; give a checkpoint that verl has finished"
        if role.engine is not None:
            wrong = _wrong_with_megatron(own, role)
        elif role.strategy in ("fsdp", "fsdp2", "veomni"):
            wrong = _wrong_with_fsdp(own, role)
        else:  # an engine whose layout is not known here
            wrong = None
        if wrong:
            return wrong
    return _wrong_with_rest(folder)


def _wrong_with_fsdp(folder: Path, role: Role) -> str | None:
    """Return what is wrong with the files of all ranks."""
    sizes = {int(one.name.split("_")[3]) for one in folder.glob("model_world_size_*_rank_*.pt")}
    if sizes and role.num_workers not in sizes:
        return (
            f"{folder.parent}: its {role.name} is of {min(sizes)} workers, the run has {role.num_workers}; set "
            "trainer.n_gpus_per_node * trainer.nnodes to as many"
        )
    for word, begins in FSDP_NAMES.items():
        if word not in role.contents:
            continue
        paths = [folder / f"{begins}_world_size_{role.num_workers}_rank_{rank}.pt" for rank in range(role.num_workers)]
        if word != "model" and not any(path.exists() for path in paths):
            return f"{paths[0]} is missing{_without(role, word)}"
        if wrong := next(filter(None, map(wrong_with_torch_file, paths)), None):
            return wrong
    return None


def _without(role: Role, word: str) -> str:
    """Return the key that resumes a checkpoint without a part that was never saved."""
    others = ",".join(one for one in role.contents if one != word)
    return f": to resume without the {word} state, set {role.key}.load_contents=[{others}]"


def _wrong_with_megatron(folder: Path, role: Role) -> str | None:
    """Return what is wrong with the folders of model, optimizer and extra state."""
    assert role.engine is not None
    if not any((folder / name).is_dir() for name in ("model", "optimizer", "extra")):
        return (
            f"{folder} has the layout of an older verl, or none: migrate it by verl's "
            "scripts/migrate_megatron_checkpoint_layout.py"
        )
    if role.engine.get("use_megatron_fsdp"):  # one folder for all
        return _wrong_with_distributed(folder / "model" / "dist_ckpt")
    if {"model", "hf_model"} & set(role.contents):
        is_distributed = role.has_adapter or ("model" in role.contents and role.engine.get("use_dist_checkpointing"))
        read = _wrong_with_distributed if is_distributed else _wrong_with_saved_model
        if wrong := read(folder / "model" / ("dist_ckpt" if is_distributed else "huggingface")):
            return wrong
    for word in ("optimizer", "extra"):
        own = folder / word / "dist_ckpt"
        if word not in role.contents:
            continue
        if not own.is_dir() or not any(own.iterdir()):
            return f"{own} is missing or empty{_without(role, word)}"
        if wrong := _wrong_with_distributed(own):
            return wrong
    return None


def _wrong_with_saved_model(folder: Path) -> str | None:
    """Return what is wrong with a model that was saved in transformers' layout."""
    try:
        weights = find_weights(folder)
        model_shapes(weights)
    except ValueError as error:
        return str(error)
    return None if weights else f"{folder} has no weights: model.safetensors is missing"


def _wrong_with_distributed(folder: Path) -> str | None:
    """Return what is wrong with a distributed checkpoint, whose metadata is a pickle and names its other files.

    The pickle is not loaded, since it could run code; it is complete if its first and last bytes are a pickle's.
    """
    metadata = folder / ".metadata"
    if not metadata.is_file():
        return f"{metadata} is missing"
    content = metadata.read_bytes()
    if content.startswith(LFS_POINTER):
        return f"{metadata} is a pointer of Git LFS: fetch the file with git lfs pull"
    if not (content.startswith(pickle.PROTO) and content.endswith(pickle.STOP)):
        return f"{metadata} is cut off, or no pickle" if content else f"{metadata} is empty"
    names = {name.decode() for name in SHARD.findall(content)}
    if (common := folder / "common.pt").exists():
        names.add(common.name)
    return next(filter(None, (wrong_with_torch_file(folder / name) for name in sorted(names))), None)


def _wrong_with_rest(folder: Path) -> str | None:
    """Return what is wrong with the files of data loader, queue and constraint, which a checkpoint may lack."""
    if (data := folder / "data.pt").exists() and (wrong := wrong_with_torch_file(data)):
        return wrong
    queue = folder / "transfer_queue"
    own = [path for path in (folder / ETA_FILE, folder / BUDGET_FILE) if path.exists()]
    for path in [*own, *queue.glob("*.json")]:
        try:
            json.loads(path.read_text())
        except ValueError as error:
            return f"{path} is cut off or empty: {one_line(error)}"
    for path in queue.glob("*.pkl"):
        if path.stat().st_size == 0:
            return f"{path} is empty"
        with path.open("rb") as stream:
            stream.seek(-1, 2)
            if stream.read() != b".":
                return f"{path} is cut off"
    return None
