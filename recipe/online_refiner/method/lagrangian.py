"""Mode ``lagrangian``: penalty and cross-entropy together, which are the two terms of the gradient of -eta E[D]."""

from typing import TYPE_CHECKING, ClassVar, Literal

from omegaconf import DictConfig
from pydantic.dataclasses import dataclass

from recipe.online_refiner.method import eq6
from recipe.online_refiner.method.constraint import Turn
from recipe.online_refiner.method.penalty import Eq6Penalty
from recipe.online_refiner.method.sft import SEQUENCE_LOSSES, Imitation
from refiner_worker.keys import BLOCK

if TYPE_CHECKING:
    from recipe.online_refiner.config.fields import RefinementConfig


@dataclass(kw_only=True, config=BLOCK)
class Lagrangian(Eq6Penalty, Imitation):
    """The gradient of -eta E[D]: a is charged for D of Eq. 6, and a' is imitated with the weights that it has in D."""

    DEFAULT_ETA: ClassVar[float] = 0.01
    TRIED: ClassVar[tuple[float, float]] = (0.01, 1.0)

    mode: Literal["lagrangian"]
    credit: Literal["return_to_go", "in_reward"] | None = None
    """Where the penalty acts. Null: all of D on each token of the turn. Else as in mode ``penalty``."""

    def weights(self, turn: Turn) -> list[float]:
        """Return how often each token of a' is charged for: the cross-entropy then has the gradient of D."""
        pairs = self.counterparts(turn) if turn.is_charged else []
        return eq6.times_charged(pairs, len(turn.refinement.token_ids), turn.refinement.num_kept_tokens)

    def refusal(self, config: DictConfig, blocks: "RefinementConfig") -> str | None:
        """Return one line if the two terms would not be one gradient."""
        if self.sft_normaliser != "batch":
            return (
                f"constraint.mode=lagrangian with constraint.sft_normaliser={self.sft_normaliser}: the policy's loss "
                "is divided by the batch's tokens; set constraint.sft_normaliser=batch"
            )
        actor = config.actor_rollout_ref.actor
        if actor.loss_agg_mode == "seq-mean-token-mean" or actor.policy_loss.loss_mode in SEQUENCE_LOSSES:
            return (
                "constraint.mode=lagrangian: the policy's loss is divided by the length of a, the cross-entropy by "
                "that of a', so that they are no gradient of one objective; set "
                "actor_rollout_ref.actor.loss_agg_mode=token-mean and "
                "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"
            )
        return super().refusal(config, blocks)
