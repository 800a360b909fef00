"""The runs of the smoke test: the main job with a few keys changed. Needs neither torch nor verl."""

from dataclasses import dataclass
from pathlib import Path

from recipe.smoke import reward

NUM_STEPS = 3
"""Of a run: the first one's rollouts are of the initial weights, the others' of synced ones."""
MIN_PROMPTS = 8
"""Of a step; the least multiple of the training GPUs from there on is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    name: str
    shows: str
    overrides: tuple[str, ...]
    mode: str = "penalty"
    min_gpus: int = 1
    goes_on: str = ""
    """The case from whose last checkpoint it resumes, in the same run directory."""

    @property
    def folder(self) -> str:
        """Name of the run directory."""
        return self.goes_on or self.name

    @property
    def steps(self) -> range:
        """Numbers of its own steps."""
        first = NUM_STEPS + 1 if self.goes_on else 1
        return range(first, first + NUM_STEPS)

    def command(self, output: Path, *, platform: str, num_gpus: int) -> list[str]:
        """Return the overrides of the main job on so many GPUs of one node."""
        num_own = num_gpus // 2 if self.min_gpus > 1 else 0
        num_training = num_gpus - num_own
        num_prompts = -(-MIN_PROMPTS // num_training) * num_training  # verl: each GPU has as many rows
        batch = (f"data.train_batch_size={num_prompts}", f"actor_rollout_ref.actor.ppo_mini_batch_size={num_prompts}")
        placed = [*batch, f"trainer.n_gpus_per_node={num_training}"]
        if num_own:
            placed.append(f"refiner.n_gpus_per_node={num_own}")
        if platform != "gpu":
            placed.append(f"ray_kwargs.ray_init.num_gpus={num_gpus}")  # logical ones
        last = f"trainer.total_training_steps={self.steps[-1]}"
        data = f"{output}/prompts.parquet"
        return [
            *(f"platform={platform}", f"run_dir={output}/{self.folder}", *TASK, *placed, *self.overrides, last),
            *(f"actor_rollout_ref.model.path={output}/model", f"data.train_files={data}", f"data.val_files={data}"),
            f"constraint.mode={self.mode}",
        ]


TASK = (
    *("algorithm.adv_estimator=grpo", "data.max_prompt_length=64"),
    *("data.max_response_length=16", "data.dataloader_num_workers=0"),
    *("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "actor_rollout_ref.rollout.n=4"),
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    *("actor_rollout_ref.rollout.max_model_len=640", "actor_rollout_ref.rollout.max_num_batched_tokens=2048"),
    *("actor_rollout_ref.rollout.calculate_log_probs=true", "actor_rollout_ref.rollout.tensor_model_parallel_size=1"),
    # The policy has to move so far that old weights in the rollout would be seen, and not to learn all in six steps.
    *("actor_rollout_ref.actor.optim.optimizer=SGD", "actor_rollout_ref.actor.optim.lr=1e-2"),
    "actor_rollout_ref.actor.optim.override_optimizer_config={momentum:0.9}",
    f"reward.custom_reward_function.path={reward.__file__}",
    *("refiner.template=dialogue", "constraint.eta=0.1", "measure.cross_entropy_all_every=1"),
    *("trainer.total_epochs=99", "trainer.save_freq=3", "trainer.test_freq=-1", "trainer.val_before_train=false"),
    *("trainer.project_name=smoke", "trainer.logger=[console]"),
)
CASES = (
    Case(name="colocated", shows="engines take turns on the GPUs", overrides=()),
    Case(name="resumed, sft", shows="goes on from a checkpoint", overrides=(), mode="sft", goes_on="colocated"),
    Case(
        name="dedicated",
        shows="GPUs of its own, streaming, drafts",
        overrides=("refiner.placement=dedicated", "refiner.draft=ngram"),
        min_gpus=2,
    ),
    Case(
        name="shared",
        shows="LoRA: one engine for both",
        overrides=(
            *(
                "refiner.placement=shared",
                "actor_rollout_ref.model.lora_rank=8",
                "actor_rollout_ref.model.lora_alpha=64",
            ),
            "actor_rollout_ref.actor.optim.lr=0.3",
        ),
    ),
)
