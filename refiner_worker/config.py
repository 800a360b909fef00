"""The typed ``refiner`` block of the config. Needs neither torch nor verl."""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from refiner_worker.drafts import Draft
from refiner_worker.prompts import Told

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

TEMPLATES = Path(__file__).parent / "templates"
MAX_FEEDBACK_TOKENS = 128
BLOCK: ConfigDict = {"extra": "forbid", "use_attribute_docstrings": True}
"""Of all blocks: a key that no field has is a mistake; the string below a field describes it."""


def from_key(key: str) -> Any:
    """Return the default of a field that is another key of the config, as Hydra writes it."""
    return f"${{{key}}}"


@dataclass(slots=True, kw_only=True, config=BLOCK)
class RefinerConfig:
    """Who refines, where and how."""

    model_path: str = from_key("actor_rollout_ref.model.path")
    """The reference model pi_0: a Hugging Face folder or hub id. Default: the actor's initial model."""
    placement: Literal["colocated", "dedicated", "shared", "external"] = "colocated"
    """Where pi_0 runs. ``colocated``: on the training GPUs. ``dedicated``: on its own GPUs. ``shared``: on the rollout
    servers; the policy is a LoRA on pi_0. ``external``: on servers that somebody else hosts (``url``)."""
    url: str | list[str] | None = None
    """Placement ``external``: the URL of an OpenAI-compatible server (``http://host:8000/v1``), or a list."""
    served_model_name: str | None = None
    """Placement ``external``: the model to ask for. Null: the first that the server lists."""
    api_key_env: str | None = None
    """Placement ``external``: the name of the environment variable with the key, on every node. Null: no key."""
    extra_body: dict[str, Any] | None = None
    """Placement ``external``: more fields of every request. Null as a value removes one: ``{temperature: null}``."""
    nnodes: int = 1
    """Placement ``dedicated``: number of nodes."""
    n_gpus_per_node: int | None = None
    """Placement ``dedicated``: GPUs on each node."""
    streaming: bool | None = None
    """Refine each group once its last response has its reward, during the rollout. Null: yes, unless ``colocated``."""
    num_replicas: Positive | None = None
    """Number of replicas. Null: as many as fit on the placement's GPUs."""
    template: str = "general"
    """Prompt template: ``general``, ``apps``, ``apps_paper``, ``math``, ``dialogue``, or your Jinja2 file."""
    in_place_template: str = "answer"
    """Target ``in_place``: what pi_0 reads before it scores the response. ``answer``: question and better answer.
    ``bare``: the prompt alone. ``other``: the answer to another problem, a control. Or your Jinja2 file."""
    context: list[Told] = Field(default=["feedback"])
    """What the refiner is also told, if the template shows it: ``feedback`` (the reward function's words), ``sibling``
    (the group's best response), ``solution``. A refiner that sees an answer copies it."""
    response_length: Positive = from_key("data.max_response_length")
    """Longest refinement in tokens, kept tokens included. A refinement cut here fails."""
    max_model_len: int | None = None
    """Context length of the refiner in tokens. Null: as long as needed."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Sampling temperature of the refiner; 0 is greedy."""
    skip_reward_at_least: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Do not refine responses with this reward or more. Set the maximal reward (APPS: 1.0)."""
    imitate_solved: bool = False
    """Mode ``sft``: a response that reaches ``skip_reward_at_least`` is its own refinement."""
    max_refinements_per_group: NotNegative | None = None
    """Refine at most this many responses to a prompt, the lowest rewards first. Null: all; 0: none."""
    keep_prefix: bool = False
    """Begin the refinement with the response's first tokens, as far as pi_0 would have written them."""
    draft: Draft | None = None
    """Speculative decoding for the refiner: ``ngram`` (lookup in its prompt) or ``suffix`` (package arctic-inference).
    Null: none. Not with placement ``shared``."""
    request_timeout_s: Seconds = 600
    """Seconds from sending a request to its reward; later refinements fail."""
    on_replica_death: Literal["restart", "continue", "stop"] = "restart"
    """What follows in the next step: ``restart`` the replica (the run ends if that fails), ``continue`` with the rest,
    or ``stop`` the run."""
    rollout: dict[str, Any] = Field(default_factory=dict)
    """Overrides of verl's rollout block for the replicas: engine arguments, memory, parallelism."""

    @property
    def is_dedicated(self) -> bool:
        """Whether the replicas have GPUs of their own."""
        return self.placement == "dedicated"

    @property
    def has_replicas(self) -> bool:
        """Whether the run hosts replicas of the reference model."""
        return self.placement in ("colocated", "dedicated")

    @property
    def urls(self) -> list[str]:
        """The servers that are asked by URL."""
        return [self.url] if isinstance(self.url, str) else self.url or []

    @property
    def streams(self) -> bool:
        """Whether responses are refined during the rollout."""
        may_choose = self.placement in ("dedicated", "external")
        return self.placement == "shared" or (may_choose and self.streaming is not False)

    def is_maximal(self, reward: float | None) -> bool:
        """Tell whether a reward cannot improve. verl keeps rewards in float32: 0.9 is less there than it is here."""
        if self.skip_reward_at_least is None or reward is None:
            return False
        return bool(np.float32(reward) >= np.float32(self.skip_reward_at_least))

    def limits(self, max_response_tokens: int) -> dict[str, int]:
        """Return how many tokens of each text of ``context`` the refiner is shown, at most."""
        limits = {
            "feedback": MAX_FEEDBACK_TOKENS,
            "sibling": max_response_tokens,
            "solution": self.response_length,
        }
        return {name: limits[name] for name in self.context}

    def template_path(self) -> Path:
        """Return the file of the prompt template.

        Raises:
            ValueError: If there is no such template.
        """
        return _template_path("template", self.template, TEMPLATES)

    def in_place_template_path(self) -> Path | None:
        """Return the file of the template for scoring in place; None: the bare prompt.

        Raises:
            ValueError: If there is no such template.
        """
        if self.in_place_template == "bare":
            return None
        return _template_path("in_place_template", self.in_place_template, TEMPLATES / "in_place", "bare")


def _template_path(key: str, name: str, folder: Path, *others: str) -> Path:
    packaged = folder / f"{name}.jinja"
    path = packaged if packaged.exists() else Path(name).expanduser()
    if not path.is_file():
        names = ", ".join(sorted([*others, *(file.stem for file in folder.glob("*.jinja"))]))
        raise ValueError(f"refiner.{key}={name}: no such file; set one of {names}, or a path")
    return path
