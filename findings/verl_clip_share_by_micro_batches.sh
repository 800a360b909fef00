#!/usr/bin/env bash
# verl's actor/ppo_kl and actor/pg_clipfrac depend on how rows fall into micro-batches; its loss does not.
#
# Version:   verl 0.9.1
# Guessed:   a mini-batch of 10 tokens, 9 of them clipped, has pg_clipfrac 0.9, as its loss is the mean over its tokens.
# Behaviour: the loss is divided by the tokens of the whole mini-batch, so micro-batches add up to it. The metrics of the
#            policy loss are divided by the tokens of their micro-batch, and of these the plain mean is logged: a
#            micro-batch of one short answer counts as much as one of a long answer. So the same weights and rows have
#            another KL and another share of clipped tokens with another micro-batch size or order of the rows, and a
#            stop or an adaptive rate by ppo_kl moves with them.
# Source:    verl/workers/utils/losses.py, ppo_loss (AggregationType.MEAN of what the policy loss reports);
#            verl/trainer/ppo/core_algos.py, compute_policy_loss_vanilla
# Seen:      answers of 1 and 9 tokens, the long one's probabilities doubled: as one micro-batch and as two the loss is
#            -1.18; pg_clipfrac is 0.9 and 0.5, ppo_kl -0.624 and -0.347
set -euo pipefail
# The last six are imported by verl and not asked for by its package.
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 \
    cachetools==7.3.3 fastapi==0.136.3 msgspec==0.22.0 openai==3.54.0 pyzmq==27.3.0 uvicorn==0.54.0 <<'EOF'
import math

import torch
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

LENGTHS = (1, 9)


def jagged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def step(*micro_batches):
    """Return loss, pg_clipfrac and ppo_kl of a mini-batch, from the lengths of the answers in each micro-batch."""
    config = ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode="token-mean")
    total, logged = 0.0, {}
    for lengths in micro_batches:
        new = [torch.full((length,), math.log(0.2 if length > 1 else 0.1)) for length in lengths]
        answers = {
            "prompts": [torch.ones(1, dtype=torch.long) for _ in lengths],
            "responses": [torch.ones(length, dtype=torch.long) for length in lengths],
            "input_ids": [torch.ones(1 + length, dtype=torch.long) for length in lengths],
            "response_mask": [torch.ones(length) for length in lengths],
            "old_log_probs": [torch.full((length,), math.log(0.1)) for length in lengths],
            "advantages": [torch.ones(length) for length in lengths],
        }
        sizes = {"dp_size": 1, "batch_num_tokens": sum(LENGTHS), "global_batch_size": len(LENGTHS)}
        data = tu.get_tensordict({name: jagged(rows) for name, rows in answers.items()}, sizes)
        # An engine gives a value for each token of the sequence, that of the token after it.
        shifted = jagged([torch.cat([row, row.new_zeros(1)]) for row in new])
        loss, metrics = ppo_loss(config, {"log_probs": shifted}, data)
        total += loss.item()
        for name in ("actor/pg_clipfrac", "actor/ppo_kl"):
            logged.setdefault(name, []).append(metrics[name])
    return [round(total, 3), *(round(float(Metric.aggregate_dp(values)), 3) for values in logged.values())]


together, apart = step(LENGTHS), step(LENGTHS[:1], LENGTHS[1:])
print("one micro-batch:", together, "two:", apart)
assert together == [-1.18, 0.9, -0.624]
assert apart == [-1.18, 0.5, -0.347]
EOF
