"""The typed ``constraint`` block, and checks across fields. Needs neither torch nor verl."""

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from refiner_worker.config import RefinerConfig

MODES = ("none", "penalty", "sft")
ALIGNMENTS = ("position", "diff")
TOKEN_WEIGHTS = ("uniform", "edited", "chord", "dft")
ETA_SCHEDULES = ("constant", "linear", "cosine", "adaptive")

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

CHOICES = {"mode": MODES, "alignment": ALIGNMENTS, "token_weights": TOKEN_WEIGHTS, "eta_schedule": ETA_SCHEDULES}

TRAINER_MODES = ("sync", "colocate_async")
"""Trainers of verl that the refine stage extends."""

MAX_GPU_MEMORY_UTILIZATION = 0.95
"""Share of a GPU's memory that engines which are awake at the same time may take together."""

MANAGER_KEY = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
STREAMING_MANAGER = "recipe.online_refiner.streaming.StreamingAgentLoopManager"

Block = TypeVar("Block")


@dataclass(slots=True, kw_only=True)
class ConstraintConfig:
    """How accepted refinements act on the policy. Defaults stand in ``config/online_refiner.yaml``."""

    mode: str
    """``none``: verl's own step, nothing is refined. ``penalty``: Eq. 6 as a token-level penalty in the advantages.
    ``sft``: the cross-entropy of accepted refinements in the actor's loss."""
    eta: float
    """Weight of the constraint, >= 0; 0 gives verl's own numbers. With a schedule, its value in the first step."""
    eta_schedule: str
    """``constant``; ``linear`` or ``cosine`` towards 0 after the last step; ``adaptive``: D <= delta (Eq. 5)."""
    delta: float | None
    """Bound on D for ``adaptive``, in nats per rollout, > 0 (D: metric ``constraint/divergence``)."""
    eta_rate: float
    """Largest relative change of an ``adaptive`` eta in one step, > 0."""
    margin: float
    """A refinement is accepted if its reward is higher than the response's by more than this, >= 0."""
    filter: bool
    """Reward gate of Eq. 6; ``false`` lets every refinement through (the paper's ablation, Fig. 7)."""
    alignment: str
    """Which token of a' a token of a is charged for: ``position`` (Eq. 6) or ``diff`` (only what the edit took out)."""
    token_weights: str
    """Weights of the tokens of a' in mode ``sft``: ``uniform``, ``edited``, ``chord`` or ``dft`` (``loss.py``)."""
    kept_weight: float
    """Weight of tokens that a' shares with a for ``edited``, 0 to 1; edited tokens weigh 1."""
    cross_entropy_all_every: int
    """Measure the cross-entropy over all refinements, not only accepted ones, every so many steps; 0: never."""

    def validate(self) -> None:
        """Check the block on its own.

        Raises:
            ValueError: Naming the key and what to set.
        """
        for key, known in CHOICES.items():
            if getattr(self, key) not in known:
                raise ValueError(
                    f"constraint.{key}={getattr(self, key)} does not exist; set one of: {', '.join(known)}"
                )
        if self.eta < 0:
            raise ValueError(f"constraint.eta={self.eta}: set 0 or more (a negative weight would reward cross-entropy)")
        if self.margin < 0:
            raise ValueError(f"constraint.margin={self.margin}: set 0 or more")
        if not 0 <= self.kept_weight <= 1:
            raise ValueError(f"constraint.kept_weight={self.kept_weight}: set 0 to 1")
        if self.cross_entropy_all_every < 0:
            raise ValueError(f"constraint.cross_entropy_all_every={self.cross_entropy_all_every}: set 0 or more")
        if self.eta_schedule == "adaptive" and not (self.delta and self.delta > 0 and self.eta > 0 < self.eta_rate):
            raise ValueError(
                "constraint.eta_schedule=adaptive needs constraint.delta (nats per rollout), constraint.eta and "
                f"constraint.eta_rate above 0; they are {self.delta}, {self.eta} and {self.eta_rate}"
            )


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
    def streams(self) -> bool:
        """Whether responses are refined, and the KL to the reference measured, during the rollout."""
        return self.hosts_refiner and self.refiner.streams

    @property
    def hosts_refiner(self) -> bool:
        """Whether the run needs replicas of the reference model (to refine, or to measure the KL to it)."""
        return self.refines or self.measures_kl

    @property
    def measures_kl(self) -> bool:
        """Whether the KL to the reference is measured with the refiner's replicas."""
        return self.refiner.num_kl_rollouts != 0 and not self.has_reference_worker and not self.is_shared

    @property
    def measures_kl_by_actor(self) -> bool:
        """Whether it is measured with the actor, its adapter off: vLLM has no prompt log-probs beside adapters."""
        return self.refiner.num_kl_rollouts != 0 and not self.has_reference_worker and self.is_shared

    @property
    def is_shared(self) -> bool:
        """Whether the rollout's servers refine."""
        return self.refiner.placement == "shared"


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
    _check_mode(config, blocks.constraint.mode)
    if blocks.refines:
        _check_token_budgets(config, blocks)
    if blocks.refines:
        _check_shared_memory(config, blocks.refiner)
    if blocks.streams:
        _check_streaming(config)
    if blocks.hosts_refiner and blocks.is_shared:
        _check_shared_servers(config, blocks.refiner)
    _check_trainer(config, blocks)
    return blocks


