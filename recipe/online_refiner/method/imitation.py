"""The imitation of a mode: the cross-entropy of used refinements in the actor's loss (``verl_glue/loss.py``).

    L = L_policy + eta * CE,    CE = -(1 / N) * sum over used pairs and all t of w_t log pi_theta(a'_t | s0, a'_<t)

A mode has one imitation or none (``Constraint.imitation``). It says the weights w_t and the divisor N. If a data source
has a weight of its own (``constraint.by_source``), the w_t of its pairs are multiplied by the ratio of its weight to
eta, and N stays as it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from omegaconf import DictConfig
from pydantic import Field

from recipe.online_refiner.method.asks import Blocks
from recipe.online_refiner.method.pairs import Column, Turn
from refiner_worker.keys import what_lacks

if TYPE_CHECKING:  # the config is read without torch
    from torch import Tensor

Normaliser = Annotated[
    Literal["batch", "accepted"],
    Field(
        description="Divisor of the cross-entropy. ``batch``: the policy loss's, so it fades as fewer refinements are "
        "accepted. ``accepted``: the tokens of accepted refinements."
    ),
]
RescueDeadGroups = Annotated[
    bool,
    Field(
        description="Keep groups with equal rewards if a refinement improves on them, also when DAPO would filter "
        "them out."
    ),
]

SEQUENCE_LOSSES = ("sapo", "geo_mean")
"""Policy losses of verl that average each response first, whatever ``loss_agg_mode`` says."""
ROW_LOSSES = ("geo_mean",)
"""Policy losses of verl that average the rows of a micro-batch, so that their sum depends on how rows are divided."""
NO_GROUP_ESTIMATORS = ("gae", "reinforce_plus_plus", "gdpo")
"""Advantage estimators of verl whose baseline is not the group's reward: it is a critic, the batch's mean, or one
baseline for each of several rewards."""


class LogitsLoss(ABC):
    """A loss on the policy's logits for each token of a', which replaces -log pi_theta(a'_t).

    The actor's processes get the loss by pickle with each mini-batch, so its module has to be importable there.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    """Columns of the mode (``Constraint.columns``) that the loss reads. A micro-batch holds responses, and used
    refinements as rows of their own. The columns are jagged, (B, entries, ...): rows of responses have 0 entries."""
    outputs: ClassVar[tuple[str, ...]] = ()
    """Names of the outputs that :meth:`of_logits` returns and :meth:`of_tokens` reads."""

    @abstractmethod
    def of_logits(
        self, config: Any, data: "Mapping[str, Tensor]", student_logits: "Tensor", data_format: str
    ) -> "dict[str, Tensor]":
        """Return outputs of the model by name, each (1, tokens): the logits' shape without the vocabulary.

        Args:
            config: verl's config of the actor (``ActorConfig``).
            data: A micro-batch, with ``columns``.
            student_logits: (1, tokens, vocabulary) of the rows' ``input_ids``, one row after the other, or a rank's
                part of it. The logits at a position predict the token after it.
            data_format: The layout of the logits in verl's words, such as ``thd``.
        """

    @abstractmethod
    def of_tokens(self, log_probs: "Tensor", output: "Mapping[str, Tensor]") -> "Tensor":
        """Return the loss of each token, (B, T), from log pi_theta of the tokens, (B, T).

        ``output`` has ``outputs`` of the same tokens, (B, T) each.
        """


def uniform(turn: Turn) -> list[float]:
    """Return the weight of each token of a', (len a',): 1, and 0 for the tokens with which a' was begun."""
    kept = turn.refinement.num_kept_tokens
    return [0.0] * kept + [1.0] * (len(turn.refinement.token_ids) - kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationPart:
    """The imitation of used refinements in the actor's loss."""

    normaliser: Normaliser
    """The divisor of the sum of the tokens' losses (``constraint.sft_normaliser``)."""
    rescue_dead_groups: bool
    """Whether groups of equal rewards are kept if a refinement improves on them."""
    weights: Callable[[Turn], list[float]] = uniform
    """The weight of each token of a', (len a',), in a row whose refinement is used."""
    loss: LogitsLoss | None = None
    """The loss of a token of a'; None: -log pi_theta(a'_t)."""

    def columns(self, turn: Turn) -> dict[str, Column]:
        """Return ``refine_weights``, as long as ``refine_ids``, which has one entry in a row without a refinement.

        They are multiples of eta, so the weight of the row's data source is in them.
        """
        weights = self.weights(turn) if turn.is_used else [0.0] * max(1, len(turn.refinement.token_ids))
        return {"refine_weights": [turn.scale * weight for weight in weights]}

    def settings(self, eta: float) -> dict[str, Any]:
        """Return the settings of the actor's loss; empty with eta = 0, which gives verl's own loss."""
        if eta <= 0:
            return {}
        own = {} if self.loss is None else {"refine_loss": self.loss}
        return {"refine_eta": eta, "refine_normaliser": self.normaliser, **own}

    def refusal(self, mode: str, config: DictConfig, blocks: Blocks) -> str | None:
        """Return one line if the policy's loss would not be verl's own, or a rescued group would learn nothing."""
        return self._loss_refusal(mode, config) or self._rescue_refusal(config, blocks)

    def _loss_refusal(self, mode: str, config: DictConfig) -> str | None:
        actor = config.actor_rollout_ref.actor
        said = f"constraint.mode={mode} with actor_rollout_ref.actor"
        if actor.policy_loss.loss_mode in ROW_LOSSES:
            return (
                f"{said}.policy_loss.loss_mode={actor.policy_loss.loss_mode}: it is a mean over the rows of each "
                "micro-batch, and refinements change which rows are together; set it to gspo, or set "
                "constraint.mode=penalty"
            )
        return None

    def _rescue_refusal(self, config: DictConfig, blocks: Blocks) -> str | None:
        if not self.rescue_dead_groups:
            return None
        algorithm = config.algorithm
        filters = algorithm.get("filter_groups")
        is_filtered = bool(filters and filters.enable)
        wanted = {
            "actor_rollout_ref.rollout.n above 1": config.actor_rollout_ref.rollout.n > 1,
            "algorithm.adv_estimator=grpo or rloo: another baseline is not the group's reward": algorithm.adv_estimator
            not in NO_GROUP_ESTIMATORS,
            "algorithm.filter_groups.metric=reward": not is_filtered or filters.metric == "reward",
            "algorithm.use_kl_in_reward=false: that KL would be silenced too": not algorithm.use_kl_in_reward,
            "refiner.placement=dedicated, shared or external: DAPO's filter looks at refined groups": blocks.streams
            or not is_filtered,
        }
        return what_lacks("constraint.rescue_dead_groups=true", wanted)
