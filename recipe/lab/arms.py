"""The lab's arms: what is compared in the paper's figures and tables, as overrides of `experiment=lab`."""

ALGORITHMS = {
    "dapo": ("algorithm.adv_estimator=grpo",),
    "ppo": (
        *("algorithm.adv_estimator=gae", "algorithm.filter_groups.enable=false", "actor_rollout_ref.rollout.n=1"),
        *("data.train_batch_size=64", "actor_rollout_ref.actor.ppo_mini_batch_size=32"),
        *("critic.ppo_mini_batch_size=32", "critic.optim.lr=1e-3"),
    ),
}
"""Name: its overrides. Both update on 64 responses a step in two mini-batches."""

ETA = STATIC_KL = 0.1
NONE = ("constraint.mode=none",)


def dynamic(mode: str, eta: float = ETA, *more: str) -> tuple[str, ...]:
    """Return the overrides of a dynamic constraint."""
    return (f"constraint.mode={mode}", f"constraint.eta={eta}", *more)


ARMS = {
    "none": NONE,
    "kl_in_reward": (
        *NONE,
        *("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=fixed", f"algorithm.kl_ctrl.kl_coef={STATIC_KL}"),
    ),
    "kl_in_loss": (
        *NONE,
        *("actor_rollout_ref.actor.use_kl_loss=true", f"actor_rollout_ref.actor.kl_loss_coef={STATIC_KL}"),
    ),
    "penalty": dynamic("penalty"),
    "sft": dynamic("sft"),
    "penalty_no_filter": dynamic("penalty", ETA, "constraint.reward_gate=false", "refiner.skip_reward_at_least=null"),
    "penalty_diff": dynamic("penalty", ETA, "constraint.alignment=diff"),
    "penalty_eta_x10": dynamic("penalty", 10 * ETA),
    "penalty_eta_x0.1": dynamic("penalty", 0.1 * ETA),
    "sft_eta_x10": dynamic("sft", 10 * ETA),
    "sft_eta_x0.1": dynamic("sft", 0.1 * ETA),
}
"""Name: its overrides. Without a constraint, verl's static KL, both dynamic modes, then ablations and the eta grid."""
