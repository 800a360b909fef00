"""The typed ``constraint`` block, and checks across fields. Needs neither torch nor verl."""

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from refiner_worker.config import RefinerConfig

MODES = ("none", "penalty")

CRITIC_FREE_ESTIMATORS = (
    "grpo",
    "grpo_passk",
    "gpg",
    "opo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "rloo_vectorized",
)
"""verl estimators whose advantages are one number per response (or its return-to-go): A_t = A_group + penalty's
return-to-go has the same meaning for all of them."""

Block = TypeVar("Block")


@dataclass(slots=True, kw_only=True)
class ConstraintConfig:
    """How accepted refinements act on the policy. Defaults stand in ``config/online_refiner.yaml``."""

    mode: str
    """``none``: verl's own step, nothing is refined. ``penalty``: Eq. 6 as a token-level penalty in the advantages."""
    eta: float
    """Weight of the constraint, >= 0; 0 gives verl's own numbers."""
    margin: float
    """A refinement is accepted if its reward is higher than the response's by more than this, >= 0."""
    filter: bool
    """Reward gate of Eq. 6; ``false`` lets every refinement through (the paper's ablation, Fig. 7)."""

    def validate(self) -> None:
        """Check the block on its own.

        Raises:
            ValueError: Naming the key and what to set.
        """
        if self.mode not in MODES:
            raise ValueError(f"constraint.mode={self.mode} does not exist; set one of: {', '.join(MODES)}")
        if self.eta < 0:
            raise ValueError(f"constraint.eta={self.eta}: set 0 or more (a negative weight would reward cross-entropy)")
        if self.margin < 0:
            raise ValueError(f"constraint.margin={self.margin}: set 0 or more")


@dataclass(slots=True, kw_only=True)
class RefinementConfig:
    """Both blocks of this extension."""

    refiner: RefinerConfig
    constraint: ConstraintConfig
    has_reference_worker: bool
    """Whether verl computes the reference's log-probs itself (static KL in reward or loss)."""

    @property
    def refines(self) -> bool:
        """Whether a step has a refine stage."""
        return self.constraint.mode != "none"

    @property
    def hosts_refiner(self) -> bool:
        """Whether the run needs replicas of the reference model (to refine, or to measure the KL to it)."""
        return self.refines or self.measures_kl

    @property
    def measures_kl(self) -> bool:
        """Whether the KL to the reference is measured with the refiner's replicas."""
        return self.refiner.num_kl_rollouts != 0 and not self.has_reference_worker


def load(config: DictConfig) -> RefinementConfig:
    """Read and check the blocks ``refiner`` and ``constraint`` of a composed config.

    Args:
        config: The whole config of a run, interpolations not yet resolved.

    Raises:
        ValueError: If a key is unknown, missing or of a wrong type, or values do not go together.
    """
    blocks = RefinementConfig(
        refiner=_read(config, "refiner", RefinerConfig),
        constraint=_read(config, "constraint", ConstraintConfig),
        has_reference_worker=bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss),
    )
    blocks.refiner.validate()
    blocks.constraint.validate()
    estimator = config.algorithm.adv_estimator
    if blocks.constraint.mode == "penalty" and estimator not in CRITIC_FREE_ESTIMATORS:
        raise ValueError(
            f"constraint.mode=penalty needs a critic-free estimator, not algorithm.adv_estimator={estimator}; "
            f"set one of: {', '.join(CRITIC_FREE_ESTIMATORS)}"
        )
    reward_model = config.reward.reward_model
    if blocks.refines and reward_model.enable and not reward_model.enable_resource_pool:
        raise ValueError(
            "a colocated reward model cannot score refinements yet; set reward.reward_model.enable_resource_pool=true"
        )
    if config.trainer.v1.trainer_mode != "sync" or not config.trainer.use_v1:
        raise ValueError("the online refiner extends verl's V1 sync trainer; set trainer.v1.trainer_mode=sync")
    return blocks


def _read(config: DictConfig, name: str, block_type: type[Block]) -> Block:
    if name not in config:
        raise ValueError(f"the config has no block `{name}`; add `online_refiner` to its defaults list")
    block = config[name]
    known = {field.name for field in fields(block_type)}  # type: ignore[arg-type]
    unknown, missing = sorted(set(block) - known), sorted(known - set(block))
    if unknown or missing:
        what = f"unknown key {name}.{unknown[0]}" if unknown else f"missing key {name}.{missing[0]}"
        raise ValueError(f"{what}; the keys of this block are: {', '.join(sorted(known))}")
    try:
        values: Any = OmegaConf.merge(OmegaConf.structured(block_type), OmegaConf.to_container(block, resolve=True))
        return OmegaConf.to_object(values)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ValueError(f"{name}: {str(error).splitlines()[0]}") from error
