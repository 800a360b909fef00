"""Hosts a refiner on a Ray cluster of its own, breaks it in every way, and prints what happened as one JSON line.

A process of its own, because the CPU platform is chosen once, when verl is first imported. Arguments: model folder,
folder of the config, scratch folder.
"""

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
from abandoned_requests import abandon, give_up
from hydra import compose, initialize_config_dir
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.single_controller.ray import ResourcePoolManager

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.method.pairs import Refinement, Rollout
from recipe.online_refiner.refine.group import Refiner
from recipe.online_refiner.verl_glue.hosting.group import MAX_DEATHS, RefinerGroup, start
from recipe.online_refiner.verl_glue.model_configs import plan_run
from refiner_worker.client import RefinerClient, RefinerRequestError
from refiner_worker.engines import ABSENT
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.text.answer import Place
from refiner_worker.text.tokens import decode
from refiner_worker.text.turn_end import read_turn_end

NUM_LIKELIEST = 16
"""The number of likely tokens that are asked for at each place of a response."""
OVERRIDES = (
    "platform=cpu",
    "data.max_prompt_length=64",
    "data.max_response_length=16",
    "actor_rollout_ref.rollout.dtype=float32",
    "actor_rollout_ref.rollout.max_num_batched_tokens=2048",
    "refiner.temperature=0",
    "+refiner.rollout.engine_kwargs.vllm.speculative_config="
    "{method: ngram, num_speculative_tokens: 8, prompt_lookup_max: 4, prompt_lookup_min: 2}",
    "constraint.reward_gate=false",
    "+actor_rollout_ref.model.override_config.max_position_embeddings=1024",
    "actor_rollout_ref.model.use_shm=true",
    "actor_rollout_ref.rollout.quantization=fp8",
    "actor_rollout_ref.rollout.disaggregation.enabled=true",
)


async def letters(rollout: Rollout, response_ids: list[int]) -> float:
    """A reward that needs nothing but the token ids."""
    return sum(token % 2 for token in response_ids) / len(response_ids)


async def log_probs_of(client: RefinerClient, rollout: Rollout) -> list[float] | None:
    """Return log pi_0 of a response."""
    return await client.in_time(client.log_probs, rollout.prompt_ids, rollout.response_ids)


def rollouts(tokenizer: Any, num: int) -> list[Rollout]:
    """Return rollouts with different prompts."""
    made = []
    for index in range(num):
        messages = [{"role": "user", "content": f"Write {index} letters."}]
        prompt_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        response_ids = [*tokenizer.encode("abcdefgh"[: index % 8 + 1]), tokenizer.eos_token_id]
        made.append(
            Rollout(
                key=f"{index // 4}_{index % 4}_0",
                messages=messages,
                prompt_ids=prompt_ids,
                response_ids=response_ids,
                reward=0.0,
                reward_columns={},
            )
        )
    return made


async def refine_all(refiner: Refiner, batch: list[Rollout]) -> list[Refinement]:
    """Refine groups of four."""
    groups = [batch[first : first + 4] for first in range(0, len(batch), 4)]
    refined = await asyncio.gather(*map(refiner.refine_group, groups))
    return [refinement for group in refined for refinement in group]


def refine(refiner: Refiner, batch: list[Rollout]) -> list[Refinement]:
    """Run the stage."""
    return asyncio.run(refine_all(refiner, batch))


