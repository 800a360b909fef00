"""Rules on a config by itself: what this extension asks of verl's keys (``rules.py`` says what a rule is).

What one constraint or placement asks is in its class (``refusal``). What verl refuses in clear words is not here.
"""

import math
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from recipe.online_refiner.config import megatron
from recipe.online_refiner.config.fields import RefinementConfig, read_blocks
from recipe.online_refiner.method.constraint import refusal_of
from recipe.preflight.rules import MANAGER_KEY, Run, check, has_critic, rule
from recipe.preflight.spelling import unknown
from recipe.sizing.cuts import cuts
from recipe.sizing.refusals import refusals
from refiner_worker.keys import what_lacks

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
STREAMING_MANAGER = "recipe.online_refiner.verl_glue.streaming.StreamingAgentLoopManager"
TRAINER_MODES = ("sync", "colocate_async", "separate_async")
"""Trainers of verl that the refine stage extends."""
ABSENT = object()
"""The value of a key that a config of another kind does not have."""


def load(config: DictConfig) -> RefinementConfig:
    """Read this extension's blocks of a composed config, and check what the config alone tells.

    Raises:
        ValueError: If a key is wrong, or values do not go together.
    """
    check(Run(config=config, blocks=None), "paths")  # first: other paths are derived from them
    blocks = read_blocks(config)
    check(Run(config=config, blocks=blocks), "config")
    return blocks


# ---- numbers of verl's, with which other rules count


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
"""What keys of verl can be, and those of critic and refiner of the same name. A learning rate of 0 is a control; a
temperature of 0 divides log-probs by it."""


@rule("config")
def numbers_are_possible(run: Run) -> str | None:
    """Sizes, rates, lengths and shares are numbers that verl and its engines can work with."""
    alike = {f"{ACTOR}.fsdp_config": "critic.fsdp", ACTOR: "critic"} if has_critic(run.config) else {}
    if run.blocks.hosts_refiner:
        alike[ROLLOUT] = "refiner.rollout"
    for wanted, (holds, keys) in NUMBERS.items():
        twins = (key.replace(block, own) for key in keys for block, own in alike.items())
        for key in dict.fromkeys((*keys, *twins)):
            if (value := OmegaConf.select(run.config, key, default=ABSENT)) is ABSENT:
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            may_be_null = value is None and wanted.endswith("or null")
            if not may_be_null and not (is_number and holds(value)):
                return f"{key}={'null' if value is None else value}: set {wanted}"
    return None


# ---- the training engine, whose settings the rules below read


@rule("config")
def engine_can_train(run: Run) -> str | None:
    """Platform, optimizer and adapters are those of the training engine (``config/megatron.py``)."""
    return megatron.refusal(run.config)


# ---- what refiner and constraint ask


@rule("config")
def refiner_goes_with_the_rest(run: Run) -> str | None:
    """The refiner goes with rollout, trainer and model (``refiner_worker/config.py``, a class a placement)."""
    return run.blocks.refiner.refusal(run.config, run.blocks)


@rule("config")
def constraint_goes_with_the_rest(run: Run) -> str | None:
    """The constraint goes with estimator, loss, refiner and placement (``method``, a class a mode)."""
    return refusal_of(run.blocks.constraint, run.config, run.blocks)


# ---- keys of verl's


@rule("config")
def shards_divide_the_gpus(run: Run) -> str | None:
    """FSDP's groups of ``fsdp_size`` GPUs are as large as each other."""
    num_gpus = run.config.trainer.nnodes * run.config.trainer.n_gpus_per_node
    keys = [f"{ACTOR}.fsdp_config.fsdp_size", "actor_rollout_ref.ref.fsdp_config.fsdp_size"]
    for key in [*keys, *(["critic.fsdp.fsdp_size"] if has_critic(run.config) else [])]:
        size = OmegaConf.select(run.config, key) or 0
        if 0 < size < num_gpus and num_gpus % size:
            return f"{key}={size} does not divide the {num_gpus} GPUs of the trainer; set a divisor, or -1 for all"
    return None


FOLDERS = (
    "run_dir",
    *(f"trainer.{name}" for name in ("default_local_dir", "rollout_data_dir", "validation_data_dir")),
    "trainer.resume_from_path",
    "global_profiler.save_path",
)
"""Folders that verl or this extension makes or reads by the operating system."""


