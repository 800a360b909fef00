"""The plan of a run, made before Ray starts: sizes, placement, steps."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from recipe.online_refiner.config import megatron
from recipe.online_refiner.config.fields import RefinementConfig
from recipe.online_refiner.config.replicas import model_config, replica_size, rollout_config
from recipe.online_refiner.method.constraint import describe
from recipe.sizing import shapes
from recipe.sizing.moments import GIB, Footprint, table
from refiner_worker.config import BY_SOURCE, External, ModelUse, RefinerConfig
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.text.thoughts import Thoughts, read_thoughts

WITHOUT_A_GROUP = ("grpo", "grpo_vectorized", "rloo", "opo", "gpg")
"""Estimators of verl that silently accept a group of one response, and return its reward as the advantage."""

MODEL_KEY, CRITIC_KEY = "actor_rollout_ref.model.path", "critic.model.path"
"""Keys of the paths of a run's trained models."""


@dataclass(slots=True, kw_only=True)
class HostedModel:
    """A reference model with the sizes of its replicas."""

    use: ModelUse
    """The settings by which it is asked."""
    max_model_len: int
    """Context length of the replicas, in tokens."""
    least_model_len: int
    """The least context that holds a prompt and a response, or the template alone."""
    max_positions: int
    """The number of tokens that the model can read."""
    model: DictConfig
    """verl's model block for the replicas."""
    rollout: DictConfig
    """verl's rollout block for the replicas."""
    shape: shapes.Shape | None
    """The model's size; None if its config does not tell it."""
    num_replicas: int
    first_gpu: int = 0
    """The position of the first replica's first GPU among the GPUs for replicas."""

    @property
    def replica_size(self) -> int:
        """The number of GPUs of one replica."""
        return replica_size(self.rollout)

    @property
    def name(self) -> str:
        """The refiner's name in texts: ``refiner``, or ``refiner of`` its data sources."""
        return "refiner" if "" in self.use.settings else f"refiner of {', '.join(self.use.settings)}"

    @property
    def places(self) -> list[int]:
        """The position of each replica's first GPU."""
        return [self.first_gpu + number * self.replica_size for number in range(self.num_replicas)]


