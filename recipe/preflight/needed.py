"""A rule on the keys that each run has to set. It is checked before torch and verl are imported."""

from pathlib import Path

from omegaconf import OmegaConf

from recipe.preflight.rules import PlannedRun, rule

NEEDED = {
    "actor_rollout_ref.model.path": ("~/models/deepseek-llm-7b-chat", "Qwen/Qwen2.5-0.5B-Instruct"),
    "data.train_files": ("~/data/rlhf/gsm8k/train.parquet", "data/train.parquet"),
    "data.val_files": ("~/data/rlhf/gsm8k/test.parquet", "data/val.parquet"),
}
"""The keys that a run needs, each with verl's default (``verl/trainer/config``) and an example of a value."""


@rule("start")
def needed_keys_are_set(run: PlannedRun) -> str | None:
    """No model or data file is verl's default, unless a file exists at that path."""
    unset = {
        key: (default, example)
        for key, (default, example) in NEEDED.items()
        if OmegaConf.select(run.config, key) == default and not Path(default).expanduser().exists()
    }
    if not unset:
        return None
    found = ", ".join(f"{key}={default}" for key, (default, _) in unset.items())
    examples = " ".join(f"{key}={example}" for key, (_, example) in unset.items())
    several = len(unset) > 1
    are = "these are verl's defaults, and no such files exist" if several else "this is verl's default, and is missing"
    return f"{found}: {are}; set {examples}, for example"