@rule("paths")
def folders_are_local(run: Run) -> str | None:
    """No folder is a URL of an object store: a folder of that name would be made in the working directory."""
    for key in FOLDERS:
        name = OmegaConf.select(run.config, key)
        if name and "://" in str(name):
            return (
                f"{key}={name} is a URL, and a local folder is needed, such as runs/a; examples/cluster/upload.py "
                "copies checkpoints to an object store"
            )
    return None


CONTENTS = ("model", "optimizer", "extra", "hf_model")
"""The parts of a checkpoint by verl's words (``CheckpointConfig`` in ``verl/trainer/config/config.py``)."""


@rule("config")
def checkpoints_have_the_state(run: Run) -> str | None:
    """Checkpoints are lists of verl's words, and what a resumed run loads is saved, the model among it."""
    blocks = {ACTOR: run.config.actor_rollout_ref.actor}
    if has_critic(run.config):
        blocks["critic"] = run.config.critic
    for key, block in blocks.items():
        if wrong := _wrong_with_contents(block, f"{key}.checkpoint", run.config.trainer.resume_mode):
            return wrong
    return None


def _wrong_with_contents(block: DictConfig, key: str, resume_mode: str) -> str | None:
    contents = {name: OmegaConf.select(block, f"checkpoint.{name}") for name in ("save_contents", "load_contents")}
    for name, words in contents.items():
        if words is None:  # then they are verl's default
            contents[name] = CONTENTS[:3]
        elif not isinstance(words, ListConfig):
            return f"{key}.{name}={words}: set a list, such as [{','.join(CONTENTS[:3])}]"
        for word in contents[name]:
            if word not in CONTENTS:
                return unknown(f"{key}.{name}", word, CONTENTS)
    saved, loaded = contents.values()
    if resume_mode == "disable":  # what is not resumed may be an export
        return None
    models = {"model", "hf_model"} if block.strategy == "megatron" else {"model"}
    if not models.intersection(loaded):
        return (
            f"{key}.load_contents=[{','.join(loaded)}]: a resumed run would go on at its step with the first weights; "
            f"add model to it and to {key}.save_contents, or set trainer.resume_mode=disable to never resume"
        )
    lacks = [word for word in loaded if word not in saved and not (word in models and models.intersection(saved))]
    if lacks:
        return (
            f"{key}.load_contents has {lacks[0]}, which {key}.save_contents=[{','.join(saved)}] does not save: no "
            "checkpoint of this run could be resumed; make them alike"
        )
    return None


@rule("config")
def keys_do_what_they_say(run: Run) -> str | None:
    """No key of verl is silently without effect, or turned into another value."""
    actor, rollout = run.config.actor_rollout_ref.actor, run.config.actor_rollout_ref.rollout
    for key in ("trainer.project_name", "trainer.experiment_name"):
        if not isinstance(name := OmegaConf.select(run.config, key), str):
            return f"{key}={name!r} is no text, as Hydra reads numbers; quote it: {key}='\"NAME\"'"
    limits = (actor.clip_ratio_low, actor.clip_ratio_high)
    if None not in limits and actor.clip_ratio not in (0.2, *limits):  # verl's default: who sets the limits leaves it
        return (
            f"{ACTOR}.clip_ratio={actor.clip_ratio} is not read beside clip_ratio_low={limits[0]} and "
            f"clip_ratio_high={limits[1]}; set these"
        )
    if rollout.get("full_determinism") and rollout.n > 1:
        return (
            f"{ROLLOUT}.full_determinism=true gives all responses to a prompt one seed, so they are equal and teach "
            f"nothing; set it to false, or {ROLLOUT}.n=1"
        )
    return None


# ---- what refining asks


@rule("config")
def refinements_fit_into_micro_batches(run: Run) -> str | None:
    """A prompt with its refinement fits into a dynamic micro-batch."""
    if not run.blocks.refines:
        return None
    config, refiner = run.config, run.blocks.refiner
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    budgets = {}
    if actor.use_dynamic_bsz and run.blocks.constraint.imitation is not None:
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


def _num_shares(block: DictConfig) -> int:
    """Return how many GPUs share a sequence of the actor, or of the critic."""
    if block.strategy == "megatron":
        return block.megatron.context_parallel_size
    if block.strategy == "veomni":
        return block.veomni.ulysses_parallel_size
    if block.strategy not in ("fsdp", "fsdp2"):
        return 1
    engine = block.fsdp_config if "fsdp_config" in block else block.fsdp
    return max(block.get("ulysses_sequence_parallel_size") or 1, engine.ulysses_sequence_parallel_size)  # verl's older