@dataclass(slots=True, kw_only=True)
class Plan:
    """Derived sizes of the refiner."""

    hosted: list[HostedModel]
    """The models that the run hosts as refiners, the common one first. Without replicas, the first one holds what is
    known of the refiner all the same."""
    prompt: RefinerPrompt
    """The renderer of the refiner's prompts, which knows the marks of thoughts."""
    prompts: dict[str, RefinerPrompt]
    """The renderers of prompts for the data sources of ``refiner.by_source``."""
    in_place_tokens: int
    """The number of tokens of the longest prompt and response that are scored in place; 0: none are scored."""
    refiner_gpus: int
    """The number of GPUs that all replicas may take."""
    num_gpus: int
    """The number of training GPUs."""
    model_configs: dict[str, Any]
    """Configs of the models that are trained or hosted, as verl changes them, by the keys of their paths."""
    policy_shape: shapes.Shape | None
    """The policy's size; None if its config does not tell it."""
    critic_shape: shapes.Shape | None
    """The critic's size; None if its config does not tell it, or no critic is trained."""
    gpu_memory: float | None
    """The memory of a GPU in bytes; None: unknown."""

    @property
    def common(self) -> HostedModel:
        """The model of all data sources that have none of their own."""
        return self.hosted[0]

    @property
    def max_model_len(self) -> int:
        """Context length of the common refiner, in tokens."""
        return self.common.max_model_len

    def footprint(self, config: DictConfig, blocks: RefinementConfig) -> Footprint:
        """Return the run's memory by moment of a step."""
        return Footprint(config, blocks, self)

    def describe(self, config: DictConfig, blocks: RefinementConfig, num_train_rows: int) -> str:
        """Return the plan as text: placement, sizes, steps, and the most tokens that a step generates."""
        data, actor, trainer = config.data, config.actor_rollout_ref, config.trainer
        num_steps = trainer.total_training_steps
        if num_steps is None:
            num_steps = num_train_rows // data.train_batch_size * trainer.total_epochs
        most = "at most " if data.filter_overlong_prompts else ""
        num_rollouts = data.train_batch_size * actor.rollout.n
        engine = actor.actor.strategy
        if engine == "megatron":
            engine += f" ({', '.join(f'{name} {size}' for name, size in megatron.layout(config).items())})"
        device = f"{trainer.nnodes} x {trainer.n_gpus_per_node} {trainer.device} workers"
        lines = {
            "policy": f"{actor.model.path}, {engine}, on {device}",
            "rollout": _describe_rollout(config, self.num_gpus),
            "refiner": self._describe_refiner(blocks),
            "constraint": describe(blocks.constraint),
            "advantages": config.algorithm.adv_estimator,
            "data": f"{most}{num_train_rows} prompts, {data.train_batch_size} a step, {actor.rollout.n} responses each",
            "steps": f"{num_steps}" if trainer.total_training_steps is not None else f"{most}{num_steps}",
            "a step": f"{num_rollouts} responses of at most {data.max_response_length} tokens",
            "run directory": config.run_dir,
        }
        if blocks.refines:
            times = f"{blocks.refiner.samples} times " if blocks.refiner.samples > 1 else ""
            longest = blocks.refiner.response_length
            lines["a step"] += f", at most {times}as many refinements of at most {longest} tokens"
            lines["thoughts"] = self._describe_thoughts(blocks.refiner)
        rows = [*lines.items(), *(("note", note) for note in notes(config, blocks))]
        text = "\n".join(f"{name:<14} {text}" for name, text in rows)
        if trainer.device == "cpu" and self.gpu_memory is None:
            return text
        sizes = table(self.footprint(config, blocks))
        return f"{text}\n\n{sizes}" if sizes else text

    def _describe_refiner(self, blocks: RefinementConfig) -> str:
        """Return who refines, or only measures the KL, and one line for each data source that differs."""
        if not blocks.hosts_refiner:
            return "none"
        refiner = blocks.refiner
        who = _describe_replicas(self.common)
        if isinstance(refiner, External):
            who = f"{refiner.served_model_name or 'the first model'} of {', '.join(refiner.url)}"
        placement = refiner.placement + (", streaming" if blocks.streams else "")
        template = "+".join([refiner.template, *refiner.context])
        common = f"{who}, {placement}, context {self.max_model_len} tokens, template {template}"
        sources = self.prompts if blocks.refines else ()
        own = {source: one for one in self.hosted[1:] for source in one.use.settings}
        said = {
            source: _differs(refiner, source, own.get(source))
            if blocks.constraint.is_refined(source)
            else "not refined (constraint.by_source)"
            for source in sources
        }
        lines = [f"{f'- {source}':<14} {text}" for source, text in said.items()]
        return "\n".join([common, *lines])

    def _describe_thoughts(self, refiner: RefinerConfig) -> str:
        """Return the treatment of the response's and the refiner's thoughts, in words."""
        if not self.prompt.thoughts:
            return "none, by the chat template; if the model thinks, set refiner.thoughts"
        opening, closing = self.prompt.thoughts.opening.strip(), self.prompt.thoughts.closing.strip()
        has = "has the response's own" if refiner.rewrites == "answer" else "has one that is written again"
        return (
            f"between {opening} and {closing}: a refinement {has} (refiner.rewrites), and the refiner's, of at "
            f"most {refiner.longest_thought} tokens, is dropped (refiner.thoughts)"
        )


def _describe_replicas(one: HostedModel) -> str:
    return f"{one.use.path}, {one.num_replicas} {one.rollout.name} replicas"


def _differs(refiner: RefinerConfig, source: str, hosted: HostedModel | None) -> str:
    """Return the settings that differ for a data source, and the place where its rows are refined."""
    own = (refiner.by_source or {})[source]
    said = [f"{name} {own[name]}" for name in BY_SOURCE if name in own] or ["nothing differs"]
    if hosted is not None:
        return f"{', '.join(said)}; by {_describe_replicas(hosted)}, context {hosted.max_model_len} tokens"
    if (one := refiner.own_servers.get(source)) is None:
        return f"{', '.join(said)}; by the common refiner"
    return f"{', '.join(said)}; by {one.served_model_name or 'the first model'} of {', '.join(one.url)}"


def notes(config: DictConfig, blocks: RefinementConfig) -> list[str]:
    """Return one line for each choice that is allowed, but that a reader of the plan should know about."""
    if blocks.refines:
        return [*_notes_on_training(config), *_notes_on_refining(config, blocks)]
    eta = config.constraint.eta
    unread = [f"constraint.eta={eta} is not read: nothing is constrained in mode none"] if eta is not None else []
    return [*_notes_on_training(config), *unread]


