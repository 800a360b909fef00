"""Training steps with TRL on the task of ``bench_overhead``; run by TRL's Python, with this repository on its path.

python experiments/trl_steps.py ARM MODEL ROWS STEPS RUN_DIR

Writes ``metrics.jsonl`` with a line a step, by the names of a run of this extension.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

import datasets
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from reward.verl_reward import compute_score

GROUP, PROMPTS, ANSWER_TOKENS = 8, 2, 48
ARMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "trl": (GRPOTrainer, GRPOConfig, {}),
    "trl_kl": (GRPOTrainer, GRPOConfig, {"beta": 0.001}),
    "trl_sdpo": (SDPOTrainer, SDPOConfig, {"distillation_weight": 0.5, "teacher_model_kind": "base"}),
}
"""The arms: trainer, its config, and settings. SDPO's teacher is the initial model, shown a group's solved answer."""


def reward(completions: list[Any], ground_truth: list[str], **_: object) -> list[float]:
    """Return the score of each answer, several at a time, as verl's reward loop does."""

    async def scores() -> list[dict[str, Any]]:
        texts = [completion[0]["content"] for completion in completions]
        tasks = [compute_score("mini_apps", text, truth) for text, truth in zip(texts, ground_truth, strict=True)]
        return await asyncio.gather(*tasks)

    return [float(score["score"]) for score in asyncio.run(scores())]


class Clock(TrainerCallback):
    """A callback that writes the seconds of each step, sampling and learning together."""

    def __init__(self, path: Path) -> None:
        self.path, self.began_at = path, 0.0

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Start the clock."""
        self.began_at = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Write a line."""
        with self.path.open("a") as file:
            file.write(json.dumps({"step": state.global_step, "timing_s/step": time.perf_counter() - self.began_at}))
            file.write("\n")


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arm", choices=list(ARMS))
    parser.add_argument("model")
    parser.add_argument("rows", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("run_dir", type=Path)
    arguments = parser.parse_args()
    trainer_class, config_class, settings = ARMS[arguments.arm]
    rows = datasets.load_dataset("parquet", data_files=str(arguments.rows), split="train").select(range(16))
    rows = rows.map(lambda row: {"ground_truth": row["reward_model"]["ground_truth"]})
    arguments.run_dir.mkdir(parents=True, exist_ok=True)
    trainer = trainer_class(
        model=arguments.model,
        reward_funcs=reward,
        train_dataset=rows.select_columns(["prompt", "ground_truth"]),
        callbacks=[Clock(arguments.run_dir / "metrics.jsonl")],
        args=config_class(
            output_dir=str(arguments.run_dir),
            max_steps=arguments.steps,
            per_device_train_batch_size=GROUP * PROMPTS,
            num_generations=GROUP,
            max_completion_length=ANSWER_TOKENS,
            learning_rate=0.0,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "float32"},
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            **settings,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
