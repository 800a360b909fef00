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
    """Hugging Face folder or hub id of the reference model pi_0. Default: the actor's initial model."""
    placement: Literal["colocated", "dedicated", "shared", "external"] = "colocated"
    """Where its replicas live. ``colocated``: on the training GPUs, awake only during the refine stage. ``dedicated``:
    on GPUs of their own, always awake. ``shared``: none of its own; the policy is a LoRA on pi_0, and its rollout
    servers are asked without the adapter. ``external``: nowhere here; servers that somebody else hosts are asked by
    ``url``."""
    url: str | list[str] | None = None
    """Placement ``external``: the base URL of an OpenAI-compatible server (``http://host:8000/v1``), or of several."""
    served_model_name: str | None = None
    """Placement ``external``: the model to ask for. Null: the first that the server lists."""
    api_key_env: str | None = None
    """Placement ``external``: the name of the environment variable that holds the key, on every node. Null: no key."""
    extra_body: dict[str, Any] | None = None
    """Placement ``external``: further fields of every request, such as ``{reasoning_effort: low}``; a null takes out
    one that is sent (``{temperature: null}``)."""
    nnodes: int = 1
    """Placement ``dedicated``: its nodes."""
    n_gpus_per_node: int | None = None
    """Placement ``dedicated``: its GPUs on each node."""
    streaming: bool | None = None
    """Refine each group as soon as its last response is rewarded, while others are still being written. Null: where the
    refiner is awake then (``dedicated``, ``shared``, ``external``)."""
    num_replicas: Positive | None = None
    """Replicas. Default: as many as fit on the GPUs of the placement."""
    template: str = "general"
    """Prompt template: ``general``, ``apps``, ``apps_paper``, ``math``, ``dialogue``, or a Jinja2 file of your own."""
    in_place_template: str = "answer"
    """With ``constraint.target=in_place``: what the reference model reads before it scores the response. ``answer``
    (question and better answer), ``bare`` (the prompt alone: static KL), ``other`` (the answer to another problem, a
    control), or a Jinja2 file of your own."""
    context: list[Told] = Field(default=["feedback"])
    """What the refiner is told beside question, response and reward, as far as its template shows it: ``feedback``
    (the reward function's words on the response, its extra info ``feedback``), ``sibling`` (the best response of the
    group, if that is better) and ``solution`` (the data set's: ``extra_info.solution`` or ``answer``, else the ground
    truth). A refiner that is shown an answer copies it: see the metric ``refiner/copied``."""
    response_length: Positive = from_key("data.max_response_length")
    """Longest refinement, in tokens, what is kept of the response included; one that is cut by this limit is failed.
    It may be longer than a response. Default: the longest response."""
    max_model_len: int | None = None
    """Context length of the refiner, in tokens. Default: template + prompt + response + refinement."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Sampling temperature of the refiner; 0 is greedy."""
    skip_reward_at_least: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Responses with this reward or more are not refined: a maximal reward cannot improve (APPS: 1.0)."""
    imitate_solved: bool = False
    """A response of ``skip_reward_at_least`` is its own refinement, in mode ``sft``: the likelihood of what the policy
    solved itself. With ``max_refinements_per_group=0`` a control that shows what is owed to the refiner."""
    max_refinements_per_group: NotNegative | None = None
    """Refine at most so many responses to one prompt, those with the lowest rewards; null: all, 0: none."""
    keep_prefix: bool = False
    """Begin the refiner's answer with the tokens of the response that pi_0 would have written itself, and let it only
    go on from there: each is kept with pi_0's own probability. One more prefill, about half of the decoded tokens."""
    draft: Draft | None = None
    """Speculative decoding for the refiner alone: draft by ``ngram`` lookup in its prompt, or by ``suffix`` trees (with
    the package arctic-inference); null: none. Not with placement ``shared``, whose servers are the policy's."""
    request_timeout_s: Seconds = 600
    """A refinement that is not there so many seconds after its request was first sent, its reward included, is
    failed."""
    on_replica_death: Literal["restart", "continue", "stop"] = "restart"
    """What follows in the next step: ``restart`` it (and end the run if that fails), ``continue`` with those that are
    left, in the end without refinements, or ``stop`` the run. The step in which it dies loses its refinements only."""
    rollout: dict[str, Any] = Field(default_factory=dict)
    """Overrides of verl's rollout block for the refiner's replicas (engine arguments, memory, parallelism)."""

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
