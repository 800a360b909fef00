"""The memory that a run takes at each moment of a step, on each kind of GPU, by its config and model shapes."""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from recipe.sizing import state
from recipe.sizing.shapes import Shape
from refiner_worker.engines import can_sleep

GIB = float(1 << 30)
MEASURED = yaml.safe_load(Path(__file__).with_name("measured.yaml").read_text())
"""The constants that a GPU has measured (``experiments/gpu_quarter/measured.py``)."""
ASLEEP = MEASURED["asleep_gib"] * GIB
"""GPU memory of a sleeping engine (measured)."""
TRAINING = MEASURED["training_gib"] * GIB
"""GPU memory that a training process and the driver take beside the model's state: CUDA, torch's cache (measured)."""
COPIES = MEASURED["reference_copies"]
"""Host memory of the reference worker, in multiples of the model's size in float32 (measured)."""
PROCESS = 4 * GIB
"""Host memory of a process that has imported torch and an engine (estimate)."""
ROUNDED = 0.9
"""The share by which the host memory of a sleeping engine's weights exceeds their size (measured with a 7B model).

torch rounds each buffer of pinned memory up to a power of two.
"""
ROW_BYTES = 100
"""Bytes of a token in the TransferQueue: ids, masks, positions, log-probs, advantages (estimate)."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the memory in use, such as weights or a KV cache."""

    name: str
    size: float
    """The part's size in bytes."""
    key: str
    """The key that makes the part smaller."""
    is_sure: bool = True
    """Whether the part is at least this large; an estimate can only cause a warning."""


_guess = partial(Part, is_sure=False)


@dataclass(slots=True, kw_only=True)
class Moment:
    """The memory in use at a moment of a step, on one kind of GPU or in a node's host memory."""

    name: str
    where: str
    parts: list[Part]

    @property
    def size(self) -> float:
        """The bytes at the moment's peak, estimates included."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """An engine's part on one GPU."""

    name: str
    key: str
    """The key of the engine's block of settings."""
    length_key: str
    """The key of the engine's context length."""
    share: float
    """The share of the GPU's memory that the engine takes while it is awake."""
    weights: float
    kv_token: float
    """Bytes of KV cache per token."""
    max_model_len: int
    is_sure: bool
    """Whether the sizes are certain: weights and cache have the model's own type, and are not offloaded."""
    sleeps: bool
    num_kept: int
    """The number of a node's GPUs whose share of the weights stays in host memory while the engine sleeps."""
    where: str


def _server(
    name: str, key: str, length_key: str, shape: Shape, rollout: DictConfig, where: str, **sizes: int
) -> Server:
    """Return an engine's part on one GPU: tensor and pipeline parallelism divide it, expert parallelism the experts."""
    tensor, pipeline = rollout.tensor_model_parallel_size, rollout.pipeline_model_parallel_size
    others = (shape.num_parameters - shape.experts) / (tensor * pipeline)
    experts = shape.experts / (max(tensor, rollout.expert_parallel_size) * pipeline)
    size, own = state.NUM_BYTES.get(rollout.dtype, 2), OmegaConf.select(rollout, f"engine_kwargs.{rollout.name}") or {}
    changed = rollout.quantization or {"quantization", "kv_cache_dtype", "cpu_offload_gb", "hf_overrides"} & set(own)
    return Server(
        name=name,
        key=key,
        length_key=length_key,
        share=rollout.gpu_memory_utilization,
        weights=size * (others + experts),
        kv_token=shape.kv_bytes(tensor, pipeline, size),
        is_sure=shape.is_known and rollout.name == "vllm" and not changed,
        sleeps=where == "training GPU" and can_sleep(rollout),
        where=where,
        **sizes,
    )


def _lora_rank(model: DictConfig) -> int:
    """Return the rank of a model's adapter; 0: it has none."""
    return max(model.get("lora_rank", 0), OmegaConf.select(model, "lora.rank", default=0))


