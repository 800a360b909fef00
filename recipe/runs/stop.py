"""What a run says when it is stopped."""

from pathlib import Path

from omegaconf import DictConfig


def last_words(config: DictConfig, name: str) -> str:
    """Return two lines: up to which step a run is saved, and which command goes on.

    Args:
        config: Of the run.
        name: What stopped it: Ctrl-C or a signal.
    """
    trainer = config.trainer
    try:
        saved = int((Path(trainer.default_local_dir) / "latest_checkpointed_iteration.txt").read_text())
    except (OSError, ValueError):
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
