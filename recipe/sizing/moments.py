"""Memory of one run by moment of a step: who is awake, who waits, on which GPU. Pure numbers of config and shapes."""

import math
from dataclasses import dataclass, field, replace
from functools import partial

from omegaconf import DictConfig, OmegaConf

from recipe.sizing import state
from recipe.sizing.shapes import Shape
from refiner_worker.engines import can_sleep

GIB = float(1 << 30)
ASLEEP = 1.0 * GIB
"""Of an engine, or of a process of training: what CUDA's context and modules take (estimate)."""
PROCESS = 4 * GIB
"""Host memory of a process that has imported torch and an engine (estimate)."""
ROUNDED = 0.9
"""Of an engine that sleeps: torch rounds each buffer of pinned memory up to a power of two, in a 7B by so much."""
ROW_BYTES = 100
"""Of a token in the TransferQueue: ids, masks, positions, log-probs, advantages (estimate)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something that takes memory."""

    name: str
    size: float
    """Bytes."""
    key: str
    """What makes it smaller."""
    is_sure: bool = True
    """Whether it is at least this; estimates only warn."""


_guess = partial(Part, is_sure=False)


@dataclass(slots=True, kw_only=True)
class Moment:
    """Of a step, on one kind of GPU, or of a node's host memory."""

    name: str
    where: str
    parts: list[Part]

    @property
    def size(self) -> float:
        """Bytes at its peak, estimates included."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An engine's part on one GPU."""

    name: str
    key: str
    """Of its block of settings."""
    share: float
    """Of the GPU's memory that it takes while it is awake."""
    weights: float
    kv_token: float
    """Bytes of KV cache of a token."""
    max_model_len: int
    is_sure: bool
    """Whether weights and cache are in the model's own numbers, not quantized or offloaded."""
    sleeps: bool
    where: str = "training GPU"


