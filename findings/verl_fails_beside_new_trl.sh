#!/usr/bin/env bash
# verl fails on any model if a new TRL is installed, though it does not use TRL.
#
# Version:   verl 0.9.1 with trl 1.16.0 and what they require
# Guessed:   TRL is no requirement of verl's, so whether it is installed changes nothing.
# Behaviour: apply_monkey_patch, which verl's engines call on each Hugging Face model, asks whether TRL is installed and
#            then patches AutoModelForCausalLMWithValueHead of trl.experimental.ppo or of trl. TRL 1.16 has neither, so
#            the import error ends the worker. Without TRL the same call passes.
# Source:    verl/models/transformers/monkey_patch.py, apply_monkey_patch
# Seen:      "ImportError: cannot import name 'AutoModelForCausalLMWithValueHead' from 'trl'"
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 trl==1.16.0 <<'PY'
import subprocess
import sys

PROGRAM = """
from transformers import LlamaConfig, LlamaForCausalLM
from verl.models.transformers.monkey_patch import apply_monkey_patch
sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=16)
apply_monkey_patch(LlamaForCausalLM(LlamaConfig(**sizes)))
"""


def tried() -> str:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else "passed"


print("beside TRL:", beside := tried())
subprocess.run(["uv", "pip", "uninstall", "--quiet", "--python", sys.executable, "trl"], check=True)
print("without TRL:", alone := tried())
assert beside.startswith("ImportError: cannot import name 'AutoModelForCausalLMWithValueHead' from 'trl'")
assert alone == "passed"
PY
