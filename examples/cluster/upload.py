"""Each checkpoint to an object store, for runs whose run_dir may be lost with its file system.

    export CHECKPOINT_STORE=s3://bucket/run PYTHONPATH=examples/cluster
    ... trainer.checkpoint_callback_class=upload.Upload

The trainer's process runs it, on any node of the cluster: both variables have to be set on each, where Ray is started
(``export`` before ``ray start``, ``env`` of a pod) or in the ``runtime_env`` of a Ray Job, PYTHONPATH as a path that is
there. It blocks the trainer: run_dir must hold what all nodes have written.
"""

import os
from pathlib import Path
from typing import Any

import fsspec
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

LATEST = "latest_checkpointed_iteration.txt"


class Upload(CheckpointCallback):
    """Copies a whole checkpoint, and then names it the latest: a store never names half of one."""

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None:
        """Copy the folder of a step."""
        if async_save:
            raise ValueError("Upload needs actor_rollout_ref.actor.checkpoint.async_save=false")
        store, root = fsspec.core.url_to_fs(os.environ["CHECKPOINT_STORE"])
        folder = Path(checkpoint_dir)
        store.makedirs(f"{root}/{folder.name}", exist_ok=True)
        store.put(f"{folder}/", f"{root}/{folder.name}/", recursive=True)
        store.pipe(f"{root}/{LATEST}", str(global_step).encode())


def download(folder: Path) -> None:
    """Fetch the latest checkpoint into a run's ``checkpoints``, before it is started on another file system."""
    store, root = fsspec.core.url_to_fs(os.environ["CHECKPOINT_STORE"])
    step = store.cat(f"{root}/{LATEST}").decode()
    (folder / f"global_step_{step}").mkdir(parents=True)
    store.get(f"{root}/global_step_{step}/", f"{folder}/global_step_{step}/", recursive=True)
    (folder / LATEST).write_text(step)
