"""The typed ``refiner`` block of the config. This module needs neither torch nor verl."""

import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from omegaconf import DictConfig, OmegaConf
from pydantic import BeforeValidator, Field, PlainValidator
from pydantic.dataclasses import dataclass

from refiner_worker.engines import ENGINE
from refiner_worker.keys import BLOCK, NotNegative, Positive, Seconds, Source, from_key, nearest, read_keys, what_lacks
from refiner_worker.prompts import RefinerPrompt, Told
from refiner_worker.text.thoughts import Thoughts

TEMPLATES = Path(__file__).parent / "templates"
MAX_FEEDBACK_TOKENS = 128
MAX_GPU_MEMORY_UTILIZATION = 0.95
"""The largest share of a GPU's memory for all engines that are awake at the same time."""


BY_SOURCE = (
    "template",
    "context",
    "response_length",
    "thought_length",
    "temperature",
    "samples",
    "skip_reward_at_least",
    "max_refinements_per_group",
    "only_unsolved",
    "request_timeout_s",
)
"""Keys that may differ by data source."""
OF_SERVERS = ("url", "served_model_name", "api_key_env", "extra_body")
"""The keys of a data source's own servers."""
OF_MODELS = ("model_path", "num_replicas", "rollout", "max_model_len")
"""The keys of a data source's own model, which the run hosts."""
MAX_MODELS = 4
"""The largest number of models that a run hosts as refiners."""
ALIKE = "{} if nothing differs"
"""The entry of ``refiner.by_source`` for a source without differences, in words."""


def _marks(value: Any) -> Any:
    is_pair = isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) and one for one in value)
    if value is None or value is False or (is_pair and value[0] != value[1]):
        return value
    raise ValueError("set false, or two marks that differ, such as ['<think>','</think>']")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelUse:
    """A model that the run asks by itself, with the settings by which it is asked."""

    key: str
    """The block of the model's keys: ``refiner``, or ``refiner.by_source.SOURCE``."""
    settings: "dict[str, RefinerConfig]"
    """The settings by data source; the common settings have an empty name."""

    @property
    def first(self) -> "RefinerConfig":
        """The settings that have the keys of the model; other data sources with this model have equal ones."""
        return next(iter(self.settings.values()))

    @property
    def path(self) -> str:
        """The model's folder or hub id."""
        return self.first.model_path

    @property
    def path_key(self) -> str:
        """The key of the path."""
        return f"{self.key}.model_path"


