"""What a constraint is: how better refinements act on the policy. A subclass is a mode of ``constraint.mode``.

Its fields are the keys of the block ``constraint`` in that mode, its methods what it does, in the order of a step. Each
process of a run reads its own copy from the config, so a constraint keeps nothing between steps (eta does: ``eta.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from omegaconf import DictConfig
from pydantic import Field
from pydantic.dataclasses import dataclass

from recipe.online_refiner.method.eq6 import NONE
from refiner_worker.keys import BLOCK

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from recipe.online_refiner.config.fields import RefinementConfig
    from recipe.online_refiner.method.asks import Reference
    from recipe.online_refiner.method.eq6 import Charges
    from recipe.online_refiner.method.pairs import Pair, Refinement, Rollout, Verdict
    from recipe.online_refiner.method.step import StepState

Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Place = Literal["rewards", "advantages"]
"""Where a penalty acts: in the rewards before the advantage estimator, or in the advantages after it."""

Column = Sequence[int] | Sequence[float] | np.ndarray
"""A row's part of a column, at least one entry: whole numbers become int64, others float32, and the column jagged."""

CRITIC_ESTIMATORS = ("gae",)
"""Advantage estimators of verl that have a critic, which must see a penalty to expect it."""


class Mean(NamedTuple):
    """A metric that is a mean; a step's is the mean over all that its mini-batches' are over."""

    meaning: str
    over: "str | Callable[[StepState], float]"
    """The number of values that a mini-batch's mean is over: the name of the metric that counts them, or a function."""

    def weight(self, state: "StepState") -> float:
        """Return the number of values that a mini-batch's mean is over."""
        return self.over(state) if callable(self.over) else float(state.metrics[self.over])


@plain_dataclass(slots=True, kw_only=True)
class Turn:
    """The last turn of a row's response, a, and its refinement, a'."""

    response_length: int
    """Tokens of the response, all its turns."""
    start: int
    """The turn's first position in the response."""
    ids: list[int]
    """a; empty in a row that nobody refines: padding, or a dead worker's."""
    refinement: "Refinement"
    """a' with its verdict; in a row that nobody refines without ids."""
    is_used: bool
    """Whether a' acts on the policy."""

    @property
    def is_charged(self) -> bool:
        """Whether the tokens of a may be charged: a' acts, and somebody else has written it."""
        return self.is_used and self.refinement.verdict != "own"


class Companion:
    """What a refine worker does for a constraint beside asking for refinements. This one asks for nothing more."""

    needs_refinement = True
    """Whether a' is asked for at all."""

    def __init__(self, *, imitates_solved: bool = False) -> None:
        self.imitates_solved = imitates_solved

    async def complete(
        self, reference: "Reference", rollout: "Rollout", rollouts: "Sequence[Rollout]", result: "Refinement"
    ) -> None:
        """Ask pi_0 for more about a rollout of a group, once its a' is there, and add it to the result."""

    def scored_tokens(self, prompt: int, response: int) -> int:
        """Return the tokens of the longest text that pi_0 reads beside the refiner's prompts; 0: there is none."""
        return 0