@rule("config")
def refined_rows_are_trained_as_others(run: Run) -> str | None:
    """Router replay, distillation and multi-token prediction are off: they have no part for refinements."""
    routers = [f"{ACTOR}.{name}router_replay.mode" for name in ("", "megatron.", "veomni.")]
    for key in (*routers, "distillation.enabled", f"{MODEL}.mtp.enable"):
        value = OmegaConf.select(run.config, key)
        if run.blocks.refines and value not in (None, False, "disabled"):
            off = "disabled" if key in routers else "false"
            return f"{key}={value} has no part for refinements; set it to {off}, or constraint.mode=none"
    return None


@rule("config")
def reference_log_probs_are_at_temperature_1(run: Run) -> str | None:
    """Replicas give log-probs only at temperature 1, so what is compared with them is at 1."""
    temperature, blocks = run.config.actor_rollout_ref.rollout.temperature, run.blocks
    if temperature == 1 or not blocks.constraint.asks_log_probs or blocks.is_shared:
        return None
    return (
        f"{ROLLOUT}.temperature={temperature}, but the refiner's log-probs are at 1: set it to 1, or leave "
        "constraint.target out"
    )


@rule("config")
def agent_loops_have_one_manager(run: Run) -> str | None:
    """Only streaming replaces verl's agent loop manager."""
    manager = OmegaConf.select(run.config, MANAGER_KEY)
    if not run.blocks.streams or manager in (None, STREAMING_MANAGER):
        return None
    return f"{MANAGER_KEY}={manager} and streaming both replace verl's agent loop manager; set refiner.streaming=false"


# ---- what verl's trainers ask


@rule("config")
def trainer_is_extended(run: Run) -> str | None:
    """The trainer is a V1 trainer of verl that has the refine stage."""
    trainer = run.config.trainer
    if not trainer.use_v1:
        return "the online refiner extends verl's V1 trainers; set trainer.use_v1=true"
    if trainer.v1.trainer_mode in TRAINER_MODES:
        return None
    own = "; a trainer of your own keeps the mode of the class that it extends (examples/own_trainer)"
    return unknown("trainer.v1.trainer_mode", trainer.v1.trainer_mode, TRAINER_MODES) + own


@rule("config")
def fetches_make_a_step(run: Run) -> str | None:
    """A step is whole fetches of ``gen_batch_size`` prompts, where verl does not fetch them one by one."""
    data, trainer, filters = run.config.data, run.config.trainer, run.config.algorithm.get("filter_groups")
    refills = trainer.v1.sampler.get("sync_refill_failed_groups") or (filters and filters.enable)
    size = data.gen_batch_size or data.train_batch_size
    if trainer.v1.trainer_mode != "sync" or refills or data.train_batch_size % size == 0:
        return None
    return f"data.gen_batch_size={size} does not divide data.train_batch_size={data.train_batch_size}; set it to null"


@rule("config")
def separate_trainer_has_its_parts(run: Run) -> str | None:
    """``separate_async`` has GPUs for each part, and whole weights to send; verl asserts the rest."""
    config, blocks = run.config, run.blocks
    if config.trainer.v1.trainer_mode != "separate_async":
        return None
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    num_parts = config.trainer.v1.separate_async.parameter_sync_step
    batch_size = num_parts * actor.ppo_mini_batch_size
    has_adapter = model.lora_rank > 0 or OmegaConf.select(model, "lora.rank", default=0) > 0
    is_offloaded = config.trainer.device != "cpu" and actor.get("fsdp_config", {}).get("param_offload", False)
    is_unsharded = actor.strategy == "fsdp2" and not actor.fsdp_config.reshard_after_forward
    wanted = {
        "refiner.placement=dedicated and refiner.n_gpus_per_node (or external): pools never share GPUs": (
            blocks.refiner.placement in ("dedicated", "external") or not blocks.hosts_refiner
        ),
        "refiner.streaming=null: the actor would wait for every refinement": blocks.streams or not blocks.refines,
        f"{MODEL}.lora.merge=true: verl would send the base alone to the rollout": (
            not has_adapter or bool(OmegaConf.select(model, "lora.merge"))
        ),
        "model_engine=dp: Megatron has not been tried": actor.strategy != "megatron",
        f"{ACTOR}.fsdp_config.param_offload=false: updates between two syncs would be lost": (
            num_parts == 1 or not is_offloaded
        ),
        f"data.train_batch_size={batch_size} (trainer.v1.separate_async.parameter_sync_step times "
        f"{ACTOR}.ppo_mini_batch_size)": config.data.train_batch_size == batch_size,
        f"{ACTOR}.fsdp_config.reshard_after_forward=true (verl puts shards aside)": num_parts == 1 or not is_unsharded,
    }
    return what_lacks("trainer.v1.trainer_mode=separate_async", wanted)