class Footprint:
    """All moments of a run, and its engines; empty if the policy's config does not say how large the model is.

    Args:
        config: The whole config.
        blocks: This extension's part of it (``RefinementConfig``).
        plan: Shapes of the models, sizes of the refiner and the memory of a GPU (``Plan``).
    """

    def __init__(self, config: DictConfig, blocks: Any, plan: Any) -> None:
        self._config, self._blocks, self._plan = config, blocks, plan
        self.gpu: float | None = plan.gpu_memory
        """The memory of a GPU in bytes; None: unknown, so that no run is refused."""
        self.moments: list[Moment] = []
        self.servers: list[Server] = []
        self._states: dict[str, state.State] = {}
        self._shapes: dict[str, Shape] = {}
        if plan.policy_shape is not None:
            self._policy: Shape = plan.policy_shape
            self._add_servers()
            self._read_states()
            self._add_moments()

    def limit(self, moment: Moment) -> float | None:
        """Return the memory available at a moment; None for host memory, which no key states."""
        return None if moment.where == "host" else self.gpu

    def _add_servers(self) -> None:
        config, plan, refiner = self._config, self._plan, self._blocks.refiner
        rollout = config.actor_rollout_ref.rollout
        is_separate = config.trainer.v1.trainer_mode == "separate_async" and not config.actor_rollout_ref.hybrid_engine
        where = "rollout GPU" if is_separate else "training GPU"
        longest = rollout.max_model_len or self._policy.max_positions
        per_node, model = config.trainer.n_gpus_per_node, config.actor_rollout_ref.model
        # Where the adapter alone is sent to it; else it drops its weights, which come anew.
        num_kept = per_node if _lora_rank(model) and not OmegaConf.select(model, "lora.merge") else 0
        sizes = {"max_model_len": longest, "num_kept": num_kept}
        key = "actor_rollout_ref.rollout"
        self.servers.append(_server("rollout", key, f"{key}.max_model_len", self._policy, rollout, where, **sizes))
        for one in plan.hosted if self._blocks.hosts_refiner and refiner.has_replicas else ():
            if one.shape is None:
                continue
            own = "refiner GPU" if one is plan.common else f"GPU of the {one.name}"
            where = own if refiner.is_dedicated else "training GPU"
            num_kept = min(per_node, one.num_replicas * one.replica_size)
            sizes = {"max_model_len": one.max_model_len, "num_kept": num_kept}
            key, length_key = f"{one.use.key}.rollout", f"{one.use.key}.max_model_len"
            self.servers.append(_server(one.name, key, length_key, one.shape, one.rollout, where, **sizes))

    def _read_states(self) -> None:
        config, actor = self._config, self._config.actor_rollout_ref
        roles = {
            "actor": (self._policy, actor.actor, "actor_rollout_ref.actor", actor.model, "fsdp_config"),
            "critic": (self._plan.critic_shape, config.critic, "critic", config.critic.model, "fsdp"),
        }
        for name, (shape, role, key, model, block) in roles.items():
            if shape is None:
                continue
            self._shapes[name] = shape
            common = {"lora_rank": _lora_rank(model), "num_gpus": self._plan.num_gpus}
            if role.strategy == "megatron":
                self._states[name] = state.megatron(shape, role, key=f"{key}.megatron", **common)
            elif role.strategy in ("fsdp", "fsdp2"):
                settings = role[block]
                self._states[name] = state.fsdp(shape, role, settings, key=f"{key}.{block}", **common)

    def _add_moments(self) -> None:
        for role in self._states:
            self._add("training" if role == "actor" else "training the critic", self._computing(role, learns=True))
        if "actor" in self._states:
            self._add("log-probs", self._computing("actor", learns=False))
        for server in self.servers:
            parts = [*(self._resting() if server.where == "training GPU" else []), self._awake(server)]
            self._add(f"{server.name} awake", parts + self._scoring(server), server.where, awake=server.name)
        self._add_sync()
        self._add_host()

    def _scoring(self, server: Server) -> list[Part]:
        """Return the logits of a refiner that is asked for log-probs; for the KL, only the common refiner is."""
        one = next((one for one in self._plan.hosted if one.name == server.name), None)
        if one is None:
            return []
        scorers = {
            "measure.num_kl_rollouts": self._blocks.measures_kl and one is self._plan.common,
            "constraint.target": self._blocks.constraint.asks_log_probs,
        }
        scored_by = [key for key, is_set in scorers.items() if is_set]
        num_logits = one.shape.vocab * one.rollout.max_num_batched_tokens if scored_by else 0
        return [_guess("log pi_0", 6 * num_logits, key) for key in scored_by[:1]]

    def _add(self, name: str, parts: list[Part], where: str = "training GPU", awake: str | None = None) -> None:
        """Add a moment, including the memory that other engines of the same GPU take at that time."""
        others = [one for one in self.servers if one.where == where and one.name != awake]
        for one in others:
            asleep = _guess(f"{one.name} asleep", ASLEEP, f"{one.key}.free_cache_engine")
            parts.append(asleep if one.sleeps else self._awake(one))
        if where == "training GPU":  # an engine's share includes its own
            parts.append(_guess("CUDA", TRAINING, "trainer.nnodes"))
        is_known = all(shape.is_known for shape in self._shapes.values())
        parts = [replace(part, is_sure=part.is_sure and is_known) for part in parts if part.size]
        self.moments.append(Moment(name=name, where=where, parts=parts))

    def _awake(self, one: Server) -> Part:
        if self.gpu is None:
            return Part(f"{one.name}'s weights", one.weights, f"{one.key}.tensor_model_parallel_size", one.is_sure)
        return Part(f"{one.name}'s engine", one.share * self.gpu, f"{one.key}.gpu_memory_utilization")

    def _resting(self, but: str | None = None) -> list[Part]:
        """Return the parts that trained models leave on a GPU while they do not compute."""
        return [
            Part(f"{name}'s state", one.resting, f"{one.key}.param_offload and .optimizer_offload")
            for name, one in self._states.items()
            if name != but
        ]

    def _computing(self, role: str, *, learns: bool) -> list[Part]:
        """Return the memory that a pass of the actor or the critic takes, and what the other one leaves on the GPU."""
        own, shape, actor = self._states[role], self._shapes[role], self._config.actor_rollout_ref
        block, prefix, model = actor.actor, "actor_rollout_ref.actor", actor.model
        names = ("use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu")
        if role == "critic":
            block, prefix, model = self._config.critic, "critic", self._config.critic.model
        elif not learns:
            block, prefix = actor.rollout, "actor_rollout_ref.rollout"
            names = ("log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu")
        has_budget, budget, num_rows = (block[name] for name in names)
        longest = self._longest(learns) / own.shares
        tokens = max(budget, longest) if has_budget else (num_rows or 1) * longest
        rows_key = f"{prefix}.{names[1] if has_budget else names[2]}"
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
        actor = self._config.actor_rollout_ref.actor
        with_entropy = not learns or actor.calculate_entropy or actor.entropy_coeff != 0
        chunk = actor.entropy_from_logits_chunk_size if actor.entropy_from_logits_with_chunking else math.inf
        is_scaled = self._config.actor_rollout_ref.rollout.temperature != 1
        chunk = chunk if with_entropy else 0
        imitation = self._blocks.constraint.imitation
        # A loss from the logits keeps log-probs of the whole vocabulary, and their gradient.
        has_own_loss = learns and imitation is not None and imitation.loss is not None
        own = 8.0 * self._policy.vocab * tokens if has_own_loss else 0.0
        return state.logits(self._policy, tokens, is_scaled=is_scaled, entropy_chunk=chunk) + own

    def _longest(self, learns: bool) -> int:
        """Return the tokens of the longest row, refinements included if the mode learns from them."""
        data, blocks = self._config.data, self._blocks
        is_read = blocks.constraint.imitation is not None if learns else blocks.refines
        refined = blocks.refiner.response_length if is_read else 0
        return int(data.max_prompt_length + max(data.max_response_length, refined))

    def _add_sync(self) -> None:
        """Add the sync of weights: a bucket, the gathered largest tensor, and the rollout's weights without cache."""
        rollout, one, shape = self._config.actor_rollout_ref.rollout, self.servers[0], self._policy
        if "actor" not in self._states or not one.sleeps:
            return
        key = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
        bucket = rollout.checkpoint_engine.update_weights_bucket_megabytes * float(1 << 20)
        parts = [*self._resting(), _guess("bucket", bucket, key)]
        parts.append(_guess("largest tensor", 4.0 * shape.vocab * shape.hidden, key))
        parts.append(Part("rollout's weights", one.weights, f"{one.key}.tensor_model_parallel_size", one.is_sure))
        self._add("weight sync", parts, awake="rollout")

    def _add_host(self) -> None:
        config, per_node = self._config, self._config.trainer.n_gpus_per_node
        parts = [Part(f"{name}'s state", one.on_host * per_node, one.key_of_host) for name, one in self._states.items()]
        if self._blocks.has_reference_worker and not _lora_rank(config.actor_rollout_ref.model):
            # It is there between its passes.
            shared = 4.0 * COPIES * self._policy.num_parameters / self._plan.num_gpus * per_node
            parts.append(_guess("reference", shared, "actor_rollout_ref.actor.use_kl_loss"))
        for one in self.servers:
            if one.sleeps and one.num_kept:
                weights = one.weights * one.num_kept
                key = "refiner.num_replicas" if one.name == "refiner" else f"{one.key}.tensor_model_parallel_size"
                parts.append(Part(f"{one.name} asleep", weights, key, one.is_sure))
                parts.append(_guess(f"{one.name}'s pinned buffers", ROUNDED * weights, key))
        num_rows = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
        rows = num_rows * self._longest(learns=False) * ROW_BYTES / config.trainer.nnodes
        num_engines = len({one.key.partition(".")[0] for one in self.servers})  # a GPU has at most one refiner's
        processes = PROCESS * per_node * (1 + num_engines)
        parts += [
            _guess("rows", rows, "data.train_batch_size"),
            _guess("processes", processes, "trainer.n_gpus_per_node"),
        ]
        self._add("host memory", parts, "host")


def table(found: Footprint) -> str:
    """Return a table of the moments, the largest first on each kind of GPU, with the key that reduces each."""
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
        if limit is not None:
            verdict = f"takes {worst.size / limit:.0%} of the memory"
            if worst.size > limit:
                verdict += f", and may not fit (~ marks estimates); to reduce it, change {key}"
            lines.append(f"  {worst.name} {verdict}")
    if found.gpu is not None:
        lines += [
            f"KV cache of the {one.name}: {max(0.0, one.share * found.gpu - one.weights) / one.kv_token:.0f} tokens a "
            f"GPU at most, {one.max_model_len} for one request at its longest"
            for one in found.servers
        ]
    return "\n".join(lines)
