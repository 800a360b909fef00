"""Export a run's checkpoint as a Hugging Face folder: `python -m recipe.evaluation.export RUN_DIR --output DIR`.

verl's own merger (`python -m verl.model_merger`) does the work; this finds the checkpoint and the backend in the run
directory. The folder, its weights in bfloat16, loads with transformers, vLLM and `actor_rollout_ref.model.path`. On
Megatron a checkpoint holds such a folder already, which is copied as it is.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from omegaconf import OmegaConf

BACKENDS = {"fsdp": "fsdp", "fsdp2": "fsdp", "megatron": "megatron"}
TRACKER = "latest_checkpointed_iteration.txt"


def export_command(run_dir: Path, step: int | None, output: Path) -> list[str]:
    """Return the command that merges or copies a checkpoint.

    Raises:
        ValueError: no run, no such checkpoint, or a backend that verl cannot merge.
    """
    config_file = run_dir / "config.yaml"
    if not config_file.is_file():
        raise ValueError(f"{run_dir}: not a run directory (config.yaml is missing)")
    config = OmegaConf.load(config_file)
    strategy = config.actor_rollout_ref.actor.strategy
    if strategy not in BACKENDS:
        raise ValueError(f"{run_dir}: verl cannot merge checkpoints of the strategy {strategy}")
    checkpoints = run_dir / "checkpoints"
    if step is None:
        if not (checkpoints / TRACKER).is_file():
            raise ValueError(f"{run_dir}: no checkpoint; set trainer.save_freq in the run")
        step = int((checkpoints / TRACKER).read_text())
    actor = checkpoints / f"global_step_{step}" / "actor"
    if not actor.is_dir():
        there = sorted(path.name for path in checkpoints.glob("global_step_*"))
        raise ValueError(f"{run_dir}: no checkpoint of step {step}; there are: {', '.join(there) or 'none'}")
    whole = actor / "model" / "huggingface"
    if any(whole.glob("*.safetensors")):
        return ["cp", "--recursive", "--no-target-directory", str(whole), str(output)]
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", BACKENDS[strategy]]
    return [*command, "--local_dir", str(actor), "--target_dir", str(output)]


def main() -> int:
    """Export; exit status 2 if there is nothing to export."""
    parser = argparse.ArgumentParser(description="Export a run's checkpoint as a Hugging Face folder.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--step", type=int, help="default: the latest")
    arguments = parser.parse_args()
    try:
        command = export_command(arguments.run_dir, arguments.step, arguments.output)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    status = subprocess.run(command).returncode
    if status == 0:
        print(arguments.output)
    return status


if __name__ == "__main__":
    sys.exit(main())
