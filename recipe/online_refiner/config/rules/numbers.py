"""Numbers among verl's keys. They are checked first, because other rules compute with them."""

import math
from collections.abc import Callable

from omegaconf import OmegaConf

from recipe.online_refiner.config.rules import ACTOR, MODEL, ROLLOUT
from recipe.preflight.rules import PlannedRun, has_critic, rule

ABSENT = object()
"""The value of a key that a config of another kind does not have."""
NUMBERS: dict[str, tuple[Callable[[float], bool], list[str]]] = {
    "a whole number of at least 1": (
        lambda value: isinstance(value, int) and value >= 1,
        [
            "data.train_batch_size",
            "data.max_prompt_length",
            "data.max_response_length",
            "trainer.total_epochs",
            "trainer.nnodes",
            "trainer.n_gpus_per_node",
            "reward.num_workers",
            f"{ACTOR}.ppo_epochs",
            f"{ACTOR}.ppo_mini_batch_size",
            f"{ACTOR}.ppo_max_token_len_per_gpu",
            f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
            "actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size",
            f"{ROLLOUT}.n",
            f"{ROLLOUT}.agent.num_workers",
            f"{ROLLOUT}.val_kwargs.n",
            f"{ROLLOUT}.response_length",
            f"{ROLLOUT}.max_num_batched_tokens",
            f"{ROLLOUT}.tensor_model_parallel_size",
            f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        ],
    ),
    "a whole number of at least 1, or null": (
        lambda value: isinstance(value, int) and value >= 1,
        [
            "trainer.total_training_steps",
            f"{ACTOR}.ppo_micro_batch_size_per_gpu",
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
            f"{ROLLOUT}.max_model_len",
        ],
    ),
    "a whole number of at least -1": (
        lambda value: isinstance(value, int) and value >= -1,
        [
            "trainer.save_freq",
            "trainer.test_freq",
            "data.train_max_samples",
            "data.val_max_samples",
            f"{ACTOR}.fsdp_config.fsdp_size",
            "actor_rollout_ref.ref.fsdp_config.fsdp_size",
            f"{ROLLOUT}.top_k",
            f"{ROLLOUT}.val_kwargs.top_k",
        ],
    ),
    "a number of at least 0": (
        lambda value: value >= 0,
        [
            f"{ACTOR}.optim.lr",
            f"{ACTOR}.kl_loss_coef",
            "algorithm.kl_ctrl.kl_coef",
            f"{MODEL}.lora_rank",
            f"{MODEL}.lora.rank",
        ],
    ),
    "a number of at least 0, or null": (
        lambda value: value >= 0,
        [f"ray_kwargs.ray_init.{name}" for name in ("num_cpus", "num_gpus")],
    ),
    "a number above 0": (lambda value: value > 0, [f"{ACTOR}.clip_ratio"]),
    "a number above 0 and at most 2": (lambda value: 0 < value <= 2, [f"{ROLLOUT}.temperature"]),
    "a number from 0 to 2": (lambda value: 0 <= value <= 2, [f"{ROLLOUT}.val_kwargs.temperature"]),
    "a number above 0 and at most 1": (
        lambda value: 0 < value <= 1,
        [
            f"{ROLLOUT}.top_p",
            f"{ROLLOUT}.val_kwargs.top_p",
            f"{ROLLOUT}.gpu_memory_utilization",
            "reward.reward_model.rollout.gpu_memory_utilization",
        ],
    ),
    "a number from 0 to 1": (lambda value: 0 <= value <= 1, ["algorithm.gamma", "algorithm.lam"]),
}
"""The possible values of verl's keys, which also hold for the same keys of critic and refiners.

A learning rate of 0 is a control; with a temperature of 0, log-probs would be divided by 0.
"""


@rule("numbers")
def numbers_are_possible(run: PlannedRun) -> str | None:
    """Sizes, rates, lengths and shares are numbers that verl and its engines can work with."""
    alike = {f"{ACTOR}.fsdp_config": "critic.fsdp", ACTOR: "critic"} if has_critic(run.config) else {}
    models = run.blocks.refiner.models if run.blocks.hosts_refiner else ()
    for wanted, (holds, keys) in NUMBERS.items():
        twins = (key.replace(block, own) for key in keys for block, own in alike.items())
        values = {key: OmegaConf.select(run.config, key, default=ABSENT) for key in (*keys, *twins)}
        for use in models:
            own_rollout = OmegaConf.create(use.first.rollout)
            for name in (key.removeprefix(f"{ROLLOUT}.") for key in keys if key.startswith(ROLLOUT)):
                values[f"{use.key}.rollout.{name}"] = OmegaConf.select(own_rollout, name, default=ABSENT)
        for key, value in values.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            may_be_null = value is None and wanted.endswith("or null")
            if value is not ABSENT and not may_be_null and not (is_number and holds(value)):
                return f"{key}={'null' if value is None else value}: set {wanted}"
    return None
