"""What a constraint is: how better refinements act on the policy. A subclass is a mode of ``constraint.mode``.

Its fields are the keys of the block ``constraint`` in that mode. It *has* a penalty, an imitation, both or neither. Its
other methods are hooks: first the hooks of a step, in the order of a step, then the hook that checks the config. Each
process of a run reads its own copy from the config, so a constraint keeps nothing between steps (eta is kept by
``eta.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from omegaconf import DictConfig
from pydantic import Field
from pydantic.dataclasses import dataclass

from recipe.online_refiner.method.asks import Blocks, Reference
from recipe.online_refiner.method.eq6 import NONE
from recipe.online_refiner.method.imitation import ImitationPart
from recipe.online_refiner.method.pairs import Column, Pair, Refinement, Rollout, Turn, Verdict
from recipe.online_refiner.method.penalty import Eq6Penalty, PenaltyPart
from refiner_worker.keys import BLOCK, Source
from refiner_worker.text.thoughts import Thoughts

Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Mean(NamedTuple):
    """A metric that is a mean. A step's value is the mean over the values of all its mini-batches."""

    meaning: str
    over: str | Callable[[Any], float]
    """The weight of a mini-batch in a step's mean: the name of a count metric, or a function that returns the weight
    from the mini-batch's ``StepState``."""

    def weight(self, state: Any) -> float:
        """Return the weight of a mini-batch, from its ``StepState``."""
        return self.over(state) if callable(self.over) else float(state.metrics[self.over])


@dataclass(kw_only=True, config=BLOCK)
class OfSource:
    """The settings of a constraint that differ for a data source."""

    eta: Number
    """The weight of the source's responses."""


class Companion:
    """The work of a refine worker for a constraint in addition to asking for refinements; this class adds none."""

    needs_refinement = True
    """Whether a' is asked for at all."""

    def __init__(self, *, imitates_solved: bool = False) -> None:
        """Keep whether a response with the maximal reward is its own refinement."""
        self.imitates_solved = imitates_solved

    async def complete(
        self, reference: Reference, rollout: Rollout, rollouts: Sequence[Rollout], result: Refinement
    ) -> None:
        """Ask pi_0 for more about one of a group's rollouts after its a' is known, and add it to ``result``."""

    def scored_tokens(self, prompt: int, response: int) -> int:
        """Return the tokens of the longest text that pi_0 reads in addition to refiner prompts; 0: there is none."""
        return 0