@dataclass(slots=True, kw_only=True)
class Footprint:
    """All moments of a run, and its engines."""

    moments: list[Moment] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)
    gpu: float | None
    """Bytes of a GPU; None: not known, and nothing is said of what fits."""

    def limit(self, moment: Moment) -> float | None:
        """Return what there is for a moment; nobody says how much memory a node has."""
        return None if moment.where == "host" else self.gpu

    def server(self, name: str) -> Server | None:
        """Return the rollout's or the refiner's."""
        return next((one for one in self.servers if one.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a run beside verl's own config."""

    gpu: float | None
    """Bytes of a GPU; None: not known."""
    num_gpus: int
    """Training GPUs."""
    policy: Shape | None
    """None: its config does not say how large it is."""
    refiner: Shape | None = None
    """None: no engine of its own, or as above."""
    refiner_rollout: DictConfig | None = None
    """verl's rollout block of the refiner's engine."""
    refiner_model_len: int = 0
    is_dedicated: bool = False
    """Whether the refiner has GPUs of its own."""
    scored_by: str = ""
    """The key because of which the refiner computes log-probs of prompts; empty: it does not."""
    scored_tokens: int = 0
    """Of a refinement at its longest, where the actor computes its log-probs; else 0."""
    learned_tokens: int = 0
    """The same where the actor learns from it."""
    learns_distributions: bool = False
    """Whether it learns pi_0's distribution at each token (``constraint.target=soft``)."""
    has_critic: bool = False
    has_reference: bool = False
    """Whether verl keeps the reference model's weights for its own log-probs."""


def footprint(config: DictConfig, known: Known) -> Footprint:
    """Return a run's memory by moment; of a model whose config does not say how large it is, nothing."""
    found = Footprint(gpu=known.gpu)
    if known.policy is None:
        return found
    rollout = config.actor_rollout_ref.rollout
    is_separate = config.trainer.v1.trainer_mode == "separate_async" and not config.actor_rollout_ref.hybrid_engine
    where = "rollout GPU" if is_separate else "training GPU"
    longest = rollout.max_model_len or known.policy.max_positions
    found.servers.append(_server("rollout", "actor_rollout_ref.rollout", known.policy, rollout, longest, where))
    if known.refiner is not None and known.refiner_rollout is not None:
        where = "refiner GPU" if known.is_dedicated else "training GPU"
        own = known.refiner, known.refiner_rollout, known.refiner_model_len
        found.servers.append(_server("refiner", "refiner.rollout", *own, where))
    _Moments(config, known, known.policy, found).add()
    return found


def _server(name: str, key: str, shape: Shape, rollout: DictConfig, max_model_len: int, where: str) -> Server:
    """Return an engine's part: weights are cut by tensor and pipeline parallelism, experts by theirs as well."""
    tensor, pipeline = rollout.tensor_model_parallel_size, rollout.pipeline_model_parallel_size
    others = (shape.num_parameters - shape.experts) / (tensor * pipeline)
    experts = shape.experts / (max(tensor, rollout.expert_parallel_size) * pipeline)
    size, own = state.NUM_BYTES.get(rollout.dtype, 2), OmegaConf.select(rollout, f"engine_kwargs.{rollout.name}") or {}
    changed = rollout.quantization or {"quantization", "kv_cache_dtype", "cpu_offload_gb", "hf_overrides"} & set(own)
    return Server(
        name=name,
        key=key,
        share=rollout.gpu_memory_utilization,
        weights=size * (others + experts),
        kv_token=shape.kv_bytes(tensor, pipeline, size),
        max_model_len=max_model_len,
        is_sure=shape.is_known and rollout.name == "vllm" and not changed,
        sleeps=where == "training GPU" and can_sleep(rollout),
        where=where,
    )


@dataclass(slots=True)
class _Moments:
    config: DictConfig
    known: Known
    policy: Shape
    found: Footprint
    states: dict[str, state.State] = field(default_factory=dict)

    def add(self) -> None:
        """Add every moment of the run."""
        self._read_states()
        for role in self.states:
            self._add("training" if role == "actor" else "training the critic", self._computing(role, learns=True))
        if "actor" in self.states:
            self._add("log-probs", self._computing("actor", learns=False))
        for server in self.found.servers:
            parts = [*(self._resting() if server.where == "training GPU" else []), self._awake(server)]
            refiner, rollout = self.known.refiner, self.known.refiner_rollout
            if server.name == "refiner" and self.known.scored_by and refiner and rollout:
                num_logits = refiner.vocab * rollout.max_num_batched_tokens
                parts.append(_guess("log pi_0", 6 * num_logits, self.known.scored_by))
            self._add(f"{server.name} awake", parts, server.where, awake=server.name)
        self._add_sync()
        self._add_host()

    def _read_states(self) -> None:
        config, actor = self.config, self.config.actor_rollout_ref
        roles = {"actor": (actor.actor, "actor_rollout_ref.actor", actor.model, "fsdp_config")}
        if self.known.has_critic and config.critic.model.path == actor.model.path:
            roles["critic"] = (config.critic, "critic", config.critic.model, "fsdp")
        for name, (role, key, model, block) in roles.items():
            rank = max(model.get("lora_rank", 0), OmegaConf.select(model, "lora.rank", default=0))
            common = {"lora_rank": rank, "num_gpus": self.known.num_gpus}
            if role.strategy == "megatron":
                self.states[name] = state.megatron(self.policy, role, key=f"{key}.megatron", **common)
            elif role.strategy in ("fsdp", "fsdp2"):
                settings = role[block]
                self.states[name] = state.fsdp(self.policy, role, settings, key=f"{key}.{block}", **common)

    def _add(self, name: str, parts: list[Part], where: str = "training GPU", awake: str | None = None) -> None:
        """Add a moment, with what other engines of that GPU take meanwhile."""
        others = [one for one in self.found.servers if one.where == where and one.name != awake]
        for one in others:
            asleep = _guess(f"{one.name} asleep", ASLEEP, f"{one.key}.free_cache_engine")
            parts.append(asleep if one.sleeps else self._awake(one))
        if where != "host":
            parts.append(_guess("CUDA", ASLEEP, "trainer.nnodes"))
        is_known = self.policy.is_known
        parts = [replace(part, is_sure=part.is_sure and is_known) for part in parts if part.size]
        self.found.moments.append(Moment(name=name, where=where, parts=parts))

    def _awake(self, one: Server) -> Part:
        if self.found.gpu is None:
            return Part(f"{one.name}'s weights", one.weights, f"{one.key}.tensor_model_parallel_size")
        return Part(f"{one.name}'s engine", one.share * self.found.gpu, f"{one.key}.gpu_memory_utilization")

    def _resting(self, but: str | None = None) -> list[Part]:
        """Return what those who train leave on a GPU while they do not compute."""
        return [
            Part(f"{name}'s state", one.resting, f"{one.key}.param_offload and .optimizer_offload")
            for name, one in self.states.items()
            if name != but
        ]

    def _computing(self, role: str, *, learns: bool) -> list[Part]:
        """Return the parts of a pass of the actor or the critic, with what the other one leaves on the GPU."""
        own, shape, actor = self.states[role], self.policy, self.config.actor_rollout_ref
        block, prefix, model = actor.actor, "actor_rollout_ref.actor", actor.model
        names = ("use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu")
        if role == "critic":
            block, prefix, model = self.config.critic, "critic", self.config.critic.model
        elif not learns:
            block, prefix = actor.rollout, "actor_rollout_ref.rollout"
            names = ("log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu")
        tokens = state.micro_tokens(block, names, self._longest(learns), own.shares)
        rows_key = f"{prefix}.{names[1] if block[names[0]] else names[2]}"
        whole = f"{own.key}.offload_policy=true (fsdp2)"
        if block.get("strategy", actor.actor.strategy) == "megatron":
            whole = f"{own.key}.tensor_model_parallel_size"
        key = f"more GPUs (trainer.nnodes), actor_rollout_ref.model.lora_rank or {whole}"
        parts = [*self._resting(but=role), Part("parameters", own.parameters, key)]
        parts.append(_guess("gathered", own.gathered, f"{own.key}.reshard_after_forward"))
        resting = 0.0 if own.offloads_adam else own.adam
        parts.append(Part("Adam", own.adam, key) if learns else Part("Adam", resting, f"{own.key}.optimizer_offload"))
        if learns:
            is_checkpointed = bool(model.enable_gradient_checkpointing)
            if block.strategy == "megatron":
                is_checkpointed = block.megatron.override_transformer_config.recompute_granularity == "full"
            size = state.activations(shape, tokens, is_checkpointed=is_checkpointed)
            parts += [Part("gradients", own.gradients, key), _guess("activations", size, rows_key)]
        if role == "actor" and not model.use_fused_kernels:
            parts.append(_guess("logits", self._logits(tokens, learns), rows_key))
        return parts

    def _logits(self, tokens: float, learns: bool) -> float:
        actor = self.config.actor_rollout_ref.actor
        with_entropy = not learns or actor.calculate_entropy or actor.entropy_coeff != 0
        chunk = actor.entropy_from_logits_chunk_size if actor.entropy_from_logits_with_chunking else math.inf
        is_scaled = self.config.actor_rollout_ref.rollout.temperature != 1
        chunk = chunk if with_entropy else 0
        # verl's top-k loss keeps log-probs of the whole vocabulary, and their gradient.
        soft = 8.0 * self.policy.vocab * tokens if learns and self.known.learns_distributions else 0.0
        return state.logits(self.policy, tokens, is_scaled=is_scaled, entropy_chunk=chunk) + soft

    def _longest(self, learns: bool) -> int:
        """Return the tokens of the longest row; those of refinements are learned from in some modes only."""
        data, refined = self.config.data, self.known.learned_tokens if learns else self.known.scored_tokens
        return int(data.max_prompt_length + max(data.max_response_length, refined))

    def _add_sync(self) -> None:
        """Add the sync of weights: a bucket, the largest tensor put together, and the rollout's weights, no cache."""
        rollout, one, shape = self.config.actor_rollout_ref.rollout, self.found.servers[0], self.policy
        if "actor" not in self.states or not one.sleeps:
            return
        key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
        bucket = rollout.checkpoint_engine.update_weights_bucket_megabytes * float(1 << 20)
        parts = [*self._resting(), _guess("bucket", bucket, key)]
        parts.append(_guess("largest tensor", 4.0 * shape.vocab * shape.hidden, key))
        parts.append(Part("rollout's weights", one.weights, f"{one.key}.tensor_model_parallel_size", one.is_sure))
        self._add("weight sync", parts, awake="rollout")

    def _add_host(self) -> None:
        config, per_node = self.config, self.config.trainer.n_gpus_per_node
        parts = [Part(f"{name}'s state", one.on_host * per_node, one.key_of_host) for name, one in self.states.items()]
        if self.known.has_reference:  # verl keeps it on the host between its passes
            shared = 4.0 * self.policy.num_parameters / self.known.num_gpus * per_node
            parts.append(_guess("reference", shared, "actor_rollout_ref.actor.use_kl_loss"))
        refiner = self.found.server("refiner")
        if refiner is not None and refiner.sleeps:
            weights = refiner.weights * per_node
            parts.append(Part("refiner asleep", weights, "refiner.placement", refiner.is_sure))
            parts.append(_guess("its pinned buffers", ROUNDED * weights, "refiner.placement"))
        num_rows = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
        rows = num_rows * self._longest(learns=False) * ROW_BYTES / config.trainer.nnodes
        processes = PROCESS * per_node * (1 + len(self.found.servers))
        parts += [
            _guess("rows", rows, "data.train_batch_size"),
            _guess("processes", processes, "trainer.n_gpus_per_node"),
        ]
        self._add("host memory", parts, "host")


def table(found: Footprint) -> str:
    """Return the moments, the worst first on each kind of GPU, and which key helps; nothing if none is known."""
    lines = []
    for where in dict.fromkeys(moment.where for moment in found.moments):
        moments = sorted((one for one in found.moments if one.where == where), key=lambda one: -one.size)
        worst, limit = moments[0], found.limit(moments[0])
        key = max(worst.parts, key=lambda part: part.size).key
        unit = f"memory of a {where}" if where != "host" else "memory of a node"
        lines.append(f"{unit}, GiB" + (f", of {limit / GIB:.0f}" if limit else ""))
        for moment in moments:
            parts = sorted(moment.parts, key=lambda part: -part.size)
            shown = ", ".join(f"{'' if part.is_sure else '~'}{part.name} {part.size / GIB:.1f}" for part in parts)
            lines.append(f"  {moment.name:<20} {moment.size / GIB:6.1f}  {shown}")
        verdict = f"; {key} makes it smaller"
        if limit is not None:
            verdict = f", {worst.size / limit:.0%} of what there is"
            if worst.size > limit:
                verdict = f", which may not fit (~ is an estimate): {key} makes it smaller"
        lines.append(f"  worst: {worst.name}{verdict}")
    if found.gpu is not None:
        lines += [
            f"KV cache of the {one.name}: {max(0.0, one.share * found.gpu - one.weights) / one.kv_token:.0f} tokens a "
            f"GPU at most, {one.max_model_len} for one request at its longest"
            for one in found.servers
        ]
    return "\n".join(lines)