def largest_difference_to_hugging_face(client: RefinerClient, model_path: str, batch: list[Rollout]) -> float:
    """Compare the refiner's log-probs of responses with those of the same weights in Hugging Face."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    difference = 0.0
    for rollout in batch:
        ours = asyncio.run(log_probs_of(client, rollout))
        ids = torch.tensor([rollout.prompt_ids + rollout.response_ids])
        with torch.no_grad():
            table = model(ids).logits.log_softmax(-1)[0, :-1]
        theirs = table.gather(-1, ids[0, 1:, None])[len(rollout.prompt_ids) - 1 :, 0]
        assert ours is not None and len(ours) == len(theirs)
        difference = max(difference, (torch.tensor(ours) - theirs).abs().max().item())
        num_ids = table.shape[-1]
        asked = rollout.prompt_ids, rollout.response_ids, NUM_LIKELIEST
        likely, likeliest = asyncio.run(client.top_log_probs(*asked, num_ids))
        fewer, dropped = asyncio.run(client.top_log_probs(*asked, num_ids // 2))  # as if half of them were padding
        stays = likely < num_ids // 2
        assert 0 < stays.mean() < 1 and np.array_equal(fewer, np.where(stays, likely, 0))
        assert np.allclose(dropped, np.where(stays, likeliest, ABSENT), atol=1e-3)
        known = table[len(rollout.prompt_ids) - 1 :].topk(NUM_LIKELIEST).values
        difference = max(difference, (torch.from_numpy(likeliest) - known).abs().max().item())
    return difference


def spread_of_log_probs(client: RefinerClient, batch: list[Rollout]) -> float:
    """Ask for log pi_0 one by one, all at once, and in the other order; return the largest difference, in nats."""

    async def at_once(some: list[Rollout]) -> list[list[float]]:
        return list(await asyncio.gather(*(log_probs_of(client, one) for one in some)))  # type: ignore[arg-type]

    found = [
        [row for one in batch for row in asyncio.run(at_once([one]))],
        asyncio.run(at_once(batch)),
        asyncio.run(at_once(batch[::-1]))[::-1],
    ]
    ways = torch.tensor([[value for row in rows for value in row] for rows in found])
    return float((ways.amax(0) - ways.amin(0)).max())


def prompt_of(refiner: Refiner, rollout: Rollout) -> list[int]:
    """Return what the refiner reads."""
    text = decode(refiner.prompt.tokenizer, rollout.turn_ids)
    return refiner.prompt.encode(refiner.prompt.content(rollout.messages, text, rollout.reward))


def greedy_answer(refiner: Refiner, model_path: str, rollout: Rollout) -> list[int]:
    """Return what the same weights write in Hugging Face, without speculative decoding."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    prompt_ids = prompt_of(refiner, rollout)
    ids = torch.tensor([prompt_ids])
    with torch.no_grad():
        output = model.generate(ids, do_sample=False, max_new_tokens=refiner.config.response_length)
    written, language = output[0, ids.shape[1] :].tolist(), refiner.language
    place = Place(response=language.decode(rollout.turn_ids), stop=refiner.prompt.stop)
    return language.parse(written, rollout, place).token_ids


async def kill_in_flight(refiner: Refiner, batch: list[Rollout], pid: int) -> list[Refinement]:
    """Kill a process once a batch's requests are under way."""
    stage = asyncio.create_task(refine_all(refiner, batch))
    server = next(iter(refiner.client.servers.values()))
    while not await server.__ray_call__.remote(lambda server: server.engine.output_processor.has_unfinished_requests()):
        await asyncio.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return await stage


def staggered(refiner: Refiner, batch: list[Rollout]) -> list[bool]:
    """Refine groups that begin one after the other, log-probs asked for beside them, and each response alone.

    Returns:
        For each response whether both wrote the same.
    """

    async def together(number: int, group: list[Rollout]) -> list[Refinement]:
        await asyncio.sleep(0.03 * number)
        measured = asyncio.gather(*(log_probs_of(refiner.client, rollout) for rollout in group))
        refined = await refiner.refine_group(group)
        await measured
        return refined

    async def all_groups() -> list[Refinement]:
        groups = [batch[first : first + 4] for first in range(0, len(batch), 4)]
        refined = await asyncio.gather(*(together(number, group) for number, group in enumerate(groups)))
        return [refinement for group in refined for refinement in group]

    found = asyncio.run(all_groups())
    alone = [refine(refiner, [rollout])[0] for rollout in batch]
    return [
        (a.verdict, a.token_ids, a.text) == (b.verdict, b.token_ids, b.text) for a, b in zip(found, alone, strict=True)
    ]


def engine_of(group: RefinerGroup) -> psutil.Process:
    """Return the engine process of the only replica."""
    server = psutil.Process(group.server_places()[0][0])
    # What the server starts is a fork of the same process as itself.
    return next(process for process in server.parent().children() if "EngineCore" in str(process.cmdline()))


def lose_all(group: RefinerGroup, refiner: Refiner, batch: list[Rollout]) -> dict[str, Any]:
    """Kill the last replica once it has died too often to be started again."""
    result: dict[str, Any] = {}
    engine_of(group).kill()
    result["lost"] = {
        refinement.verdict for refinement in refine(refiner, batch)
    }  # the server notices the death by now
    group._num_deaths[0] = MAX_DEATHS
    try:
        group.wake_up()
    except RuntimeError as error:
        result["stopped"] = str(error)
    refiner.client = group.client()
    result["num_left"] = len(refiner.client.servers)
    result["without_replicas"] = {refinement.verdict for refinement in refine(refiner, batch)}
    result["log_probs_without_replicas"] = [asyncio.run(log_probs_of(refiner.client, batch[0]))]
    group.sleep()
    return result


