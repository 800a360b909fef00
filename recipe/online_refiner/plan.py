"""What a run will do, known before Ray starts: sizes, placement, steps."""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.workers.config import HFModelConfig
from verl.workers.rollout.utils import get_max_position_embeddings

from recipe.online_refiner import megatron
from recipe.online_refiner.blocks import RefinementConfig
from refiner_worker.engines import engine_of
from refiner_worker.group import OF_THE_MODEL, model_config, replica_size, rollout_config
from refiner_worker.prompts import RefinerPrompt


@dataclass(slots=True, kw_only=True)
class Plan:
    """Derived sizes of the refiner."""

    max_model_len: int
    """Context length of the refiner, in tokens."""
    least_model_len: int
    """What holds a prompt and a response."""
    max_positions: int
    """What the reference model can read."""
    refiner_model: DictConfig
    """verl's model block for its replicas."""
    refiner_rollout: DictConfig
    """verl's rollout block for them."""
    replica_size: int
    """GPUs of one."""
    num_replicas: int
    refiner_gpus: int
    """GPUs that they may take."""
    num_gpus: int
    """Training GPUs."""

    def describe(self, config: DictConfig, blocks: RefinementConfig, num_train_rows: int) -> str:
        """Return the plan as text: who runs where, sizes, steps, and what a step generates at most."""
        data, actor, trainer = config.data, config.actor_rollout_ref, config.trainer
        num_steps = trainer.total_training_steps
        if num_steps is None:
            num_steps = num_train_rows // data.train_batch_size * trainer.total_epochs
        num_rollouts = data.train_batch_size * actor.rollout.n
        engine = actor.actor.strategy
        if engine == "megatron":
            engine += f" ({', '.join(f'{name} {size}' for name, size in megatron.layout(config).items())})"
        device = f"{trainer.nnodes} x {trainer.n_gpus_per_node} {trainer.device} workers"
        lines = {
            "policy": f"{actor.model.path}, {engine}, on {device}",
            "rollout": _describe_rollout(config, self.num_gpus),
            "refiner": "none",
            "constraint": f"mode {blocks.constraint.mode}, eta {blocks.constraint.eta}",
            "advantages": config.algorithm.adv_estimator,
            "data": f"{num_train_rows} prompts, {data.train_batch_size} a step, {actor.rollout.n} responses each",
            "steps": f"{num_steps}",
            "a step": f"{num_rollouts} responses of at most {data.max_response_length} tokens",
            "run directory": config.run_dir,
        }
        if blocks.hosts_refiner:
            placement = blocks.refiner.placement + (", streaming" if blocks.streams else "")
            template = "+".join([blocks.refiner.template, *blocks.refiner.context])
            lines["refiner"] = (
                f"{blocks.refiner.model_path}, {self.num_replicas} {self.refiner_rollout.name} replicas, "
                f"{placement}, context {self.max_model_len} tokens, template {template}"
            )
        if blocks.refines:
            lines["a step"] += f", as many refinements of at most {blocks.refiner.response_length} tokens"
        return "\n".join(f"{name:<14} {text}" for name, text in lines.items())


def make_plan(config: DictConfig, blocks: RefinementConfig, *, tokenizer: Any) -> Plan:
    """Derive the refiner's sizes; the tokenizer is the actor's and the refiner's.

    Raises:
        ValueError: If the reference model or its engine's settings cannot be read.
    """
    refiner = blocks.refiner
    model = model_config(config, refiner)
    max_positions = _max_positions(model)
    lengths = config.data.max_prompt_length, config.data.max_response_length
    settings, limits = config.data.apply_chat_template_kwargs, refiner.limits(config.data.max_response_length)
    prompt = RefinerPrompt(refiner.template_path(), tokenizer, settings, limits)
    spare = engine_of(refiner.rollout.get("name", config.actor_rollout_ref.rollout.name)).num_spare_tokens
    needed = prompt.max_tokens(*lengths) + refiner.response_length + spare
    max_model_len = refiner.max_model_len or min(needed, max_positions)
    rollout = rollout_config(config, refiner, max_model_len)
    num_gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
    refiner_gpus = refiner.nnodes * (refiner.n_gpus_per_node or 0) or num_gpus
    return Plan(
        max_model_len=max_model_len,
        least_model_len=sum(lengths) + 1 + spare,
        max_positions=max_positions,
        refiner_model=model,
        refiner_rollout=rollout,
        replica_size=replica_size(rollout),
        num_replicas=refiner.num_replicas or refiner_gpus // replica_size(rollout),
        refiner_gpus=refiner_gpus,
        num_gpus=num_gpus,
    )


def _describe_rollout(config: DictConfig, num_training_gpus: int) -> str:
    rollout = config.actor_rollout_ref.rollout
    size, name = replica_size(rollout), rollout.name
    colocated = f"{num_training_gpus // size} {name} replicas, colocated"
    if config.trainer.v1.trainer_mode != "separate_async":
        return colocated
    own = f"{rollout.nnodes * rollout.n_gpus_per_node // size} {name} replicas on {rollout.nnodes} nodes of their own"
    steps = config.trainer.v1.separate_async.parameter_sync_step
    synced = f"weights by {rollout.checkpoint_engine.backend} after {steps} updates"
    return ", ".join([own, *([f"beside {colocated}"] if config.actor_rollout_ref.hybrid_engine else []), synced])


def _max_positions(model: DictConfig) -> int:
    """Return the longest context, in tokens, of a model whose config is read as verl's servers read it."""
    names = [name for name in ("path", "trust_remote_code", "external_lib", *OF_THE_MODEL) if name in model]
    settings: Any = OmegaConf.to_container(OmegaConf.masked_copy(model, names))
    try:
        return get_max_position_embeddings(HFModelConfig(**settings, load_tokenizer=False).hf_config)
    except (OSError, ValueError, AssertionError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"refiner.model_path={model.path}: {reason}") from error
