"""What a run says when it is stopped."""

from pathlib import Path

import psutil
from omegaconf import DictConfig


def last_words(config: DictConfig, name: str) -> str:
    """Return two lines: up to which step a run is saved, and which command goes on.

    Args:
        config: Of the run.
        name: What stopped it: Ctrl-C or a signal.
    """
    trainer = config.trainer
    tracker = Path(trainer.default_local_dir) / "latest_checkpointed_iteration.txt"
    try:
        # A run that begins anew has not saved what lies there from one before it.
        is_others = trainer.resume_mode == "disable" and tracker.stat().st_mtime < psutil.Process().create_time()
        saved = 0 if is_others else int(tracker.read_text())
    except (OSError, ValueError):
        saved = 0
    if not saved:
        often = f"trainer.save_freq={trainer.save_freq}"
        return f"stopped by {name}: nothing is saved yet ({often})\nthe same command begins again"
    goes_on = "the same command"
    if trainer.resume_mode != "auto":
        goes_on += " with trainer.resume_mode=auto"
    if trainer.resume_from_path:
        goes_on += " trainer.resume_from_path=null"
    return (
        f"stopped by {name}: the run is saved up to step {saved}, in {trainer.default_local_dir}\n"
        f"{goes_on} goes on with step {saved + 1}"
    )