@dataclass(kw_only=True, config=BLOCK)
class Constraint:
    """How refinements act on the policy."""

    refines: ClassVar[bool] = True
    """Whether a step has a refine stage."""
    DEFAULT_ETA: ClassVar[float] = 0.0
    """What ``constraint.eta=null`` stands for."""
    CHARGE_COLUMNS: ClassVar[tuple[str, ...]] = ()
    """What :meth:`charged` reads; empty: it charges nothing. Any jagged column of the row, verl's and those of
    ``rows.py`` too; ``refine_log_probs`` where ``needs_log_probs``."""
    MEANING: ClassVar[Mapping[str, str | Mean]] = {}
    """Metrics of this mode alone, and what they mean. A step's is the sum over its mini-batches, or a :class:`Mean`."""

    mode: str

    # ---- the refine stage, in refine workers and in agent loop workers

    def companion(self, tokenizer: Any, chat_settings: Mapping[str, Any] | None, longest: int) -> Companion:
        """Return what a refine worker does more for this mode; no response or refinement has more tokens."""
        return Companion()

    def is_used(self, verdict: "Verdict") -> bool:
        """Return whether a refinement with this verdict acts on the policy."""
        return False

    def columns(self, turn: Turn) -> dict[str, Column]:
        """Return what a row's columns of this mode hold, by name, whether it has a refinement or not.

        The queue drops a column that any row of a step lacks. Names begin with ``refine_``. The actor's pass over a'
        reads ``refine_counterparts``: here no token is charged by Eq. 6.
        """
        return {"refine_counterparts": [NONE] * turn.response_length}

    def numbers(self, turn: Turn) -> dict[str, float]:
        """Return what this mode has to know of a row later; the pair's tag carries it to :meth:`pair_metrics`."""
        return {}

    # ---- the driver, between log-probs and update

    @property
    def needs_log_probs(self) -> bool:
        """Whether log pi_theta(a') of used refinements has to be known before the update."""
        return False

    def charged(self, data: "Mapping[str, Tensor]", turn: "Tensor") -> "Tensor | None":
        """Return what each token of some turns is charged, (B, T); None: Eq. 6, by the actor's pass over a'.

        It is called after that pass, where there is one (``needs_log_probs``), and takes the place of its result: of
        ``refine_charged``, of the pair's ``divergence`` (minus the sum) and ``num_compared_tokens`` (the turn's).

        Args:
            data: The columns CHARGE_COLUMNS of the rows that pay: (B, T) those of the response, (B, U) those of a',
                padded with 0, which is also the first place in a column of places.
            turn: (B, T) 1 on the policy's tokens of the turn.
        """
        return None

    def pays(self, pair: "Pair") -> bool:
        """Return whether a row is charged: asked where rows pay and, with CHARGE_COLUMNS, before :meth:`charged`.

        A mode with CHARGE_COLUMNS overrides it: then the pair's ``divergence`` is still that of Eq. 6. It goes by the
        verdict or by :meth:`numbers`.
        """
        return pair.divergence != 0

    def place(self, estimator: str) -> Place | None:
        """Return where the penalty acts with this advantage estimator; None: the mode has no penalty."""
        return None

    def cost(self, pair: "Pair") -> float:
        """Return what a pair is charged as a whole, in nats: D of Eq. 6."""
        return pair.divergence

    def pay(self, own: "Tensor", charges: "Charges", eta: float, place: Place) -> "Tensor":
        """Return rewards or advantages, (B, T), with the penalty."""
        raise NotImplementedError("a mode with a place has a penalty")

    def charge_metrics(self, charged: "Tensor", data: "Mapping[str, Tensor]", turn: "Tensor") -> dict[str, float]:
        """Summarise what :meth:`charged` has returned; arguments as there. Not called where nobody pays."""
        return {}

    def pair_metrics(self, pairs: "Sequence[Pair]") -> dict[str, float]:
        """Summarise the mode's own numbers of a step's rows (:meth:`numbers`)."""
        return {}

    def loss_settings(self, eta: float) -> dict[str, Any]:
        """Return what the actor's loss is told in a step; empty: refinements are not in the loss."""
        return {}

    # ---- before the run

    @property
    def imitates(self) -> bool:
        """Whether refinements are in the actor's loss."""
        return bool(self.loss_settings(1.0))

    @property
    def asks_log_probs(self) -> bool:
        """Whether pi_0 is asked for log-probs of given tokens."""
        return False

    @property
    def first_eta(self) -> float:
        """The weight of the first step."""
        return self.DEFAULT_ETA

    @property
    def rescues(self) -> bool:
        """Whether groups of equal rewards are kept where a refinement is better."""
        return False

    def refusal(self, config: DictConfig, blocks: "RefinementConfig") -> str | None:
        """Return one line if the mode does not go with the rest of the config: what is wrong, which key to set."""
        return None

    def describe(self) -> str:
        """Return the mode in the words of the plan."""
        target = getattr(self, "target", "rewrite")
        return f"mode {self.mode}" + (f", target {target}" if target != "rewrite" else "") + f", eta {self.first_eta:g}"


@dataclass(kw_only=True, config=BLOCK)
class Weighted(Constraint):
    """A constraint with a weight eta, on the pairs that the reward gate lets through."""

    TRIED: ClassVar[tuple[float, float] | None] = None
    """Smallest and largest eta in the paper and in the lab (``experiments/lab/arms.py``); None: none was tried."""

    eta: Number | None = None
    """Weight; 0 gives verl's numbers. With ``adaptive``: of the first step. Null: the mode's own."""
    eta_schedule: Literal["constant", "adaptive"] = "constant"
    """``constant``; ``adaptive``: keeps D <= delta (Eq. 5)."""
    delta: PositiveNumber | None = None
    """``adaptive``: bound on ``constraint/divergence_per_token``, in nats per token."""
    reward_gate: bool = True
    """Which refinements act. ``true``: those with a higher reward (Eq. 6). ``false``: all with a reward (the paper's
    ablation)."""

    def is_used(self, verdict: "Verdict") -> bool:
        """Return whether a refinement acts on the policy: it is better, or the gate is off and it has a reward.

        Without the gate one that repeats the response acts as well: that run asks what the gate is for, and to leave
        out what is not better would be a part of it.
        """
        return verdict.is_better or (not self.reward_gate and verdict.is_scored)

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
        """Whether log pi_theta(a') has to be known before the update: an adaptive eta goes by it."""
        return self.is_adaptive

    def refusal(self, config: DictConfig, blocks: "RefinementConfig") -> str | None:
        """Return one line if eta and its bound do not go together."""
        if self.is_adaptive and (self.delta is None or self.first_eta == 0):
            return "constraint.eta_schedule=adaptive: set constraint.delta (nats per token) and constraint.eta above 0"
        if self.delta is not None and not self.is_adaptive:
            return "constraint.delta is for constraint.eta_schedule=adaptive; set that, or leave it out"
        return None
