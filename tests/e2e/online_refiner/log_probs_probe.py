"""The main job with ``separate_async``, which also keeps the log-probs of responses and of their used refinements.

Run by test_separate_async.py: ``python log_probs_probe.py OUT [overrides]``. A line of OUT is a pair: ids and log-probs
of a and of a'.
"""

import json
import os
import sys
from pathlib import Path

import ray
from hydra import compose, initialize_config_dir
from transfer_queue import KVBatchMeta

from recipe.online_refiner import config, main, task_runner
from recipe.online_refiner import rows as queue

FIELDS = ("responses", "old_log_probs", "refine_ids", "refine_log_probs")


class RecordingTrainer(task_runner.OnlineRefinerSeparateAsync):
    """Writes what went into the advantages."""

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if used := [row for row in self.state.used if self.state.pairs[row].nll is not None]:
            data = queue.read(queue.rows_of(batch, used), *FIELDS)
            with Path(os.environ["OUT"]).open("a") as out:
                for pair in zip(*(data[name].unbind() for name in FIELDS), strict=True):
                    out.write(json.dumps([row.tolist() for row in pair]) + "\n")
        return super()._compute_advantage(batch, metrics=metrics)


class RecordingTaskRunner(task_runner.TaskRunner):
    """Runs the trainer above."""

    trainers = {"separate_async": RecordingTrainer}


if __name__ == "__main__":
    os.environ["OUT"] = sys.argv[1]
    with initialize_config_dir(str(Path(str(config.__file__)).parent), version_base=None):
        composed = compose("online_refiner", overrides=sys.argv[2:])
    task_runner.OnlineRefinerTaskRunner = ray.remote(RecordingTaskRunner)
    main.prepare(composed)
    main.train(composed)
