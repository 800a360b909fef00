#!/usr/bin/env bash
# verl's DAPO reward manager reports a tensor for a response that is too long, and a plain 0 for one that is not.
#
# Version:   verl 0.9.1
# Guessed:   `overlong_reward` is a float and `overlong` a bool, for every response.
# Behaviour: the length is a tensor, so min(-exceed_len / ..., 0) is a 0-dim tensor where the penalty applies, and the
#            int 0 where it does not. `overlong` is tensor(True) or False, and the reward is a tensor or a float. Who
#            averages plain numbers only, averages the zeros: the mean penalty is then always 0.
# Source:    verl/experimental/reward_loop/reward_manager/dapo.py, DAPORewardManager.run_single
# Seen:      5 tokens: 0, False, 1.0; 20 tokens: tensor(-1.), tensor(True), tensor(0.)
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 transformers==5.10.4 <<'EOF'
import asyncio

import numpy as np
import torch
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager

LONGEST = 20
overlong = {"enable": True, "len": 10, "penalty_factor": 1.0, "log": True}
config = OmegaConf.create({"reward": {"reward_kwargs": {"max_resp_len": LONGEST, "overlong_buffer_cfg": overlong}}})
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


async def reward(num_tokens):
    manager = DAPORewardManager(config, tokenizer, lambda **columns: 1.0)
    mask = [1] * (1 + num_tokens) + [0] * (LONGEST - num_tokens)  # a prompt of one token
    tensors = {"responses": torch.zeros(1, LONGEST, dtype=torch.long), "attention_mask": torch.tensor([mask])}
    columns = {"data_source": np.array(["any"]), "reward_model": np.array([{"ground_truth": ""}])}
    return await manager.run_single(DataProto.from_dict(tensors=tensors, non_tensors=columns))


short, long = (asyncio.run(reward(num_tokens)) for num_tokens in (5, 20))
print(short, long, sep="\n")
assert isinstance(short["reward_score"], float) and isinstance(long["reward_score"], torch.Tensor)
for name, plain, penalty in [("overlong_reward", int, -1.0), ("overlong", bool, True)]:
    assert type(short["reward_extra_info"][name]) is plain, name
    assert isinstance(long["reward_extra_info"][name], torch.Tensor) and long["reward_extra_info"][name] == penalty
EOF