# ---- keys that verl takes without a word, and does not read


UNREAD = {
    f"{ACTOR}.grad_clip": (1.0, f"{ACTOR}.optim.clip_grad"),
    "critic.grad_clip": (1.0, "critic.optim.clip_grad"),
    "critic.ulysses_sequence_parallel_size": (1, "critic.fsdp.ulysses_sequence_parallel_size"),
}
"""Such keys with their defaults, and the keys that are read."""


@rule("config")
def keys_are_read(run: Run) -> str | None:
    """Rewards, clipping of gradients, and the critic's sharing of sequences are set by the keys that verl 0.9 reads."""

    def is_set(value: Any) -> bool:
        return any(map(is_set, value.values())) if isinstance(value, DictConfig) else value is not None

    for name in ("custom_reward_function", "reward_model", "sandbox_fusion"):
        if is_set(run.config.get(name)):
            return f"{name}: verl does not read this block any more; set the keys of reward, such as reward.{name}"
    for key, (default, instead) in UNREAD.items():
        if (value := OmegaConf.select(run.config, key, default=default)) != default:
            return f"{key}={value} is not read; set {instead}"
    return None


LARGEST_RANK = 512
"""The largest rank of an adapter that vLLM serves (``MaxLoRARanks`` of its ``config/lora.py``)."""


@rule("config")
def adapter_can_be_served(run: Run) -> str | None:
    """The policy's adapter is one that vLLM serves."""
    model = run.config.actor_rollout_ref.model
    ranks = {f"{MODEL}.lora_rank": model.lora_rank, f"{MODEL}.lora.rank": OmegaConf.select(model, "lora.rank") or 0}
    if run.config.actor_rollout_ref.rollout.name != "vllm" or OmegaConf.select(model, "lora.merge"):
        return None
    for key, rank in ranks.items():
        if rank > LARGEST_RANK:
            return f"{key}={rank}: vLLM serves adapters up to a rank of {LARGEST_RANK}; lower it"
    return None


# ---- what sizes ask of each other, once the models are known


