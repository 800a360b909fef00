"""A checkpoint that a run cannot resume from, or passes over, is one line that names the file and a whole one."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checked_run import checked, error_of
from omegaconf import DictConfig, OmegaConf
from torch.distributed import checkpoint as distributed

from recipe.online_refiner.verl_glue.preflight.cautions import cautions
from recipe.online_refiner.verl_glue.preflight.checkpoints import (
    Role,
    checkpoint_can_be_resumed,
    newest_whole,
    wrong_with_checkpoint,
)
from recipe.preflight.rules import PlannedRun

LATEST = "latest_checkpointed_iteration.txt"
ACTOR = "actor_rollout_ref.actor"


def save_ranks(folder: Path, num_ranks: int = 1, names: tuple[str, ...] = ("model", "optim", "extra_state")) -> None:
    """Write what FSDP's workers save of a model."""
    folder.mkdir(parents=True)
    for name in names:
        for rank in range(num_ranks):
            torch.save({"weight": torch.ones(1000)}, folder / f"{name}_world_size_{num_ranks}_rank_{rank}.pt")
    (folder / "huggingface").mkdir()
    (folder / "huggingface" / "config.json").write_text("{}")


def save_step(folder: Path, step: int, **settings: Any) -> Path:
    """Write a checkpoint of the actor and the data loader, name it the latest, and return it."""
    checkpoint = folder / f"global_step_{step}"
    save_ranks(checkpoint / "actor", **settings)
    torch.save({"position": step}, checkpoint / "data.pt")
    (folder / LATEST).write_text(str(step))
    return checkpoint


def wrong(config: DictConfig) -> str | None:
    """Return the line of this rule alone, since all rules together take most of a second."""
    return checkpoint_can_be_resumed(PlannedRun(config=config, blocks=None))


