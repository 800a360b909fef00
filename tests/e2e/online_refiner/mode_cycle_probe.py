"""The main job with another mode in every step, which also keeps what went into the advantages and what came out.

Run by test_modes.py: ``python mode_cycle_probe.py OUT CYCLES [overrides]`` goes through each of the cycles (joined by
commas), one step with each of its settings; step n is written to OUT/n.pt.
"""

import os
import sys
from functools import partial
from pathlib import Path

import ray
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

from recipe.online_refiner import config, main
from recipe.online_refiner.method.constraint import Constraint
from recipe.online_refiner.method.modes import read_constraint
from recipe.online_refiner.verl_glue import rows as queue
from recipe.online_refiner.verl_glue import task_runner
from recipe.online_refiner.verl_glue.refine_actors import RefineWorker
from recipe.online_refiner.verl_glue.streaming import StreamingWorker

DEFAULTS = {"target": "rewrite", "alignment": "position", "credit": None, "sft_normaliser": "batch"}
MODES: list[dict[str, str | None]] = [
    {"mode": "penalty"},
    {"mode": "sft", "sft_normaliser": "accepted"},
    {"mode": "none"},
    {"mode": "penalty", "alignment": "diff"},
    {"mode": "sft"},
]
CYCLES: dict[str, list[dict[str, str | None]]] = {
    "gae": [
        *MODES,
        {"mode": "penalty", "credit": "in_reward"},
        {"mode": "lagrangian"},
        {"mode": "penalty", "target": "in_place"},
    ],
    "grpo": [
        {"mode": "lagrangian", "credit": "in_reward"},
        {"mode": "lagrangian"},
        {"mode": "penalty"},
        {"mode": "sft", "target": "in_place"},
    ],
    "dapo": MODES,
}
"""What each step of a cycle sets; other keys are DEFAULTS."""
FIELDS = ("prompts", "responses", "response_mask", "rm_scores", "advantages", "old_log_probs", "values")


def steps(cycles: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return estimator and settings of every step."""
    return [
        ("grpo" if cycle == "dapo" else cycle, {**DEFAULTS, **settings})
        for cycle in cycles.split(",")
        for settings in CYCLES[cycle]
    ]


def set_constraint(worker: RefineWorker | StreamingWorker, constraint: Constraint) -> None:
    """Change what a refine worker, or an agent loop worker that refines, has read from the config."""
    worker = getattr(worker, "refine_worker", worker)
    worker._constraint = constraint
    worker._refiner = partial(worker._refiner, companion=constraint.companion(worker._tokenizer, None, {}, 64))


class CyclingTrainer(task_runner.OnlineRefinerSync):
    """Changes the mode from step to step."""

    def _step_once(self, *arguments, **keywords):  # type: ignore[no-untyped-def]
        self.config.algorithm.adv_estimator, settings = steps(os.environ["CYCLES"])[self.global_steps - 1]
        own = {key: value for key, value in settings.items() if value != DEFAULTS.get(key)}
        constraint = read_constraint({**own, "eta": self.config.constraint.eta})
        self.blocks.constraint = self.stages._blocks.constraint = constraint
        workers = [*self.workers.start(), *(self.agent_loop_manager.agent_loop_workers if self.blocks.streams else [])]
        ray.get([worker.__ray_call__.remote(set_constraint, constraint) for worker in workers])
        return super()._step_once(*arguments, **keywords)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics=metrics)
        fields = [name for name in FIELDS if name != "values" or self.use_critic]
        data = queue.read(batch, *fields)
        record = {name: [row.tolist() for row in data[name].unbind()] for name in fields}
        record["group"] = [key.rsplit("_", 2)[0] for key in batch.keys]
        scored = [index for index, pair in self.state.pairs.items() if pair.own.get("is_scored")]
        turns = [queue.read(queue.rows_of(batch, [index]), "refine_in_place")["refine_in_place"] for index in scored]
        record["in_place"] = {index: turn[0].tolist() for index, turn in zip(scored, turns, strict=True)}
        record["refined"] = {}
        for index, pair in self.state.pairs.items():
            if pair.is_used or pair.nll is not None:
                row = queue.rows_of(batch, [index])
                known = pair.nll is not None
                log_probs = queue.read(row, "refine_log_probs")["refine_log_probs"] if known else None
                record["refined"][index] = {
                    "ids": queue.read(row, "refine_ids")["refine_ids"][0].tolist(),
                    "log_probs": None if log_probs is None else log_probs[0].tolist(),
                    "accepted": pair.is_used,
                    "reward": pair.refined_reward,
                }
        record["estimator"], record["settings"] = steps(os.environ["CYCLES"])[self.global_steps - 1]
        torch.save(record, f"{os.environ['OUT']}/{self.global_steps}.pt")
        return batch


class CyclingTaskRunner(task_runner.TaskRunner):
    """Runs the trainer above."""

    trainers = {"sync": CyclingTrainer}


def run(composed: DictConfig) -> None:
    """Do what the main module does, with the task runner above."""
    task_runner.OnlineRefinerTaskRunner = ray.remote(CyclingTaskRunner)
    main.prepare(composed)
    task_runner.train(composed)


if __name__ == "__main__":
    os.environ["OUT"], os.environ["CYCLES"] = sys.argv[1:3]
    with initialize_config_dir(str(Path(str(config.__file__)).parent), version_base=None):
        composed = compose("online_refiner", overrides=sys.argv[3:])
    run(composed)