def _notes_on_training(config: DictConfig) -> list[str]:
    algorithm, actor, rollout = config.algorithm, config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    filters, turns, loop = algorithm.get("filter_groups"), rollout.multi_turn, rollout.agent.default_agent_loop
    tools = [path for path in (turns.tool_config_path, turns.function_tool_path) if path]
    said = []
    if filters and filters.enable:
        said.append(f"DAPO's filter: groups whose {filters.metric} is equal throughout are replaced")
    if tools or loop != "single_turn_agent":
        most = turns.max_assistant_turns or "any number of"
        said.append(f"agent loop {loop}, at most {most} turns, tools: {', '.join(tools) or 'none'}")
    if actor.use_kl_loss:
        said.append(f"static KL in the loss: actor_rollout_ref.actor.kl_loss_coef={actor.kl_loss_coef:g}")
    if algorithm.use_kl_in_reward:
        said.append(f"static KL in the reward: algorithm.kl_ctrl.kl_coef={algorithm.kl_ctrl.kl_coef:g}")
    if rollout.n == 1 and algorithm.adv_estimator in WITHOUT_A_GROUP:
        said.append("one response a prompt: the advantage is its reward itself, as no sibling gives a baseline")
    return said


def _notes_on_refining(config: DictConfig, blocks: RefinementConfig) -> list[str]:
    refiner, n = blocks.refiner, config.actor_rollout_ref.rollout.n
    most = refiner.max_refinements_per_group
    maximals = {one.skip_reward_at_least for one in refiner.sources.values()} or {refiner.skip_reward_at_least}
    said = []
    if len(maximals) == 1 and None not in maximals:
        said.append(f"responses with a reward of {maximals.pop():g} or more are not refined")
    if None in maximals:
        said.append("solved responses are refined too: set refiner.skip_reward_at_least to the highest reward")
    if most == 0:
        said.append("refiner.max_refinements_per_group=0: no response is refined, and nothing is constrained")
    if "sibling" in refiner.context and n == 1:
        said.append("refiner.context has sibling, but a prompt has one response")
    if most is not None and most >= n:
        said.append(f"refiner.max_refinements_per_group={most} limits nothing: a prompt has {n} responses")
    return said


def make_plan(
    config: DictConfig, blocks: RefinementConfig, *, tokenizer: Any, model_configs: Mapping[str, Any]
) -> Plan:
    """Derive the refiner's sizes.

    Args:
        config: The whole config, composed.
        blocks: This extension's part of it.
        tokenizer: The tokenizer of the policy, which the refiner shares.
        model_configs: Configs of the models by ``MODEL_KEY``, the keys of the refiners' models and, if one is trained,
            ``CRITIC_KEY``, as Hugging Face's ``PretrainedConfig`` (``verl_glue/model_configs.py``).
    """
    refiner, trainer = blocks.refiner, config.trainer
    read = _Reading.of(config, blocks, tokenizer)
    num_gpus = trainer.n_gpus_per_node * trainer.nnodes
    refiner_gpus = refiner.nnodes * (refiner.n_gpus_per_node or 0) or num_gpus
    found = {key: shapes.read(one.to_dict()) for key, one in model_configs.items()}
    hosted = [
        _hosted_model(config, use, read, model_configs[use.path_key], is_shared=blocks.is_shared)
        for use in refiner.models
    ]
    place(hosted, refiner_gpus)
    return Plan(
        hosted=hosted,
        prompt=read.prompt,
        prompts=read.prompts,
        in_place_tokens=read.in_place_tokens,
        refiner_gpus=refiner_gpus,
        num_gpus=num_gpus,
        model_configs=dict(model_configs),
        policy_shape=found[MODEL_KEY],
        critic_shape=found.get(CRITIC_KEY),
        gpu_memory=_gpu_memory(config, blocks),
    )


def _hosted_model(config: DictConfig, use: ModelUse, read: "_Reading", found: Any, *, is_shared: bool) -> HostedModel:
    """Return a model that has no place yet; ``found`` is its config."""
    max_positions = _num_positions(use.first, found)
    max_model_len = use.first.max_model_len or min(read.num_tokens(use, is_shared=is_shared), max_positions)
    longest_template = max(prompt.max_tokens(0, 0) for _, prompt in read.asked(use))
    return HostedModel(
        use=use,
        max_model_len=max_model_len,
        least_model_len=max(min(sum(read.lengths) + 1, max_positions), longest_template),
        max_positions=max_positions,
        model=model_config(config, use.path),
        rollout=rollout_config(config, use, max_model_len),
        shape=shapes.read(found.to_dict()),
        num_replicas=use.first.num_replicas or 0,
    )