@dataclass(kw_only=True, config=BLOCK)
class RefinerConfig:
    """The settings of the refiner. A subclass is a placement, with the keys that only this placement has."""

    has_replicas: ClassVar[bool] = False
    """Whether the run hosts replicas of the reference model."""
    nnodes: ClassVar[int] = 1
    n_gpus_per_node: ClassVar[int | None] = None
    num_replicas: ClassVar[int | None] = None
    rollout: ClassVar[dict[str, Any]] = {}
    streaming: ClassVar[bool] = False

    model_path: str = from_key("actor_rollout_ref.model.path")
    """The reference model pi_0: a Hugging Face folder or hub id."""
    placement: str = "colocated"
    """Where pi_0 runs. ``colocated``: on the training GPUs. ``dedicated``: on its own GPUs. ``shared``: on the rollout
    servers; the policy is a LoRA on pi_0. ``external``: on servers that somebody else hosts (``url``)."""
    template: str = "general"
    """Prompt template: a packaged one, by its name, or your Jinja2 file."""
    context: list[Told] = Field(default=["feedback"])
    """Texts that the refiner also reads, if the template shows them: ``feedback`` (the reward function's), ``sibling``
    (the group's best response), ``solution``."""
    response_length: Positive = from_key("data.max_response_length")
    """Longest refinement in tokens, the response's own thought included. A refinement cut here fails."""
    thoughts: Annotated[Literal[False] | list[str] | None, PlainValidator(_marks)] = None
    """The opening and the closing mark of a thought. False: the model does not think, and marks are text. Null: as in
    the model's chat template."""
    thought_length: Positive | None = None
    """Longest thought of the refiner, in tokens. Null: as long as a refinement, or what the context leaves."""
    rewrites: Literal["answer", "response"] = "answer"
    """The part of a response with a thought that is refined: the ``answer``, after the same thought, or all
    (``response``)."""
    reject_leaks: bool = True
    """Whether a refinement fails (``leak``) if it mentions the refiner's prompt, the feedback, the reward or an earlier
    answer, by a heuristic for English."""
    max_model_len: Positive | None = None
    """Context length of the refiner in tokens. Null: as long as needed."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature of the refiner, at most 2, as in vLLM; 0 is greedy."""
    samples: Positive = 1
    """Number of refinements that one request draws. The one with the highest reward is used, at a tie the nearest to
    the response. A number above 1 needs a temperature above 0."""
    skip_reward_at_least: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Do not refine responses with this reward or more. Set the maximal reward (APPS: 1.0)."""
    max_refinements_per_group: NotNegative | None = None
    """Refine at most this many responses to a prompt, the lowest rewards first. Null: all; 0: none."""
    only_unsolved: bool = False
    """Refine only the responses to prompts that no response solves: none reaches ``skip_reward_at_least``."""
    budget: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The largest share of all tokens generated in a run that refinements may have. Responses similar to those whose
    refinements were accepted lately are refined first. It does not work while streaming. Null: no limit."""
    request_timeout_s: Seconds = 600
    """Seconds from sending a request to its reward; later refinements fail."""
    by_source: dict[Source, dict[str, Any]] | None = None
    """The keys that differ for each ``data_source``: ``{gsm8k: {template: math}, apps: {}}``. Every source must be
    named. A source may have a model of its own (``model_path``) or servers (``url``). Null: nothing differs."""

    sources: "dict[str, RefinerConfig]" = field(init=False, default_factory=dict, repr=False)
    """The settings of each data source that ``by_source`` names; ``read_refiner`` reads them."""

    @property
    def own_servers(self) -> "dict[str, External]":
        """The settings of those data sources that have servers of their own."""
        has = {source for source, own in (self.by_source or {}).items() if own.keys() & {*OF_SERVERS}}
        return {source: one for source, one in self.sources.items() if source in has and isinstance(one, External)}

    @property
    def models(self) -> list[ModelUse]:
        """The models that the run asks by itself, the common one first; servers by URL are not among them."""
        found = {self.model_path: ModelUse(key="refiner", settings={"": self})}
        for source, one in self.sources.items():
            if source not in self.own_servers:
                use = ModelUse(key=f"refiner.by_source.{source}", settings={})
                found.setdefault(one.model_path, use).settings[source] = one
        return list(found.values())

    @property
    def longest_thought(self) -> int:
        """The largest number of tokens of a thought."""
        return self.thought_length or self.response_length

    @property
    def is_greedy(self) -> bool:
        """Whether a prompt has only one answer, because requests have temperature 0."""
        return self.temperature == 0

    @property
    def is_dedicated(self) -> bool:
        """Whether the replicas have their own GPUs."""
        return self.placement == "dedicated"

    def hosting_fault(self, config: DictConfig) -> str | None:
        """Return one line if the run cannot host this refiner's replicas: what is wrong, which key to set."""
        return None

    def refusal(self, config: DictConfig, blocks: Any) -> str | None:
        """Return one line if the placement does not go with the rest of the config: what is wrong, which key to set.

        ``blocks`` is this extension's part of the config (``RefinementConfig``).

        Raises:
            ValueError: If there is no such template.
        """
        self.template_path()
        model = config.reward.reward_model
        if blocks.streams and model.enable and not model.enable_resource_pool:
            return (
                "a colocated reward model sleeps during the rollout, where a streaming refiner scores refinements; set "
                "reward.reward_model.enable_resource_pool=true, or refiner.placement=colocated"
            )
        if blocks.streams and self.budget is not None:
            return (
                "refiner.budget compares all responses of a step, and a streaming refiner does not wait for them: set "
                "refiner.streaming=false (refiner.placement=shared always streams)"
            )
        for use in self.models[1:]:
            if not any(map(blocks.constraint.is_refined, use.settings)):
                return (
                    f"{use.path_key}={use.path} would take GPUs for nothing, as the weight of its data sources is 0; "
                    f"leave {use.path_key} out, or change constraint.by_source"
                )
        for source, one in self.sources.items():
            if said := self._wrong_with(one, config, blocks):
                return f"refiner.by_source.{source}: {said}"
        return None

    def _wrong_with(self, one: "RefinerConfig", config: DictConfig, blocks: Any) -> str | None:
        """Return what is wrong with the settings of a data source, or None."""
        if one.response_length > self.response_length:
            return (
                f"response_length={one.response_length} is more than refiner.response_length={self.response_length}, "
                "for which memory is planned; raise that one"
            )
        if isinstance(one, External) and not isinstance(self, External) and blocks.constraint.asks_log_probs:
            return "no server gives log-probs by URL; set constraint.target=rewrite"
        try:
            return one.refusal(config, blocks)
        except ValueError as error:  # there is no such template
            return str(error)

    def is_maximal(self, reward: float | None) -> bool:
        """Return whether a reward cannot improve."""
        if self.skip_reward_at_least is None or reward is None:
            return False
        return bool(np.float32(reward) >= np.float32(self.skip_reward_at_least))  # NaN is not

    def prompt(
        self, tokenizer: Any, chat_settings: Mapping[str, Any] | None, thoughts: Thoughts | None, longest: int
    ) -> RefinerPrompt:
        """Return the prompt's renderer for responses of at most ``longest`` tokens; arguments as in RefinerPrompt."""
        most = {"feedback": MAX_FEEDBACK_TOKENS, "sibling": longest, "solution": self.response_length}
        limits: dict[str, int] = {name: most[name] for name in self.context}
        return RefinerPrompt(self.template_path(), tokenizer, chat_settings, limits, thoughts)

    def template_path(self) -> Path:
        """Return the file of the prompt template.

        Raises:
            ValueError: If there is no such template.
        """
        return template_path("refiner.template", self.template, TEMPLATES)


