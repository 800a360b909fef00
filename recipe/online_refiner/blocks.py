"""The typed ``constraint`` block, and what follows from both blocks. Needs neither torch nor verl."""

from dataclasses import dataclass

import fsspec

from refiner_worker.config import RefinerConfig

MODES = ("none", "penalty", "sft", "lagrangian")
ALIGNMENTS = ("position", "diff")
CREDITS = (
    *("return_to_go", "whole", "in_reward", "centred", "divergence", "exonerate"),
    *("routed", "silent", "members"),
)
TOKEN_WEIGHTS = ("uniform", "edited", "charged", "chord", "dft", "shaped")
PAIR_WEIGHTS = ("failure_rate", "advantage")
SFT_NORMALISERS = ("accepted", "batch")
DIVERGENCE_PER = ("token", "rollout")
ETA_SCHEDULES = ("constant", "linear", "cosine", "adaptive")

OF_MODE = {
    "none": {},
    "penalty": {"credit": "return_to_go"},
    "sft": {"token_weights": "uniform", "sft_normaliser": "accepted"},
    "lagrangian": {"credit": "whole", "token_weights": "charged", "sft_normaliser": "batch"},
}
"""What a key of the block that is null stands for. A mode with a ``credit`` changes the advantages, one with
``token_weights`` the loss; those of ``lagrangian`` make both terms one gradient."""