def place(hosted: list[HostedModel], num_gpus: int) -> None:
    """Give each model its GPUs, larger replicas first so that each stays within a node.

    The common model gets the GPUs that are left, unless the config says how many replicas it has.
    """
    common, *others = hosted
    left = num_gpus - sum(one.num_replicas * one.replica_size for one in others)
    common.num_replicas = common.num_replicas or max(0, left // common.replica_size)
    first_gpu = 0
    for one in sorted(hosted, key=lambda one: -one.replica_size):
        one.first_gpu = first_gpu
        first_gpu += one.num_replicas * one.replica_size


@dataclass(slots=True, frozen=True, kw_only=True)
class _Reading:
    """What the refiner reads."""

    prompt: RefinerPrompt
    """The renderer of the prompts of the common refiner."""
    prompts: dict[str, RefinerPrompt]
    """The renderers of prompts for the data sources of ``refiner.by_source``."""
    lengths: tuple[int, int]
    """The largest numbers of tokens in a prompt and in a response."""
    in_place_tokens: int
    """The number of tokens of the longest prompt and response that are scored in place; 0: none are scored."""

    @classmethod
    def of(cls, config: DictConfig, blocks: RefinementConfig, tokenizer: Any) -> "_Reading":
        """Return what a run's refiner reads."""
        refiner, data = blocks.refiner, config.data
        lengths, settings = (data.max_prompt_length, data.max_response_length), data.apply_chat_template_kwargs
        thoughts = read_thoughts(tokenizer, settings, refiner.thoughts)
        longest = max(data.max_response_length, refiner.response_length)
        return cls(
            prompts={name: _prompt(config, one, tokenizer, thoughts, name) for name, one in refiner.sources.items()},
            prompt=_prompt(config, refiner, tokenizer, thoughts),
            lengths=lengths,
            in_place_tokens=blocks.constraint.companion(tokenizer, thoughts, settings, longest).scored_tokens(*lengths),
        )

    def asked(self, use: ModelUse) -> list[tuple[RefinerConfig, RefinerPrompt]]:
        """Return the settings by which a model is asked, each with the renderer of its prompts."""
        return [(one, self.prompts.get(source, self.prompt)) for source, one in use.settings.items()]

    def num_tokens(self, use: ModelUse, *, is_shared: bool) -> int:
        """Return the number of tokens of the longest prompt with its refinement."""
        needed = max(
            prompt.max_tokens(*self.lengths) + one.response_length + (one.longest_thought if prompt.thoughts else 0)
            for one, prompt in self.asked(use)
        )
        # With a shared refiner, the actor reads what is scored in place.
        return needed if is_shared else max(needed, self.in_place_tokens + 1)


def _num_positions(refiner: RefinerConfig, found: Any) -> int:
    """Return the number of tokens that the refiner's model can read, by its config or its text part's config.

    That of a model which is served elsewhere is known only there: it is as large as can be.
    """
    if isinstance(refiner, External):
        return sys.maxsize
    own = getattr(found, "max_position_embeddings", None)
    return int(found.text_config.max_position_embeddings if own is None else own)


def _prompt(
    config: DictConfig, one: RefinerConfig, tokenizer: Any, thoughts: Thoughts | None, source: str = ""
) -> RefinerPrompt:
    data = config.data
    try:
        return one.prompt(tokenizer, data.apply_chat_template_kwargs, thoughts, data.max_response_length)
    except ValueError as error:
        raise ValueError(f"refiner.by_source.{source}: {error}" if source else error) from error


def _gpu_memory(config: DictConfig, blocks: RefinementConfig) -> float | None:
    """Return the bytes of a GPU: as the config says, or this machine's smallest, asked without a context on it."""
    if blocks.sizing.gpu_memory_gib is not None:
        return blocks.sizing.gpu_memory_gib * GIB
    if config.trainer.device != "cuda" or shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]  # MiB, a line each
    answer = subprocess.run(command, capture_output=True, text=True).stdout.split()
    return min(map(float, answer)) * (1 << 20) if answer and all(line.isdigit() for line in answer) else None


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
