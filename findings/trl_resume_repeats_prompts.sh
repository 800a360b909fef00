#!/usr/bin/env bash
# TRL's GRPO, resumed in its second epoch, trains on prompts of that epoch again and leaves others out.
#
# Version:   trl 1.16.0 with transformers 5.10.4
# Guessed:   a run that is resumed goes on where it stopped: the trainer logs that it fast-forwards the dataloader "to
#            resume from the exact training state".
# Behaviour: the order of each epoch is drawn by a generator of TRL's RepeatSampler. It is not in the checkpoint, and
#            the sampler has no set_epoch, so a resumed run draws the first epoch's order again and skips as many
#            batches of it as the later epoch had done of its own. In the first epoch, or without shuffling, all is
#            right.
# Source:    trl/trainer/utils.py, RepeatSampler.__iter__; transformers/trainer.py, Trainer._run_epoch
#            (skip_first_batches, set_epoch). Public report of the same in another trainer: issue 10050 of ms-swift
# Seen:      16 prompts, two a step, stopped in the middle of the second epoch: the last four steps are those of the
#            first epoch; four prompts are trained on twice in the second, and four never
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" trl==1.16.0 transformers==5.10.4 torch==2.13.0 <<'EOF'
from collections import Counter

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

NUM_PROMPTS, EPOCH, SAVED_AT = 16, 8, 12  # two prompts a step, so 8 steps are an epoch
WORDS = ["<unk>", "<pad>", "<eos>", *map(str, range(29))]
backend = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<eos>"}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
prompts = Dataset.from_list([{"prompt": str(number)} for number in range(NUM_PROMPTS)])
sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
settings = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 4, "report_to": []}
settings |= {"num_train_epochs": 2, "save_steps": SAVED_AT, "use_cpu": True, "bf16": False}


def steps(folder, is_shuffled, checkpoint=None):
    """Return the prompts of each step."""
    seen = []

    def reward(prompts, completions, **columns):
        seen.append([int(prompt) for prompt in prompts[::2]])
        return [float(at) for at in range(len(completions))]

    torch.manual_seed(0)
    trainer = GRPOTrainer(
        model=LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)),
        reward_funcs=reward,
        args=GRPOConfig(folder, shuffle_dataset=is_shuffled, **settings),
        train_dataset=prompts,
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return seen


def second_epoch(folder, is_shuffled):
    """Return the steps of a run, those that come again once it is resumed, and how often each prompt is seen then."""
    run = steps(folder, is_shuffled)
    resumed = steps(folder, is_shuffled, f"{folder}/checkpoint-{SAVED_AT}")
    print(f"shuffled {is_shuffled}: steps {run}, resumed {resumed}")
    return run, resumed, Counter(sum(run[EPOCH:SAVED_AT] + resumed, []))


run, resumed, seen = second_epoch("in_order", False)
assert resumed == run[SAVED_AT:] and set(seen.values()) == {1} and len(seen) == NUM_PROMPTS

run, resumed, seen = second_epoch("shuffled", True)
print("twice:", [one for one, times in seen.items() if times > 1], "never:", sorted({*range(NUM_PROMPTS)} - set(seen)))
assert resumed != run[SAVED_AT:] and resumed == run[SAVED_AT - EPOCH : EPOCH], "the order is not the first epoch's"
assert max(seen.values()) == 2 and len(seen) == 12
EOF
