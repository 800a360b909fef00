#!/usr/bin/env bash
# algorithm.norm_adv_by_std_in_grpo=false does nothing with algorithm.adv_estimator=grpo_vectorized.
#
# Version:   verl 0.9.1
# Guessed:   grpo_vectorized is GRPO computed faster; its function has a parameter of that name, so the flag reaches
#            it.
# Behaviour: only `grpo` is called with the flag. Every other estimator gets the config, which grpo_vectorized does
#            not look into: it always divides by the group's standard deviation. No word is said.
# Source:    verl/trainer/ppo/ray_trainer.py, compute_advantage; verl/trainer/ppo/core_algos.py,
#            compute_grpo_vectorized_outcome_advantage. Public report: pull request 7893 of verl
# Seen:      rewards 1, 0, 0, 0.5 with the flag off: grpo 0.625, -0.375, -0.375, 0.125; grpo_vectorized 1.306, -0.783,
#            -0.783, 0.261, as with the flag on
set -euo pipefail
# The last six are imported by verl and not asked for by its package.
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 \
    cachetools==7.3.3 fastapi==0.136.3 msgspec==0.22.0 openai==3.54.0 pyzmq==27.3.0 uvicorn==0.54.0 <<'EOF'
import numpy as np
import torch
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.ray_trainer import compute_advantage


def advantages(estimator, is_divided):
    tensors = {"token_level_rewards": torch.tensor([[1.0], [0.0], [0.0], [0.5]]), "response_mask": torch.ones(4, 1)}
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(["one group"] * 4, dtype=object)})
    config = AlgoConfig(adv_estimator=estimator, norm_adv_by_std_in_grpo=is_divided)
    found = compute_advantage(data, estimator, norm_adv_by_std_in_grpo=is_divided, config=config).batch["advantages"]
    print(estimator, is_divided, found.flatten().tolist())
    return found.flatten()


torch.testing.assert_close(advantages("grpo", True), advantages("grpo_vectorized", True), rtol=0, atol=1e-4)
torch.testing.assert_close(advantages("grpo", False), torch.tensor([0.625, -0.375, -0.375, 0.125]))
assert torch.equal(advantages("grpo_vectorized", False), advantages("grpo_vectorized", True))
EOF
