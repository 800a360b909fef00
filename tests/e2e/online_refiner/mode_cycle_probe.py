"""The main job with another mode in every step, which also keeps what went into the advantages and what came out.

Run by test_modes.py: ``python mode_cycle_probe.py OUT CYCLES [overrides]`` goes through each of the cycles (joined by
commas), one step with each of its settings; step n is written to OUT/n.pt.
"""

import os
import sys
from pathlib import Path

import ray
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

from recipe.online_refiner import main, queue, schema, task_runner

DEFAULTS = {
    **{"alignment": "position", "credit": None},
    **{"token_weights": None, "sft_normaliser": None, "pair_weights": None},
}
MODES = [
    {"mode": "penalty"},
    {"mode": "sft"},
    {"mode": "none"},
    {"mode": "penalty", "alignment": "diff"},
    {"mode": "sft", "token_weights": "edited"},
]
CREDITS = ("whole", "in_reward", "centred", "divergence", "exonerate")
NEIGHBOURS = [
    *({"mode": "lagrangian", "credit": credit} for credit in ("routed", "silent", "members")),
    {"mode": "lagrangian", "credit": "members", "token_weights": "shaped", "pair_weights": "advantage"},
]
CYCLES = {
    "gae": [*MODES, {"mode": "lagrangian"}, {"mode": "penalty", "credit": "in_reward"}],
    "grpo": [
        *({"mode": mode, "credit": credit} for credit in CREDITS for mode in ("penalty", "lagrangian")),
        *NEIGHBOURS,
    ],
    "dapo": MODES,
}
"""What each step of a cycle sets; other keys are null."""
FIELDS = ("prompts", "responses", "response_mask", "rm_scores", "advantages", "old_log_probs", "values")


def steps(cycles: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return estimator and settings of every step."""
    return [
        ("grpo" if cycle == "dapo" else cycle, {**DEFAULTS, **settings})
        for cycle in cycles.split(",")
        for settings in CYCLES[cycle]
    ]


class CyclingTrainer(task_runner.OnlineRefinerSync):
    """Changes the mode from step to step."""

    def _step_once(self, *arguments, **keywords):  # type: ignore[no-untyped-def]
        self.config.algorithm.adv_estimator, settings = steps(os.environ["CYCLES"])[self.global_steps - 1]
        for key, value in settings.items():
            setattr(self.blocks.constraint, key, value)
        return super()._step_once(*arguments, **keywords)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics=metrics)
        fields = [name for name in FIELDS if name != "values" or self.use_critic]
        data = queue.read(batch, *fields)
        record = {name: [row.tolist() for row in data[name].unbind()] for name in fields}
        record["group"] = [key.rsplit("_", 2)[0] for key in batch.keys]
        record["refined"] = {}
        for index, outcome in self.state.outcomes.items():
            if outcome.is_used or index in self.state.nll:
                row = queue.rows_of(batch, [index])
                log_probs = queue.read(row, "refine_log_probs")["refine_log_probs"] if index in self.state.nll else None
                record["refined"][index] = {
                    "ids": queue.read(row, "refine_ids")["refine_ids"][0].tolist(),
                    "log_probs": None if log_probs is None else log_probs[0].tolist(),
                    "accepted": outcome.is_used,
                    "reward": outcome.refined_reward,
                }
        record["estimator"], record["settings"] = steps(os.environ["CYCLES"])[self.global_steps - 1]
        torch.save(record, f"{os.environ['OUT']}/{self.global_steps}.pt")
        return batch


class CyclingTaskRunner(task_runner.TaskRunner):
    """Runs the trainer above."""

    trainers = {"sync": CyclingTrainer}


def run(config: DictConfig) -> None:
    """Do what the main module does, with the task runner above."""
    task_runner.OnlineRefinerTaskRunner = ray.remote(CyclingTaskRunner)
    main.prepare(config)
    main.train(config)


if __name__ == "__main__":
    os.environ["OUT"], os.environ["CYCLES"] = sys.argv[1:3]
    with initialize_config_dir(str(Path(schema.__file__).parent / "config"), version_base=None):
        composed = compose("online_refiner", overrides=sys.argv[3:])
    run(composed)
