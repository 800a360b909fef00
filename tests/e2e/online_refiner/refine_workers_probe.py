"""Refine workers on a Ray and a TransferQueue of their own: rows in, rows out, a death; prints facts as one JSON line.

``python refine_workers_probe.py MODEL OUT``. The replica is an actor that repeats the response with another first
token, or waits until it is told to go on.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue
from agent_loop_actors import Replica, Reward
from agent_loop_rows import GROUP_SIZE, NUM_GROUPS, write_step
from hydra import compose, initialize_config_module
from transfer_queue import KVBatchMeta
from transformers import AutoTokenizer

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.method.step import StepState
from recipe.online_refiner.verl_glue import rows as queue
from recipe.online_refiner.verl_glue import watch
from recipe.online_refiner.verl_glue.refine_actors import RefineWorkers
from recipe.online_refiner.verl_glue.stages import Stages
from refiner_worker.client import RefinerClient, RunEndedError


def refine(stages: Stages, batch: KVBatchMeta, client: RefinerClient, step: int) -> StepState:
    """Run the stages of a step that the workers have a part in."""
    state = StepState(step=step)
    stages.see_rollouts(batch, state)
    stages.refine(batch, state, client, max_model_len=10_000)
    return state


def refusals(stages: Stages, tokenizer: Any, client: RefinerClient) -> dict[str, str]:
    """Return what is said to the rows of agent loops that cannot be refined."""
    kinds: dict[str, dict[str, Any]] = {
        "several": {"output_number": 1},
        "images": {"multi_modal_inputs": {"pixel_values": torch.zeros(2)}},
        "own_reward": {"metrics": {"compute_score": 0.0}},
    }
    said = {}
    for step, (kind, changes) in enumerate(kinds.items(), 5):
        try:
            refine(stages, write_step(step, tokenizer, **changes), client, step)
        except ValueError as error:
            said[kind] = str(error)
    return said


def watch_what_dies() -> dict[str, str]:
    """Wait for ever, or fail, while an actor is killed or has lost its engine; return how it ends."""
    watch.ASK_EVERY_S = 0.1
    actors = [Reward.remote() for _ in range(2)]
    pids = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in actors])

    def end_of(function: Any, part: watch.Part) -> str:
        try:
            watch.watch([part], function)
        except RunEndedError as error:
            return f"{error} <- {error.__cause__!r}"
        return "ended"

    def kill_and_wait() -> None:
        os.kill(pids[0], signal.SIGKILL)
        threading.Event().wait()

    def kill_and_fail() -> None:
        os.kill(pids[1], signal.SIGKILL)
        raise ValueError("of its own")

    return {
        "engine": end_of(threading.Event().wait, watch.Part("server 1", actors[0], lambda _: True)),
        "killed": end_of(kill_and_wait, watch.Part("loop 1", actors[0])),
        "killed_and_fails": end_of(kill_and_fail, watch.Part("loop 2", actors[1])),
    }


def kill_one(stages: Stages, batch: KVBatchMeta, client: RefinerClient, pid: int) -> dict[str, Any]:
    """Refine a step while a worker waits for its answers, is killed, and the others get theirs."""
    replica = client.servers["one"]
    ask = lambda question: ray.get(replica.__ray_call__.remote(question))  # noqa: E731
    ask(lambda one: setattr(one, "waits", True))

    def kill_and_go_on() -> None:
        while ask(lambda one: len(one.waiting)) < NUM_GROUPS:  # the equal responses of a group ask once
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        while not ask(lambda one: one.num_aborted):
            time.sleep(0.05)
        ask(lambda one: setattr(one, "waits", False))

    threading.Thread(target=kill_and_go_on).start()
    state = refine(stages, batch, client, 2)
    fields = queue.read(batch, "refine_ids", "refine_mask", "refine_used")
    return {
        "verdicts": sorted(pair.verdict for pair in state.pairs.values()),
        "aborts": ask(lambda one: one.num_aborted),
        "num_lost": state.metrics["refiner/failed/worker"],
        "used": fields["refine_used"].tolist(),
        "used_by_tags": [int(pair is not None and pair.is_used) for pair in map(queue.pair_of, batch.tags)],
        "refined": sorted({tuple(row.tolist()) for row in fields["refine_ids"].unbind()}),
    }


def main() -> None:
    """Run three steps, one of two workers is killed in the second; then rows of unlike agent loops."""
    model, out = sys.argv[1:]
    overrides = [
        "platform=cpu",
        f"actor_rollout_ref.model.path={model}",
        f"run_dir={out}.run",
        "refiner.template=dialogue",
        f"data.train_batch_size={NUM_GROUPS}",
        f"actor_rollout_ref.rollout.n={GROUP_SIZE}",
        "measure.num_kl_rollouts=3",
        "constraint.mode=penalty",
    ]
    with initialize_config_module("recipe.online_refiner.config", version_base=None):
        config = compose("online_refiner", overrides=overrides)
    tokenizer = AutoTokenizer.from_pretrained(model)
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    transfer_queue.init(config.transfer_queue)
    blocks = load(config)
    answer = [*tokenizer.encode("b", add_special_tokens=False), tokenizer.eos_token_id]
    replica = Replica.options(max_concurrency=100).remote(answer)
    reward = Reward.remote()
    client = RefinerClient(servers={"one": replica}, config=blocks.refiner)
    workers = RefineWorkers(config, tokenizer, None, [reward], 2)
    stages = Stages(config, blocks, workers)
    pids = ray.get([worker.__ray_call__.remote(lambda _: os.getpid()) for worker in workers.start()])

    batch = write_step(1, tokenizer)
    state = refine(stages, batch, client, 1)
    stages.score_with_reference(batch, state, client)
    known = queue.read(queue.rows_of(batch, state.kl_rows), "kl_ref_log_prob")["kl_ref_log_prob"]
    found: dict[str, Any] = {
        "edit_distance": state.metrics["refiner/edit_distance"],
        "all": sorted(pair.verdict for pair in state.pairs.values()),
        "log_probs": [row.tolist() for row in known.unbind()],
        "groups_apart": sum(sum(key in part.keys for part in queue.shards(batch, 3)) != 1 for key in batch.keys),
        "request": ray.get(reward.__ray_call__.remote(lambda one: one.requests[0])),
    }
    workers.finish()

    found |= kill_one(stages, write_step(2, tokenizer), client, pids[0])
    found["answer"] = answer
    workers.finish()

    state = refine(stages, write_step(3, tokenizer), client, 3)
    workers.finish()
    found["after"] = sorted(pair.verdict for pair in state.pairs.values())
    tool_output_last = torch.tensor([1] * len(tokenizer.encode("abc")) + [0])
    state = refine(stages, write_step(4, tokenizer, response_mask=tool_output_last), client, 4)
    workers.finish()
    found["tool_output_last"] = sorted(pair.verdict for pair in state.pairs.values())
    found["watched"] = watch_what_dies()
    found["refusals"] = refusals(stages, tokenizer, client)
    found["files"] = sorted(path.name for path in Path(f"{out}.run/refinements").glob("*.jsonl"))
    ray.shutdown()
    Path(out).write_text(json.dumps(found, default=lambda value: value.tolist()))


if __name__ == "__main__":
    main()
