"""The cost of refining a large step for the driver and the refine workers, without any model.

    python -m experiments.bench_driver [--responses 512] [--tokens 4096] [--workers 1]

Real Ray, real TransferQueue, the real stages; an actor that repeats most of the response stands in for the refiner's
vLLM, others for verl's reward workers and for the policy. Runs the stages that touch every row: rewards, refine, log
pi_0 for the KL, records, the penalty in the advantages. Ends with a line of JSON: CPU seconds of the driver, of all
refine workers and of the busiest, the driver's peak memory above its memory before, in MB, and the stages' seconds.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any

import psutil
import ray
import torch
import transfer_queue
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from transformers import AutoTokenizer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from recipe.online_refiner import metric_names
from recipe.online_refiner.config.checks import load
from recipe.online_refiner.method.step import StepState
from recipe.online_refiner.verl_glue.loss import jagged
from recipe.online_refiner.verl_glue.refine_actors import RefineWorkers
from recipe.online_refiner.verl_glue.stages import Stages
from refiner_worker.client import RefinerClient

GROUP, CHUNK, NUM_PROMPT_TOKENS = 8, 64, 128
WORDS = ("def", "return", "for", "while", "print", "input", "range", "len", "sorted", "total", "value", "else")


class Echo:
    """A stand-in for vLLM's server that returns most of the response, or a log-prob for each of its tokens."""

    async def generate(self, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> SimpleNamespace:
        """Repeat most of the response."""
        if "prompt_logprobs" in sampling_params:
            return SimpleNamespace(token_ids=[0], extra_fields={"prompt_logprobs": [[-0.5]] * len(prompt_ids)})
        middle = len(prompt_ids) // 2  # of the response that it is asked to refine
        half = sampling_params["max_tokens"] * 45 // 100
        return SimpleNamespace(token_ids=prompt_ids[middle - half : middle + half] + [self.eos], extra_fields={})

    def prepare(self, eos: int) -> None:
        """Keep the token that ends an answer."""
        self.eos = eos


class Reward:
    """A stand-in for verl's reward worker that prefers every second refinement."""

    async def compute_score(self, data: Any) -> dict[str, Any]:
        """Score one response."""
        penalty = int(data.batch["responses"][0, 0]) % 2
        return {"reward_score": float(len(data.non_tensor_batch["raw_prompt"])) - penalty}

    async def numbers(self, rows: KVBatchMeta) -> list[dict[str, float | None]]:
        """Return no numbers beside the rewards."""
        return [{} for _ in rows.keys]


@ray.remote
def write_rows(tokenizer: Any, numbers: range, num_tokens: int) -> list[str]:
    """Put rollouts into the queue, as verl's agent loop workers do, and return their keys."""
    transfer_queue.init()
    keys, rows = [], []
    for number in numbers:
        text = " ".join(random.Random(number).choices(WORDS, k=2 * num_tokens))
        ids = tokenizer.encode(text, add_special_tokens=False)[: num_tokens - 1]
        response = torch.tensor([*ids, tokenizer.eos_token_id])
        prompt = torch.full((NUM_PROMPT_TOKENS,), 1000)
        rewards = torch.zeros(len(response))
        rewards[-1] = -0.5
        keys.append(f"u{number // GROUP}_{number % GROUP}_0")
        rows.append(
            {
                "prompts": prompt,
                "responses": response,
                "response_mask": torch.ones_like(response),
                "input_ids": torch.cat([prompt, response]),
                "rm_scores": rewards,
                "num_turns": 2,
                "raw_prompt": [{"role": "user", "content": "Add two numbers. " * 16}],
                "uid": f"u{number // GROUP}",
                "data_source": "bench",
                "reward_model": {"ground_truth": "{}"},
                "extra_fields": {},
                "metrics": {"compute_score": 0.1},
                "multi_modal_inputs": {},
            }
        )
    lengths = {"prompt_len": NUM_PROMPT_TOKENS, "response_len": num_tokens, "seq_len": NUM_PROMPT_TOKENS + num_tokens}
    tags = [{**lengths, "max_global_steps": 0}] * len(keys)
    transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    return keys


@ray.remote
def write_scores(keys: list[str], num_tokens: int) -> None:
    """Put into the queue the policy's log-probs of used refinements, and verl's advantages."""
    transfer_queue.init()
    column = jagged([torch.full((num_tokens,), -0.5)] * len(keys))
    sums = torch.full((len(keys),), 0.5 * num_tokens)
    fields = {"refine_charged": column, "advantages": column, "refine_nll": sums, "refine_divergence": sums}
    transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict(fields, batch_size=len(keys)))


