"""Every key of this extension's blocks but ``refiner``: its type, bounds, default and meaning. Needs no torch, no verl.

The block ``refiner`` is in ``refiner_worker/config.py``. What keys ask of each other is in ``checks.py``.
"""

import dataclasses
import re
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from recipe.online_refiner.config.spelling import nearest
from refiner_worker.config import BLOCK, NotNegative, RefinerConfig, from_key

Mode = Literal["none", "penalty", "sft", "lagrangian"]
Target = Literal["rewrite", "soft", "in_place", "constant"]
Alignment = Literal["position", "diff"]
Credit = Literal["return_to_go", "in_reward"]
EtaSchedule = Literal["constant", "linear", "cosine", "adaptive"]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]

CREDIT_OF_MODE = {"penalty": "return_to_go", "lagrangian": "whole"}
"""What ``credit: null`` stands for, and which modes change the advantages. ``whole`` makes both terms of ``lagrangian``
one gradient."""
ETA_OF_MODE = {"none": 0.0, "penalty": 1e-3, "sft": 0.03, "lagrangian": 0.01}
"""What ``eta: null`` stands for: Appendix B of the paper for ``penalty``, docs/results.md for the others."""
ETA_IN_PLACE = 0.03
"""The same for targets ``in_place`` and ``constant``. The lab's first task took 0.3, the largest tried."""

CRITIC_ESTIMATORS = ("gae",)
"""The penalty is added to the token-level rewards before the estimator, so that the critic sees it."""
CRITIC_FREE_ESTIMATORS = (
    *("grpo", "grpo_passk", "grpo_vectorized", "gpg", "opo", "reinforce_plus_plus"),
    *("reinforce_plus_plus_baseline", "rloo", "rloo_vectorized"),
)
"""verl estimators whose advantages are one number per response (or its return-to-go): A_t = A_group + penalty's
return-to-go has the same meaning for all of them."""


@dataclass(slots=True, kw_only=True, config=BLOCK)
class ConstraintConfig:
    """How accepted refinements act on the policy."""

    mode: Mode = "sft"
    """``none``: verl's own step. ``penalty``: Eq. 6 as a penalty in the advantages (the paper's way). ``sft``: the
    cross-entropy of accepted refinements in the loss. ``lagrangian``: both, as the gradient of -eta E[D]."""
    eta: Number | None = None
    """Weight; 0 gives verl's numbers. With a schedule: of the first step. Null: 1e-3 in ``penalty`` (the paper's
    Appendix B), 0.03 in ``sft``, 0.01 in ``lagrangian``; in place 0.03."""
    eta_schedule: EtaSchedule = "constant"
    """``constant``; ``linear`` or ``cosine``: to 0 after the last step; ``adaptive``: changed once
    a step to keep D <= delta (Eq. 5)."""
    delta: PositiveNumber | None = None
    """``adaptive``: bound on ``constraint/divergence_per_token``, in nats per token."""
    target: Target = "rewrite"
    """What a response is charged for. ``rewrite``: the tokens of a' (Eq. 6). ``soft`` (``sft``, ``lagrangian``): the
    same, but the cross-entropy in the loss is that against pi_0's own distribution at each token of a'. ``in_place``
    (``penalty``, ``sft``): each of its own tokens, by log pi_theta - log pi_0, where pi_0 has read the better answer.
    ``constant``: 1 for each token, a control."""
    in_place_clip: PositiveNumber | None = None
    """Largest charge of a token in place, in nats, either way. Null: no limit."""
    reward_gate: bool | Literal["failed"] = True
    """Which responses are constrained. ``true``: those with a better refinement (Eq. 6). ``false``: all with a rewarded
    refinement (the paper's ablation), or all if nothing is refined. ``failed``, in place only: those below the maximal
    reward in a group with a solved sibling, which stands for a'."""
    alignment: Alignment = "position"
    """Which token of a' a token of a is charged for. ``position``: the same position (Eq. 6). ``diff``: only tokens
    that the edit changed."""
    credit: Credit | None = None
    """Where the penalty acts. ``return_to_go``: in the advantages, after the group's normalisation (the paper's way).
    ``in_reward``: per token in the reward, before it. Null: ``return_to_go``; in ``lagrangian`` all of D on each token;
    in place each token's own charge."""
    sft_normaliser: Literal["batch", "accepted"] = "batch"
    """Divisor of the cross-entropy. ``batch``: the policy loss's, so it fades as fewer refinements are accepted.
    ``accepted``: the tokens of accepted refinements."""
    rescue_dead_groups: bool = False
    """Keep groups with equal rewards if a refinement improves on them, also when DAPO would filter them out. Needs
    ``sft`` or ``lagrangian``."""

    @property
    def first_eta(self) -> float:
        """The weight of the first step; 0 in mode ``none``, whatever ``eta`` says."""
        if self.mode == "none":
            return 0.0
        default = ETA_IN_PLACE if self.is_in_place else ETA_OF_MODE[self.mode]
        return default if self.eta is None else self.eta

    @property
    def is_in_place(self) -> bool:
        """Whether a response is charged for its own tokens."""
        return self.mode != "none" and self.target in ("in_place", "constant")

    @property
    def asks_log_probs(self) -> bool:
        """Whether the refiner is asked for log-probs of given tokens."""
        return self.mode != "none" and self.target in ("in_place", "soft")

    @property
    def acting_credit(self) -> str | None:
        """A key of ``constraint.IN_REWARDS``; None if the mode leaves the advantages alone."""
        default = "token" if self.is_in_place else CREDIT_OF_MODE.get(self.mode)
        return default and (self.credit or default)

    @property
    def penalises(self) -> bool:
        """Whether the advantages change."""
        return self.mode in CREDIT_OF_MODE or self.is_in_place

    @property
    def imitates(self) -> bool:
        """Whether the loss has the cross-entropy of accepted refinements."""
        return self.mode in ("sft", "lagrangian")

    @property
    def rescues(self) -> bool:
        """Whether dead groups are kept; with eta = 0 nothing keeps what verl would not."""
        return self.rescue_dead_groups and self.first_eta > 0


