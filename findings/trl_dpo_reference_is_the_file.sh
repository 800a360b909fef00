#!/usr/bin/env bash
# After SFT in the same program, TRL's DPO and GRPO hold the policy against the model from before the SFT.
#
# Version:   trl 1.16.0 with transformers 5.10.4
# Guessed:   without a ref_model the reference is the model that was handed over. DPOTrainer's doc string says so: "the
#            initial policy corresponding to `model`, i.e. the model state before DPO training starts". So the first
#            loss is ln 2 = 0.693, and GRPO's first KL is 0.
# Behaviour: the reference is read anew from the path in the model's config. What happened to the weights since they
#            were read, such as an SFT, is not in it. No word is said.
#            precompute_ref_log_probs=True, which is there to save memory, asks the model itself and is right. So is a
#            model that was saved and read again.
# Source:    trl/trainer/dpo_trainer.py, DPOTrainer.__init__; trl/trainer/grpo_trainer.py, GRPOTrainer.__init__: both
#            call create_model_from_path(get_config_model_id(model.config))
# Seen:      after 20 steps of SFT in the same program, at a learning rate of 0: DPO's first loss is 0.47, its margin
#            0.51; with precompute_ref_log_probs=True, or the model saved and read again, 0.693 and 0. GRPO's first KL
#            is 1.72, read again 0
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" trl==1.16.0 transformers==5.10.4 torch==2.13.0 <<'EOF'
import math

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

WORDS = ["<unk>", "<pad>", "<eos>", *map(str, range(29))]
backend = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<eos>"}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
pairs = [{"prompt": f"{one} ", "chosen": f"{one} {one}", "rejected": f"{one} 0"} for one in range(1, 9)]
answers = [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in pairs]
settings = {"per_device_train_batch_size": 8, "logging_steps": 1, "report_to": [], "save_strategy": "no"}
settings |= {"use_cpu": True, "bf16": False}


def first_step(trainer, config, model, rows, **given):
    """What is logged of a step that changes nothing."""
    args = config("out", learning_rate=0.0, max_steps=1, **settings, **given)
    others = {"reward_funcs": lambda completions, **columns: [0.0] * len(completions)} if trainer is GRPOTrainer else {}
    data = Dataset.from_list(rows)
    trained = trainer(model=model, args=args, train_dataset=data, processing_class=tokenizer, **others)
    trained.train()
    return trained.state.log_history[0]


torch.manual_seed(0)
sizes = {"vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)).save_pretrained("base")
model = LlamaForCausalLM.from_pretrained("base")
args = SFTConfig("out", learning_rate=1e-2, max_steps=20, **settings)
SFTTrainer(model=model, args=args, train_dataset=Dataset.from_list(answers), processing_class=tokenizer).train()
model.save_pretrained("after_sft")

steps = {
    "DPO": first_step(DPOTrainer, DPOConfig, model, pairs),
    "DPO, precompute_ref_log_probs": first_step(DPOTrainer, DPOConfig, model, pairs, precompute_ref_log_probs=True),
    "DPO, read again": first_step(DPOTrainer, DPOConfig, LlamaForCausalLM.from_pretrained("after_sft"), pairs),
}
for name, step in steps.items():
    print(f"{name}: first loss {step['loss']}, margin {step['rewards/margins']}")
given = {"beta": 0.1, "num_generations": 4, "max_completion_length": 4}
kl = first_step(GRPOTrainer, GRPOConfig, model, pairs, **given)["kl"]
kl_read = first_step(GRPOTrainer, GRPOConfig, LlamaForCausalLM.from_pretrained("after_sft"), pairs, **given)["kl"]
print(f"GRPO: first kl {kl}, read again {kl_read}")
losses = [float(step["loss"]) for step in steps.values()]
assert losses[0] < 0.6 and all(math.isclose(loss, math.log(2), rel_tol=1e-3) for loss in losses[1:])
assert float(kl) > 0.1 and abs(float(kl_read)) < 1e-4
EOF
