"""The typed ``refiner`` block of the config. Needs neither torch nor verl."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refiner_worker.drafts import DRAFTS
from refiner_worker.prompts import TOLD

CHOICES: dict[str, tuple[str | None, ...]] = {
    "placement": ("colocated", "dedicated", "shared"),
    "groups": ("all", "unsolved"),
    "group_choice": ("lowest", "random"),
    "block": ("line", "sentence", "paragraph", None),
    "block_choice": ("first_failure", "uncertainty", "random"),
    "draft": (*DRAFTS, None),
    "on_replica_death": ("restart", "continue", "stop"),
}
LEAST = {
    "num_replicas": (1, "as many as fit"),
    "max_new_tokens": (1, ""),
    "temperature": (0, ""),
    "max_refinements_per_group": (0, "all"),
    "num_candidates": (1, ""),
    "num_draft_tokens": (1, ""),
    "num_kl_rollouts": (0, "the default"),
    "num_workers": (1, "the default"),
}
"""The least value of a number, and what null stands for where it may be null."""

TEMPLATES = Path(__file__).parent / "templates"
MAX_FEEDBACK_TOKENS = 128


@dataclass(slots=True, kw_only=True)
class RefinerConfig:
    """Who refines, where and how. Defaults stand in ``recipe/online_refiner/config/refinement/online.yaml``."""

    model_path: str
    """Hugging Face folder or hub id of the reference model pi_0. Default: the actor's initial model."""
    placement: str
    """Where its replicas live. ``colocated``: on the training GPUs, awake only during the refine stage. ``dedicated``:
    on GPUs of their own, always awake. ``shared``: none of its own; the policy is a LoRA on pi_0, and its rollout
    servers are asked without the adapter."""
    nnodes: int
    """Placement ``dedicated``: its nodes."""
    n_gpus_per_node: int | None
    """Placement ``dedicated``: its GPUs on each node."""
    streaming: bool | None
    """Refine each response as soon as it is rewarded, while others are still being written. Null: where the refiner is
    awake then (``dedicated``, ``shared``)."""
    num_replicas: int | None
    """Replicas. Default: as many as fit on the GPUs of the placement."""
    template: str
    """Prompt template: ``general``, ``apps``, ``apps_paper``, ``math``, ``dialogue``, or a Jinja2 file of your own."""
    context: list[str]
    """What the refiner is told beside question, response and reward, as far as its template shows it: ``feedback``
    (the reward function's words on the response, its extra info ``feedback``), ``sibling`` (the best response of the
    group, if that is better) and ``solution`` (the data set's: ``extra_info.solution`` or ``answer``, else the ground
    truth). A refiner that is shown an answer copies it: see the metric ``refiner/copied``."""
    max_new_tokens: int
    """Longest refinement, in tokens, what is kept of the response included; one that is cut by this limit is failed.
    It may be longer than a response. Default: the longest response."""
    max_model_len: int | None
    """Context length of the refiner, in tokens. Default: template + prompt + response + refinement."""
    temperature: float
    """Sampling temperature of the refiner; 0 is greedy."""
    top_p: float
    """Nucleus sampling of the refiner, in (0, 1]."""
    skip_reward_at_least: float | None
    """Responses with this reward or more are not refined: a maximal reward cannot improve (APPS: 1.0)."""
    groups: str
    """Whose responses are refined: those of ``all`` groups, or of ``unsolved`` ones, in which no response has
    ``skip_reward_at_least``: there a refinement brings what the group lacks."""
    use_solved_sibling: bool
    """In a group with a response of ``skip_reward_at_least``, that is the refinement of the others. It costs nothing;
    of several each serves in turn."""
    imitate_solved: bool
    """A response of ``skip_reward_at_least`` is its own refinement, in mode ``sft``: the likelihood of what the policy
    solved itself. With ``max_refinements_per_group=0`` a control that shows what is owed to the refiner."""
    max_refinements_per_group: int | None
    """Refine at most so many responses to one prompt; null: all, 0: none."""
    group_choice: str
    """Which of them, if there are more: those with the ``lowest`` rewards, or ``random`` ones."""
    block: str | None
    """Refine block-wise: what stands before a ``line``, ``sentence`` or ``paragraph`` of the response is kept as the
    beginning of the refiner's own answer, which only goes on from there. Null: it writes everything."""
    block_choice: str
    """Which block: the ``first_failure`` that the reward tells of (``first_error``; none told: all is written), the one
    that the policy wrote with the largest ``uncertainty`` (mean of -log p), or a ``random`` one."""
    num_candidates: int
    """Refinements drawn of one response, of which the best is kept; the draws end early at ``skip_reward_at_least``."""
    draft: str | None
    """Speculative decoding for the refiner alone: draft by ``ngram`` lookup in its prompt, or by ``suffix`` trees (with
    the package arctic-inference); null: none. Not with placement ``shared``, whose servers are the policy's."""
    num_draft_tokens: int
    """Tokens of a draft, at most."""
    max_requests_in_flight: int
    """Requests that may be under way at once, per replica; more wait. The processes of a streaming run share them. At
    most 450: Ray lets a server have 1,000 calls at a time, and an asynchronous trainer's may be of two steps."""
    request_timeout_s: float
    """A refinement that is not there so many seconds after its request was sent, its reward included, is failed."""
    on_replica_death: str
    """What follows in the next step: ``restart`` it (and end the run if that fails), ``continue`` with those that are
    left, in the end without refinements, or ``stop`` the run. The step in which it dies loses its refinements only."""
    restart_timeout_s: float
    """Seconds that a replica may take to start anew and load its model, before the run ends: the GPUs of a node that is
    lost may never come back."""
    num_kl_rollouts: int | None
    """Responses a step, at most, on which KL(pi_theta || pi_0) is measured with the refiner; 0: none. Default: 64, but
    none where ``constraint.mode=none``, so that such a run has no second model.
    Where verl has a reference worker (static KL), its log-probs of all responses are used instead; with placement
    ``shared`` the actor's without its adapter."""
    num_workers: int | None
    """Processes without GPUs, over all nodes, that render, parse, score and record refinements. Default: as many as
    verl has agent loop workers (``actor_rollout_ref.rollout.agent.num_workers``)."""
    rollout: dict[str, Any]
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

    def is_maximal(self, reward: float | None) -> bool:
        """Tell whether a reward cannot improve."""
        return self.skip_reward_at_least is not None and reward is not None and reward >= self.skip_reward_at_least

    def validate(self) -> None:
        """Check what can be checked without the model.

        Raises:
            ValueError: Naming the key and what to set.
        """
        for key, known in CHOICES.items():
            if getattr(self, key) not in known:
                names = ", ".join(name for name in known if name) + (", or null" if None in known else "")
                raise ValueError(f"refiner.{key}={getattr(self, key)} does not exist; set one of: {names}")
        self._validate_placement()
        for key, (least, default) in LEAST.items():
            value = getattr(self, key)
            if value is not None and value < least:
                or_null = default and f", or null for {default}"
                raise ValueError(f"refiner.{key}={value}: set {least} or more{or_null}")
        if unknown := set(self.context) - set(TOLD):
            raise ValueError(f"refiner.context={self.context}: {min(unknown)} is none of {', '.join(TOLD)}")
        for key in ("request_timeout_s", "restart_timeout_s"):
            if getattr(self, key) <= 0:
                raise ValueError(f"refiner.{key}={getattr(self, key)}: set a number of seconds above 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"refiner.top_p={self.top_p}: set a number in (0, 1]")
        if not 1 <= self.max_requests_in_flight <= 450:
            raise ValueError(f"refiner.max_requests_in_flight={self.max_requests_in_flight}: set 1 to 450")
        if self.num_candidates > 1 and self.temperature == 0:
            raise ValueError(
                f"refiner.num_candidates={self.num_candidates}: more than 1 needs refiner.temperature above 0 (greedy "
                "candidates are all the same)"
            )
        needs_maximum = {
            "groups=unsolved": self.groups == "unsolved",
            "use_solved_sibling=true": self.use_solved_sibling,
            "imitate_solved=true": self.imitate_solved,
        }
        for key, is_set in needs_maximum.items():
            if is_set and self.skip_reward_at_least is None:
                raise ValueError(f"refiner.{key}: say which reward is maximal, set refiner.skip_reward_at_least")
        self.template_path()

    def _validate_placement(self) -> None:
        if self.is_dedicated and (self.nnodes < 1 or not self.n_gpus_per_node or self.n_gpus_per_node < 1):
            raise ValueError(
                f"refiner.placement=dedicated with refiner.nnodes={self.nnodes}, refiner.n_gpus_per_node="
                f"{self.n_gpus_per_node}: set how many GPUs of its own the refiner has, at least 1"
            )
        if not self.is_dedicated and self.n_gpus_per_node is not None:
            raise ValueError(
                f"refiner.n_gpus_per_node={self.n_gpus_per_node} is for refiner.placement=dedicated; set that, or null"
            )
        if self.placement == "colocated" and self.streaming:
            raise ValueError(
                "refiner.streaming=true with refiner.placement=colocated: the refiner sleeps during rollout; "
                "set refiner.placement=dedicated, or leave refiner.streaming null"
            )
        if self.placement == "shared" and (self.streaming is False or self.num_replicas or self.rollout or self.draft):
            raise ValueError(
                "refiner.placement=shared: the rollout's servers refine while they are awake; leave refiner.streaming, "
                "refiner.num_replicas and refiner.draft null and refiner.rollout empty"
            )

    def limits(self, max_response_tokens: int) -> dict[str, int]:
        """Return how many tokens of each text of ``context`` the refiner is shown, at most."""
        limits = {
            "feedback": MAX_FEEDBACK_TOKENS,
            "sibling": max_response_tokens,
            "solution": self.max_new_tokens,
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