@dataclass(kw_only=True, config=BLOCK)
class Constraint:
    """How refinements act on the policy. A mode overrides some of the ten hooks; the last two members are computed."""

    refines: ClassVar[bool] = True
    """Whether a step has a refine stage."""
    asks_log_probs: ClassVar[bool] = False
    """Whether pi_0 is asked for log-probs of given tokens. Replicas answer; with ``placement=shared`` the actor
    computes them, for target ``in_place`` alone."""
    DEFAULT_ETA: ClassVar[float] = 0.0
    """The eta that ``constraint.eta=null`` stands for."""
    TRIED: ClassVar[tuple[float, float] | None] = None
    """Smallest and largest eta in the paper and in the lab (``experiments/lab/arms.py``); None: none was tried."""
    MEANING: ClassVar[Mapping[str, str | Mean]] = {}
    """The meaning of this mode's own metrics. A step's value is the sum over its mini-batches, or a :class:`Mean`."""
    by_source: ClassVar[dict[str, OfSource] | None] = None

    mode: str

    # ---- the parts

    @property
    def penalty(self) -> PenaltyPart | None:
        """The penalty of responses, in their rewards or advantages; None: there is none."""
        return None

    @property
    def imitation(self) -> ImitationPart | None:
        """The imitation of refinements in the actor's loss; None: there is none."""
        return None

    # ---- the refine stage, in refine workers and in agent loop workers

    def companion(
        self, tokenizer: Any, thoughts: Thoughts | None, chat_settings: Mapping[str, Any] | None, longest: int
    ) -> Companion:
        """Return the work of a refine worker for this mode in addition to asking for refinements.

        Args:
            tokenizer: The policy's tokenizer.
            thoughts: The marks of the models' thoughts; None: they do not think.
            chat_settings: The arguments of the chat template beside messages (``data.apply_chat_template_kwargs``).
            longest: The largest number of tokens of a response or refinement.

        Raises:
            ValueError: If the mode does not support these models or settings; the run ends before Ray starts.
        """
        return Companion()

    def is_used(self, verdict: Verdict) -> bool:
        """Return whether a refinement with this verdict acts on the policy."""
        return False

    def counterparts(self, turn: Turn) -> list[int]:
        """Return c(t) of each token of the turn by Eq. 6, (len a,), where the row is charged by a'; NONE: nothing."""
        return [NONE] * len(turn.ids)

    def columns(self, turn: Turn) -> dict[str, Column]:
        """Return the values of the mode's own columns for a row, by name. Names begin with ``refine_``.

        Every row has the same names, with at least one entry each, also if it has no refinement: the queue drops a
        column that any row of a step lacks.
        """
        return {}

    def numbers(self, turn: Turn) -> dict[str, float]:
        """Return the numbers of a row that the mode needs later; the pair's tag carries them (``Pair.own``)."""
        return {}

    # ---- the driver

    def pair_metrics(self, pairs: Sequence[Pair]) -> dict[str, float]:
        """Summarise the mode's own numbers of a step's rows (:meth:`numbers`)."""
        return {}

    @property
    def first_eta(self) -> float:
        """The weight of the first step."""
        return self.DEFAULT_ETA

    def is_refined(self, source: str) -> bool:
        """Return whether the responses of a data source are refined: its weight is not 0."""
        return True

    def scale(self, source: str) -> float:
        """Return the weight of a data source divided by eta."""
        return 1.0

    # ---- before the run

    def refusal(self, config: DictConfig, blocks: Blocks) -> str | None:
        """Return one line if the mode does not go with the rest of the config: what is wrong, which key to set.

        What its parts and its eta ask is checked apart (:func:`refusal_of`).
        """
        return None

    # ---- what follows from the parts

    @property
    def needs_log_probs(self) -> bool:
        """Whether log pi_theta(a') of used refinements has to be known before the update."""
        return self.penalty is not None and self.penalty.needs_log_probs

    @property
    def rescues(self) -> bool:
        """Whether dead groups are kept; with eta = 0, only the groups that verl keeps are kept."""
        return self.imitation is not None and self.imitation.rescue_dead_groups and self.first_eta > 0


@dataclass(kw_only=True, config=BLOCK)
class Weighted(Constraint):
    """A constraint with a weight eta."""

    eta: Number | None = None
    """Weight; 0 gives verl's numbers. With ``adaptive``: of the first step. Null: the mode's own."""
    eta_schedule: Literal["constant", "adaptive"] = "constant"
    """``constant``; ``adaptive``: keeps D <= delta (Eq. 5)."""
    delta: PositiveNumber | None = None
    """``adaptive``: bound on ``constraint/divergence_per_token``, in nats per token."""
    by_source: dict[Source, OfSource] | None = None  # type: ignore[misc]  # other constraints have none
    """The weights of data sources that have another one than ``eta``: ``{gsm8k: {eta: 0.1}, apps: {eta: 0}}``. With 0,
    nothing of the source is refined. With ``adaptive``, weights keep their ratios to ``eta``. Null: none has."""

    @property
    def first_eta(self) -> float:
        """The weight of the first step."""
        return self.DEFAULT_ETA if self.eta is None else self.eta

    @property
    def is_adaptive(self) -> bool:
        """Whether eta follows D."""
        return self.eta_schedule == "adaptive"

    @property
    def needs_log_probs(self) -> bool:
        """Whether log pi_theta(a') has to be known before the update; an adaptive eta needs it as well."""
        return self.is_adaptive or super().needs_log_probs

    def is_refined(self, source: str) -> bool:
        """Return whether the responses of a data source are refined: its weight is not 0."""
        own = (self.by_source or {}).get(source)
        return own is None or own.eta > 0

    def scale(self, source: str) -> float:
        """Return the weight of a data source divided by eta."""
        own = (self.by_source or {}).get(source)
        return 1.0 if own is None else own.eta / self.first_eta

    def eta_refusal(self) -> str | None:
        """Return one line if eta and its bound do not fit together."""
        if self.is_adaptive and (self.delta is None or self.first_eta == 0):
            return "constraint.eta_schedule=adaptive: set constraint.delta (nats per token) and constraint.eta above 0"
        if self.delta is not None and not self.is_adaptive:
            return "constraint.delta is for constraint.eta_schedule=adaptive; set that, or leave it out"
        if self.by_source and self.first_eta == 0:
            source, own = next(iter(self.by_source.items()))
            return (
                f"constraint.by_source.{source}.eta={own.eta:g} beside constraint.eta=0: weights are multiples of "
                "constraint.eta; set constraint.eta above 0, such as 0.03, and constraint.by_source.SOURCE.eta=0 for "
                "each source that is not refined"
            )
        return None