def cut(path: Path) -> None:
    """Cut a file in half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture
def saved(config: DictConfig, tmp_path: Path) -> Path:
    """Let a run look for its checkpoints in a folder that has those of steps 3 and 6."""
    config.trainer.default_local_dir, config.trainer.resume_mode = str(tmp_path / "saved"), "auto"
    for step in (3, 6):
        save_step(tmp_path / "saved", step)
    return tmp_path / "saved"


MODEL, OPTIM, EXTRA = (f"actor/{name}_world_size_1_rank_0.pt" for name in ("model", "optim", "extra_state"))
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "the model is cut": (lambda last: cut(last / MODEL), f"/{MODEL} is cut off"),
    "a byte is gone": (
        lambda last: (last / MODEL).write_bytes((last / MODEL).read_bytes()[:-1]),
        f"/{MODEL} is cut off",
    ),
    "the end is zeros, as of a full disk": (
        lambda last: (last / OPTIM).write_bytes((last / OPTIM).read_bytes()[:2000] + bytes(3000)),
        f"/{OPTIM} is cut off",
    ),
    "the model is empty": (lambda last: (last / MODEL).write_bytes(b""), f"/{MODEL} is empty"),
    "the model is a pointer": (
        lambda last: (last / MODEL).write_text("version https://git-lfs.github.com/spec/v1\n" + "0" * 100),
        f"/{MODEL} is a pointer of Git LFS",
    ),
    "the model is gone": (lambda last: (last / MODEL).unlink(), f"/{MODEL} is missing"),
    "the optimizer is empty": (lambda last: (last / OPTIM).write_bytes(b""), f"/{OPTIM} is empty"),
    "the optimizer is gone": (
        lambda last: (last / OPTIM).unlink(),
        f"/{OPTIM} is missing: to resume without the optimizer state, set {ACTOR}.checkpoint.load_contents="
        "[model,extra]",
    ),
    "the extra state is gone": (
        lambda last: (last / EXTRA).unlink(),
        f"set {ACTOR}.checkpoint.load_contents=[model,optimizer]",
    ),
    "the extra state alone": (lambda last: [(last / one).unlink() for one in (MODEL, OPTIM)], f"/{MODEL} is missing"),
    "an export alone": (
        lambda last: [(last / one).unlink() for one in (MODEL, OPTIM, EXTRA)],
        f"/{MODEL} is missing",
    ),
    "no actor": (lambda last: shutil.rmtree(last / "actor"), "has no folder actor; "),
    "the data loader is cut": (lambda last: cut(last / "data.pt"), "/data.pt is cut off"),
    "the constraint's state is empty": (
        lambda last: (last / "constraint.json").touch(),
        "/constraint.json is cut off or empty",
    ),
    "the queue's state is cut": (
        lambda last: [(last / "transfer_queue").mkdir(), (last / "transfer_queue" / "one.pkl").write_bytes(b"\x80")],
        "/one.pkl is cut off",
    ),
    "the whole folder is gone": (shutil.rmtree, "global_step_6, which latest_checkpointed_iteration.txt"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("mode", ["auto", "resume_path"])
def test_the_latest_checkpoint_is_not_whole(config: DictConfig, saved: Path, kind: str, mode: str) -> None:
    assert wrong(config) is None
    do, words = BROKEN[kind]
    do(saved / "global_step_6")
    config.trainer.resume_mode = mode
    if mode == "resume_path":
        config.trainer.resume_from_path = str(saved / "global_step_6")
        words = "no such folder" if "whole folder" in kind else words
    found = wrong(config) or ""
    assert found.startswith(f"trainer.resume_mode={mode}: {saved}/global_step_6") and words in found
    assert "\n" not in found
    way_out = f"; set trainer.resume_mode=resume_path trainer.resume_from_path={saved}/global_step_3, which is complete"
    assert (way_out in found) is (words != "no such folder")
    config.trainer.resume_mode, config.trainer.resume_from_path = "resume_path", str(saved / "global_step_3")
    assert wrong(config) is None
    config.trainer.resume_mode, config.trainer.resume_from_path = "disable", None
    assert wrong(config) is None


def test_a_run_that_cannot_resume_is_refused_by_the_rule(config: DictConfig, saved: Path) -> None:
    checked(config)
    cut(saved / "global_step_6" / MODEL)
    assert error_of(config).endswith(" [checkpoint-can-be-resumed]")
    config.trainer.resume_mode = "disable"
    checked(config)


def test_files_of_the_user_in_a_checkpoint_are_not_read(config: DictConfig, saved: Path) -> None:
    (saved / "global_step_6" / "scores.json").write_text('{"a": 1}\n{"a": 2}\n')
    assert wrong(config) is None


def test_no_checkpoint_is_whole(config: DictConfig, saved: Path) -> None:
    for step in (3, 6):
        cut(saved / f"global_step_{step}" / MODEL)
    said = f"; no other checkpoint in {saved} is complete: restore it, or set trainer.resume_mode=disable"
    assert said in (wrong(config) or "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resume_mode": "resume_path"}, "set trainer.resume_mode=resume_path with a path, or neither"),
        ({"resume_from_path": "x/global_step_6"}, "set trainer.resume_mode=resume_path with a path, or neither"),
        ({"resume_mode": "from_path"}, "trainer.resume_mode=from_path: set one of auto, disable, resume_path"),
        ({"resume_mode": "resume_path", "resume_from_path": "."}, "whose name ends with global_step_ and the step"),
    ],
)
def test_keys_that_name_no_checkpoint(
    config: DictConfig, saved: Path, changes: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved)
    config.trainer.update(changes)
    assert words in (wrong(config) or "")


@pytest.mark.parametrize(
    ("text", "words"), [("x", "holds no step"), ("", "holds no step"), ("7", "global_step_7, which ")]
)
def test_a_tracker_that_names_no_checkpoint(config: DictConfig, saved: Path, text: str, words: str) -> None:
    (saved / LATEST).write_text(text)
    assert words in (wrong(config) or "")


def test_a_tracker_that_is_gone(config: DictConfig, saved: Path) -> None:
    """A first checkpoint that was never finished has none either: a job that is started again begins again."""
    (saved / LATEST).unlink()
    found = wrong(config) or ""
    assert f"{saved}/{LATEST} is missing, and training would begin again from step 0" in found
    assert f"trainer.resume_from_path={saved}/global_step_6, which is complete" in found
    for step in (3, 6):
        cut(saved / f"global_step_{step}" / MODEL)
    assert wrong(config) is None
    shutil.rmtree(saved)
    assert wrong(config) is None


def test_ranks_that_are_missing(config: DictConfig, tmp_path: Path) -> None:
    config.trainer.default_local_dir, config.trainer.resume_mode = str(tmp_path), "auto"
    config.trainer.n_gpus_per_node, config.ray_kwargs.ray_init.num_gpus = 2, 2
    last = save_step(tmp_path, 4, num_ranks=2)
    assert wrong(config) is None
    for name in ("model", "optim", "extra_state"):
        path = last / "actor" / f"{name}_world_size_2_rank_1.pt"
        path.rename(tmp_path / "kept")
        assert f"{path} is missing" in (wrong(config) or "")
        (tmp_path / "kept").rename(path)
    shutil.rmtree(last)
    save_step(tmp_path, 4, num_ranks=8)
    assert "its actor is of 8 workers, the run has 2; set trainer.n_gpus_per_node * " in (wrong(config) or "")


def test_a_critic_has_its_state_too(config: DictConfig, saved: Path) -> None:
    config.algorithm.adv_estimator, config.critic.ppo_micro_batch_size_per_gpu = "gae", 2
    assert "global_step_6 has no folder critic" in (wrong(config) or "")
    save_ranks(saved / "global_step_6" / "critic")
    assert wrong(config) is None
    cut(saved / "global_step_6" / "critic" / "optim_world_size_1_rank_0.pt")
    assert "/critic/optim_world_size_1_rank_0.pt is cut off" in (wrong(config) or "")


def test_a_key_of_the_critic_that_verl_does_not_read_is_said(config: DictConfig, saved: Path) -> None:
    config.critic.ulysses_sequence_parallel_size, said = 2, "critic.ulysses_sequence_parallel_size=2 is not read"
    assert not [line for line in cautions(checked(config)) if line.startswith(said)], "there is no critic"
    config.algorithm.adv_estimator, config.critic.ppo_micro_batch_size_per_gpu = "gae", 2
    save_ranks(saved / "global_step_6" / "critic")
    assert [line for line in cautions(checked(config)) if line.startswith(said)]


def test_what_a_resumed_run_begins_anew_is_asked_for_and_said(config: DictConfig, saved: Path) -> None:
    assert not [line for line in cautions(checked(config)) if "anew" in line]
    for name in (OPTIM, EXTRA):
        (saved / "global_step_6" / name).unlink()
    config.actor_rollout_ref.actor.checkpoint.save_contents = ["model"]  # load_contents follow
    said = f"{ACTOR}.checkpoint.load_contents=['model']: a resumed run begins the optimizer's state and the learning-"
    assert [line for line in cautions(checked(config)) if line.startswith(said)]
    config.trainer.resume_mode = "disable"
    assert not [line for line in cautions(checked(config)) if "anew" in line]


# ---- Megatron


def megatron(**changes: Any) -> Role:
    """Return an actor that Megatron trains."""
    settings = {"name": "actor", "key": f"{ACTOR}.checkpoint", "strategy": "megatron", "num_workers": 2}
    engine = {"use_dist_checkpointing": False, **changes.pop("engine", {})}
    contents = ("model", "optimizer", "extra")
    settings |= {"contents": contents, "engine": OmegaConf.create(engine), "has_adapter": False, **changes}
    return Role(**settings)


def save_distributed(folder: Path) -> None:
    """Write a distributed checkpoint."""
    state = {"weight": torch.ones(100_000), "bias": torch.ones(3), "step": [1]}
    distributed.save(state, storage_writer=distributed.FileSystemWriter(folder), no_dist=True)
    torch.save({"lr": 1}, folder / "common.pt")


def save_megatron(folder: Path, model: Path | None) -> Path:
    """Write a checkpoint of Megatron's, its model as transformers writes one or distributed, and return the actor's."""
    own = folder / "actor"
    own.mkdir(parents=True)
    for name in ("optimizer", "extra", *([] if model else ["model"])):
        save_distributed(own / name / "dist_ckpt")
    if model:
        shutil.copytree(model, own / "model" / "huggingface")
    return own


MEGATRON: dict[str, tuple[Callable[[Path], object], str]] = {
    "the model is cut": (
        lambda own: cut(own / "model/huggingface/model.safetensors"),
        "/model/huggingface/model.safetensors is cut off",
    ),
    "the model is gone": (
        lambda own: (own / "model/huggingface/model.safetensors").unlink(),
        "model.safetensors is missing",
    ),
    "a shard is cut": (lambda own: cut(own / "optimizer/dist_ckpt/__0_0.distcp"), "/__0_0.distcp is cut off"),
    "a shard is empty": (
        lambda own: (own / "optimizer/dist_ckpt/__0_0.distcp").write_bytes(b""),
        "/__0_0.distcp is empty",
    ),
    "a shard is gone": (lambda own: (own / "extra/dist_ckpt/__0_0.distcp").unlink(), "/__0_0.distcp is missing"),
    "the metadata are gone": (lambda own: (own / "optimizer/dist_ckpt/.metadata").unlink(), "/.metadata is missing"),
    "the metadata are cut": (lambda own: cut(own / "optimizer/dist_ckpt/.metadata"), "/.metadata is cut off"),
    "the metadata are empty": (
        lambda own: (own / "optimizer/dist_ckpt/.metadata").write_bytes(b""),
        "/.metadata is empty",
    ),
    "the metadata are a pointer": (
        lambda own: (own / "extra/dist_ckpt/.metadata").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "/.metadata is a pointer of Git LFS",
    ),
    "the metadata are a web page": (
        lambda own: (own / "extra/dist_ckpt/.metadata").write_text("<p>Not found."),
        "/.metadata is cut off, or no pickle",
    ),
    "what all ranks share is cut": (lambda own: cut(own / "extra/dist_ckpt/common.pt"), "/common.pt is cut off"),
    "the optimizer is gone": (
        lambda own: shutil.rmtree(own / "optimizer"),
        f"/optimizer/dist_ckpt is missing or empty: to resume without the optimizer state, set {ACTOR}.checkpoint.",
    ),
    "the older layout": (
        lambda own: [shutil.rmtree(own / name) for name in ("model", "optimizer", "extra")] and save_distributed(own),
        "migrate_megatron_checkpoint_layout.py",
    ),
}


@pytest.mark.parametrize("kind", MEGATRON)
def test_a_checkpoint_of_megatron(tiny_llama: Path, tmp_path: Path, kind: str) -> None:
    own = save_megatron(tmp_path / "global_step_2", tiny_llama)
    assert newest_whole(tmp_path, [megatron()]) == tmp_path / "global_step_2"
    do, words = MEGATRON[kind]
    do(own)
    found = wrong_with_checkpoint(tmp_path / "global_step_2", [megatron()])
    assert found is not None and words in found and "\n" not in found
    assert newest_whole(tmp_path, [megatron()]) is None


@pytest.mark.parametrize(
    ("changes", "is_model_distributed"),
    [({}, False), ({"engine": {"use_dist_checkpointing": True}}, True), ({"has_adapter": True}, True)],
)
def test_where_megatron_keeps_its_model(
    tiny_llama: Path, tmp_path: Path, changes: dict[str, Any], is_model_distributed: bool
) -> None:
    for model, is_right in ((None, is_model_distributed), (tiny_llama, not is_model_distributed)):
        folder = tmp_path / str(is_right) / "global_step_2"
        save_megatron(folder, model)
        assert (wrong_with_checkpoint(folder, [megatron(**changes)]) is None) is is_right


def test_megatron_fsdp_keeps_all_in_one_folder(tmp_path: Path) -> None:
    save_distributed(tmp_path / "actor" / "model" / "dist_ckpt")
    role = megatron(engine={"use_megatron_fsdp": True})
    assert wrong_with_checkpoint(tmp_path, [role]) is None
    assert "optimizer/dist_ckpt" in (wrong_with_checkpoint(tmp_path, [megatron(has_adapter=True)]) or "")
    (tmp_path / "actor" / "model" / "dist_ckpt" / ".metadata").unlink()
    assert "/.metadata is missing" in (wrong_with_checkpoint(tmp_path, [role]) or "")


def test_a_layout_that_is_not_known_here_is_looked_at_no_further(tmp_path: Path) -> None:
    (tmp_path / "actor").mkdir()
    role = replace(megatron(), engine=None, strategy="torchtitan")
    found = [wrong_with_checkpoint(tmp_path, [role])]
    (tmp_path / "actor" / "step-1").mkdir()
    found.append(wrong_with_checkpoint(tmp_path, [role]))
    assert found == [f"{tmp_path} has no folder actor; give a checkpoint that verl has finished", None]