@dataclass(slots=True, kw_only=True, config=BLOCK)
class RecordsConfig:
    """What is written of rollouts and refinements, for reports (``recipe/runs/files.py``)."""

    path: str = from_key("run_dir") + "/refinements"
    """A folder that all nodes see, or a URL that fsspec knows (``s3://...``)."""
    max_rollouts_per_step: NotNegative | None = None
    """Responses recorded of a step, at most, accepted refinements first; loggers show samples of these. Null: all."""


@dataclass(slots=True, kw_only=True, config=BLOCK)
class MeasureConfig:
    """What is measured beside what a step needs."""

    num_kl_rollouts: NotNegative | None = None
    """Responses per step, at most, on which KL(pi_theta || pi_0) is measured; 0: none. Null: 64; 0 with
    ``constraint.mode=none`` or placement ``external``. All of them where verl's workers compute it: static KL, or the
    actor without its adapter."""
    cross_entropy_all_every: NotNegative = 10
    """Every so many steps, measure the cross-entropy over all refinements, not only accepted ones. 0: never."""


@dataclass(slots=True, kw_only=True, config=BLOCK)
class SizingConfig:
    """The machine that a run is sized for: what ``dry_run=true`` says of memory (``docs/cluster.md``)."""

    gpu_memory_gib: PositiveNumber | None = None
    """Memory of a GPU in GiB, to refuse what cannot fit. Null: this machine's; without a GPU nothing is checked."""


BLOCKS: dict[str, type] = {
    "refiner": RefinerConfig,
    "constraint": ConstraintConfig,
    "measure": MeasureConfig,
    "records": RecordsConfig,
    "sizing": SizingConfig,
}


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
        """Whether the run needs the reference model (to refine, or to measure the KL to it)."""
        return self.refines or self.measures_kl

    @property
    def num_kl_rollouts(self) -> int:
        """Responses a step, at most, on which the KL to the reference is measured."""
        default = 64 if self.refines and self.refiner.placement != "external" else 0
        return default if self.measure.num_kl_rollouts is None else self.measure.num_kl_rollouts

    @property
    def measures_kl(self) -> bool:
        """Whether the KL to the reference is measured with the refiner's replicas."""
        return self.num_kl_rollouts > 0 and not self.has_reference_worker and self.refiner.has_replicas

    @property
    def measures_kl_by_actor(self) -> bool:
        """Whether it is measured with the actor, its adapter off: vLLM has no prompt log-probs beside adapters."""
        return self.num_kl_rollouts > 0 and not self.has_reference_worker and not self.refiner.has_replicas

    @property
    def is_shared(self) -> bool:
        """Whether the rollout's servers refine."""
        return self.refiner.placement == "shared"


