"""Rules about verl's trainers: what each of them requires, and which have the refine stage."""

from omegaconf import OmegaConf

from recipe.online_refiner.config.rules import ACTOR, MODEL
from recipe.preflight.rules import PlannedRun, rule
from recipe.preflight.spelling import unknown
from refiner_worker.keys import what_lacks

TRAINER_MODES = ("sync", "colocate_async", "separate_async")
"""Trainers of verl that the refine stage extends."""


@rule("config")
def trainer_is_extended(run: PlannedRun) -> str | None:
    """The trainer is a V1 trainer of verl that has the refine stage."""
    trainer = run.config.trainer
    if not trainer.use_v1:
        return "the online refiner extends verl's V1 trainers; set trainer.use_v1=true"
    if trainer.v1.trainer_mode in TRAINER_MODES:
        return None
    own = "; a trainer of your own keeps the mode of the class that it extends (examples/own_trainer)"
    return unknown("trainer.v1.trainer_mode", trainer.v1.trainer_mode, TRAINER_MODES) + own


@rule("config")
def fetches_make_a_step(run: PlannedRun) -> str | None:
    """A step is whole fetches of ``gen_batch_size`` prompts, where verl does not fetch them one by one."""
    data, trainer, filters = run.config.data, run.config.trainer, run.config.algorithm.get("filter_groups")
    refills = trainer.v1.sampler.get("sync_refill_failed_groups") or (filters and filters.enable)
    size = data.gen_batch_size or data.train_batch_size
    if trainer.v1.trainer_mode != "sync" or refills or data.train_batch_size % size == 0:
        return None
    return f"data.gen_batch_size={size} does not divide data.train_batch_size={data.train_batch_size}; set it to null"


@rule("config")
def separate_trainer_has_its_parts(run: PlannedRun) -> str | None:
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
