"""Every rule that a config has to keep before Ray starts.

A rule is a function of a :class:`Run`. It returns None, or one line for the user: what is wrong, and which key to set.
The line ends with the rule's id, its name with hyphens, which tests and the docs use. The first broken rule is shown.
A new rule is a function here (in ``recipe/preflight`` if it looks at more than the config) and a case in its test.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import fsspec
from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner.config.fields import RefinementConfig, read_blocks
from recipe.online_refiner.constraints.base import CRITIC_ESTIMATORS
from recipe.online_refiner.verl_glue.megatron import layout, rows_multiple
from recipe.sizing.refusals import refusal
from refiner_worker.config import External
from refiner_worker.engines import ENGINE

if TYPE_CHECKING:  # they import torch and verl
    from recipe.online_refiner.plan import Plan
    from recipe.preflight.files import Files


@dataclass(kw_only=True)
class Run:
    """A run before it starts; whoever checks its files or sizes has set them."""

    config: DictConfig
    """The whole config, composed."""
    blocks: RefinementConfig
    """This extension's part of it."""
    files: "Files" = field(init=False)
    """Models, data and machine."""
    plan: "Plan" = field(init=False)
    """Sizes of the refiner."""


Kind = Literal["config", "machine", "files", "sizes"]
"""What a rule needs: the config alone, the machine, files of models and data, or the refiner's sizes."""
Rule = Callable[[Run], str | None]
RULES: dict[Kind, list[Rule]] = {"config": [], "machine": [], "files": [], "sizes": []}


def rule(needs: Kind) -> Callable[[Rule], Rule]:
    """Put a function among the rules."""

    def added(one: Rule) -> Rule:
        RULES[needs].append(one)
        return one

    return added


def check(run: Run, needs: Kind) -> None:
    """Check a run by the rules of one kind.

    Raises:
        ValueError: The first broken rule's line.
    """
    for one in RULES[needs]:
        try:
            sentence = one(run)
        except ValueError as error:  # of what it reads
            raise ValueError(f"{error} [{rule_id(one)}]") from error
        if sentence:
            raise ValueError(f"{sentence} [{rule_id(one)}]")


def rule_id(one: Rule) -> str:
    """Return a rule's id: ``dedicated-refiner-has-gpus``."""
    return one.__name__.replace("_", "-")


def load(config: DictConfig) -> RefinementConfig:
    """Read this extension's blocks of a composed config, and check what the config alone tells.

    Raises:
        ValueError: If a key is wrong, or values do not go together.
    """
    blocks = read_blocks(config)
    check(Run(config=config, blocks=blocks), "config")
    return blocks


# ---- what keys of this extension ask of each other and of verl's


@rule("config")
def refiner_is_complete(run: Run) -> str | None:
    """Values of ``refiner`` go together (``refiner_worker/config.py``, a class a placement)."""
    return run.blocks.refiner.refusal()


@rule("config")
def estimator_is_known(run: Run) -> str | None:
    """The advantage estimator works in verl's V1 trainers."""
    if run.config.algorithm.adv_estimator != "remax":
        return None
    return "algorithm.adv_estimator=remax: verl's V1 trainers make no greedy baseline for it; set rloo or grpo"


@rule("config")
def constraint_goes_with_the_rest(run: Run) -> str | None:
    """The constraint goes with estimator, loss, refiner and placement (``constraints``, a class a mode)."""
    return run.blocks.constraint.refusal(run.config, run.blocks)


