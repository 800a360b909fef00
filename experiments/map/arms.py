"""The arms: overrides of the product's and verl's config, and the source of the better answers."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from experiments.lab.arms import FADING, NONE, Overrides, dynamic, kl_in_loss, kl_in_reward

COMMON: Overrides = (
    "actor_rollout_ref.model.path=none",
    "platform=cpu",
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=8",
    "data.max_response_length=8",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.calculate_log_probs=false",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
    "refiner.skip_reward_at_least=1.0",
    "refiner.temperature=1.0",
    "measure.num_kl_rollouts=0",
    "measure.cross_entropy_all_every=0",
)
"""The common overrides: 64 responses a step in two mini-batches, as in the lab's first task (``experiments/lab``)."""
DOUBLE = ("data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=8")
NO_GATE = ("constraint.reward_gate=false", "refiner.skip_reward_at_least=null")
OWN = ("constraint.imitate_solved=true", "refiner.max_refinements_per_group=0")


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison."""

    overrides: Callable[[float], Overrides]
    """A function that returns the arm's overrides, given its weight."""
    grid: tuple[float, ...] = ()
    """The weights that are tried; empty: the arm has none, or takes another arm's weight."""
    source: str = "refiner"
    uses_refiner: bool = False
    """Whether the kind of refiner changes the arm; otherwise one run serves for all kinds."""
    like: str = ""
    """The arm whose weight this arm takes."""


SFT = dynamic("sft", FADING)
ARMS = {
    "none": Arm(lambda weight: NONE),
    "double": Arm(lambda weight: (*NONE, *DOUBLE)),
    "kl_in_loss": Arm(kl_in_loss, (0.003, 0.01, 0.03, 0.1)),
    "kl_in_reward": Arm(kl_in_reward, (0.003, 0.01, 0.03, 0.1)),
    "own_solved": Arm(dynamic("sft", FADING, *OWN), (0.03, 0.1, 0.3, 1.0)),
    "resample": Arm(SFT, (0.03, 0.1, 0.3, 1.0), source="resample"),
    "oracle": Arm(SFT, (0.03, 0.1, 0.3, 1.0), source="oracle"),
    "sft": Arm(SFT, (0.03, 0.1, 0.3, 1.0), uses_refiner=True),
    "sft_no_gate": Arm(dynamic("sft", FADING, *NO_GATE), (0.03, 0.1, 0.3, 1.0), uses_refiner=True),
    "lagrangian": Arm(dynamic("lagrangian", "constraint.credit=in_reward"), (0.03, 0.1, 0.3, 1.0), uses_refiner=True),
    "in_place": Arm(dynamic("penalty", "constraint.target=in_place"), (0.03, 0.1, 0.3, 1.0), uses_refiner=True),
    "penalty": Arm(dynamic("penalty"), (0.003, 0.01, 0.03, 0.1), uses_refiner=True),
    "penalty_paper": Arm(lambda weight: dynamic("penalty")(1e-3), uses_refiner=True),
}
"""The arms by name. ``penalty_paper`` has the paper's eta.

``double`` has twice the questions a step and no refiner, so it writes as many tokens as an arm with a refiner at most.
"""


@functools.cache
def _common() -> DictConfig:
    """Compose the config that all runs of a process share: its files may change while a process runs for hours."""
    with initialize_config_module("recipe.online_refiner.config", version_base=None):
        return compose("online_refiner", overrides=list(COMMON))


def config_of(overrides: Overrides, rate: float) -> DictConfig:
    """Return the product's config with overrides and a learning rate.

    Raises:
        omegaconf.errors.OmegaConfBaseException: If the product has no such key.
    """
    own = OmegaConf.from_dotlist([*overrides, f"actor_rollout_ref.actor.optim.lr={rate}"])
    return cast(DictConfig, OmegaConf.merge(_common(), own))
