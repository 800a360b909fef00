"""The penalty of a mode: the charge of a response, and how its rewards or advantages pay for it.

A mode has one penalty or none (``Constraint.penalty``). With a weight of 0, no response pays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from omegaconf import DictConfig

from recipe.online_refiner.method import eq6
from recipe.online_refiner.method.pairs import Divergence, Pair
from refiner_worker.keys import nearest

if TYPE_CHECKING:  # the config is read without torch
    from torch import Tensor

Place = Literal["rewards", "advantages"]
"""Where a penalty acts: in the rewards before the advantage estimator, or in the advantages after it."""

Credit = Literal["return_to_go", "in_reward"]
"""Which tokens answer for the charge of Eq. 6 (``constraint.credit``)."""

CRITIC_ESTIMATORS = ("gae",)
"""Advantage estimators of verl that have a critic, which must see a penalty to expect it."""
CRITIC_FREE_ESTIMATORS = (
    "grpo",
    "grpo_passk",
    "grpo_vectorized",
    "gpg",
    "opo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "rloo_vectorized",
)
"""Estimators of verl whose advantages are one number per response, or its return-to-go.

A penalty added after them has the same meaning for all of them: A_t = A_group + the penalty's return-to-go.
"""


class PenaltyPart:
    """A penalty. By default, each token pays its own charge."""

    needs_log_probs: ClassVar[bool] = False
    """Whether the actor computes log pi_theta(a') of used refinements first. It then also writes what Eq. 6 charges."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Columns that :meth:`charge` reads: columns of the constraint itself (``Constraint.columns``), ``refine_ids``,
    ``refine_counterparts``, verl's ``responses``, ``old_log_probs`` and ``rm_scores`` (the reward on the last token),
    and ``refine_log_probs`` if ``needs_log_probs``."""

    def is_charged(self, pair: Pair) -> bool:
        """Return whether the penalty charges a row."""
        raise NotImplementedError

    def charge(self, data: "Mapping[str, Tensor]", turn_mask: "Tensor") -> "Tensor":
        """Return what each token of some turns is charged, (B, T), in nats, 0 outside the turns.

        The penalty is eta times the charge: a charge below 0 lowers the reward. Minus the sum over t is the row's cost.
        It is not called of an :class:`Eq6Penalty`, whose charge the actor has written.

        Args:
            data: The columns ``reads`` of the B charged rows, each padded with 0 to its own longest row: (B, T) if its
                rows are as long as the response, (B, U) if as long as a', (B, 1) if they have one entry. 0 is also a
                valid position in ``refine_counterparts``.
            turn_mask: (B, T) 1 on the policy's tokens of the refined turn.
        """
        raise NotImplementedError

    def metrics(self, charged: "Tensor", data: "Mapping[str, Tensor]", turn_mask: "Tensor") -> dict[str, float]:
        """Summarise what :meth:`charge` has returned, from its arguments. Not called where no row is charged."""
        return {}

    def place(self, estimator: str) -> Place:
        """Return where the penalty acts with this advantage estimator: a critic has to see it in the rewards."""
        return "rewards" if estimator in CRITIC_ESTIMATORS else "advantages"

    def cost(self, divergence: Divergence) -> float:
        """Return the nats that a row pays as a whole, for each unit of eta."""
        return divergence.nats

    def pay(self, own: "Tensor", inputs: "eq6.PenaltyInputs", eta: float, place: Place) -> "Tensor":
        """Return rewards or advantages, (B, T), with the penalty added to ``own``."""
        return eq6.each_token(own, inputs, eta)

    def refusal(self, mode: str, config: DictConfig) -> str | None:
        """Return one line if no loss reads the run's advantages, or it is not known what a penalty does to them."""
        distillation = config.get("distillation")
        if distillation and distillation.enabled and not distillation.distillation_loss.use_task_rewards:
            return (
                f"constraint.mode={mode} changes advantages, and no loss reads them with "
                "distillation.distillation_loss.use_task_rewards=false; set it to true, or constraint.mode=sft with "
                "constraint.target=rewrite"
            )
        known, estimator = CRITIC_ESTIMATORS + CRITIC_FREE_ESTIMATORS, config.algorithm.adv_estimator
        if estimator in known:
            return None
        return (
            f"constraint.mode={mode}: what a penalty does to the advantages of algorithm.adv_estimator="
            f"{estimator} is not known; set constraint.mode=sft, or one of: {', '.join(known)}"
            f"{nearest(estimator, known)}"
        )


@dataclass(frozen=True)
class Eq6Penalty(PenaltyPart):
    """The penalty of Eq. 6: a row's cost is D, which the actor's pass over a' has computed."""

    needs_log_probs: ClassVar[bool] = True

    credit: Credit | None
    """Which tokens answer for D. None: all of D on each token of the turn."""

    def is_charged(self, pair: Pair) -> bool:
        """Return whether D is not 0."""
        return pair.divergence != 0

    def place(self, estimator: str) -> Place:
        """Return where the penalty acts: in the rewards also with credit ``in_reward``."""
        return "rewards" if self.credit == "in_reward" else super().place(estimator)

    def cost(self, divergence: Divergence) -> float:
        """Return D of Eq. 6 in nats, or with credit ``in_reward`` D / min(len a, len a')."""
        return divergence.per_token if self.credit == "in_reward" else divergence.nats

    def pay(self, own: "Tensor", inputs: "eq6.PenaltyInputs", eta: float, place: Place) -> "Tensor":
        """Return rewards or advantages, (B, T), with the penalty added to ``own``."""
        if self.credit == "return_to_go":
            return eq6.each_token(own, inputs, eta) if place == "rewards" else eq6.return_to_go(own, inputs, eta)
        return eq6.at_end(own, inputs, eta) if place == "rewards" else eq6.whole(own, inputs, eta)