@rule("sizes")
def policy_reads_prompt_and_response(run: Run) -> str | None:
    """The policy's context holds prompt and response, and what its engine is told."""
    shape, rollout, data = run.plan.policy_shape, run.config.actor_rollout_ref.rollout, run.config.data
    if shape is None or not shape.max_positions:
        return None
    longest, positions = data.max_prompt_length + data.max_response_length, shape.max_positions
    if longest <= (rollout.max_model_len or positions) <= positions:
        return None
    told = "" if rollout.max_model_len is None else f"{ROLLOUT}.max_model_len={rollout.max_model_len}: "
    return (
        f"{told}the policy's context must hold data.max_prompt_length + data.max_response_length = {longest} tokens, "
        f"and the model reads {positions}; lower data.max_response_length, leave max_model_len null, or set "
        f"{MODEL}.override_config.max_position_embeddings"
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
def thought_leaves_room_for_an_answer(run: Run) -> str | None:
    """The longest prompt and the longest thought of the refiner do not fill its context."""
    plan, refiner = run.plan, run.blocks.refiner
    if not run.blocks.refines or not plan.prompt.thoughts:
        return None
    prompts = {"refiner": (refiner, plan.prompt)}
    for source, one in refiner.sources.items():
        if source not in refiner.own_servers:
            prompts[f"refiner.by_source.{source}"] = one, plan.prompts[source]
    for key, (one, prompt) in prompts.items():
        if prompt.max_tokens(run.config.data.max_prompt_length, 0) + one.longest_thought >= plan.max_model_len:
            return (
                f"a prompt and a thought of {one.longest_thought} tokens fill the refiner's context, "
                f"{plan.max_model_len}; set {key}.thought_length lower"
            )
    return None


@rule("sizes")
def shared_servers_read_it_too(run: Run) -> str | None:
    """Shared servers can read the refiner's prompt, and the actor what it scores in place for them."""
    if not run.blocks.is_shared:
        return None
    plan, actor, rollout = run.plan, run.config.actor_rollout_ref.actor, run.config.actor_rollout_ref.rollout
    if (rollout.max_model_len or plan.max_model_len) < plan.max_model_len:
        return (
            f"{ROLLOUT}.max_model_len={rollout.max_model_len} is less than a refiner prompt with its answer, "
            f"{plan.max_model_len} tokens; raise it: with refiner.placement=shared its servers refine as well"
        )
    budget = rollout.log_prob_max_token_len_per_gpu
    if not rollout.log_prob_use_dynamic_bsz or budget * _num_shares(actor) >= plan.in_place_tokens:
        return None
    return (
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu={budget} is less than constraint.in_place_template and a response "
        f"after it, {plan.in_place_tokens} tokens; raise it"
    )


@rule("sizes")
def replicas_fit(run: Run) -> str | None:
    """The replicas of rollout and refiner fit on their GPUs, in equal parts of a node or in whole nodes."""
    from recipe.online_refiner.config.replicas import replica_size  # here: it imports Ray

    plan, wanted, tensor = run.plan, run.blocks.refiner.num_replicas or 1, "rollout.tensor_model_parallel_size"
    rollout, trainer = run.config.actor_rollout_ref.rollout, run.config.trainer
    if trainer.v1.trainer_mode != "separate_async" and replica_size(rollout) > plan.num_gpus:
        return f"a replica of the rollout needs {replica_size(rollout)} GPUs; lower actor_rollout_ref.{tensor}"
    if run.blocks.refiner.placement == "external":
        return None
    size, num_gpus = plan.replica_size, plan.refiner_gpus
    if num_gpus // size < wanted:
        said = f"refiner.num_replicas={wanted} replicas of {size} GPUs do not fit on {num_gpus}"
        return f"{said}; lower refiner.num_replicas, or the GPUs of one (+refiner.{tensor}=1)"
    per_node = run.blocks.refiner.n_gpus_per_node or trainer.n_gpus_per_node
    if num_gpus % size == 0 and (per_node % size == 0 or size % per_node == 0):
        return None
    return (
        f"refiner replicas of {size} GPUs do not align with {num_gpus} GPUs on nodes of {per_node}; set "
        f"+refiner.{tensor} to a divisor or a multiple of the GPUs of a node"
    )


@rule("sizes")
def models_can_be_shared(run: Run) -> str | None:
    """The GPUs that share a model have equal shares of its heads and layers (``recipe/sizing/cuts.py``)."""
    return next(filter(None, (one.refusal() for one in cuts(run.config, run.blocks, run.plan))), None)


@rule("sizes")
def micro_batches_are_filled(run: Run) -> str | None:
    """A rank's rows of a mini-batch are whole micro-batches, as verl's ``prepare_micro_batches`` asserts."""
    config, n = run.config, run.config.actor_rollout_ref.rollout.n
    blocks = {ACTOR: config.actor_rollout_ref.actor}
    if has_critic(config):
        blocks["critic"] = config.critic
    for key, block in blocks.items():
        size = 1 if block.use_dynamic_bsz else block.ppo_micro_batch_size_per_gpu or 1
        if blocks[ACTOR].strategy == "megatron":
            num_ranks, multiple = megatron.layout(config)["data"], size * megatron.micro_batch_group(block.megatron)
        else:
            num_ranks, multiple = max(1, run.plan.num_gpus // _num_shares(block)), size
        num_rows, rest = divmod(block.ppo_mini_batch_size * n, num_ranks)
        if rest:
            return (
                f"{key}.ppo_mini_batch_size={block.ppo_mini_batch_size} times {ROLLOUT}.n={n} is no multiple of the "
                f"{num_ranks} ranks that share it; change one of them"
            )
        if num_rows % multiple:
            groups = f" (times {multiple // size} of Megatron's virtual pipeline stages)" if multiple > size else ""
            return (
                f"{key}.ppo_micro_batch_size_per_gpu={size}{groups} does not divide a rank's {num_rows} rows of a "
                f"mini-batch ({key}.ppo_mini_batch_size * {ROLLOUT}.n / {num_ranks}); set a divisor of them"
            )
    return None


@rule("sizes")
def memory_is_there(run: Run) -> str | None:
    """What is surely in memory at any moment of a step fits (``recipe/sizing/refusals.py``)."""
    return next(refusals(run.plan.footprint(run.config, run.blocks)), None)