CRITIC_ESTIMATORS = ("gae",)
"""The penalty is added to the token-level rewards before the estimator, so that the critic sees it."""
CRITIC_FREE_ESTIMATORS = (
    "grpo",
    "grpo_passk",
    "grpo_vectorized",
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
NO_PENALTY = {
    "optimal_token_baseline": "its baselines minimise the variance of the reward, which the penalty is no part of",
    "tir_optimal_token_baseline": "its baselines minimise the variance of the reward, which the penalty is no part of",
    "gdpo": "it normalises several rewards apart from each other, so the penalty has no scale to be measured on",
}
"""verl estimators for which mode ``penalty`` has no clear meaning, and why; ``sft`` works with them."""

DEFAULT_KL_ROLLOUTS = 64

NO_CREDIT = {
    "centred": "a critic's values are the baseline already",
    "divergence": "it changes single advantages, which a critic's estimate has spread and whitened",
    "exonerate": "it changes single advantages, which a critic's estimate has spread and whitened",
    "routed": "it takes advantages away, whose size a critic's estimate has whitened over the batch",
    "silent": "it takes all advantages away, and a critic would be trained for nothing",
    "members": "it normalises rewards within a group, which a critic does not have",
}
"""Credits that do not work with a critic, and why."""

CHOICES: dict[str, tuple[str | None, ...]] = {
    **{"mode": MODES, "alignment": ALIGNMENTS, "eta_schedule": ETA_SCHEDULES, "divergence_per": DIVERGENCE_PER},
    **{"credit": (*CREDITS, None), "token_weights": (*TOKEN_WEIGHTS, None)},
    **{"sft_normaliser": (*SFT_NORMALISERS, None), "pair_weights": (*PAIR_WEIGHTS, None)},
}


@dataclass(slots=True, kw_only=True)
class ConstraintConfig:
    """How accepted refinements act on the policy. Defaults stand in ``config/refinement/online.yaml``."""

    mode: str
    """``none``: verl's own step, nothing is refined. ``penalty``: Eq. 6 as a token-level penalty in the advantages.
    ``sft``: the cross-entropy of accepted refinements in the actor's loss. ``lagrangian``: both, as the two terms of
    the gradient of -eta E[D]."""
    eta: float
    """Weight of the constraint, >= 0; 0 gives verl's own numbers. With a schedule, its value in the first step."""
    eta_schedule: str
    """``constant``; ``linear`` or ``cosine`` towards 0 after the last step; ``adaptive``: D <= delta (Eq. 5)."""
    delta: float | None
    """Bound on D for ``adaptive``, in nats, > 0: on the metric that ``divergence_per`` says."""
    divergence_per: str
    """``token``: ``delta`` bounds ``constraint/divergence_per_token``. ``rollout``: it bounds
    ``constraint/divergence``, which an empty answer satisfies as well."""
    eta_rate: float
    """Largest relative change of an ``adaptive`` eta in one step, > 0."""
    margin: float
    """A refinement is accepted if its reward is higher than the response's by more than this, >= 0."""
    filter: bool
    """Reward gate of Eq. 6; ``false`` lets every refinement through (the paper's ablation, Fig. 7)."""
    alignment: str
    """Which token of a' a token of a is charged for: ``position`` (Eq. 6) or ``diff`` (only what the edit took out)."""
    credit: str | None
    """Which tokens of a the penalty charges, and before or after the group's normalisation (``credit.py``); null is
    ``return_to_go``, in mode ``lagrangian`` ``whole``."""
    token_weights: str | None
    """Weights of the tokens of a' in the cross-entropy: ``uniform``, ``edited``, ``charged``, ``chord``, ``dft``
    or ``shaped`` (``loss.py``); null is ``uniform``, in mode ``lagrangian`` ``charged``."""
    sft_normaliser: str | None
    """What the cross-entropy is divided by: ``accepted`` tokens, or as the policy's loss (``batch``), so that it fades
    as acceptance does; null is ``accepted``, in mode ``lagrangian`` ``batch``."""
    pair_weights: str | None
    """What eta is multiplied by for each pair. ``failure_rate``: the share of the group's responses that do not have
    ``refiner.skip_reward_at_least``. ``advantage``: the refinement's as a member of the group (LUFFY). Null: 1."""
    rescue_dead_groups: bool
    """Keep a group whose rewards are all equal where a refinement is better, also under DAPO's filter: its advantages
    are 0, and it has the cross-entropy alone. For modes with one."""
    kept_weight: float
    """Weight of tokens that a' shares with a for ``edited``, 0 to 1; edited tokens weigh 1."""
    cross_entropy_all_every: int
    """Measure the cross-entropy over all refinements, not only accepted ones, every so many steps; 0: never."""

    def chosen(self, key: str) -> str | None:
        """Return ``credit``, ``token_weights`` or ``sft_normaliser``; None if the mode has no such part."""
        default = OF_MODE[self.mode].get(key)
        return default and (getattr(self, key) or default)

    @property
    def penalises(self) -> bool:
        """Whether the advantages change."""
        return self.chosen("credit") is not None

    @property
    def imitates(self) -> bool:
        """Whether the loss has the cross-entropy of accepted refinements."""
        return self.chosen("token_weights") is not None

    def validate(self) -> None:
        """Check the block on its own.

        Raises:
            ValueError: Naming the key and what to set.
        """
        for key, known in CHOICES.items():
            if getattr(self, key) not in known:
                names = ", ".join(name or "null" for name in known)
                raise ValueError(f"constraint.{key}={getattr(self, key)} does not exist; set one of: {names}")
        for key in ("eta", "margin", "cross_entropy_all_every"):
            if getattr(self, key) < 0:
                raise ValueError(f"constraint.{key}={getattr(self, key)}: set 0 or more")
        if self.rescue_dead_groups and not self.imitates:
            raise ValueError(
                f"constraint.rescue_dead_groups=true with constraint.mode={self.mode}: such a group has the "
                "cross-entropy of its refinements alone; set constraint.mode=sft or lagrangian"
            )
        if not 0 <= self.kept_weight <= 1:
            raise ValueError(f"constraint.kept_weight={self.kept_weight}: set 0 to 1")
        if self.eta_schedule == "adaptive" and not (self.delta and self.delta > 0 and self.eta > 0 < self.eta_rate):
            raise ValueError(
                "constraint.eta_schedule=adaptive needs constraint.delta (nats), constraint.eta and "
                f"constraint.eta_rate above 0; they are {self.delta}, {self.eta} and {self.eta_rate}"
            )


@dataclass(slots=True, kw_only=True)
class RecordsConfig:
    """What is written of rollouts and refinements, for reports (``records.py``)."""

    path: str
    """Folder, on a file system that all nodes see, or the URL of one that fsspec knows (``s3://...``)."""
    max_rollouts_per_step: int | None
    """At most so many of a step, those with an accepted refinement first; null is all, 0 none."""

    def validate(self) -> None:
        """Check the block on its own.

        Raises:
            ValueError: Naming the key and what to set.
        """
        if self.max_rollouts_per_step is not None and self.max_rollouts_per_step < 0:
            raise ValueError(
                f"records.max_rollouts_per_step={self.max_rollouts_per_step}: set 0 or more, or null for all"
            )
        if "://" in self.path:
            protocol = self.path.partition("://")[0]
            try:
                fsspec.get_filesystem_class(protocol)
            except (ValueError, ImportError) as error:
                raise ValueError(f"records.path={self.path}: {error}") from error


@dataclass(slots=True, kw_only=True)
class RefinementConfig:
    """The blocks of this extension."""

    refiner: RefinerConfig
    constraint: ConstraintConfig
    records: RecordsConfig
    has_reference_worker: bool
    """Whether verl computes the reference's log-probs itself (static KL in reward or loss)."""

    @property
    def refines(self) -> bool:
        """Whether a step has a refine stage."""
        return self.constraint.mode != "none"

    @property
    def streams(self) -> bool:
        """Whether responses are refined during the rollout."""
        return self.refines and self.refiner.streams

    @property
    def hosts_refiner(self) -> bool:
        """Whether the run needs replicas of the reference model (to refine, or to measure the KL to it)."""
        return self.refines or self.measures_kl

    @property
    def num_kl_rollouts(self) -> int:
        """Responses a step, at most, on which the KL to the reference is measured."""
        default = DEFAULT_KL_ROLLOUTS if self.refines else 0
        return default if self.refiner.num_kl_rollouts is None else self.refiner.num_kl_rollouts

    @property
    def measures_kl(self) -> bool:
        """Whether the KL to the reference is measured with the refiner's replicas."""
        return self.num_kl_rollouts > 0 and not self.has_reference_worker and not self.is_shared

    @property
    def measures_kl_by_actor(self) -> bool:
        """Whether it is measured with the actor, its adapter off: vLLM has no prompt log-probs beside adapters."""
        return self.num_kl_rollouts > 0 and not self.has_reference_worker and self.is_shared

    @property
    def is_shared(self) -> bool:
        """Whether the rollout's servers refine."""
        return self.refiner.placement == "shared"