@rule("config")
def external_refiner_keeps_its_key(run: Run) -> str | None:
    """An external refiner has a model of its own, and its key is in no log."""
    refiner = run.blocks.refiner
    if not isinstance(refiner, External):
        return None
    if refiner.model_path != run.config.actor_rollout_ref.model.path:
        return "refiner.model_path is not read: the server's model is refiner.served_model_name; leave it out"
    key = os.environ.get(refiner.api_key_env or "", "").strip()
    variables = OmegaConf.select(run.config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
    if refiner.api_key_env in variables or (key and key in map(str, variables.values())):
        return "ray_kwargs.ray_init.runtime_env.env_vars has the key, and is logged: set it on every node instead"
    return None


@rule("config")
def platform_is_megatrons(run: Run) -> str | None:
    """The platform fits the training engine."""
    strategy = run.config.actor_rollout_ref.actor.strategy
    if not _is_megatron(run) or strategy == "megatron":
        return None
    return (
        f"model_engine=megatron, but actor_rollout_ref.actor.strategy={strategy}: set platform=cpu_megatron, or "
        "another model_engine"
    )


@rule("config")
def external_refiner_has_no_log_probs(run: Run) -> str | None:
    """Nothing needs log-probs of an external refiner."""
    blocks, actor = run.blocks, run.config.actor_rollout_ref
    if blocks.refiner.placement != "external":
        return None
    if blocks.constraint.asks_log_probs:
        return "constraint.target is the refiner's log-probs, which no server gives by URL; set it to rewrite"
    if not blocks.measures_kl_by_actor or actor.model.lora_rank > 0:
        return None
    return (
        f"measure.num_kl_rollouts={blocks.num_kl_rollouts} with refiner.placement=external: the actor measures the KL "
        "to its own initial weights; set actor_rollout_ref.actor.use_kl_loss=true and "
        "actor_rollout_ref.actor.kl_loss_coef=0, or train a LoRA (actor_rollout_ref.model.lora_rank above 0)"
    )


@rule("config")
def records_have_a_file_system(run: Run) -> str | None:
    """Records go to a folder, or to a URL that fsspec knows."""
    path = run.blocks.records.path
    if "://" not in path:
        return None
    try:
        fsspec.get_filesystem_class(path.partition("://")[0])
    except (ValueError, ImportError) as error:
        return f"records.path={path}: {error}"
    if path.startswith(("http://", "https://")):
        return f"records.path={path}: nothing can be written by HTTP; set a folder, or a URL such as s3://bucket/run"
    return None


# ---- what they ask of verl's keys


MAX_GPU_MEMORY_UTILIZATION = 0.95
"""Share of a GPU's memory that engines which are awake at the same time may take together."""


ABSENT = object()
"""Of a key that a config of another kind does not have."""
_ACTOR, _ROLLOUT, _CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic"
_MODEL = "actor_rollout_ref.model"
_SIZES = ("tensor_model_parallel_size", "data_parallel_size", "max_num_batched_tokens", "max_num_seqs")
NUMBERS: dict[str, tuple[Callable[[float], bool], list[str]]] = {
    "a whole number of at least 1": (
        lambda value: value >= 1 and value == int(value),
        [
            "data.train_batch_size",
            "data.max_prompt_length",
            "data.max_response_length",
            "trainer.total_epochs",
            "trainer.nnodes",
            "trainer.n_gpus_per_node",
            "trainer.v1.separate_async.parameter_sync_step",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units",
            "reward.num_workers",
            f"{_ACTOR}.ppo_mini_batch_size",
            f"{_ACTOR}.ppo_epochs",
            f"{_ACTOR}.ppo_max_token_len_per_gpu",
            f"{_CRITIC}.ppo_mini_batch_size",
            f"{_CRITIC}.ppo_epochs",
            f"{_ROLLOUT}.n",
            f"{_ROLLOUT}.val_kwargs.n",
            f"{_ROLLOUT}.agent.num_workers",
            f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
            f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
            *(f"{block}.{size}" for block in (_ROLLOUT, "refiner.rollout") for size in _SIZES),
        ],
    ),
    "a whole number of at least 1, or null": (
        lambda value: value >= 1 and value == int(value),
        [
            "trainer.total_training_steps",
            "trainer.max_actor_ckpt_to_keep",
            f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
            f"{_CRITIC}.ppo_micro_batch_size_per_gpu",
            f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
            f"{_ROLLOUT}.max_model_len",
            "refiner.max_model_len",
            f"{_ROLLOUT}.multi_turn.max_assistant_turns",
            f"{_ROLLOUT}.multi_turn.max_user_turns",
        ],
    ),
    "a whole number, or null": (lambda value: value == int(value), ["data.seed"]),
    "a number": (lambda value: True, [f"{_ACTOR}.entropy_coeff"]),
    "a whole number of at least -1": (
        lambda value: value >= -1 and value == int(value),
        [
            "trainer.save_freq",
            "trainer.test_freq",
            "data.train_max_samples",
            "data.val_max_samples",
            f"{_ROLLOUT}.top_k",
            f"{_ROLLOUT}.val_kwargs.top_k",
        ],
    ),
    "a number of at least 0": (
        lambda value: value >= 0,
        [
            "data.dataloader_num_workers",
            "algorithm.kl_ctrl.kl_coef",
            "trainer.critic_warmup",
            f"{_ACTOR}.optim.lr",
            f"{_ACTOR}.optim.weight_decay",
            f"{_ACTOR}.kl_loss_coef",
            f"{_CRITIC}.optim.lr",
            f"{_CRITIC}.optim.weight_decay",
            f"{_ROLLOUT}.val_kwargs.temperature",
            "actor_rollout_ref.model.lora_rank",
        ],
    ),
    "a number above 0": (
        lambda value: value > 0,
        [
            f"{_ACTOR}.clip_ratio",
            f"{_ACTOR}.optim.clip_grad",
            f"{_CRITIC}.cliprange_value",
            f"{_CRITIC}.optim.clip_grad",
            f"{_ROLLOUT}.temperature",
            "actor_rollout_ref.model.lora_alpha",
        ],
    ),
    "a number above 0, or null": (
        lambda value: value > 0,
        [f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio_high", f"{_ACTOR}.loss_scale_factor"],
    ),
    "a number above 0 and at most 1": (
        lambda value: 0 < value <= 1,
        [
            f"{_ROLLOUT}.top_p",
            f"{_ROLLOUT}.val_kwargs.top_p",
            f"{_ROLLOUT}.gpu_memory_utilization",
            "refiner.rollout.gpu_memory_utilization",
        ],
    ),
    "a number from 0 to 1": (
        lambda value: 0 <= value <= 1,
        [
            "algorithm.gamma",
            "algorithm.lam",
            f"{_ACTOR}.optim.lr_warmup_steps_ratio",
            f"{_CRITIC}.optim.lr_warmup_steps_ratio",
        ],
    ),
}
"""What keys of verl can be. A learning rate of 0 is a control; a temperature of 0 divides log-probs by it."""


@rule("config")
def numbers_are_possible(run: Run) -> str | None:
    """Sizes, rates, lengths and shares are numbers that verl and its engines can work with."""
    is_read = {"critic": run.config.algorithm.adv_estimator in CRITIC_ESTIMATORS, "refiner": run.blocks.hosts_refiner}
    for wanted, (holds, keys) in NUMBERS.items():
        for key in keys:
            value = OmegaConf.select(run.config, key, default=ABSENT)
            if value is ABSENT or not is_read.get(key.partition(".")[0], True):
                continue
            is_number = isinstance(value, int | float) and math.isfinite(value)
            may_be_null = value is None and wanted.endswith("or null")
            if not may_be_null and not (is_number and holds(value)):
                return f"{key}={'null' if value is None else value}: set {wanted}"
    return None


@rule("config")
def shards_divide_the_gpus(run: Run) -> str | None:
    """FSDP's groups of ``fsdp_size`` GPUs are as large as each other."""
    num_gpus = run.config.trainer.nnodes * run.config.trainer.n_gpus_per_node
    for key in (f"{_ACTOR}.fsdp_config.fsdp_size", "actor_rollout_ref.ref.fsdp_config.fsdp_size"):
        size = OmegaConf.select(run.config, key) or 0
        if 0 < size < num_gpus and num_gpus % size:
            return f"{key}={size} does not divide the {num_gpus} GPUs of the trainer; set a divisor, or -1 for all"
    return None


@rule("config")
def engine_takes_as_many_tokens_as_sequences(run: Run) -> str | None:
    """A step of vLLM has at least one token for each sequence (its ``SchedulerConfig``)."""
    names, rollout = ("max_num_batched_tokens", "max_num_seqs"), run.config.actor_rollout_ref.rollout
    sizes = {"actor_rollout_ref.rollout": [rollout[name] for name in names]}
    if run.blocks.hosts_refiner and run.blocks.refiner.has_replicas:
        sizes["refiner.rollout"] = [run.blocks.refiner.rollout.get(name, rollout[name]) for name in names]
    for key, (num_tokens, num_sequences) in sizes.items():
        if rollout.name == "vllm" and num_tokens < num_sequences:
            return (
                f"{key}.max_num_batched_tokens={num_tokens} is less than max_num_seqs={num_sequences}, which vLLM "
                "refuses; raise it, or lower max_num_seqs"
            )
    return None


@rule("config")
def refinements_fit_into_micro_batches(run: Run) -> str | None:
    """A prompt with its refinement fits into a dynamic micro-batch."""
    if not run.blocks.refines:
        return None
    config, refiner = run.config, run.blocks.refiner
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    budgets = {}
    if actor.use_dynamic_bsz and run.blocks.constraint.imitates:
        budgets["actor.ppo_max_token_len_per_gpu"] = actor.ppo_max_token_len_per_gpu
    if rollout.log_prob_use_dynamic_bsz:
        budgets["rollout.log_prob_max_token_len_per_gpu"] = rollout.log_prob_max_token_len_per_gpu
    # A session with a refined last turn is at most as long as the longest response.
    length = config.data.max_prompt_length + max(refiner.response_length, rollout.response_length)
    for key, budget in budgets.items():
        if budget * _num_shares(actor) < length:
            return (
                f"actor_rollout_ref.{key}={budget} is less than a prompt with its refinement "
                f"(data.max_prompt_length + refiner.response_length or data.max_response_length = {length}); raise it"
            )
    return None


def _num_shares(actor: DictConfig) -> int:
    """Return how many GPUs share a sequence."""
    if actor.strategy == "megatron":
        return actor.megatron.context_parallel_size
    if actor.strategy == "veomni":
        return actor.veomni.ulysses_parallel_size
    own = actor.get("ulysses_sequence_parallel_size") or 1  # verl's older key
    return max(own, actor.fsdp_config.ulysses_sequence_parallel_size) if actor.strategy in ("fsdp", "fsdp2") else 1


@rule("config")
def engines_share_memory(run: Run) -> str | None:
    """A colocated reward model and a colocated refiner, awake together, fit in memory."""
    config, refiner = run.config, run.blocks.refiner
    model = config.reward.reward_model
    is_beside = model.enable and not model.enable_resource_pool and refiner.placement == "colocated"
    if not run.blocks.refines or not is_beside or config.trainer.device == "cpu":
        return None
    own = refiner.rollout.get("gpu_memory_utilization", config.actor_rollout_ref.rollout.gpu_memory_utilization)
    if own + model.rollout.gpu_memory_utilization <= MAX_GPU_MEMORY_UTILIZATION:
        return None
    return (
        f"refiner.rollout.gpu_memory_utilization={own} and reward.reward_model.rollout.gpu_memory_utilization="
        f"{model.rollout.gpu_memory_utilization} share the GPUs; lower their sum to {MAX_GPU_MEMORY_UTILIZATION}, or "
        "give the reward model GPUs of its own: set reward.reward_model.enable_resource_pool=true"
    )


@rule("config")
def routes_are_recorded(run: Run) -> str | None:
    """Router replay is off: refinements have no recorded routes."""
    actor = run.config.actor_rollout_ref.actor
    routers = (OmegaConf.select(actor, f"{engine}.router_replay.mode") for engine in ("megatron", "veomni"))
    modes = (*routers, OmegaConf.select(actor, "router_replay.mode"))
    if not run.blocks.refines or all(mode in (None, "disabled") for mode in modes):
        return None
    return (
        "actor_rollout_ref.actor: router_replay has no recorded routes for refined responses; set its mode to "
        "disabled, or constraint.mode=none"
    )


@rule("config")
def loss_is_the_policys(run: Run) -> str | None:
    """Distillation and multi-token prediction, with losses of their own, are off."""
    if run.blocks.refines and OmegaConf.select(run.config, "distillation.enabled"):
        return "distillation.enabled=true has a loss of its own; set it to false, or constraint.mode=none"
    if run.blocks.refines and OmegaConf.select(run.config, "actor_rollout_ref.model.mtp.enable"):
        return "actor_rollout_ref.model.mtp.enable=true: set it to false, or constraint.mode=none"
    return None


@rule("config")
def rewards_are_there_when_streaming(run: Run) -> str | None:
    """A streaming run has rewards during the rollout."""
    model = run.config.reward.reward_model
    if not run.blocks.streams or not model.enable or model.enable_resource_pool:
        return None
    return (
        "a colocated reward model sleeps during the rollout, where a streaming refiner scores refinements; set "
        "reward.reward_model.enable_resource_pool=true, or refiner.placement=colocated"
    )


@rule("config")
def shared_servers_are_the_reference(run: Run) -> str | None:
    """Shared servers without their adapter are pi_0."""
    blocks, actor = run.blocks, run.config.actor_rollout_ref
    if not blocks.is_shared or not (blocks.hosts_refiner or blocks.measures_kl_by_actor):
        return None
    why = {
        "actor_rollout_ref.model.lora_rank above 0 (Megatron's lora.rank is not tried)": actor.model.lora_rank > 0,
        "actor_rollout_ref.model.lora_adapter_path=null": actor.model.lora_adapter_path is None,
        "actor_rollout_ref.model.lora.merge=false": not OmegaConf.select(actor, "model.lora.merge"),
        f"refiner.model_path={actor.model.path} (the actor's)": blocks.refiner.model_path == actor.model.path,
        "actor_rollout_ref.rollout.name=vllm": actor.rollout.name == "vllm",
        "actor_rollout_ref.rollout.disaggregation.enabled=false": not actor.rollout.disaggregation.enabled,
        "actor_rollout_ref.rollout.quantization=null": actor.rollout.quantization is None,
        "actor_rollout_ref.rollout.qat=null": not OmegaConf.select(actor, "rollout.qat.enable"),
    }
    missing = [what for what, holds in why.items() if not holds]
    names = ", ".join(missing)
    return f"refiner.placement=shared needs a LoRA policy on the reference model: set {names}" if missing else None


@rule("config")
def refiner_has_an_engine(run: Run) -> str | None:
    """The replicas' engine is vLLM."""
    blocks, rollout = run.blocks, run.config.actor_rollout_ref.rollout
    if not blocks.refiner.has_replicas or not blocks.hosts_refiner:
        return None
    engine = blocks.refiner.rollout.get("name") or OmegaConf.select(rollout, "name", throw_on_missing=False)
    if engine == ENGINE:
        return None
    return f"the refiner's replicas run on {ENGINE}, not {engine}: set +refiner.rollout.name={ENGINE}"


@rule("config")
def reference_log_probs_are_at_temperature_1(run: Run) -> str | None:
    """Replicas give log-probs only at temperature 1, so rollouts that are compared with them are at 1."""
    temperature, blocks = run.config.actor_rollout_ref.rollout.temperature, run.blocks
    if not blocks.measures_kl or temperature == 1:
        return None
    return (
        f"actor_rollout_ref.rollout.temperature={temperature}, but the refiner's replicas measure the KL to the "
        "reference at 1: set measure.num_kl_rollouts=0, or the temperature to 1"
    )


# ---- what verl's trainers ask


TRAINER_MODES = ("sync", "colocate_async", "separate_async")
"""Trainers of verl that the refine stage extends."""
MANAGER_KEY = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
STREAMING_MANAGER = "recipe.online_refiner.verl_glue.streaming.StreamingAgentLoopManager"


def _is_separate(run: Run) -> bool:
    return run.config.trainer.v1.trainer_mode == "separate_async"


@rule("config")
def agent_loops_have_one_manager(run: Run) -> str | None:
    """Only streaming replaces verl's agent loop manager."""
    manager = OmegaConf.select(run.config, MANAGER_KEY)
    if not run.blocks.streams or manager in (None, STREAMING_MANAGER):
        return None
    return f"{MANAGER_KEY}={manager} and streaming both replace verl's agent loop manager; set refiner.streaming=false"


@rule("config")
def rewards_have_their_keys(run: Run) -> str | None:
    """The reward's keys are those of verl 0.9, which reads no older ones."""

    def is_set(value: Any) -> bool:
        return any(map(is_set, value.values())) if isinstance(value, DictConfig) else value is not None

    for name in ("custom_reward_function", "reward_model", "sandbox_fusion"):
        if is_set(run.config.get(name)):
            return f"{name}: verl does not read this block any more; set the keys of reward, such as reward.{name}"
    return None


@rule("config")
def gradients_are_clipped_by_their_key(run: Run) -> str | None:
    """Gradients are clipped by ``optim.clip_grad``; verl's engines read no older key."""
    for key, block in ((_ACTOR, run.config.actor_rollout_ref.actor), (_CRITIC, run.config.critic)):
        if (value := block.get("grad_clip", 1.0)) != 1.0:  # its default
            return f"{key}.grad_clip={value} is not read; set {key}.optim.clip_grad"
    return None


@rule("config")
def trainer_is_extended(run: Run) -> str | None:
    """The trainer is a V1 trainer of verl that has the refine stage."""
    trainer = run.config.trainer
    if not trainer.use_v1:
        return "the online refiner extends verl's V1 trainers; set trainer.use_v1=true"
    if trainer.v1.trainer_mode in TRAINER_MODES:
        return None
    return (
        f"trainer.v1.trainer_mode={trainer.v1.trainer_mode}: set one of: {', '.join(TRAINER_MODES)}. A trainer of your "
        "own keeps the mode of the class that it extends, and a task runner names it (examples/own_trainer)"
    )


@rule("config")
def shared_servers_are_not_interrupted(run: Run) -> str | None:
    """Shared servers are used only by a trainer that does not interrupt them."""
    mode = run.config.trainer.v1.trainer_mode
    if mode == "sync" or not run.blocks.streams or not run.blocks.is_shared:
        return None
    return (
        f"trainer.v1.trainer_mode={mode} interrupts its rollout servers in every step, and with them what they refine; "
        "set refiner.placement to colocated or dedicated, or trainer.v1.trainer_mode=sync"
    )


@rule("config")
def separate_trainer_has_its_parts(run: Run) -> str | None:
    """``separate_async`` has GPUs for each part, whole weights to send, and what verl asserts later."""
    if not _is_separate(run):
        return None
    config, blocks, num_parts = run.config, run.blocks, run.config.trainer.v1.separate_async.parameter_sync_step
    model, rollout, actor = (config.actor_rollout_ref[name] for name in ("model", "rollout", "actor"))
    reward_model = config.reward.reward_model
    has_adapter = model.lora_rank > 0 or OmegaConf.select(model, "lora.rank", default=0) > 0
    batch_size = num_parts * actor.ppo_mini_batch_size
    is_offloaded = config.trainer.device != "cpu" and actor.get("fsdp_config", {}).get("param_offload", False)
    is_unsharded = actor.strategy == "fsdp2" and not actor.fsdp_config.reshard_after_forward
    why = {
        "refiner.placement=dedicated and refiner.n_gpus_per_node (or external): pools never share GPUs": (
            blocks.refiner.placement in ("dedicated", "external") or not blocks.hosts_refiner
        ),
        "refiner.streaming=null: the actor would wait for every refinement": blocks.streams or not blocks.refines,
        "actor_rollout_ref.model.lora.merge=true: verl would send the base alone to the rollout": (
            not has_adapter or bool(OmegaConf.select(model, "lora.merge"))
        ),
        "model_engine=dp: Megatron has not been tried": actor.strategy != "megatron",
        "actor_rollout_ref.actor.fsdp_config.param_offload=false: updates between two syncs would be lost": (
            num_parts == 1 or not is_offloaded
        ),
        "reward.reward_model.enable_resource_pool=true: a colocated reward model has no turn of its own": (
            not reward_model.enable or reward_model.enable_resource_pool
        ),
        f"data.train_batch_size={batch_size} (trainer.v1.separate_async.parameter_sync_step times "
        "actor_rollout_ref.actor.ppo_mini_batch_size)": config.data.train_batch_size == batch_size,
        "actor_rollout_ref.rollout.nnodes and n_gpus_per_node to the rollout's own GPUs": (
            rollout.nnodes > 0 and rollout.n_gpus_per_node > 0
        ),
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl (with platform=cpu: sockets)": (
            rollout.checkpoint_engine.backend != "naive"
        ),
        "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=true (verl puts shards aside)": (
            num_parts == 1 or not is_unsharded
        ),
    }
    missing = [what for what, holds in why.items() if not holds]
    return f"trainer.v1.trainer_mode=separate_async: set {'; '.join(missing)}" if missing else None


# ---- what would end a run on Megatron minutes after its start


def _is_megatron(run: Run) -> bool:
    return "megatron" in run.config.actor_rollout_ref.actor


@rule("config")
def optimizer_is_distributed(run: Run) -> str | None:
    """Megatron's optimizer is distributed: the rollout gets its weights."""
    if not _is_megatron(run) or run.config.actor_rollout_ref.actor.megatron.use_distributed_optimizer:
        return None
    return (
        "actor_rollout_ref.actor.megatron.use_distributed_optimizer=false: verl could not send the weights to the "
        "rollout; set it to true"
    )


@rule("config")
def distributed_optimizer_is_adam(run: Run) -> str | None:
    """Megatron's distributed optimizer is Adam."""
    if not _is_megatron(run):
        return None
    config = run.config
    critic = {"critic": config.critic} if config.algorithm.adv_estimator in CRITIC_ESTIMATORS else {}
    for name, role in {"actor_rollout_ref.actor": config.actor_rollout_ref.actor, **critic}.items():
        if role.optim.optimizer.lower() == "sgd" and role.megatron.use_distributed_optimizer:
            return f"{name}.optim.optimizer={role.optim.optimizer}: Megatron's distributed optimizer is Adam"
    return None


@rule("config")
def adapters_have_a_bridge(run: Run) -> str | None:
    """Adapters need Megatron-Bridge."""
    model = run.config.actor_rollout_ref.model
    if not _is_megatron(run) or not run.config.actor_rollout_ref.actor.megatron.vanilla_mbridge:
        return None
    if model.lora_rank <= 0 and model.lora.get("rank", 0) <= 0:
        return None
    return (
        "actor_rollout_ref.model.lora.rank above 0 needs Megatron-Bridge: set "
        "actor_rollout_ref.actor.megatron.vanilla_mbridge=false (which the CPU platform does not have)"
    )


@rule("config")
def adapters_have_their_key(run: Run) -> str | None:
    """Adapters are set by the key that the training engine reads."""
    model = run.config.actor_rollout_ref.model
    if _is_megatron(run) or not (OmegaConf.select(model, "lora.rank") or 0) > 0:
        return None
    return f"{_MODEL}.lora.rank={model.lora.rank} is Megatron's; set {_MODEL}.lora_rank, or all weights are trained"


@rule("config")
def stages_take_whole_groups(run: Run) -> str | None:
    """Interleaved pipeline stages get whole groups of micro-batches."""
    actor, rollout = run.config.actor_rollout_ref.actor, run.config.actor_rollout_ref.rollout
    if not _is_megatron(run) or (actor.megatron.get("virtual_pipeline_model_parallel_size") or 1) == 1:
        return None
    num_shares = layout(run.config)["data"]
    num_rows = actor.ppo_mini_batch_size * rollout.n // num_shares
    sizes = {
        "actor.ppo_micro_batch_size_per_gpu": None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu,
        "rollout.log_prob_micro_batch_size_per_gpu": (
            None if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu
        ),
    }
    for name, of_micro_batch in sizes.items():
        multiple = rows_multiple(actor.megatron, of_micro_batch)
        if num_rows % multiple:
            return (
                f"actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size: a rank's {num_rows} rows of a "
                f"mini-batch (actor.ppo_mini_batch_size * rollout.n / {num_shares}) are no multiple of {multiple} "
                f"(actor_rollout_ref.{name} times the pipeline's stages); change one of them"
            )
    return None


# ---- what the refiner's sizes ask of each other, once its model is known


@rule("sizes")
def policy_reads_prompt_and_response(run: Run) -> str | None:
    """The policy's context holds prompt and response, and what its engine is told."""
    shape, rollout, data = run.plan.policy_shape, run.config.actor_rollout_ref.rollout, run.config.data
    if shape is None or not shape.max_positions:
        return None
    told, positions = rollout.max_model_len, shape.max_positions
    if told is not None and told > positions:
        return f"actor_rollout_ref.rollout.max_model_len={told} is more than the model reads, {positions}; lower it"
    longest = data.max_prompt_length + data.max_response_length
    if told is not None and told < longest:
        return (
            f"actor_rollout_ref.rollout.max_model_len={told} is less than data.max_prompt_length + "
            f"data.max_response_length = {longest}: responses would be cut; raise it, or set it to null"
        )
    if longest <= positions:
        return None
    return (
        f"data.max_prompt_length + data.max_response_length = {longest} is more than the model reads, {positions} "
        "tokens; lower data.max_response_length, or set actor_rollout_ref.model.override_config.max_position_embeddings"
    )


@rule("sizes")
def refiner_reads_prompt_and_response(run: Run) -> str | None:
    """The refiner's context holds prompt and response, and its model can read it."""
    plan = run.plan
    if not run.blocks.hosts_refiner or plan.least_model_len <= plan.max_model_len <= plan.max_positions:
        return None
    return (
        f"refiner.max_model_len={plan.max_model_len} must be between {plan.least_model_len} (prompt and response, or "
        f"the template alone) and {plan.max_positions} (what the reference model can read); leave it null to derive it"
    )


@rule("sizes")
def shared_servers_read_it_too(run: Run) -> str | None:
    """Shared servers can read the refiner's prompt."""
    own = run.config.actor_rollout_ref.rollout.max_model_len
    if run.blocks.refiner.placement != "shared" or not own or own >= run.plan.max_model_len:
        return None
    return (
        f"actor_rollout_ref.rollout.max_model_len={own} is less than a refiner prompt with its answer, "
        f"{run.plan.max_model_len} tokens; raise it: with refiner.placement=shared its servers refine as well"
    )


@rule("sizes")
def actor_reads_what_it_scores(run: Run) -> str | None:
    """With shared servers the actor scores in place: prompt and response fit into a dynamic micro-batch."""
    actor, rollout = (run.config.actor_rollout_ref[name] for name in ("actor", "rollout"))
    length, budget = run.plan.in_place_tokens, rollout.log_prob_max_token_len_per_gpu
    if not run.blocks.is_shared or not rollout.log_prob_use_dynamic_bsz or budget * _num_shares(actor) >= length:
        return None
    return (
        f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={budget} is less than constraint.in_place_template "
        f"and a response after it, {length} tokens; raise it"
    )


@rule("sizes")
def heads_are_cut_evenly(run: Run) -> str | None:
    """Tensor-parallel ranks have equally many attention heads."""
    actor, policy = run.config.actor_rollout_ref, run.plan.policy_shape
    cut = [("actor_rollout_ref.rollout", actor.rollout, policy)]
    if run.blocks.hosts_refiner:
        cut.append(("refiner.rollout", run.plan.refiner_rollout, run.plan.refiner_shape))
    if actor.actor.strategy == "megatron":
        cut.append(("actor_rollout_ref.actor.megatron", actor.actor.megatron, policy))
    for key, block, shape in cut:
        if shape is not None and shape.num_heads % block.tensor_model_parallel_size:
            return (
                f"{key}.tensor_model_parallel_size={block.tensor_model_parallel_size} does not divide the model's "
                f"{shape.num_heads} attention heads; set a divisor of them"
            )
    return None


@rule("sizes")
def replicas_fit(run: Run) -> str | None:
    """The replicas of rollout and refiner fit on the GPUs of their placement."""
    from refiner_worker.group import replica_size  # here: it imports Ray

    plan, wanted, size = run.plan, run.blocks.refiner.num_replicas or 1, "rollout.tensor_model_parallel_size"
    rollout, trainer = run.config.actor_rollout_ref.rollout, run.config.trainer
    if trainer.v1.trainer_mode != "separate_async" and replica_size(rollout) > trainer.nnodes * trainer.n_gpus_per_node:
        return f"a replica of the rollout needs {replica_size(rollout)} GPUs; lower actor_rollout_ref.{size}"
    if run.blocks.refiner.placement == "external" or plan.refiner_gpus // plan.replica_size >= wanted:
        return None
    said = f"refiner.num_replicas={wanted} replicas of {plan.replica_size} GPUs do not fit on {plan.refiner_gpus}"
    return f"{said}; lower refiner.num_replicas, or the GPUs of one (+refiner.{size}=1)"


@rule("sizes")
def replicas_align_with_nodes(run: Run) -> str | None:
    """Replicas take equal parts of a node, or whole nodes, with no GPU left over."""
    size, num_gpus = run.plan.replica_size, run.plan.refiner_gpus
    per_node = run.blocks.refiner.n_gpus_per_node or run.config.trainer.n_gpus_per_node
    is_aligned = (per_node % size == 0 or size % per_node == 0) and num_gpus % size == 0
    if is_aligned or run.blocks.refiner.placement == "external":
        return None
    return (
        f"refiner replicas of {size} GPUs do not align with {num_gpus} GPUs on nodes of {per_node}; set "
        "refiner.rollout.tensor_model_parallel_size to a divisor or a multiple of the GPUs of a node"
    )


@rule("sizes")
def micro_batches_are_filled(run: Run) -> str | None:
    """A rank's rows of a mini-batch are whole micro-batches, as verl's ``prepare_micro_batches`` asserts."""
    config, n = run.config, run.config.actor_rollout_ref.rollout.n
    blocks = {_ACTOR: config.actor_rollout_ref.actor}
    if config.algorithm.adv_estimator in CRITIC_ESTIMATORS:
        blocks[_CRITIC] = config.critic
    num_gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    for key, block in blocks.items():
        num_ranks = layout(config)["data"] if _is_megatron(run) else max(1, num_gpus // _num_shares(blocks[_ACTOR]))
        num_rows, rest = divmod(block.ppo_mini_batch_size * n, num_ranks)
        size = 1 if block.use_dynamic_bsz else block.ppo_micro_batch_size_per_gpu or 1
        if rest:
            return (
                f"{key}.ppo_mini_batch_size={block.ppo_mini_batch_size} times {_ROLLOUT}.n={n} is no multiple of the "
                f"{num_ranks} ranks that share it; change one of them"
            )
        if num_rows % size:
            return (
                f"{key}.ppo_micro_batch_size_per_gpu={size} does not divide a rank's {num_rows} rows of a mini-batch "
                f"({key}.ppo_mini_batch_size * {_ROLLOUT}.n / {num_ranks}); set a divisor of them"
            )
    return None


@rule("sizes")
def memory_is_there(run: Run) -> str | None:
    """What is surely in memory at any moment of a step fits (``recipe/sizing/refusals.py``)."""
    return refusal(run.plan.footprint(run.config, run.blocks))
