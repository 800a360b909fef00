"""The bytes that verl's training engines keep on one GPU, and the bytes that a micro-batch adds."""

from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from recipe.sizing.shapes import Shape

NUM_BYTES = {"fp32": 4, "float32": 4, "32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "16": 2}
"""Bytes per number, by verl's name for the type (``PrecisionType`` in ``verl/utils/torch_dtypes.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The memory on one GPU of a model that is trained."""

    key: str
    """The key of verl's block with the model's settings."""
    parameters: float
    gradients: float
    adam: float
    """Bytes of Adam's two moments, and of Megatron's weights in float32."""
    gathered: float = 0.0
    """Bytes that FSDP gathers while it computes: two blocks, embedding and head, or the whole model."""
    offloads_parameters: bool = False
    offloads_adam: bool = False
    shares: int = 1
    """The number of GPUs that share a row's activations."""
    lives_on_host: float = 0.0
    """Bytes that always stay in host memory, in addition to the above."""
    host_key: str = ""
    """The key of the setting that keeps them there."""

    @property
    def resting(self) -> float:
        """The bytes that stay on the GPU while the model does not compute."""
        return self.parameters * (not self.offloads_parameters) + self.adam * (not self.offloads_adam)

    @property
    def on_host(self) -> float:
        """The bytes that are in host memory while the model does not compute."""
        return self.lives_on_host + self.parameters + self.adam - self.resting

    @property
    def key_of_host(self) -> str:
        """The key that reduces the use of a node's host memory."""
        return self.host_key if self.lives_on_host else f"{self.key}.param_offload and .optimizer_offload"


def fsdp(shape: Shape, role: DictConfig, settings: DictConfig, *, key: str, lora_rank: int, num_gpus: int) -> State:
    """Return what FSDP keeps (``verl/workers/engine/fsdp/transformer_impl.py``).

    Parameters, gradients and both moments of Adam have the type ``model_dtype``, by default float32, and are cut into
    ``fsdp_size`` shares. If the model has adapters, only these are trained. With strategy ``fsdp2``, ``offload_policy``
    keeps everything in host memory, and verl then ignores its other keys of offloading.

    Args:
        shape: The model.
        role: verl's block of the actor or the critic.
        settings: The role's block of FSDP's settings.
        key: The name of that block.
        lora_rank: The rank of the model's adapters; 0: none.
        num_gpus: The number of training GPUs.

    Raises:
        ValueError: If verl has no such type of numbers.
    """
    dtype, num_shards = str(settings.model_dtype or "fp32"), num_gpus
    if dtype not in NUM_BYTES:
        raise ValueError(f"{key}.model_dtype={dtype}: set one of {', '.join(NUM_BYTES)}")
    size = NUM_BYTES[dtype]
    if 0 < settings.fsdp_size < num_gpus:
        num_shards = settings.fsdp_size
    trained = _adapters(shape, lora_rank) if lora_rank else shape.num_parameters
    is_adam = role.optim.optimizer in ("Adam", "AdamW")
    is_sharded = settings.reshard_after_forward
    is_on_host = role.strategy == "fsdp2" and bool(settings.offload_policy)
    parameters, gradients = size * shape.num_parameters / num_shards, size * trained / num_shards
    adam = 2 * gradients if is_adam else 0.0
    return State(
        key=key,
        parameters=0.0 if is_on_host else parameters,
        gradients=0.0 if is_on_host else gradients,
        adam=0.0 if is_on_host else adam,
        lives_on_host=parameters + gradients + adam if is_on_host else 0.0,
        host_key=f"{key}.offload_policy",
        gathered=2.0 * (2 * shape.block + shape.embeddings if is_sharded else shape.num_parameters),
        offloads_parameters=bool(settings.param_offload),
        offloads_adam=bool(settings.optimizer_offload),
        shares=settings.ulysses_sequence_parallel_size,
    )


def megatron(shape: Shape, role: DictConfig, *, key: str, lora_rank: int, num_gpus: int) -> State:
    """Return what Megatron keeps: bfloat16 weights, float32 gradients and Adam's state.

    verl sets the gradients' type (``grad_reduce_in_fp32``). Adam's state has 12 bytes for each parameter. The
    distributed optimizer divides it among data-parallel ranks; experts have ranks of their own.
    ``optimizer_cpu_offload`` keeps a share of it in host memory (``megatron/core/optimizer/optimizer_config.py``).
    """
    engine = role.megatron
    tensor, pipeline = engine.tensor_model_parallel_size, engine.pipeline_model_parallel_size
    expert = engine.expert_model_parallel_size * (engine.expert_tensor_parallel_size or tensor)
    embeddings = shape.embeddings / (2 if pipeline > 1 and shape.embeddings > 2 * shape.vocab * shape.hidden - 1 else 1)
    others = (shape.num_parameters - shape.experts - shape.embeddings) / pipeline
    dense, experts = (others + embeddings) / tensor, shape.experts / (expert * pipeline)
    trained = _adapters(shape, lora_rank) / (tensor * pipeline) if lora_rank else dense + experts
    dense_ranks, expert_ranks = max(1, num_gpus // (tensor * pipeline)), max(1, num_gpus // (expert * pipeline))
    adam = 12 * (trained / dense_ranks if lora_rank else dense / dense_ranks + experts / expert_ranks)
    own = OmegaConf.select(role, "optim.override_optimizer_config") or {}
    on_host = own.get("optimizer_offload_fraction", 0.0) if own.get("optimizer_cpu_offload") else 0.0
    return State(
        key=key,
        parameters=2 * (dense + experts),
        gradients=4 * trained,
        adam=(1 - on_host) * adam,
        lives_on_host=on_host * adam,
        host_key=f"{key.removesuffix('.megatron')}.optim.override_optimizer_config.optimizer_offload_fraction",
        offloads_parameters=bool(engine.param_offload),
        offloads_adam=bool(engine.optimizer_offload),
        shares=engine.context_parallel_size * tensor,
    )


def _adapters(shape: Shape, rank: int) -> int:
    """Return how many parameters adapters have on all linear layers except the experts'."""
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = 2 * (shape.hidden + queries) + 2 * (shape.hidden + keys)
    return rank * shape.num_layers * (attention + 3 * (shape.hidden + shape.mlp))


def activations(shape: Shape, num_tokens: float, *, is_checkpointed: bool) -> float:
    """Return the bytes of activations that a backward pass needs, in bfloat16, with flash attention.

    A layer keeps its input, both norms (with float32 copies), queries, keys, values, attention's result, and four times
    the MLP's width (Korthikanti et al. 2022, equation 2, without what is quadratic in the length). Checkpointing keeps
    the inputs alone, and one layer at a time as a whole.
    """
    heads = 2 * shape.num_heads * shape.head_dim + 2 * shape.num_kv_heads * shape.head_dim
    layer = num_tokens * (2 * (4 * shape.hidden + heads + 4 * shape.mlp) + 8 * shape.hidden)
    inputs = num_tokens * 2 * shape.hidden
    return shape.num_layers * inputs + layer if is_checkpointed else shape.num_layers * layer


def logits(shape: Shape, num_tokens: float, *, is_scaled: bool, entropy_chunk: float) -> float:
    """Return the bytes of logits in bfloat16, counted once because flash attention's cross-entropy works in place.

    Args:
        shape: The model.
        num_tokens: The number of tokens of a micro-batch.
        is_scaled: Whether a temperature other than 1 makes a copy, and its backward pass another.
        entropy_chunk: Rows of which the softmax and a product are held at once; 0: no entropy is computed.
    """
    held = min(entropy_chunk, num_tokens)
    return 2 * shape.vocab * (num_tokens * (3 if is_scaled else 1) + 2 * held)