@dataclass(kw_only=True, config=BLOCK)
class Hosted(RefinerConfig):
    """A placement with its own replicas."""

    has_replicas: ClassVar[bool] = True

    num_replicas: Positive | None = None  # type: ignore[misc]  # the other placements have none
    """Number of replicas. Null: as many as fit on the placement's GPUs."""
    rollout: dict[str, Any] = Field(default_factory=dict)  # type: ignore[misc]
    """Overrides of verl's rollout block for the replicas: engine arguments, memory, parallelism."""

    def hosting_fault(self, config: DictConfig) -> str | None:
        """Return one line if the replicas' engine is not vLLM."""
        engine = self.rollout.get("name") or OmegaConf.select(
            config.actor_rollout_ref.rollout, "name", throw_on_missing=False
        )
        if engine == ENGINE:
            return None
        return (
            f"a hosted refiner runs on {ENGINE}, not on {engine}, which cannot be installed beside it; serve the "
            "refiner by URL: refiner.placement=external refiner.url=http://host:8000/v1"
        )

    def refusal(self, config: DictConfig, blocks: Any) -> str | None:
        """Return one line if the run needs replicas and cannot host them."""
        line = self.hosting_fault(config) if blocks.hosts_refiner else None
        return line or super().refusal(config, blocks)


@dataclass(kw_only=True, config=BLOCK)
class Colocated(Hosted):
    """A refiner on the training GPUs, awake for the refine stage only."""

    def hosting_fault(self, config: DictConfig) -> str | None:
        """Return one line if the training GPUs have no time for a refiner."""
        if config.trainer.v1.trainer_mode == "separate_async":
            return (
                f"refiner.placement={self.placement} with trainer.v1.trainer_mode=separate_async, whose pools never "
                "share GPUs; set refiner.placement=dedicated refiner.n_gpus_per_node=1, or refiner.placement=external"
            )
        return super().hosting_fault(config)

    def refusal(self, config: DictConfig, blocks: Any) -> str | None:
        """Return one line if a reward model, awake at the same time, leaves too little memory."""
        key, reward, rollout = "gpu_memory_utilization", config.reward.reward_model, config.actor_rollout_ref.rollout
        total = self.rollout.get(key, rollout[key]) + reward.rollout[key]
        is_beside = blocks.refines and reward.enable and not reward.enable_resource_pool
        if is_beside and config.trainer.device != "cpu" and total > MAX_GPU_MEMORY_UTILIZATION:
            return (
                f"{key} of refiner.rollout and of reward.reward_model.rollout are {total:g} of a GPU together; "
                f"lower the sum to {MAX_GPU_MEMORY_UTILIZATION}, or set reward.reward_model.enable_resource_pool=true"
            )
        return super().refusal(config, blocks)


@dataclass(kw_only=True, config=BLOCK)
class Dedicated(Hosted):
    """A refiner on its own GPUs, always awake."""

    n_gpus_per_node: Positive = Field()  # type: ignore[misc]
    """GPUs on each node."""
    nnodes: Positive = 1  # type: ignore[misc]
    """Number of nodes."""
    streaming: bool = True  # type: ignore[misc]
    """Refine each group once its last response has its reward, during the rollout."""


