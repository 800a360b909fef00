"""The typed ``refiner`` block of the config. Needs neither torch nor verl."""

from pathlib import Path
from typing import Annotated, Any, Literal

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
    placement: Literal["colocated", "dedicated", "shared"] = "colocated"
    """Where its replicas live. ``colocated``: on the training GPUs, awake only during the refine stage. ``dedicated``:
    on GPUs of their own, always awake. ``shared``: none of its own; the policy is a LoRA on pi_0, and its rollout
    servers are asked without the adapter."""
    nnodes: int = 1
    """Placement ``dedicated``: its nodes."""
    n_gpus_per_node: int | None = None
    """Placement ``dedicated``: its GPUs on each node."""
    streaming: bool | None = None
    """Refine each response as soon as it is rewarded, while others are still being written. Null: where the refiner is
    awake then (``dedicated``, ``shared``)."""
    num_replicas: Positive | None = None
    """Replicas. Default: as many as fit on the GPUs of the placement."""
    template: str = "general"
    """Prompt template: ``general``, ``apps``, ``apps_paper``, ``math``, ``dialogue``, or a Jinja2 file of your own."""
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
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling of the refiner, in (0, 1]."""
    skip_reward_at_least: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Responses with this reward or more are not refined: a maximal reward cannot improve (APPS: 1.0)."""
    groups: Literal["all", "unsolved"] = "all"
    """Whose responses are refined: those of ``all`` groups, or of ``unsolved`` ones, in which no response has
    ``skip_reward_at_least``: there a refinement brings what the group lacks."""
    use_solved_sibling: bool = False
    """In a group with a response of ``skip_reward_at_least``, that is the refinement of the others. It costs nothing;
    of several each serves in turn."""
    imitate_solved: bool = False
    """A response of ``skip_reward_at_least`` is its own refinement, in mode ``sft``: the likelihood of what the policy
    solved itself. With ``max_refinements_per_group=0`` a control that shows what is owed to the refiner."""
    max_refinements_per_group: NotNegative | None = None
    """Refine at most so many responses to one prompt; null: all, 0: none."""
    group_choice: Literal["lowest", "random"] = "lowest"
    """Which of them, if there are more: those with the ``lowest`` rewards, or ``random`` ones."""
    block: Literal["token", "line", "sentence", "paragraph"] | None = None
    """Refine block-wise: what stands before a ``token``, ``line``, ``sentence`` or ``paragraph`` of the response is
    kept as the beginning of the refiner's own answer, which only goes on from there. Null: it writes everything."""
    block_choice: Literal["first_failure", "refiner", "uncertainty", "random"] = "first_failure"
    """Which block: the ``first_failure`` that the reward tells of (``first_error``; none told: all is written), the one
    in which the ``refiner`` would depart from the response itself (one more prefill), the one that the policy wrote
    with the largest ``uncertainty`` (mean of -log p), or a ``random`` one."""
    n: Positive = 1
    """Refinements drawn of one response, of which the best is kept; the draws end early at ``skip_reward_at_least``."""
    draft: Draft | None = None
    """Speculative decoding for the refiner alone: draft by ``ngram`` lookup in its prompt, or by ``suffix`` trees (with
    the package arctic-inference); null: none. Not with placement ``shared``, whose servers are the policy's."""
    num_draft_tokens: Positive = 8
    """Tokens of a draft, at most."""
    max_requests_in_flight: Annotated[int, Field(ge=1, le=450)] = 256
    """Requests that may be under way at once, per replica; more wait. The processes of a streaming run share them. At
    most 450: Ray lets a server have 1,000 calls at a time, and an asynchronous trainer's may be of two steps."""
    request_timeout_s: Seconds = 600
    """A refinement that is not there so many seconds after its request was sent, its reward included, is failed."""
    on_replica_death: Literal["restart", "continue", "stop"] = "restart"
    """What follows in the next step: ``restart`` it (and end the run if that fails), ``continue`` with those that are
    left, in the end without refinements, or ``stop`` the run. The step in which it dies loses its refinements only."""
    restart_timeout_s: Seconds = 900
    """Seconds that a replica may take to start anew and load its model, before the run ends: the GPUs of a node that is
    lost may never come back."""
    num_workers: Positive | None = None
    """Processes without GPUs, over all nodes, that render, parse, score and record refinements. Default: as many as
    verl has agent loop workers (``actor_rollout_ref.rollout.agent.num_workers``)."""
    rollout: dict[str, Any] = Field(default_factory=dict)
    """Overrides of verl's rollout block for the refiner's replicas (engine arguments, memory, parallelism)."""

    @property
    def is_dedicated(self) -> bool:
        """Whether the replicas have GPUs of their own."""
        return self.placement == "dedicated"

    @property
    def streams(self) -> bool:
        """Whether responses are refined during the rollout."""
        return self.placement == "shared" or (self.is_dedicated and self.streaming is not False)

    @property
    def needs_log_probs(self) -> bool:
        """Whether the choice of a block reads those of the policy that wrote it."""
        return self.block is not None and self.block_choice == "uncertainty"

    @property
    def reads_responses(self) -> bool:
        """Whether the choice of a block reads the refiner's own log-probs of the response."""
        return self.block is not None and self.block_choice == "refiner"

    def is_maximal(self, reward: float | None) -> bool:
        """Tell whether a reward cannot improve."""
        return self.skip_reward_at_least is not None and reward is not None and reward >= self.skip_reward_at_least

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
        packaged = TEMPLATES / f"{self.template}.jinja"
        path = packaged if packaged.exists() else Path(self.template).expanduser()
        if not path.is_file():
            names = ", ".join(sorted(file.stem for file in TEMPLATES.glob("*.jinja")))
            raise ValueError(f"refiner.template={self.template}: no such file; set one of {names}, or a path")
        return path
