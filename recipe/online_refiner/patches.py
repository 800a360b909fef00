"""Every change that this recipe makes to verl, with its reason.

``tests/unit/online_refiner/test_verl_patches.py`` fails when verl mends what is bridged here, or moves it.
"""

from typing import Any

from verl.experimental.reward_loop import reward_loop
from verl.protocol import DataProto


class RewardLoopWorker(reward_loop.RewardLoopWorker):
    """verl's reward worker, whose answer for a discriminative reward model is complete.

    Reason: ``RewardLoopWorker.compute_score_disrm`` returns the score alone, and
    ``AgentLoopWorker._compute_score`` (``verl/experimental/agent_loop/agent_loop.py``) reads ``reward_extra_info`` from
    the answer: a reward model on GPUs of its own ends the first rollout with a KeyError.
    """

    async def compute_score_disrm(self, data: DataProto) -> dict[str, Any]:
        """Return the reward model's score and, as every other reward does, a (here empty) dict of extras."""
        return {"reward_extra_info": {}, **await super().compute_score_disrm(data)}


def apply() -> None:
    """Apply every patch in this process; a second call changes nothing."""
    reward_loop.RewardLoopWorker = RewardLoopWorker  # RewardLoopManager makes its Ray actors from this name
