#!/usr/bin/env bash
# generate() with a repetition_penalty takes the padding for a word that was said: an answer depends on its neighbours.
#
# Version:   transformers 5.10.4
# Guessed:   with padding on the left and the attention mask given, a prompt has the same greedy answer alone and in a
#            batch, up to rounding.
# Behaviour: the penalty reads all input ids and no mask, so a row with padding has the padding token penalised. It
#            bites where an answer may hold that token, above all where it is the end (pad_token = eos_token): short
#            prompts get longer answers. A padding token that no answer has does no harm; nor does one that is in each
#            prompt, as it is penalised anyway.
# Source:    transformers/generation/logits_process.py, RepetitionPenaltyLogitsProcessor.__call__ (no attention mask).
#            Public report of the same in another engine: pull request 1765 of text-generation-inference
# Seen:      penalty 1.2, the end as padding: beside a longer prompt 19 of 50 answers are others, and their mean length
#            is 10.4 tokens and not 8.1. None is another without a penalty, with an unused token as padding, or where
#            each prompt has an end in it
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" transformers==5.10.4 torch==2.13.0 <<'EOF'
import torch
from transformers import LlamaConfig, LlamaForCausalLM

END, UNUSED, LENGTH = 2, 31, 16
torch.manual_seed(0)
sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=0.5, eos_token_id=END, bos_token_id=None)
model = LlamaForCausalLM(config).eval()
# The end is said often, the unused token never.
model.lm_head.bias = torch.nn.Parameter(torch.zeros(32))
model.lm_head.bias.data[END], model.lm_head.bias.data[UNUSED] = 1.5, -100


def answers(rows, pad, penalty):
    """The greedy answers to a batch, up to their ends."""
    longest = max(map(len, rows))
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    settings = {"pad_token_id": pad, "repetition_penalty": penalty, "do_sample": False, "max_new_tokens": LENGTH}
    said = model.generate(ids, attention_mask=mask, **settings)[:, longest:].tolist()
    return [row[: row.index(END) + 1] if END in row else row for row in said]


def compare(pad, penalty, begin):
    """Of 50 prompts, how many have another answer beside a longer one; and the answers' mean lengths."""
    prompts = [[*begin, first, second] for first in range(10, 15) for second in range(10, 20)]
    alone = [answers([prompt], pad, penalty)[0] for prompt in prompts]
    beside = [answers([prompt, [5, 6, 7, 8, *prompt]], pad, penalty)[0] for prompt in prompts]
    num_other = sum(one != other for one, other in zip(alone, beside))
    lengths = [sum(map(len, said)) / len(said) for said in (alone, beside)]
    print(f"pad {pad}, penalty {penalty}, prompts begin with {begin}: {num_other} of 50 are others, lengths {lengths}")
    return num_other, lengths


for pad, penalty, begin in [(END, 1.0, []), (UNUSED, 1.2, []), (END, 1.2, [END])]:
    num_other, _ = compare(pad, penalty, begin)
    assert num_other == 0
num_other, (alone, beside) = compare(END, 1.2, [])
assert num_other >= 10 and beside > alone + 1
EOF
