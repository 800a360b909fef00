"""Mode ``penalty``, the paper's way: Eq. 6 as a penalty in rewards or advantages. And what all modes of Eq. 6 share."""

from typing import TYPE_CHECKING, ClassVar, Literal

from omegaconf import DictConfig
from pydantic.dataclasses import dataclass

from recipe.online_refiner.method import eq6
from recipe.online_refiner.method.constraint import CRITIC_ESTIMATORS, Column, Place, Turn, Weighted
from refiner_worker.keys import BLOCK, nearest

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from recipe.online_refiner.config.fields import RefinementConfig
    from recipe.online_refiner.method.pairs import Pair

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
"""Estimators of verl whose advantages are one number a response, or its return-to-go: a penalty after them has the same
meaning for all of them, A_t = A_group + the penalty's return-to-go."""


@dataclass(kw_only=True, config=BLOCK)
class Rewritten(Weighted):
    """A constraint on the tokens of a'."""

    alignment: Literal["position", "diff"] = "position"
    """Which token of a' a token of a is charged for. ``position``: the same position (Eq. 6). ``diff``: only tokens
    that the edit changed."""

    def columns(self, turn: Turn) -> dict[str, Column]:
        """Return ``refine_counterparts``: c(t) of each token of the response."""
        pairs = [eq6.NONE] * turn.response_length
        if turn.is_charged:
            pairs[turn.start :] = self.counterparts(turn)
        return {"refine_counterparts": pairs}

    def counterparts(self, turn: Turn) -> list[int]:
        """Return c(t) for each token of the turn; NONE where it is charged for nothing."""
        refinement = turn.refinement
        return eq6.counterparts(self.alignment, turn.ids, refinement.token_ids, refinement.num_kept_tokens)


class Penalising:
    """A mode with a penalty in rewards or advantages, whatever it charges for."""

    mode: str

    def place(self, estimator: str) -> Place | None:
        """Return where the penalty acts: a critic has to see it in the rewards."""
        return "rewards" if estimator in CRITIC_ESTIMATORS else "advantages"

    def refusal(self, config: DictConfig, blocks: "RefinementConfig") -> str | None:
        """Return one line if nobody knows what a penalty does to the run's advantages."""
        known, estimator = CRITIC_ESTIMATORS + CRITIC_FREE_ESTIMATORS, config.algorithm.adv_estimator
        if estimator not in known:
            return (
                f"constraint.mode={self.mode}: what a penalty does to the advantages of algorithm.adv_estimator="
                f"{estimator} is not known; set constraint.mode=sft, or one of: {', '.join(known)}"
                f"{nearest(estimator, known)}"
            )
        return super().refusal(config, blocks)  # type: ignore[misc]  # it stands before a Constraint


class Eq6Penalty(Penalising):
    """A mode whose penalty is D of Eq. 6, by its key ``credit``."""

    credit: str | None

    @property
    def needs_log_probs(self) -> bool:
        """Whether log pi_theta(a') has to be known before the update: it is what Eq. 6 charges."""
        return True

    def place(self, estimator: str) -> Place | None:
        """Return where the penalty acts: in the rewards also if the key says so."""
        return "rewards" if self.credit == "in_reward" else super().place(estimator)

    def cost(self, pair: "Pair") -> float:
        """Return D of Eq. 6 in nats, or with credit ``in_reward`` D / min(len a, len a')."""
        return pair.divergence_per_token if self.credit == "in_reward" else pair.divergence

    def pay(self, own: "Tensor", charges: "eq6.Charges", eta: float, place: Place) -> "Tensor":
        """Return rewards or advantages, (B, T), with the penalty."""
        if self.credit == "return_to_go":
            return eq6.each_token(own, charges, eta) if place == "rewards" else eq6.return_to_go(own, charges, eta)
        return eq6.at_end(own, charges, eta) if place == "rewards" else eq6.whole(own, charges, eta)


@dataclass(kw_only=True, config=BLOCK)
class Penalty(Eq6Penalty, Rewritten):
    """Eq. 6 as a penalty, token by token: the policy avoids what pi_0 would write otherwise."""

    DEFAULT_ETA: ClassVar[float] = 1e-3  # Appendix B of the paper
    TRIED: ClassVar[tuple[float, float]] = (1e-4, 1.0)

    mode: Literal["penalty"]
    credit: Literal["return_to_go", "in_reward"] = "return_to_go"
    """Where the penalty acts. ``return_to_go``: in the advantages, after the group's normalisation (the paper's way).
    ``in_reward``: per token in the reward, before it."""