@dataclass(kw_only=True, config=BLOCK)
class Shared(RefinerConfig):
    """A refiner on the rollout's servers, asked without the policy's adapter; they sleep after the rollout."""

    streaming: ClassVar[bool] = True

    def refusal(self, config: DictConfig, blocks: Any) -> str | None:
        """Return one line if the rollout's servers are not pi_0 without their adapter, or are interrupted."""
        model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
        if not (blocks.hosts_refiner or blocks.measures_kl_by_actor):
            return super().refusal(config, blocks)
        wanted = {
            "actor_rollout_ref.model.lora_rank above 0 (Megatron's lora.rank is not tried)": model.lora_rank > 0,
            "actor_rollout_ref.model.lora_adapter_path=null": model.lora_adapter_path is None,
            "actor_rollout_ref.model.lora.merge=false": not OmegaConf.select(model, "lora.merge"),
            f"refiner.model_path={model.path} (the actor's)": self.model_path == model.path,
            f"actor_rollout_ref.rollout.name={ENGINE}": rollout.name == ENGINE,
            "actor_rollout_ref.rollout.disaggregation.enabled=false": not rollout.disaggregation.enabled,
            "actor_rollout_ref.rollout.quantization=null": rollout.quantization is None,
            "actor_rollout_ref.rollout.qat=null": not OmegaConf.select(rollout, "qat.enable"),
            "trainer.v1.trainer_mode=sync (others interrupt these servers in every step)": (
                config.trainer.v1.trainer_mode == "sync" or not blocks.refines
            ),
        }
        lacking = what_lacks("refiner.placement=shared needs a LoRA policy on the reference model", wanted)
        return lacking or super().refusal(config, blocks)


@dataclass(kw_only=True, config=BLOCK)
class External(RefinerConfig):
    """A refiner on servers that somebody else hosts."""

    url: Annotated[list[str], BeforeValidator(lambda url: [url] if isinstance(url, str) else url)]
    """The URL of an OpenAI-compatible server (``http://host:8000/v1``), or a list."""
    served_model_name: str | None = None
    """The model to ask for. Null: the first that the server lists."""
    api_key_env: str | None = None
    """The name of the environment variable with the key, on every node. Null: no key."""
    extra_body: dict[str, Any] | None = None
    """More fields of every request; they override other keys. Null as a value removes one: ``{temperature: null}``."""
    streaming: bool = True  # type: ignore[misc]
    """Refine each group once its last response has its reward, during the rollout."""

    @property
    def is_greedy(self) -> bool:
        """Whether a prompt has only one answer; ``extra_body`` may override or remove the temperature."""
        return {"temperature": self.temperature, **(self.extra_body or {})}["temperature"] == 0

    def fault_of_url(self) -> str | None:
        """Return one line if a URL is none, or the key would be in a log."""
        if not self.url:
            return "refiner.placement=external: set refiner.url, such as http://host:8000/v1"
        key = secret(self.api_key_env)
        if any(re.search(r"[\s;?#@]", url) or (key and key in url) for url in self.url):
            return (
                "refiner.url holds more than host and path: a key goes into the variable that refiner.api_key_env names"
            )
        for url in self.url:
            if not re.match("https?://[^/:]", url, re.IGNORECASE):
                return f"refiner.url={url} is no address of a server; set it to such as http://host:8000/v1"
        if self.api_key_env is not None and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            return (
                "refiner.api_key_env takes the name of an environment variable, such as OPENAI_API_KEY; never the key"
            )
        return None

    def refusal(self, config: DictConfig, blocks: Any) -> str | None:
        """Return one line if a URL is none, or the key would be in a log."""
        if line := self.fault_of_url():
            return line
        if self.model_path not in (config.actor_rollout_ref.model.path, from_key("actor_rollout_ref.model.path")):
            return "refiner.model_path is not read: the server's model is refiner.served_model_name; leave it out"
        variables = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
        key = secret(self.api_key_env)
        if self.api_key_env in variables or (key and key in map(str, variables.values())):
            return "ray_kwargs.ray_init.runtime_env.env_vars has the key, and is logged: set it on every node instead"
        return super().refusal(config, blocks)


PLACEMENTS: dict[str, type[RefinerConfig]] = {
    "colocated": Colocated,
    "dedicated": Dedicated,
    "shared": Shared,
    "external": External,
}
"""The placements by ``refiner.placement``."""