GONE = {
    "neighbour": "control=own_solved is the control that is left",
    "refiner.top_p": "the refiner samples from its whole distribution, or greedily; set refiner.temperature",
    "refiner.groups": "all groups are refined; set refiner.max_refinements_per_group to refine fewer responses",
    "refiner.group_choice": "the lowest rewards go first; leave it out",
    "refiner.use_solved_sibling": "set refiner.context=[feedback,sibling] to show the refiner a better sibling",
    "refiner.block": "set refiner.keep_prefix=true to keep what the refiner would have written itself",
    "refiner.block_choice": "set refiner.keep_prefix=true to keep what the refiner would have written itself",
    "refiner.n": "one refinement is drawn of each response; leave it out",
    "refiner.max_requests_in_flight": "a replica has at most 256 requests under way; leave it out",
    "refiner.restart_timeout_s": "a dead replica has 900 s to start again; leave it out",
    "refiner.num_draft_tokens": "a draft has at most 8 tokens; leave it out",
    "refiner.num_workers": "there are as many as actor_rollout_ref.rollout.agent.num_workers: set that",
    "sizing.host_memory_gib": "the plan says what a node's memory takes; leave it out",
    "constraint.divergence_per": "constraint.delta bounds constraint/divergence_per_token; leave it out",
    "constraint.eta_rate": "an adaptive eta changes by at most 10 % a step; leave it out",
    "constraint.margin": "a refinement is accepted if its reward is higher (Eq. 6); leave it out",
    "constraint.token_weights": "each mode has its own weights; choose constraint.mode",
    "constraint.kept_weight": "each mode has its own weights; choose constraint.mode",
    "sizing.constants": "seconds are measured (experiments/bench_overhead.py), not predicted; leave it out",
    "constraint.pair_weights": "all accepted pairs weigh the same; leave it out",
}
"""Keys of earlier releases, and what to do instead."""

Block = TypeVar("Block")


def read_blocks(config: DictConfig) -> RefinementConfig:
    """Read this extension's blocks of a composed config.

    Args:
        config: The whole config of a run, interpolations not yet resolved.

    Raises:
        ValueError: If a key is unknown, missing or of a wrong type.
    """
    if gone := [name for name in GONE if OmegaConf.select(config, name, default=GONE) is not GONE]:
        raise ValueError(f"{gone[0]} is gone: {GONE[gone[0]]}")
    blocks: dict[str, Any] = {name: _read(config, name, block) for name, block in BLOCKS.items()}
    has_reference = bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss)
    return RefinementConfig(**blocks, has_reference_worker=has_reference)


def _read(config: DictConfig, name: str, block_type: type[Block]) -> Block:
    if name not in config:
        raise ValueError(f"the config has no block `{name}`; add `refinement: online` to its defaults list")
    block = config[name]
    known = {field.name for field in fields(block_type)}  # type: ignore[arg-type]
    unknown, missing = sorted(set(block) - known), sorted(known - set(block))
    if unknown or missing:
        what = f"unknown key {name}.{unknown[0]}" if unknown else f"missing key {name}.{missing[0]}"
        meant = nearest(unknown[0], known) if unknown else ""
        raise ValueError(f"{what}; the keys of this block are: {', '.join(sorted(known))}{meant}")
    try:
        values: Any = OmegaConf.to_container(block, resolve=True)
        return block_type(**values)
    except OmegaConfBaseException as error:
        raise ValueError(f"{name}: {str(error).splitlines()[0]}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key, of = ".".join(map(str, first["loc"])), block_type.__annotations__[str(first["loc"][0])]
        or_null = ", or null" if type(None) in getattr(of, "__args__", ()) else ""
        meant = nearest(first["input"], re.findall("'([^']*)'", first.get("ctx", {}).get("expected", "")))
        raise ValueError(f"{name}.{key}={first['input']}: {first['msg']}{or_null}{meant}") from error
