"""verl's blocks of the config for the refiner's replicas, made from the policy's blocks.

This module needs neither torch nor verl.
"""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from refiner_worker.config import ModelUse
from refiner_worker.engines import TOKENIZER_KEY

UNREAD_KEYS = {
    "max_model_len": "set refiner.max_model_len",
    "response_length": "set refiner.response_length",
    "temperature": "set refiner.temperature",
    **dict.fromkeys(
        ("n", "top_p", "top_k", "do_sample", "prompt_length", "val_kwargs", "agent", "multi_turn"),
        "each response is refined once; drop it",
    ),
    **dict.fromkeys(("repetition_penalty", "ignore_eos"), "each request says 1.0 and false; drop it"),
}
"""Keys of verl's rollout block that replicas do not read, each with the key to set instead."""
POLICY_ONLY_KEYS: dict[str, Any] = {
    "quantization": None,
    "quantization_config_file": None,
    "qat": None,
    "disaggregation": {"enabled": False},
    "checkpoint_engine": {"backend": "naive"},
    "enable_rollout_routing_replay": False,
}
"""Keys of verl's rollout block that do not apply to the refiner, with their unused values.

verl quantizes the weights that a trainer sends; prefill engines and routes are for the policy only.
"""
MODEL_SHAPE_KEYS = ("hf_config_path", "override_config")
MODEL_READING_KEYS = ("tokenizer_path", "custom_chat_template", "trust_remote_code", "use_shm", "external_lib")


def rollout_config(config: DictConfig, use: ModelUse, max_model_len: int) -> DictConfig:
    """Return verl's rollout block for the replicas of a model.

    It starts from the policy's rollout block, so that a run's engine settings hold for both, but drops keys for weights
    that a trainer sends. It loads real weights (the policy waits for a sync) and ends with the model's ``rollout``.

    Raises:
        ValueError: If the model's ``rollout`` has a key that verl does not know, or one that needs a trainer.
    """
    refiner, key = use.first, f"{use.key}.rollout"
    rollout = DictConfig(OmegaConf.to_container(config.actor_rollout_ref.rollout, resolve=True))
    unknown, unfit = sorted(set(refiner.rollout) - set(rollout)), sorted(set(refiner.rollout) & set(POLICY_ONLY_KEYS))
    if unknown:
        raise ValueError(f"{key} has keys that verl's rollout block does not know: {', '.join(unknown)}")
    if unfit:
        raise ValueError(
            f"{key}.{unfit[0]} is for servers that a trainer sends weights; drop it (the engine itself "
            f"quantizes the reference model: +{key}.engine_kwargs.vllm.quantization=fp8)"
        )
    for name in sorted(set(refiner.rollout) & set(UNREAD_KEYS)):
        raise ValueError(f"{key}.{name} is not read: {UNREAD_KEYS[name]}")
    if refiner.rollout.get("load_format") == "dummy":
        raise ValueError(f"{key}.load_format=dummy: pi_0 would have random weights; set auto")
    rollout.merge_with(POLICY_ONLY_KEYS)
    rollout.update(
        n=1,
        load_format="auto",
        max_model_len=max_model_len,
        calculate_log_probs=False,
        mtp=None,
        disable_log_stats=not rollout.prometheus.enable,  # Prometheus reads them
    )
    rollout.prometheus.served_model_name = use.key  # which tells its numbers from the policy's
    if config.actor_rollout_ref.model.tokenizer_path is not None:  # verl gives its engines none; ours stop at a string
        tokenizer = config.actor_rollout_ref.model.tokenizer_path
        OmegaConf.update(rollout, TOKENIZER_KEY, tokenizer, force_add=True)
    rollout.merge_with(refiner.rollout)
    return rollout


def model_config(config: DictConfig, path: str) -> DictConfig:
    """Return verl's model block for the replicas of a model, which read it as the actor does.

    The actor's overrides of its model's config apply only if the replicas have the same model.
    """
    actor = DictConfig(OmegaConf.to_container(config.actor_rollout_ref.model, resolve=True))
    names = MODEL_READING_KEYS + (MODEL_SHAPE_KEYS if path == actor.path else ())
    alike = {name: actor[name] for name in names}
    return OmegaConf.create({"_target_": "verl.workers.config.HFModelConfig", "path": path, **alike})


def replica_size(rollout: DictConfig) -> int:
    """Return the number of GPUs of one replica."""
    return int(rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size)
