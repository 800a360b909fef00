#!/usr/bin/env bash
# An episode that ends with the environment's words has no reward for PPO in verl, and its full reward for GRPO.
#
# Version:   verl 0.9.1
# Guessed:   AgentLoopOutput.reward_score is the trajectory's reward, whatever its last token is; the estimators differ
#            in what they make of it.
# Behaviour: the score is put on the last token of the response. If the agent loop ends with an observation, that token
#            has response_mask 0, and gae and reinforce_plus_plus skip tokens without it, reward included: all
#            advantages are 0, solved or not, and only the value loss and the entropy still train. grpo and rloo sum the
#            rewards before they look at the mask. verl's own tool agent never ends so; an agent loop of one's own does
#            as soon as it appends the last observation.
# Source:    verl/experimental/agent_loop/agent_loop.py, AgentLoopOutput.as_dict; verl/trainer/ppo/core_algos.py,
#            compute_gae_advantage_return, compute_reinforce_plus_plus_outcome_advantage, compute_grpo_outcome_advantage
# Seen:      rewards 1 and 0, four tokens, the last one masked: gae and reinforce_plus_plus 0 everywhere, grpo 0.707 and
#            -0.707, rloo 1 and -1; without the mask gae is 0.935 and -0.935
set -euo pipefail
# The last six are imported by verl and not asked for by its package.
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 \
    cachetools==7.3.3 fastapi==0.136.3 msgspec==0.22.0 openai==3.54.0 pyzmq==27.3.0 uvicorn==0.54.0 <<'EOF'
import numpy as np
import torch
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.ray_trainer import compute_advantage


def advantages(estimator, mask):
    """Of the first token, in an episode with the reward 1 and in one with 0."""
    turns = {"prompt_ids": [1], "response_ids": [2, 3, 4, 5], "response_mask": mask, "metrics": AgentLoopMetrics()}
    rows = [AgentLoopOutput(**turns, reward_score=reward).as_dict() for reward in (1.0, 0.0)]
    rewards, masks = (torch.stack([row[name] for row in rows]) for name in ("rm_scores", "response_mask"))
    tensors = {"token_level_rewards": rewards, "response_mask": masks, "values": torch.zeros(2, 4)}
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(["one group"] * 2, dtype=object)})
    config = AlgoConfig(adv_estimator=estimator)
    found = compute_advantage(data, estimator, gamma=1.0, lam=1.0, config=config).batch["advantages"]
    print(f"{estimator}, mask {mask}: {found.tolist()}")
    assert found[:, :3].eq(found[:, :1]).all()
    return [round(value, 3) for value in found[:, 0].tolist()]


CHOSEN, OBSERVED = [1, 1, 1, 1], [1, 1, 1, 0]
for estimator in ("gae", "reinforce_plus_plus"):
    assert advantages(estimator, CHOSEN) == [0.935, -0.935]
    assert advantages(estimator, OBSERVED) == [0.0, 0.0]
assert advantages("grpo", OBSERVED) == [0.707, -0.707]
assert advantages("rloo", OBSERVED) == [1.0, -1.0]
EOF
