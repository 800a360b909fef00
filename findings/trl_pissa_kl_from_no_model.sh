#!/usr/bin/env bash
# With LoRA initialised by PiSSA, TRL's GRPO measures the KL from a model that nobody has trained.
#
# Version:   trl 1.16.0 with peft 0.21.2
# Guessed:   the adapter starts as a change of nothing, and with beta > 0 the reference is the base model: before the
#            first update the KL is 0.
# Behaviour: without a reference model of its own TRL switches the adapter off. PiSSA and OLoRA move the weights' main
#            directions from the base into the adapter; what is left without it is neither the base model nor any other.
#            The KL term pulls the policy there from the first step on, and no word is said; PEFT warns of the same only
#            for LoraConfig(bias=...).
# Source:    trl/trainer/grpo_trainer.py, GRPOTrainer._generate_and_score_completions (where ref_model is None);
#            peft/tuners/lora/layer.py, LoraLayer.pissa_init, olora_init. Public report of the changed weights: issue
#            2184 of PEFT
# Seen:      kl of the first step, at a learning rate of 0: 0.0 (default), 1.03 nats (pissa), 1.36 nats (olora), while
#            the policy is the same: mean entropy 2.645 for all three
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" trl==1.16.0 peft==0.21.2 torch==2.13.0 <<'EOF'
import torch
from datasets import Dataset
from peft import LoraConfig
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


def first_step(way):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.3))
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj", "up_proj"], init_lora_weights=way)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **columns: [float(at == 0) for at in range(len(completions))],
        args=GRPOConfig("out", beta=0.1, learning_rate=0.0, **settings),
        train_dataset=prompts,
        processing_class=tokenizer,
        peft_config=adapter,
    )
    trainer.train()
    return trainer.state.log_history[0]


steps = {way: first_step(way) for way in (True, "pissa", "olora")}
for way, step in steps.items():
    print(f"init_lora_weights={way}: kl {step['kl']:.3f}, entropy {step['entropy']:.3f}")
assert steps[True]["kl"] == 0
assert steps["pissa"]["kl"] > 0.5 and steps["olora"]["kl"] > 0.5
assert max(step["entropy"] for step in steps.values()) - min(step["entropy"] for step in steps.values()) < 1e-3
EOF