def kill_engine(
    group: RefinerGroup, refiner: Refiner, tokenizer: Any, batch: list[Rollout], before: list[Refinement]
) -> dict[str, Any]:
    """Kill the replica's engine among requests, and let the group start it again."""
    result: dict[str, Any] = {}
    engine = engine_of(group)
    family = [engine, *engine.children(recursive=True)]
    killed = asyncio.run(kill_in_flight(refiner, rollouts(tokenizer, 200), engine.pid))
    result["killed"] = {refinement.verdict for refinement in killed}
    result["num_restarts"] = group.wake_up()
    refiner.client = group.client()
    after = refine(refiner, batch)
    result["same_after_restart"] = [a.token_ids == b.token_ids for a, b in zip(before, after, strict=True)]
    result["orphans"] = [process.pid for process in psutil.wait_procs(family, timeout=300)[1] if process.is_running()]
    return result


def main() -> None:
    """Run the probe."""
    model_path, config_folder = sys.argv[1:3]
    with initialize_config_dir(config_folder, version_base=None):
        config = compose("online_refiner", overrides=[f"actor_rollout_ref.model.path={model_path}", *OVERRIDES])
    blocks = load(config)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    plan = plan_run(config, blocks, tokenizer=tokenizer)
    ray.init(num_gpus=1, num_cpus=8, include_dashboard=False, log_to_driver=False)
    pools = ResourcePoolManager(resource_pool_spec={"global_pool": [1]}, mapping={})
    pools.create_resource_pool()
    (group,) = start(plan.hosted, pool=pools.resource_pool_dict["global_pool"], gpus_per_node=1)
    refiner = Refiner(
        config=blocks.refiner,
        client=group.client(),
        prompt=RefinerPrompt(blocks.refiner.template_path(), tokenizer),
        turn_end=read_turn_end(model_path, tokenizer),
        score=letters,
        max_model_len=plan.max_model_len,
        max_response_tokens=config.data.max_response_length,
    )
    batch = rollouts(tokenizer, 12)
    result: dict[str, Any] = {"max_model_len": plan.max_model_len}
    before = refine(refiner, batch)
    result["as_hugging_face"] = [
        one.token_ids == greedy_answer(refiner, model_path, rollout) for one, rollout in zip(before, batch, strict=True)
    ]
    result["before"] = [refinement.verdict for refinement in before]
    result["kl_difference"] = largest_difference_to_hugging_face(refiner.client, model_path, batch)

    result["spread_of_log_probs"] = spread_of_log_probs(refiner.client, batch)
    result["staggered"] = staggered(refiner, rollouts(tokenizer, 560))
    prompts = [prompt_of(refiner, rollout) for rollout in rollouts(tokenizer, 200)]
    result["num_given_up"] = asyncio.run(give_up(refiner.client, prompts))
    result.update(asyncio.run(abandon(refiner.client, engine_of(group), prompts[:100])))
    read = next(iter(refiner.client.servers.values())).__ray_call__.remote(lambda server: server.model_config)
    result["read_by_the_server"] = [ray.get(read).hf_config.max_position_embeddings, ray.get(read).local_path]
    hurried = dataclasses.replace(refiner, config=dataclasses.replace(refiner.config, request_timeout_s=0.001))
    result["hurried"] = {refinement.verdict for refinement in refine(hurried, batch)}
    try:
        asyncio.run(refiner.client.generate([5] * (plan.max_model_len + 1), [], 1))
    except RefinerRequestError as error:
        result["too_long_for_the_server"] = str(error)
    result["alive_after_bad_requests"] = len(group.client().servers) == len(refiner.client.servers)

    result.update(kill_engine(group, refiner, tokenizer, batch, before))
    result.update(lose_all(group, refiner, batch))
    shutil.rmtree(Path(result["read_by_the_server"][1]).parent)
    ray.shutdown()
    Path(sys.argv[3]).write_text(json.dumps(result, default=sorted))


if __name__ == "__main__":
    main()
