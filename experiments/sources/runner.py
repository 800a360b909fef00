"""Answers the problems, then refines the unsolved ones in every way; a line is written once it is complete."""

import asyncio
import json
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from transformers import AutoTokenizer

from experiments.sources.design import (
    ANSWERS,
    AT_ONCE,
    DRAWS,
    HIGHEST,
    MAX_MODEL_LEN,
    MAX_TOKENS,
    NUM_ANSWERS,
    NUM_DRAWS,
    NUM_UNSOLVED,
    RESULTS,
    STOP,
    WAYS,
    blocks,
    options,
    read,
    rows,
    unsolved,
)
from recipe.offline.bench import Bench, Engine
from recipe.offline.inputs import config_of
from recipe.online_refiner.method.pairs import Refinement, Rollout
from recipe.online_refiner.refine.group import Refiner
from refiner_worker.text.tokens import decode
from refiner_worker.text.turn_end import read_turn_end
from reward.verl_reward import compute_score


def make_bench(model: str, seed: int) -> Bench:
    """Return the model with its tokenizer and the reward, as `online-refiner check` uses them.

    Args:
        model: The model's folder.
        seed: The seed of the engine, another one for each start: an engine with the seed of an earlier one would draw
            that one's texts again.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    return Bench(
        engine=Engine(model, MAX_MODEL_LEN, seed, "bfloat16"),
        tokenizer=tokenizer,
        turn_end=read_turn_end(model, tokenizer),
        reward=compute_score,
        max_response_tokens=MAX_TOKENS,
        max_model_len=MAX_MODEL_LEN,
    )


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all below it, ended ones included that were waited for."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # it has ended meanwhile
            continue
        total += times.user + times.system
    return total


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


async def answered(bench: Bench, row: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the line of a problem: the rewards of its answers, and their texts if none is right."""
    assert bench.engine is not None
    prompt_ids = bench.tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
    async with bench.engine.slot():
        written = await bench.engine.generate(prompt_ids, STOP, MAX_TOKENS, num=NUM_ANSWERS, temperature=1.0)
    given = {**row, "responses": [decode(bench.tokenizer, ids) for ids in written]}
    group = await bench.answer(given, number, NUM_ANSWERS, {})
    if len(group) < NUM_ANSWERS:
        raise RuntimeError(f"problem {number}: {bench.failed[-1]}")
    line: dict[str, Any] = {"problem": number, "rewards": [round(one.reward, 4) for one in group]}
    line["tokens"] = sum(map(len, written))
    return line if max(line["rewards"]) >= HIGHEST else {**line, "responses": given["responses"]}


async def draw_answers(bench: Bench, folder: Path, deadline: float) -> None:
    """Answer problems in order until enough are unsolved."""
    problems, path = rows(), folder / ANSWERS
    while len(unsolved(found := read(path))) < NUM_UNSOLVED and len(found) < len(problems):
        if time.monotonic() >= deadline:
            return
        numbers = range(len(found), min(len(found) + AT_ONCE, len(problems)))
        for line in await asyncio.gather(*(answered(bench, problems[number], number) for number in numbers)):
            append(path, line)


def said(refinement: Refinement, solution: str) -> dict[str, Any]:
    """Return what a line keeps of a draw."""
    kept = {
        "verdict": str(refinement.verdict),
        "reward": None if refinement.reward is None else round(refinement.reward, 4),
        "written": refinement.num_generated_tokens,
        "read": refinement.num_prompt_tokens,
    }
    return {**kept, "copied": True} if is_copy(refinement.text, solution) else kept


def is_copy(text: str, solution: str) -> bool:
    """Return whether the program in a text is the solution, apart from white space."""
    _, _, program = text.partition("```python\n")
    return "".join(program.partition("```")[0].split()) == "".join(solution.split())


async def refined(refiner: Refiner, group: list[Rollout]) -> list[Refinement]:
    """Return NUM_DRAWS refinements of the first answer of a group."""
    for one in group:
        one.is_wanted = one.session[0] == 0
    drawn = await asyncio.gather(*(refiner.refine_group(group) for _ in range(NUM_DRAWS)))
    return [found[0] for found in drawn]


async def refine_blocks(bench: Bench, folder: Path, deadline: float) -> None:
    """Refine the blocks that have no line yet."""
    problems, path = rows(), folder / DRAWS
    refiners = {way: bench.refiner(config_of(text, options())) for way, text in WAYS.items()}
    done = {(line["block"], line["way"]) for line in read(path)}
    for number, way, chosen in blocks(read(folder / ANSWERS)):
        if (number, way) in done:
            continue
        if time.monotonic() >= deadline:
            return
        groups = [
            await bench.answer({**problems[one["problem"]], "responses": one["responses"]}, one["problem"], 4, {})
            for one in chosen
        ]
        began = cpu_seconds()
        found = await asyncio.gather(*map(partial(refined, refiners[way]), groups))
        line: dict[str, Any] = {"block": number, "way": way, "cpu_s": round(cpu_seconds() - began, 2)}
        line["problems"] = [one["problem"] for one in chosen]
        solutions = [problems[one["problem"]]["extra_info"]["solution"] for one in chosen]
        line["draws"] = [[said(one, text) for one in own] for own, text in zip(found, solutions, strict=True)]
        append(path, line)


async def work(model: str, minutes: float | None, folder: Path = RESULTS) -> None:
    """Draw answers and refine them, as far as the minutes go."""
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    bench = make_bench(model, seed=len(read(folder / ANSWERS)) + len(read(folder / DRAWS)))
    try:
        await draw_answers(bench, folder, deadline)
        await refine_blocks(bench, folder, deadline)
    finally:
        if bench.engine is not None:
            bench.engine.close()
