"""The runs of the smoke test (the main job with a few keys changed), and what their metrics must be."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe.online_refiner import metric_names
from recipe.online_refiner.method.pairs import Verdict
from recipe.smoke import letters

Steps = Sequence[dict[str, Any]]  # the metrics of a run's own steps
NUM_STEPS = 3  # of a run: the first one's rollouts are of the initial weights, the others' of synced ones
MIN_PROMPTS = 8  # of a step; the least multiple of the training GPUs from there on is taken
TASK = (
    "algorithm.adv_estimator=grpo",
    "data.max_prompt_length=64",
    "data.max_response_length=16",
    "data.dataloader_num_workers=0",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.agent.num_workers=2",
    "reward.num_workers=2",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",  # each takes a CPU core
    "actor_rollout_ref.rollout.max_model_len=640",
    "actor_rollout_ref.rollout.max_num_batched_tokens=2048",
    "actor_rollout_ref.rollout.calculate_log_probs=true",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    # The policy has to move so far that old weights in the rollout would be seen, and not to learn all in six steps.
    "actor_rollout_ref.actor.optim.optimizer=SGD",
    "actor_rollout_ref.actor.optim.lr=1e-2",
    "actor_rollout_ref.actor.optim.override_optimizer_config={momentum:0.9}",
    f"reward.custom_reward_function.path={letters.__file__}",
    "refiner.template=dialogue",
    "constraint.eta=0.1",
    "measure.cross_entropy_all_every=1",
    "trainer.total_epochs=99",
    "trainer.save_freq=3",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
    "trainer.project_name=smoke",
    "trainer.logger=[console]",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    name: str
    shows: str
    overrides: tuple[str, ...] = ()
    mode: str = "penalty"
    min_gpus: int = 1
    goes_on: str = ""  # the case from whose last checkpoint it resumes, in the same run directory

    @property
    def folder(self) -> str:
        """The name of the run directory."""
        return self.goes_on or self.name

    @property
    def steps(self) -> range:
        """The numbers of the steps that this case makes itself."""
        first = NUM_STEPS + 1 if self.goes_on else 1
        return range(first, first + NUM_STEPS)

    def command(self, output: Path, *, platform: str, num_gpus: int) -> list[str]:
        """Return the overrides of the main job on so many GPUs of one node."""
        num_own = num_gpus // 2 if self.min_gpus > 1 else 0
        num_training = num_gpus - num_own
        num_prompts = -(-MIN_PROMPTS // num_training) * num_training  # verl: each GPU has as many rows
        data = f"{output}/prompts.parquet"
        return [
            f"platform={platform}",
            f"run_dir={output}/{self.folder}",
            *TASK,
            f"constraint.mode={self.mode}",
            f"data.train_batch_size={num_prompts}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={num_prompts}",
            f"actor_rollout_ref.model.path={output}/model",
            f"data.train_files={data}",
            f"data.val_files={data}",
            f"trainer.n_gpus_per_node={num_training}",
            f"trainer.total_training_steps={self.steps[-1]}",
            *([f"refiner.n_gpus_per_node={num_own}"] if num_own else []),
            *([f"ray_kwargs.ray_init.num_gpus={num_gpus}"] if platform != "gpu" else []),  # logical ones
            *self.overrides,
        ]


SHARED = (
    "refiner.placement=shared",
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.model.lora_alpha=64",
    "actor_rollout_ref.actor.optim.lr=0.3",
)
DEDICATED = ("refiner.placement=dedicated",)
CASES = (
    Case(name="colocated", shows="engines take turns on the GPUs"),
    Case(name="resumed, sft", shows="goes on from a checkpoint", mode="sft", goes_on="colocated"),
    Case(name="dedicated", shows="own GPUs, streaming", overrides=DEDICATED, min_gpus=2),
    Case(name="shared", shows="LoRA: one engine for both", overrides=SHARED),
)
DEATHS = (Verdict.REQUEST, Verdict.TIMEOUT, Verdict.WORKER)
"""The verdicts of refinements that a server or worker has lost."""
SLEEPS = (
    (metric_names.MEMORY_ROLLOUT, metric_names.MEMORY_ASLEEP),
    (metric_names.MEMORY_REFINE, metric_names.MEMORY_REFINED),
)
"""The memory of an engine's devices while it is awake, and while it is asleep."""
LIMITS: dict[str, dict[str, float]] = {
    "gpu": {"probs_differ": 2e-2, "kl_at_start": 5e-3, "frees_gb": 1.0},  # bfloat16, other kernels
    "cpu": {"probs_differ": 1e-4, "kl_at_start": 1e-3, "frees_gb": -math.inf},  # engines cannot sleep there
}
"""The limits on a run's metrics, for each platform.

``probs_differ``: the largest mean difference between a token's probabilities in rollout and trainer.
``kl_at_start``: the largest KL of the untrained policy to pi_0, in nats per token, since both are the same model.
``frees_gb``: the least memory that an engine frees when it goes to sleep.
"""


def faults(case: Case, steps: Steps, limits: dict[str, float]) -> Iterator[str]:
    """Yield what is wrong with a run that ended well, from the metrics of its own steps; nothing if all is right."""
    found = [step["step"] for step in steps]
    if found != [*case.steps]:
        yield f"its steps are {found}, not {[*case.steps]}"
        return
    first, last = steps[0], steps[-1]

    def total(name: str) -> float:
        return sum(step.get(name) or 0.0 for step in steps)

    yield from (f"no finite gradient in step {one['step']}" for one in steps if one.get("actor/grad_norm") is None)
    moved, before = last.get(metric_names.KL_REF) or 0.0, first.get(metric_names.KL_REF)
    if moved <= limits["kl_at_start"]:
        yield f"KL to the reference at the end is {moved:.2g}: the policy has not moved"
    differ = [step.get("training/rollout_probs_diff_mean") for step in steps]
    worst = max(math.inf if value is None else value for value in differ)
    if worst > limits["probs_differ"]:
        yield f"probabilities of rollout and trainer differ by {worst:.2g} on average: are weights synced?"
    if not case.goes_on and (before is None or abs(before) > limits["kl_at_start"]):
        yield f"KL to the reference before training is {before}: the refiner does not have the initial weights"
    for name in (*map(metric_names.failed_for, DEATHS), metric_names.NUM_RESTARTS):
        if number := total(name):
            yield f"{name} is {number:g}"
    acts = {"penalty": metric_names.PENALTY, "sft": metric_names.SFT_CROSS_ENTROPY}[case.mode]
    for name in ("actor/grad_norm", metric_names.NUM_ACCEPTED, acts):
        if not total(name):
            yield f"{name} is 0 in all steps"
    for awake, asleep in SLEEPS[: 2 if case.folder == "colocated" else 1]:
        sizes = [last[name] for name in (awake, asleep)]
        if sizes[0] - sizes[1] < limits["frees_gb"]:
            yield f"{awake} and {asleep} are {sizes[0]:.1f} and {sizes[1]:.1f}: an engine does not sleep"
