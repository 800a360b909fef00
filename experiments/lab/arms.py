"""The algorithms and arms that the experiment compares; an arm is overrides of a preset, with a weight."""

from collections.abc import Callable, Mapping

Overrides = tuple[str, ...]

ALGORITHMS: dict[str, Overrides] = {  # overrides: in the lab's first task 64 responses a step in two mini-batches
    "dapo": ("algorithm.adv_estimator=grpo",),
    "grpo": ("algorithm.adv_estimator=grpo", "algorithm.filter_groups.enable=false"),
    "ppo": (
        "algorithm.adv_estimator=gae",
        "algorithm.filter_groups.enable=false",
        "actor_rollout_ref.rollout.n=1",
        "data.train_batch_size=64",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "critic.ppo_mini_batch_size=32",
        "critic.optim.lr=1e-3",
    ),
}
NONE = ("constraint.mode=none",)


def kl_in_reward(weight: float) -> Overrides:
    """Verl's static KL as a penalty on the reward."""
    keys = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=fixed")
    return (*NONE, *keys, f"algorithm.kl_ctrl.kl_coef={weight}")


def kl_in_loss(weight: float) -> Overrides:
    """Verl's static KL in the actor's loss."""
    return (*NONE, "actor_rollout_ref.actor.use_kl_loss=true", f"actor_rollout_ref.actor.kl_loss_coef={weight}")


def dynamic(mode: str, *more: str) -> Callable[[float], Overrides]:
    """Return a dynamic constraint, by eta."""
    return lambda weight: (f"constraint.mode={mode}", f"constraint.eta={weight}", *more)


FADING = "constraint.sft_normaliser=batch"
WEIGHTS = (0.01, 0.03, 0.1, 0.3)  # of static KL, to choose from
ETAS = (0.03, 0.1, 0.3, 1.0)  # of a dynamic constraint
TUNED: dict[str, tuple[Callable[[float], Overrides], tuple[float, ...]]] = {
    "kl_in_reward": (kl_in_reward, WEIGHTS),
    "kl_in_loss": (kl_in_loss, WEIGHTS),
    "penalty": (dynamic("penalty"), ETAS),
    "sft": (dynamic("sft", FADING), ETAS),
    "lagrangian": (dynamic("lagrangian", "constraint.credit=in_reward"), ETAS),
    "in_place": (dynamic("penalty", "constraint.target=in_place"), WEIGHTS),
}
"""The methods by name, each with its overrides by weight and the weights tried: the same number for each."""
STATIC = ("kl_in_reward", "kl_in_loss")  # those of `TUNED` that are no dynamic constraint
LIKE: dict[str, dict[str, Overrides]] = {
    "sft": {
        "sft_no_gate": ("constraint.reward_gate=false", "refiner.skip_reward_at_least=null"),
        "sft_rescue": (
            "constraint.rescue_dead_groups=true",
            "refiner.placement=dedicated",
            "refiner.n_gpus_per_node=1",
            "ray_kwargs.ray_init.num_gpus=2",  # logical ones; refined before the filter looks
        ),
        "own_solved": ("constraint.imitate_solved=true", "refiner.max_refinements_per_group=0"),
    },
}
"""The arms that add overrides to a method at its weight, by method and by the arm's name.

`own_solved` is a control: it imitates the policy's own solved responses and no refinements.
"""


def arms(weights: Mapping[str, float]) -> dict[str, Overrides]:
    """Return all arms whose weight is known.

    The committed runs have four more arms, `penalty_divergence`, `sft_blocks`, `constant` and `other`, whose keys no
    longer exist.
    """
    tuned = {name: TUNED[name][0](weight) for name, weight in weights.items() if name in TUNED}
    like = {name: (*tuned[method], *more) for method in LIKE if method in tuned for name, more in LIKE[method].items()}
    return {"none": NONE, **tuned, **like}


UNTUNED = arms(dict.fromkeys(TUNED, 0.1))  # all arms before anything is known of their weights