def lets_through(verdict: Verdict, *, reward_gate: bool) -> bool:
    """Return whether a refinement acts on the policy: it is better, or the gate is off and it has a reward.

    Without the gate, refinements that repeat the response act as well: such a run measures the gate's effect, and
    leaving them out would already be gating.
    """
    return verdict.is_better or (not reward_gate and verdict.is_scored)


def row_columns(constraint: Constraint, turn: Turn) -> dict[str, Column]:
    """Return all columns of a row that differ by the mode: the alignment's, the imitation's and the mode's own.

    The alignment's column is ``refine_counterparts``, (response length,): the token of a' for whose log-prob Eq. 6
    charges each token of the response.
    """
    pairs = [NONE] * turn.response_length
    if turn.is_charged:
        pairs[turn.start :] = constraint.counterparts(turn)
    imitated = {} if constraint.imitation is None else constraint.imitation.columns(turn)
    return {"refine_counterparts": pairs, **imitated, **constraint.columns(turn)}


def refusal_of(constraint: Constraint, config: DictConfig, blocks: Blocks) -> str | None:
    """Return one line if a constraint, one of its parts or its eta does not fit the rest of the config."""
    line = constraint.refusal(config, blocks)
    if line is None and constraint.penalty is not None:
        line = constraint.penalty.refusal(constraint.mode, config)
    if line is None and constraint.imitation is not None:
        line = constraint.imitation.refusal(constraint.mode, config, blocks)
    line = line or _counterparts_refusal(constraint)
    return constraint.eta_refusal() if line is None and isinstance(constraint, Weighted) else line


def _counterparts_refusal(constraint: Constraint) -> str | None:
    """Return one line if the penalty charges by counterparts and the constraint's class gives no token one."""
    penalty, own = constraint.penalty, type(constraint)
    is_read = isinstance(penalty, Eq6Penalty) or (penalty is not None and "refine_counterparts" in penalty.reads)
    if not is_read or own.counterparts is not Constraint.counterparts:
        return None
    return (
        f"constraint.mode={constraint.mode}: {type(penalty).__name__} charges by refine_counterparts, and "
        f"{own.__name__} gives no token a counterpart; make it a subclass of Aligned "
        "(recipe.online_refiner.method.modes), or define its method counterparts"
    )


def describe(constraint: Constraint) -> str:
    """Return a constraint in the words of the plan."""
    target = getattr(constraint, "target", "rewrite")
    said = f"mode {constraint.mode}" + (f", target {target}" if target != "rewrite" else "")
    own = {source: one.eta for source, one in (constraint.by_source or {}).items()}
    weights = [f"{eta:g} for {source}" if eta else f"0 for {source}, not refined" for source, eta in own.items()]
    return ", ".join([f"{said}, eta {constraint.first_eta:g}", *weights])
