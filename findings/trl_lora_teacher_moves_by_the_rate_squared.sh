#!/usr/bin/env bash
# The moving average that TRL's self-distillation takes as teacher starts 20 times slower with LoRA than without.
#
# Version:   trl 1.16.0 with peft 0.21.2
# Guessed:   teacher_model_kind="ema" with teacher_update_rate=0.05 has a teacher that goes 5 % of the way to the
#            student at each step. With LoRA it is an adapter, by the doc string averaged from zero by the same
#            formula: the same way.
# Behaviour: LoRA's change of a weight is a product, B times A, and each of the two is averaged by itself, A from zero
#            as well: both are 5 % of the student's after a step, and their product is 0.25 %. The teacher stays at the
#            base model for long: with a constant student it has gone (1 - 0.95^n)^2 of the way after n steps, and not
#            1 - 0.95^n.
# Source:    trl/experimental/sdpo/teacher_sync.py, PEFTAdapterEMACallback.on_step_end; the same in
#            trl/experimental/sdft/teacher_sync.py
# Seen:      the teacher's change of a weight, as a share of the average over the student's changes: all weights 1.000
#            after 1, 10 and 40 steps; LoRA 0.050, 0.401 and 0.871
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" trl==1.16.0 peft==0.21.2 torch==2.13.0 <<'EOF'
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

RATE, LAYER = 0.05, "model.layers.0.self_attn.q_proj"
WORDS = ["<unk>", "<pad>", "<eos>", *map(str, range(29))]
backend = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<eos>"}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
prompts = Dataset.from_list([{"prompt": str(number)} for number in range(8)])
sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.3)).save_pretrained("base")
settings = {"num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 4, "learning_rate": 1e-3}
settings |= {"report_to": [], "save_strategy": "no", "use_cpu": True, "bf16": False}


class Average(TrainerCallback):
    """The moving average of the student's change of a weight."""

    def __init__(self, change):
        self.change, self.value = change, 0.0

    def on_step_end(self, args, state, control, **parts):
        self.value = (1 - RATE) * self.value + RATE * self.change("default")


def share(num_steps, adapter):
    """Return the teacher's change of a weight by the average that its rate asks for."""
    model = LlamaForCausalLM.from_pretrained("base")
    start = model.get_submodule(LAYER).weight.detach().clone()
    trainer = SDPOTrainer(
        model=model,
        reward_funcs=lambda completions, **columns: [float(at % 2) for at in range(len(completions))],
        args=SDPOConfig("out", teacher_model_kind="ema", teacher_update_rate=RATE, max_steps=num_steps, **settings),
        train_dataset=prompts,
        processing_class=tokenizer,
        peft_config=adapter,
    )

    def change(name):
        if adapter:
            return trainer.model.get_base_model().get_submodule(LAYER).get_delta_weight(name).detach()
        owner = trainer.teacher_model if name == "teacher" else trainer.model
        return owner.get_submodule(LAYER).weight.detach() - start

    trainer.add_callback(average := Average(change))
    trainer.train()
    found = (change("teacher").norm() / average.value.norm()).item()
    print(f"{'LoRA' if adapter else 'all weights'}, {num_steps} steps: {found:.3f}")
    return found


lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
assert all(abs(share(num_steps, None) - 1) < 1e-3 for num_steps in (1, 10, 40))
assert abs(share(1, lora) - RATE) < 1e-4
assert share(10, lora) < 0.5
assert share(40, lora) < 0.95
EOF
