"""Memory of one run by moment of a step: who is awake, who waits, on which GPU. Pure numbers of config and shapes."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner.blocks import CRITIC_ESTIMATORS, RefinementConfig
from recipe.online_refiner.sizing import state
from recipe.online_refiner.sizing.shapes import Shape
from refiner_worker.engines import can_sleep

GIB = float(1 << 30)
ASLEEP = 0.6 * GIB
"""Of an engine, or of a process of training: what CUDA's context and modules take (estimate)."""
PROCESS = 4 * GIB
"""Host memory of a process that has imported torch and an engine (estimate)."""
ROW_BYTES = 100
"""Of a token in the TransferQueue: ids, masks, positions, log-probs, advantages (estimate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that takes memory."""

    name: str
    size: float
    """Bytes."""
    key: str
    """What makes it smaller."""
    is_sure: bool = True
    """Whether it is at least this; estimates only warn."""


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

    @property
    def least(self) -> float:
        """Bytes that are sure."""
        return sum(part.size for part in self.parts if part.is_sure)

    @property
    def key(self) -> str:
        """What makes the largest of its parts smaller."""
        return max(self.parts, key=lambda part: part.size).key


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
    host: float | None
    """Bytes of a node's memory."""

    def limit(self, moment: Moment) -> float | None:
        """Return what there is for a moment."""
        return self.host if moment.where == "host" else self.gpu

    def server(self, name: str) -> Server | None:
        """Return the rollout's or the refiner's."""
        return next((one for one in self.servers if one.name == name), None)


def server(
    name: str, key: str, shape: Shape, rollout: DictConfig, *, max_model_len: int, sleeps: bool, where: str
) -> Server:
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
        sleeps=sleeps,
        where=where,
    )


def footprint(config: DictConfig, blocks: RefinementConfig, plan: Any) -> Footprint:
    """Return a run's memory by moment; of a model whose config does not say how large it is, nothing."""
    found = Footprint(gpu=plan.gpu_memory, host=plan.host_memory)
    policy, refiner = plan.policy_shape, plan.refiner_shape
    if policy is None:
        return found
    rollout = config.actor_rollout_ref.rollout
    is_separate = config.trainer.v1.trainer_mode == "separate_async" and not config.actor_rollout_ref.hybrid_engine
    found.servers.append(
        server(
            "rollout",
            "actor_rollout_ref.rollout",
            policy,
            rollout,
            max_model_len=rollout.max_model_len or policy.max_positions,
            sleeps=can_sleep(rollout) and not is_separate,
            where="rollout GPU" if is_separate else "training GPU",
        )
    )
    if blocks.hosts_refiner and not blocks.is_shared and refiner is not None:
        own = plan.refiner_rollout
        found.servers.append(
            server(
                "refiner",
                "refiner.rollout",
                refiner,
                own,
                max_model_len=plan.max_model_len,
                sleeps=can_sleep(own) and not blocks.refiner.is_dedicated,
                where="refiner GPU" if blocks.refiner.is_dedicated else "training GPU",
            )
        )
    _Moments(config, blocks, plan, found).add()
    return found


