"""Refine workers on a Ray and a TransferQueue of their own: rows in, rows out, a death; prints facts as one JSON line.

``python refine_workers_probe.py MODEL OUT``. The replica is an actor that repeats the response with another first
token, or waits until it is told to go on.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue
from agent_loop_actors import Loop, Replica, Reward
from agent_loop_rows import GROUP_SIZE, NUM_GROUPS, write_step
from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from transformers import AutoTokenizer

from recipe.online_refiner import rows as queue
from recipe.online_refiner import watch
from recipe.online_refiner.config.checks import load
from recipe.online_refiner.refine_actors import RefineWorkers
from recipe.online_refiner.stages import Stages
from recipe.online_refiner.step import StepState
from refiner_worker.client import RefinerClient
from refiner_worker.group import RunEndedError


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


def keep_prefix(config: DictConfig, tokenizer: Any, client: RefinerClient, reward: Any) -> dict[str, Any]:
    """Refine responses of three lines, of which the refiner would not write the last one."""
    config.refiner.keep_prefix = True
    blocks = load(config)
    workers = RefineWorkers(config, tokenizer, [reward], 2)
    stages = Stages(config, blocks, workers, total_training_steps=3)
    ray.get(client.servers["one"].would_not_write.remote(tokenizer.encode("e", add_special_tokens=False)[0]))
    batch = write_step(11, tokenizer, text="ab\ncd\ne")
    state = refine(stages, batch, client, 11)
    workers.finish()
    rows = queue.rows_of(batch, state.rows)
    prompt_ids, max_tokens = ray.get(client.servers["one"].request.remote())
    pairs = list(state.pairs.values())
    return {
        "turn": queue.read_rollouts(rows)[0].turn_ids,
        "refined": [row.tolist() for row in queue.read(rows, "refine_ids")["refine_ids"].unbind()],
        "counterparts": [row.tolist() for row in queue.read(rows, "refine_counterparts")["refine_counterparts"]],
        "weights": [row.tolist() for row in queue.read(rows, "refine_weights")["refine_weights"]],
        "prompt": tokenizer.decode(prompt_ids),
        "max_tokens": max_tokens,
        "kept": [pair.num_kept_tokens for pair in pairs],
        "metrics": {name: state.metrics[f"tokens/{name}"] for name in ("refine", "refine_kept")},
        "num_read": [pair.num_prompt_tokens - 2 * len(prompt_ids) for pair in pairs],
        "copied": [pair.num_copied_tokens for pair in pairs],
        "records": queue.read_records(rows, tokenizer),
    }


def rescue(stages: Stages, tokenizer: Any, client: RefinerClient) -> list[tuple[int, float]]:
    """Keep groups of equal rewards, of which rounding has made advantages; return whose rewards differ, and |A|."""
    batch = write_step(9, tokenizer)
    state = refine(stages, batch, client, 9)
    state.pairs[state.rows[0]].reward += 1.0
    state.eta = 1.0
    constraint = stages._blocks.constraint
    constraint.mode, constraint.rescue_dead_groups = "sft", True
    shape = queue.read_padded(batch, "response_mask")["response_mask"].shape
    queue.write_column(batch, "advantages", torch.full(shape, 0.056))
    stages.charge_advantages(batch, state)
    largest = queue.read_padded(batch, "advantages")["advantages"].abs().amax(-1).tolist()
    return [(int(row < GROUP_SIZE), round(largest[row], 3)) for row in state.rows]


def charge_rewards(stages: Stages, tokenizer: Any, client: RefinerClient) -> dict[str, list[list[float]]]:
    """Charge each response 2 before the estimator, and take it out again."""
    batch = write_step(10, tokenizer)
    state = refine(stages, batch, client, 10)
    stages._workers.finish()
    rows = queue.rows_of(batch, state.rows)
    state.eta = 1.0
    for pair in state.pairs.values():
        pair.divergence = 2.0
    zeros = torch.zeros_like(queue.read_padded(batch, "rm_scores")["rm_scores"])
    queue.write_column(batch, "refine_charged", zeros)
    constraint = stages._blocks.constraint
    constraint.mode, constraint.credit, constraint.rescue_dead_groups = "lagrangian", None, False
    stages._config.algorithm.adv_estimator = "gae"

    def rewards() -> list[list[float]]:
        return [row.tolist() for row in queue.read(rows, "rm_scores")["rm_scores"].unbind()]

    own = stages.charge_rewards(batch, state)
    charged = rewards()
    stages.restore_rewards(batch, state, own)
    state.eta = 0.0
    assert stages.charge_rewards(batch, state) is None
    return {"charged": charged, "restored": rewards()}


def watch_what_dies() -> dict[str, Any]:
    """Wait for ever, fail or end while an actor is killed, has lost its engine, or lives; return how."""
    watch.ASK_EVERY_S = 0.1
    loops = [Loop.remote() for _ in range(3)]
    pids = ray.get([loop.pid.remote() for loop in loops])

    def end_of(function: Any, *parts: watch.Part) -> str:
        try:
            watch.Watch([watch.Part("loop 0", loops[0]), *parts]).run(function)
        except (RunEndedError, ValueError) as error:
            return f"{type(error).__name__}: {error} <- {error.__cause__!r}"
        return "ended"

    def kill_and(number: int, then: Any) -> Any:
        return lambda: (os.kill(pids[number], signal.SIGKILL), then())

    def fail() -> None:
        raise ValueError("of its own")

    engine = watch.Part("server 1", loops[0], lambda _: True)
    return {
        "lives": end_of(lambda: None),
        "fails": end_of(fail),
        "engine": end_of(threading.Event().wait, engine),
        "killed": end_of(kill_and(1, threading.Event().wait), watch.Part("loop 1", loops[1])),
        "killed_and_fails": end_of(kill_and(2, fail), watch.Part("loop 2", loops[2])),
    }


def kill_one(stages: Stages, batch: KVBatchMeta, client: RefinerClient, pid: int) -> dict[str, Any]:
    """Refine a step while a worker waits for its answers, is killed, and the others get theirs."""
    replica = client.servers["one"]
    ray.get(replica.wait.remote(True))
    killer = threading.Timer(3, lambda: os.kill(pid, signal.SIGKILL))
    killer.start()
    going_on = threading.Timer(6, lambda: ray.get(replica.wait.remote(False)))
    going_on.start()
    state = refine(stages, batch, client, 2)
    fields = queue.read(batch, "refine_ids", "refine_mask", "refine_used")
    return {
        "verdicts": sorted(pair.verdict for pair in state.pairs.values()),
        "aborts": ray.get(replica.aborts.remote()),
        "num_lost": state.metrics["refiner/failed/worker"],
        "used": fields["refine_used"].tolist(),
        "used_by_tags": [int(pair is not None and pair.is_used) for pair in map(queue.pair_of, batch.tags)],
        "refined": sorted({tuple(row.tolist()) for row in fields["refine_ids"].unbind()}),
    }


def main() -> None:
    """Run three steps, one of two workers is killed in the second; then rows of unlike agent loops."""
    model, out = sys.argv[1:]
    overrides = [
        *("platform=cpu", f"actor_rollout_ref.model.path={model}", f"run_dir={out}.run", "refiner.template=dialogue"),
        *(f"data.train_batch_size={NUM_GROUPS}", f"actor_rollout_ref.rollout.n={GROUP_SIZE}"),
        *("measure.num_kl_rollouts=3", "constraint.mode=penalty"),
        "refiner.context=[feedback,solution]",
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
    workers = RefineWorkers(config, tokenizer, [reward], 2)
    stages = Stages(config, blocks, workers, total_training_steps=3)
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
        "request": ray.get(reward.first_request.remote()),
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
    found["rescued"] = rescue(stages, tokenizer, client)
    workers.finish()
    found["charged_rewards"] = charge_rewards(stages, tokenizer, client)
    workers.finish()
    found["kept_prefix"] = keep_prefix(config, tokenizer, client, reward)
    found["watched"] = watch_what_dies()
    found["refusals"] = refusals(stages, tokenizer, client)
    found["files"] = sorted(path.name for path in Path(f"{out}.run/refinements").glob("*.jsonl"))
    ray.shutdown()
    Path(out).write_text(json.dumps(found, default=lambda value: value.tolist()))


if __name__ == "__main__":
    main()
