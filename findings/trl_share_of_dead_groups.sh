#!/usr/bin/env bash
# TRL reports frac_reward_zero_std = 0 while three of four groups have no advantage at all.
#
# Version:   trl 1.16.0
# Guessed:   the share of prompts whose completions all have one reward, from which nothing is learnt. Other settings
#            scale the advantages; that share stays the same.
# Behaviour: what is asked is whether the divisor is 0. With scale_rewards="batch", and with
#            multi_objective_aggregation="normalize_then_sum", the divisor is the spread of the whole batch, so the
#            metric is 0 unless each reward of the batch is the same. A curriculum or a filter that watches it finds
#            every prompt alive.
# Source:    trl/trainer/grpo_trainer.py, GRPOTrainer._generate_and_score_completions (is_std_zero). Said in a review of
#            pull request 6365 of TRL
# Seen:      four groups of four, one reward of 1 among 16: 0.75 for scale_rewards "group" and "none", 0.0 for "batch"
#            and for normalize_then_sum; 12 of 16 advantages are 0 in all of them
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" trl==1.16.0 torch==2.13.0 <<'EOF'
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

WORDS = ["<unk>", "<pad>", "<eos>", *map(str, range(29))]
backend = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<eos>"}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
prompts = Dataset.from_list([{"prompt": str(number)} for number in range(8)])
sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
settings = {"num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 4, "max_steps": 1}
settings |= {"logging_steps": 1, "report_to": [], "save_strategy": "no", "use_cpu": True, "bf16": False}


def share(**given):
    """The metric, and how many of the step's advantages are 0."""
    torch.manual_seed(0)
    trainer = GRPOTrainer(
        model=LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)),
        reward_funcs=lambda completions, **columns: [float(at == 0) for at in range(len(completions))],
        args=GRPOConfig("out", learning_rate=0.0, **settings, **given),
        train_dataset=prompts,
        processing_class=tokenizer,
    )
    trainer.train()
    num_zero = sum(abs(advantage) < 1e-6 for advantage in trainer._logs["advantages"])
    found = trainer.state.log_history[0]["frac_reward_zero_std"], num_zero
    print(f"{given}: frac_reward_zero_std {found[0]}, advantages that are 0: {found[1]} of 16")
    return found


assert share(scale_rewards="group") == (0.75, 12)
assert share(scale_rewards="none") == (0.75, 12)
assert share(scale_rewards="batch") == (0.0, 12)
assert share(multi_objective_aggregation="normalize_then_sum") == (0.0, 12)
EOF
