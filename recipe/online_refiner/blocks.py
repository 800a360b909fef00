"""The typed blocks ``constraint``, ``measure`` and ``records``, and what follows from all. Needs no torch, no verl."""

import dataclasses
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from refiner_worker.config import BLOCK, NotNegative, RefinerConfig, from_key

Mode = Literal["none", "penalty", "sft", "lagrangian"]
Alignment = Literal["position", "diff"]
Credit = Literal[
    "return_to_go", "whole", "in_reward", "centred", "divergence", "exonerate", "routed", "silent", "members"
]
TokenWeights = Literal["uniform", "edited", "charged", "chord", "dft", "shaped"]
EtaSchedule = Literal["constant", "linear", "cosine", "adaptive"]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]

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


@dataclass(slots=True, kw_only=True, config=BLOCK)
class ConstraintConfig:
    """How accepted refinements act on the policy."""

    mode: Mode = "penalty"
    """``none``: verl's own step, nothing is refined. ``penalty``: Eq. 6 as a token-level penalty in the advantages.
    ``sft``: the cross-entropy of accepted refinements in the actor's loss. ``lagrangian``: both, as the two terms of
    the gradient of -eta E[D]."""
    eta: Number = 1e-3
    """Weight of the constraint, >= 0; 0 gives verl's own numbers. With a schedule, its value in the first step.
    The default is that of the paper's Appendix B; its tables say 1e-2 and 1e-4."""
    eta_schedule: EtaSchedule = "constant"
    """``constant``; ``linear`` or ``cosine`` towards 0 after the last step; ``adaptive``: D <= delta (Eq. 5)."""
    delta: Number | None = None
    """Bound on D for ``adaptive``, in nats, > 0: on the metric that ``divergence_per`` says."""
    divergence_per: Literal["token", "rollout"] = "token"
    """``token``: ``delta`` bounds ``constraint/divergence_per_token``. ``rollout``: it bounds
    ``constraint/divergence``, which an empty answer satisfies as well."""
    eta_rate: Number = 0.1
    """Largest relative change of an ``adaptive`` eta in one step (``separate_async``: one mini-batch), > 0."""
    margin: Number = 0.0
    """A refinement is accepted if its reward is higher than the response's by more than this, >= 0."""
    reward_gate: bool = True
    """Reward gate of Eq. 6; ``false`` lets every refinement through (the paper's ablation, Fig. 7)."""
    alignment: Alignment = "position"
    """Which token of a' a token of a is charged for: ``position`` (Eq. 6) or ``diff`` (only what the edit took out)."""
    credit: Credit | None = None
    """Which tokens of a the penalty charges, and before or after the group's normalisation (``credit.py``); null is
    ``return_to_go``, in mode ``lagrangian`` ``whole``."""
    token_weights: TokenWeights | None = None
    """Weights of the tokens of a' in the cross-entropy: ``uniform``, ``edited``, ``charged``, ``chord``, ``dft``
    or ``shaped`` (``loss.py``); null is ``uniform``, in mode ``lagrangian`` ``charged``."""
    sft_normaliser: Literal["accepted", "batch"] | None = None
    """What the cross-entropy is divided by: ``accepted`` tokens, or as the policy's loss (``batch``), so that it fades
    as acceptance does; null is ``accepted``, in mode ``lagrangian`` ``batch``."""
    pair_weights: Literal["failure_rate", "advantage"] | None = None
    """What eta is multiplied by for each pair. ``failure_rate``: the share of the group's responses that do not have
    ``refiner.skip_reward_at_least``. ``advantage``: the refinement's as a member of the group (LUFFY). Null: 1."""
    rescue_dead_groups: bool = False
    """Keep a group whose rewards are all equal where a refinement is better, also under DAPO's filter: its advantages
    are 0, and it has the cross-entropy alone. For modes with one."""
    kept_weight: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Weight of tokens that a' shares with a for ``edited``, 0 to 1; edited tokens weigh 1."""

    def chosen(self, key: str) -> str | None:
        """Return ``credit``, ``token_weights`` or ``sft_normaliser``; None if the mode has no such part."""
        default = OF_MODE[self.mode].get(key)
        return default and (getattr(self, key) or default)

    @property
    def rescues(self) -> bool:
        """Whether dead groups are kept; with eta = 0 nothing keeps what verl would not."""
        return self.rescue_dead_groups and self.eta > 0

    @property
    def penalises(self) -> bool:
        """Whether the advantages change."""
        return self.chosen("credit") is not None

    @property
    def imitates(self) -> bool:
        """Whether the loss has the cross-entropy of accepted refinements."""
        return self.chosen("token_weights") is not None


@dataclass(slots=True, kw_only=True, config=BLOCK)
class RecordsConfig:
    """What is written of rollouts and refinements, for reports (``records.py``)."""

    path: str = from_key("run_dir") + "/refinements"
    """Folder, on a file system that all nodes see, or the URL of one that fsspec knows (``s3://...``)."""
    max_rollouts_per_step: NotNegative | None = None
    """At most so many of a step, those with an accepted refinement first; null is all, 0 none."""


@dataclass(slots=True, kw_only=True, config=BLOCK)
class MeasureConfig:
    """What is measured beside what a step needs."""

    num_kl_rollouts: NotNegative | None = None
    """Responses a step, at most, on which KL(pi_theta || pi_0) is measured with the refiner; 0: none. Null: 64, but
    none where ``constraint.mode=none``, so that such a run has no second model.
    Where verl has a reference worker (static KL), its log-probs of all responses are used instead; with placement
    ``shared`` the actor's without its adapter."""
    cross_entropy_all_every: NotNegative = 10
    """Measure the cross-entropy over all refinements, not only accepted ones, every so many steps; 0: never."""


@dataclass(slots=True, kw_only=True, config=BLOCK)
class SizingConfig:
    """The machine that a run is sized for: what ``dry_run=true`` says of memory and seconds (``docs/cluster.md``)."""

    gpu_memory_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Memory of a GPU, in GiB: what cannot fit is refused. Null: this machine's; where it has none, nothing is said of
    what fits."""
    host_memory_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Memory of a node, in GiB. Null: not checked."""
    constants: str = "h100"
    """Where seconds come from: ``h100`` or ``a100`` (estimates, which ``gpu_memory_gib`` does not scale), or a file
    that ``scripts/size_fleet.py --validate`` wrote."""


@dataclasses.dataclass(slots=True, kw_only=True)
class RefinementConfig:
    """The blocks of this extension."""

    refiner: RefinerConfig
    constraint: ConstraintConfig
    measure: MeasureConfig
    records: RecordsConfig
    sizing: SizingConfig
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
        return default if self.measure.num_kl_rollouts is None else self.measure.num_kl_rollouts

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