@dataclass(slots=True)
class _Moments:
    config: DictConfig
    blocks: RefinementConfig
    plan: Any
    found: Footprint
    states: dict[str, state.State] = field(default_factory=dict)

    def add(self) -> None:
        """Add every moment of the run."""
        self._read_states()
        beside = self._states("resting")
        training = [one for one in self.found.servers if one.where == "training GPU"]
        for role in self.states:
            self._add("training" if role == "actor" else "training the critic", [*self._computing(role, True)])
        if "actor" in self.states:
            self._add("log-probs", self._computing("actor", False))
        for server in self.found.servers:
            on_training = server in training
            parts = [*(beside if on_training else []), self._awake(server)]
            if server.name == "refiner" and self.blocks.measures_kl:
                rows = self.plan.refiner_rollout.max_num_batched_tokens
                size = 6 * self.plan.refiner_shape.vocab * rows
                parts.append(Part(name="log pi_0", size=size, key="measure.num_kl_rollouts", is_sure=False))
            self._add(f"{server.name} awake", parts, server.where, awake=server.name)
        self._add_sync(beside)
        self._add_host()

    def _read_states(self) -> None:
        config, actor = self.config, self.config.actor_rollout_ref.actor
        roles = {"actor": (actor, "actor_rollout_ref.actor", config.actor_rollout_ref.model, "fsdp_config")}
        if config.algorithm.adv_estimator in CRITIC_ESTIMATORS:
            roles["critic"] = (config.critic, "critic", config.critic.model, "fsdp")
        for name, (role, key, model, block) in roles.items():
            rank = max(model.get("lora_rank", 0), OmegaConf.select(model, "lora.rank", default=0))
            common = {"lora_rank": rank, "num_gpus": self.plan.num_gpus}
            if role.strategy == "megatron":
                self.states[name] = state.megatron(self.plan.policy_shape, role, key=f"{key}.megatron", **common)
            elif role.strategy in ("fsdp", "fsdp2"):
                settings = role[block]
                self.states[name] = state.fsdp(self.plan.policy_shape, role, settings, key=f"{key}.{block}", **common)

    def _add(self, name: str, parts: list[Part], where: str = "training GPU", awake: str | None = None) -> None:
        """Add a moment, with what other engines of that GPU take meanwhile."""
        for server in self.found.servers:
            if server.where == where and server.name != awake:
                parts.append(
                    Part(
                        name=f"{server.name} asleep", size=ASLEEP, key=f"{server.key}.free_cache_engine", is_sure=False
                    )
                    if server.sleeps
                    else self._awake(server)
                )
        parts.append(Part(name="CUDA", size=ASLEEP, key="", is_sure=False))
        self.found.moments.append(Moment(name=name, where=where, parts=[part for part in parts if part.size]))

    def _awake(self, server: Server) -> Part:
        if self.found.gpu is None:
            return Part(
                name=f"{server.name}'s weights", size=server.weights, key=f"{server.key}.tensor_model_parallel_size"
            )
        return Part(
            name=f"{server.name}'s engine",
            size=server.share * self.found.gpu,
            key=f"{server.key}.gpu_memory_utilization",
        )

    def _states(self, what: str, but: str | None = None) -> list[Part]:
        return [
            Part(name=f"{name}'s state", size=getattr(one, what), key=f"{one.key}.param_offload and .optimizer_offload")
            for name, one in self.states.items()
            if name != but
        ]

    def _computing(self, role: str, learns: bool) -> list[Part]:
        """Return the parts of a pass of the actor or the critic, with what the other one leaves on the GPU."""
        own, config, shape = self.states[role], self.config, self.plan.policy_shape
        is_known = shape.is_known
        size_key = f"{own.key}.optimizer_offload, or more GPUs: trainer.nnodes"
        parts = [*self._states("resting", but=role), Part(name="parameters", size=own.parameters, key=size_key)]
        block = config.actor_rollout_ref.actor
        names = ("use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu")
        if role == "critic":
            block = config.critic
        elif not learns:
            block = config.actor_rollout_ref.rollout
            names = ("log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu")
        tokens = state.micro_tokens(block, names, self._longest(learns), own.shares)
        prefix = {"critic": "critic", "actor": "actor_rollout_ref.actor" if learns else "actor_rollout_ref.rollout"}[
            role
        ]
        key = f"{prefix}.{names[1] if block[names[0]] else names[2]}"
        adam = own.adam if learns or not own.offloads_adam else 0.0
        parts.append(Part(name="Adam", size=adam, key=size_key))
        parts.append(Part(name="gathered", size=own.gathered, key=f"{own.key}.reshard_after_forward", is_sure=False))
        if learns:
            parts.append(Part(name="gradients", size=own.gradients, key=size_key))
            model = config.critic.model if role == "critic" else config.actor_rollout_ref.model
            is_checkpointed = bool(model.enable_gradient_checkpointing)
            if role == "actor" and own.key.endswith("megatron"):
                is_checkpointed = block.megatron.override_transformer_config.recompute_granularity == "full"
            size = state.activations(shape, tokens, is_checkpointed=is_checkpointed)
            parts.append(Part(name="activations", size=size, key=key, is_sure=False))
        if role == "actor" and not config.actor_rollout_ref.model.use_fused_kernels:
            parts.append(Part(name="logits", size=self._logits(shape, tokens, learns), key=key, is_sure=False))
        return parts if is_known else [Part(name=p.name, size=p.size, key=p.key, is_sure=False) for p in parts]

    def _logits(self, shape: Shape, tokens: float, learns: bool) -> float:
        actor = self.config.actor_rollout_ref.actor
        with_entropy = not learns or actor.calculate_entropy or actor.entropy_coeff != 0
        chunk = actor.entropy_from_logits_chunk_size if actor.entropy_from_logits_with_chunking else state.CHUNK
        is_scaled = self.config.actor_rollout_ref.rollout.temperature != 1
        return state.logits(shape, tokens, is_scaled=is_scaled, entropy_chunk=chunk if with_entropy else 0)

    def _longest(self, learns: bool) -> int:
        data, refines = self.config.data, self.blocks.constraint.imitates if learns else self.blocks.refines
        return int(
            data.max_prompt_length + max(data.max_response_length, self.blocks.refiner.response_length * refines)
        )

    def _add_sync(self, beside: list[Part]) -> None:
        """Add the sync of weights: a bucket, the largest tensor put together, and the rollout's weights, no cache."""
        rollout, server = self.config.actor_rollout_ref.rollout, self.found.servers[0]
        if server.where != "training GPU" or "actor" not in self.states or not server.sleeps:
            return
        shape, own = self.plan.policy_shape, self.states["actor"]
        bucket = rollout.checkpoint_engine.update_weights_bucket_megabytes * float(1 << 20)
        key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
        parts = [*beside, Part(name="bucket", size=bucket, key=key)]
        parts.append(Part(name="parameters", size=own.parameters * own.offloads_parameters, key=own.key, is_sure=False))
        parts.append(Part(name="largest tensor", size=4.0 * shape.vocab * shape.hidden, key=key, is_sure=False))
        parts.append(
            Part(name="rollout's weights", size=server.weights, key=f"{server.key}.tensor_model_parallel_size")
        )
        self._add("weight sync", parts, awake="rollout")

    def _add_host(self) -> None:
        config, blocks, per_node = self.config, self.blocks, self.config.trainer.n_gpus_per_node
        parts = [
            Part(
                name=f"{name}'s state",
                size=one.on_host * per_node,
                key=f"{one.key}.param_offload and .optimizer_offload",
            )
            for name, one in self.states.items()
        ]
        size = 4.0 * self.plan.policy_shape.num_parameters
        if blocks.has_reference_worker:  # verl keeps it on the host between its passes
            shared = size / self.plan.num_gpus * per_node
            parts.append(Part(name="reference", size=shared, key="actor_rollout_ref.actor.use_kl_loss", is_sure=False))
        refiner = self.found.server("refiner")
        if refiner is not None and refiner.sleeps:
            parts.append(
                Part(name="refiner asleep", size=refiner.weights * per_node, key="refiner.placement=dedicated")
            )
        num_rows = config.data.train_batch_size * config.actor_rollout_ref.rollout.n * self._longest(False)
        rows = num_rows * ROW_BYTES / config.trainer.nnodes
        parts.append(Part(name="rows", size=rows, key="data.train_batch_size", is_sure=False))
        processes = PROCESS * per_node * (1 + len(self.found.servers))
        parts.append(Part(name="processes", size=processes, key="trainer.n_gpus_per_node", is_sure=False))
        self.found.moments.append(Moment(name="host memory", where="host", parts=[part for part in parts if part.size]))
