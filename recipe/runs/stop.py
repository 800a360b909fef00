"""The last lines of a run that is stopped or ends by an error: the cause, what is saved, and how to continue."""

import errno
import re
import shutil
import tempfile
import textwrap
from pathlib import Path

import psutil
from omegaconf import DictConfig

TRACKER = "latest_checkpointed_iteration.txt"
FULL = {errno.ENOSPC, errno.EDQUOT}
SAYS_FULL = re.compile(
    r"No space left on device|Disk quota exceeded|unexpected pos \d+ vs \d+|PytorchStreamWriter failed|"
    r"\d+ requested and \d+ written|OutOfDiskError"
)
"""The error messages of a full disk, by the kernel, torch's zip writer, NumPy and Ray.

Texts are compared because an error of another process arrives as text.
"""
MAX_WORDS = 400


def saved_step(config: DictConfig) -> int:
    """Return the step of this run's last checkpoint; 0 if there is none."""
    trainer = config.trainer
    tracker = Path(trainer.default_local_dir) / TRACKER
    try:
        # A run that begins anew has not saved what lies there from one before it.
        if trainer.resume_mode == "disable" and tracker.stat().st_mtime < psutil.Process().create_time():
            return 0
        step = int(tracker.read_text())
    except (OSError, ValueError):
        return 0
    return step if has_actor(tracker.parent / f"global_step_{step}") else 0


def has_actor(checkpoint: Path) -> bool:
    """Return whether a checkpoint's folder has files of the actor."""
    actor = checkpoint / "actor"
    return actor.is_dir() and any(actor.iterdir())


def checkpoint_before(checkpoint: Path) -> Path | None:
    """Return the last checkpoint of an earlier step in the same folder; None if there is none."""
    steps = {one: one.name.rpartition("_")[2] for one in checkpoint.parent.glob("global_step_*")}
    numbers = {one: int(step) for one, step in steps.items() if step.isdecimal() and has_actor(one)}
    last = numbers.pop(checkpoint, None) or int(checkpoint.name.rpartition("_")[2])
    return max((one for one, step in numbers.items() if step < last), key=numbers.__getitem__, default=None)


def _command(config: DictConfig) -> str:
    """Return the command that continues a run."""
    command = "the same command"
    if config.trainer.resume_mode != "auto":
        command += " with trainer.resume_mode=auto"
    if config.trainer.resume_from_path:
        command += " trainer.resume_from_path=null"
    return command


def last_words(config: DictConfig, name: str) -> str:
    """Return two lines: the last step that a run has saved, and the command that continues it.

    Args:
        config: The run's configuration.
        name: The cause of the end: Ctrl-C or a signal.
    """
    if not (step := saved_step(config)):
        often = f"trainer.save_freq={config.trainer.save_freq}"
        return f"stopped by {name}: nothing is saved yet ({often})\nthe same command begins again"
    return (
        f"stopped by {name}: the run is saved up to step {step}, in {config.trainer.default_local_dir}\n"
        f"{_command(config)} goes on with step {step + 1}"
    )


def what_follows(config: DictConfig) -> str:
    """Return a sentence on what the same command does next: continue from a checkpoint, or begin again without one."""
    if not (step := saved_step(config)):
        return (
            f"No checkpoint is saved yet (trainer.save_freq={config.trainer.save_freq}): the same command begins again."
        )
    command = _command(config)
    return (
        f"{command[0].upper()}{command[1:]} goes on with step {step + 1}, from the checkpoint in "
        f"{config.trainer.default_local_dir}."
    )


def cause_of_end(error: BaseException, config: DictConfig) -> str | None:
    """Return one line on why a run has ended and what to do; None for an error whose traceback helps more.

    Args:
        error: The error that ended the training, of this process or Ray's copy of another process's error.
        config: The run's configuration.
    """
    from ray.exceptions import RayTaskError  # here: Ray is imported when the config is right

    from refiner_worker.client import DEATHS, CheckpointError, RunEndedError

    cause = getattr(error, "cause", error)  # a copy's own text has the traceback of the other process as well
    if isinstance(cause, CheckpointError):
        return str(cause)
    if isinstance(cause, RunEndedError):
        return f"{cause} {what_follows(config)}"
    if is_disk_full(error):
        return f"{_full_disk(config, cause)} {what_follows(config)}"
    if isinstance(error, DEATHS):
        who = "a process of the run" if isinstance(error, RayTaskError) else "the process that trains (TaskRunner)"
        return (
            f"{who} has died ({shortened(str(cause))}). Most often the machine's memory was full: see the log above "
            f"and the node's. {what_follows(config)}"
        )
    return None


def shortened(text: str) -> str:
    """Return the first whole words of a text in one line, at most MAX_WORDS characters."""
    return textwrap.shorten(text, MAX_WORDS, placeholder=" ...")


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, comes from a full disk or quota."""
    link: BaseException | None = error
    while link is not None:
        if getattr(link, "errno", None) in FULL or SAYS_FULL.search(str(link)):
            return True
        link = link.__cause__ or link.__context__
    return False


def _full_disk(config: DictConfig, cause: BaseException) -> str:
    """Return which of a run's folders has the least room left, in words."""
    folders = {
        "trainer.default_local_dir": config.trainer.default_local_dir,
        "run_dir": config.run_dir,
        "TMPDIR": tempfile.gettempdir(),  # Ray's
    }
    free = {
        f"{key}={folder}": shutil.disk_usage(folder).free / 2**20
        for key, folder in folders.items()
        if Path(folder).is_dir()
    }
    where, least = min(free.items(), key=lambda one: one[1])
    last_line = str(cause).strip().rpartition("\n")[2]
    return (
        f"a disk is full ({shortened(last_line)}): {where} has {least:.1f} MiB left. Make room there, or keep fewer "
        "checkpoints (trainer.max_actor_ckpt_to_keep=2)."
    )