def _check_trainer(config: DictConfig, blocks: RefinementConfig) -> None:
    mode = config.trainer.v1.trainer_mode
    if not config.trainer.use_v1:
        raise ValueError("the online refiner extends verl's V1 trainers; set trainer.use_v1=true")
    if mode not in TRAINER_MODES:
        raise ValueError(
            f"trainer.v1.trainer_mode={mode}: the online refiner has not been tried with it; set one of: "
            + ", ".join(TRAINER_MODES)
        )
    if mode != "sync" and blocks.streams and blocks.is_shared:
        raise ValueError(
            f"trainer.v1.trainer_mode={mode} interrupts its rollout servers in every step, and with them what they "
            "refine; set refiner.placement to colocated or dedicated, or trainer.v1.trainer_mode=sync"
        )


def _check_mode(config: DictConfig, mode: str) -> None:
    estimator, actor = config.algorithm.adv_estimator, config.actor_rollout_ref.actor
    if mode == "penalty" and estimator not in CRITIC_ESTIMATORS + CRITIC_FREE_ESTIMATORS:
        reason = NO_PENALTY.get(estimator, "what the penalty does to its advantages is not known")
        raise ValueError(
            f"constraint.mode=penalty does not work with algorithm.adv_estimator={estimator}: {reason}; set "
            f"constraint.mode=sft, or one of: {', '.join(CRITIC_ESTIMATORS + CRITIC_FREE_ESTIMATORS)}"
        )
    if mode == "sft" and actor.loss_agg_mode == "seq-mean-token-sum-norm" and actor.loss_scale_factor is None:
        raise ValueError(
            "constraint.mode=sft with actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm: the longest row, "
            "which may be a refinement, would scale the policy loss; set actor_rollout_ref.actor.loss_scale_factor"
        )


def _check_token_budgets(config: DictConfig, blocks: RefinementConfig) -> None:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    budgets = {}
    if actor.use_dynamic_bsz and blocks.constraint.mode == "sft":
        budgets["actor.ppo_max_token_len_per_gpu"] = actor.ppo_max_token_len_per_gpu
    if rollout.log_prob_use_dynamic_bsz:
        budgets["rollout.log_prob_max_token_len_per_gpu"] = rollout.log_prob_max_token_len_per_gpu
    if not budgets:
        return
    num_shares = 1  # GPUs that share a sequence
    if actor.strategy == "megatron":
        num_shares = actor.megatron.context_parallel_size
    elif actor.strategy in ("fsdp", "fsdp2"):
        num_shares = actor.fsdp_config.ulysses_sequence_parallel_size
    length = config.data.max_prompt_length + blocks.refiner.max_new_tokens
    for key, budget in budgets.items():
        if budget * num_shares < length:
            raise ValueError(
                f"actor_rollout_ref.{key}={budget} is less than a prompt with its refinement "
                f"(data.max_prompt_length + refiner.max_new_tokens = {length}); raise it"
            )


def _check_shared_memory(config: DictConfig, refiner: RefinerConfig) -> None:
    """A colocated reward model is awake beside the refiner, whose answers it scores as they come."""
    model = config.reward.reward_model
    if (
        refiner.placement != "colocated"
        or not model.enable
        or model.enable_resource_pool
        or config.trainer.device == "cpu"
    ):
        return
    own = refiner.rollout.get("gpu_memory_utilization", config.actor_rollout_ref.rollout.gpu_memory_utilization)
    if own + model.rollout.gpu_memory_utilization > MAX_GPU_MEMORY_UTILIZATION:
        raise ValueError(
            f"refiner.rollout.gpu_memory_utilization={own} and reward.reward_model.rollout.gpu_memory_utilization="
            f"{model.rollout.gpu_memory_utilization} share the GPUs; lower their sum to "
            f"{MAX_GPU_MEMORY_UTILIZATION}, or give the reward model GPUs of its own: set "
            "reward.reward_model.enable_resource_pool=true"
        )


def _check_streaming(config: DictConfig) -> None:
    """Refinements are made and scored during the rollout, in verl's agent loop workers."""
    model, manager = config.reward.reward_model, OmegaConf.select(config, MANAGER_KEY)
    if model.enable and not model.enable_resource_pool:
        raise ValueError(
            "a colocated reward model sleeps during the rollout, where refiner.placement=dedicated scores refinements; "
            "set refiner.streaming=false, or reward.reward_model.enable_resource_pool=true"
        )
    if manager not in (None, STREAMING_MANAGER):
        raise ValueError(
            f"{MANAGER_KEY}={manager} and streaming both replace verl's agent loop manager; set refiner.streaming=false"
        )


def _check_shared_servers(config: DictConfig, refiner: RefinerConfig) -> None:
    """Without its adapter, the policy's server must be pi_0."""
    actor = config.actor_rollout_ref
    why = {
        "actor_rollout_ref.model.lora_rank above 0": actor.model.lora_rank > 0,
        "actor_rollout_ref.model.lora_adapter_path=null": actor.model.lora_adapter_path is None,
        "actor_rollout_ref.model.lora.merge=false": not OmegaConf.select(actor, "model.lora.merge"),
        f"refiner.model_path={actor.model.path} (the actor's)": refiner.model_path == actor.model.path,
        "actor_rollout_ref.rollout.name=vllm": actor.rollout.name == "vllm",
    }
    missing = [what for what, holds in why.items() if not holds]
    if missing:
        raise ValueError(
            f"refiner.placement=shared needs a LoRA policy on the reference model: set {', '.join(missing)}"
        )


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