class Policy:
    """A stand-in for the actor's worker group."""

    _dispatch_info = {"actor": [0]}

    def __init__(self, num_tokens: int) -> None:
        """Keep the length of responses."""
        self.num_tokens = num_tokens

    def compute_refine_log_prob(self, rows: KVBatchMeta) -> None:
        """Let another process write the scores."""
        parts = [rows.keys[first : first + CHUNK] for first in range(0, len(rows.keys), CHUNK)]
        ray.get([write_scores.remote(part, self.num_tokens) for part in parts])


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def measure(config: Any, tokenizer: Any, arguments: argparse.Namespace) -> dict[str, float]:
    """Run the stages once, warm, and return what they cost."""
    blocks = load(config)
    echo, reward = (ray.remote(max_concurrency=1000)(kind).remote() for kind in (Echo, Reward))
    ray.get(echo.prepare.remote(tokenizer.eos_token_id))
    client = RefinerClient(servers={"echo": echo}, config=blocks.refiner)
    workers = RefineWorkers(config, tokenizer, None, [reward], arguments.workers)
    stages = Stages(config, blocks, workers)
    numbers = range(arguments.responses)
    parts = (numbers[first : first + CHUNK] for first in numbers[::CHUNK])
    written = ray.get([write_rows.remote(tokenizer, part, arguments.tokens) for part in parts])
    keys = [key for part in written for key in part]
    tags = transfer_queue.kv_list("train")["train"]
    batch = KVBatchMeta(keys=keys, tags=[tags[key] for key in keys], partition_id="train")
    pids = [ray.get(worker.__ray_call__.remote(lambda _: psutil.Process().pid)) for worker in workers.start()]
    state = StepState(step=1)
    before = [cpu_s(pid) for pid in (psutil.Process().pid, *pids)]
    start = time.monotonic()
    memory = psutil.Process().memory_info().rss
    stages.see_rollouts(batch, state)
    stages.refine(batch, state, client, max_model_len=10**6)
    stages.score_with_reference(batch, state, client)
    stages.score_with_actor(batch, state, Policy(arguments.tokens))
    assert stages.charges.charge_rewards(batch, state) is None
    stages.charges.charge_advantages(batch, state)
    workers.finish()
    peak_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - memory) / 2**20
    seconds = time.monotonic() - start
    driver, *own = (cpu_s(pid) - used for pid, used in zip((psutil.Process().pid, *pids), before, strict=True))
    assert state.metrics[metric_names.NUM_ATTEMPTED] == arguments.responses, state.metrics
    return {
        "num_accepted": state.metrics[metric_names.NUM_ACCEPTED],
        "driver_cpu_s": round(driver, 2),
        "driver_peak_mb": round(peak_mb, 1),
        "workers_cpu_s": round(sum(own), 2),
        "busiest_worker_cpu_s": round(max(own), 2),
        "stage_s": round(seconds, 2),
    }


def main() -> None:
    """Make the rows and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--responses", type=int, default=512, help=f"a multiple of {GROUP}")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    model = subprocess.check_output([sys.executable, "scripts/get_smollm2.py"], text=True).strip()
    tokenizer = AutoTokenizer.from_pretrained(model)
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            "platform=cpu",
            f"actor_rollout_ref.model.path={model}",
            f"run_dir={folder}",
            "constraint.mode=penalty",
            f"data.max_response_length={arguments.tokens}",
            f"data.train_batch_size={arguments.responses // GROUP}",
            f"actor_rollout_ref.rollout.n={GROUP}",
        ]
        with initialize_config_module("recipe.online_refiner.config", version_base=None):
            config = compose("online_refiner", overrides=overrides)
        ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)
        transfer_queue.init(config.transfer_queue)
        print(json.dumps({**vars(arguments), **measure(config, tokenizer, arguments)}))
        ray.shutdown()


if __name__ == "__main__":
    main()