def read_refiner(values: dict[str, Any]) -> RefinerConfig:
    """Return the refiner's settings from the block ``refiner``; null stands for a default.

    Raises:
        ValueError: If there is no such placement, a key is not one of the placement's, a value is wrong, or all of
            several refinements would be the same, or nothing tells which prompts are solved.
    """
    given = {key: value for key, value in values.items() if value is not None and value != {}}
    placement = str(given.get("placement", "colocated"))
    if placement not in PLACEMENTS:
        meant = nearest(placement, PLACEMENTS)
        raise ValueError(f"refiner.placement={placement}: set one of {', '.join(PLACEMENTS)}{meant}")
    refiner = read_keys("refiner", PLACEMENTS[placement], given, f"refiner.placement={placement}")
    refiner.sources = {source: _read_source(refiner, source, own) for source, own in (refiner.by_source or {}).items()}
    of_sources = {f"refiner.by_source.{source}": one for source, one in refiner.sources.items()}
    for key, one in {"refiner": refiner, **of_sources}.items():
        if one.samples > 1 and one.is_greedy:
            form = "{}.temperature={}" if one.temperature == 0 else "{}.extra_body={{temperature: {}}}"
            said = f"{key}.samples={one.samples}: at {form.format(key, 0)} all are the same"
            raise ValueError(f"{said}; set {form.format(key, 1)}")
        if one.only_unsolved and one.skip_reward_at_least is None:
            said = f"{key}.only_unsolved=true: nothing tells which prompts are solved"
            raise ValueError(f"{said}; set {key}.skip_reward_at_least to the highest reward")
    _check_models(refiner)
    return refiner


def _check_models(refiner: RefinerConfig) -> None:
    """Check that there are not too many models, and that sources with one model have one value of each of its keys.

    Raises:
        ValueError: If not.
    """
    if len(refiner.models) > MAX_MODELS:
        raise ValueError(
            f"refiner.by_source: the run would host {len(refiner.models)} models as refiners, and at most {MAX_MODELS} "
            "are possible; let sources share a model, or serve one elsewhere and set its url"
        )
    for use in refiner.models[1:]:
        for source, one in use.settings.items():
            for name in OF_MODELS:
                if (value := getattr(one, name)) != (other := getattr(use.first, name)):
                    raise ValueError(
                        f"refiner.by_source.{source}.{name}={value}, but {use.key}.{name}={other} of the same model "
                        f"({use.path}); set both alike"
                    )


def _read_source(refiner: RefinerConfig, source: str, own: dict[str, Any]) -> RefinerConfig:
    """Return the settings of a data source: the common ones, with the source's own in their place.

    Raises:
        ValueError: If a key cannot differ by source, or a value is wrong.
    """
    key, known = f"refiner.by_source.{source}", (*BY_SOURCE, *OF_SERVERS, *OF_MODELS)
    for name in own:
        if name not in known:
            said = f"{key}.{name}: this key cannot differ by source; those that can are: {', '.join(known)}"
            raise ValueError(said + nearest(name, known))
        if name in OF_SERVERS and "url" not in own and not isinstance(refiner, External):
            raise ValueError(f"{key}.{name} is of a server by URL: set {key}.url as well")
        if name in OF_MODELS and "model_path" not in own:
            raise ValueError(f"{key}.{name} is of a model of the source's own: set {key}.model_path as well")
    if "model_path" in own and (line := _wrong_with_model(refiner, own)):
        raise ValueError(f"{key}.model_path={own['model_path']}: {line}")
    if "url" not in own:
        common = {one.name: getattr(refiner, one.name) for one in fields(refiner) if one.init}
        common |= {"num_replicas": 1} if "model_path" in own else {}
        return read_keys(key, type(refiner), {**common, **own, "by_source": None}, key)
    common = {name: getattr(refiner, name) for name in (*BY_SOURCE, "thoughts", "rewrites", "reject_leaks")}
    # Only the server knows how long its context is.
    return read_keys(key, External, {**common, **own, "placement": "external", "max_model_len": sys.maxsize}, key)


def _wrong_with_model(refiner: RefinerConfig, own: dict[str, Any]) -> str | None:
    """Return what is wrong with a source's own model, and what to set; None if it can be hosted."""
    if "url" in own:
        return "a source's refiner is a hosted model or a server by URL; leave out model_path or url"
    if not isinstance(refiner, Dedicated):
        return (
            f"refiner.placement={refiner.placement} hosts one model; set refiner.placement=dedicated "
            "refiner.n_gpus_per_node=2, or serve the model elsewhere and set url in its place"
        )
    if own["model_path"] == refiner.model_path:
        return "this is the common model; leave model_path out"
    return None


def secret(api_key_env: str | None) -> str:
    """Return the key that an environment variable has; empty if there is none."""
    return os.environ.get(api_key_env or "", "").strip()


def template_path(key: str, name: str, folder: Path) -> Path:
    """Return the file of a template: one of a folder by its name, or another one by its path.

    Raises:
        ValueError: If there is no such file.
    """
    packaged = folder / f"{name}.jinja"
    path = packaged if packaged.exists() else Path(name).expanduser()
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in folder.glob("*.jinja")))
        raise ValueError(f"{key}={name}: no such file; set one of {names}, or a path")
    return path
