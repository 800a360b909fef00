"""The runner of missing runs, with one line of JSON each.

A line is written whole or not at all, and a run is claimed by a lock of the kernel, which ends with its worker: so
workers may be killed, and several may work on one file.
"""

import fcntl
import functools
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.map import arms, bases
from experiments.map.design import EVERY, LONG, POINTS, Spec, read, spec_of
from experiments.map.step import Counts, Learner, solved
from experiments.map.tasks import NAMES, Question, questions

NUM_HELD_OUT = 600
LOCKS = Path("runs/map/locks")


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line to a file by one write, which a kill cannot cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(line, separators=(",", ":")) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


@contextmanager
def claimed(key: str) -> Iterator[bool]:
    """Hold the run of this key while it is done; false if another process holds it."""
    LOCKS.mkdir(parents=True, exist_ok=True)
    with (LOCKS / key.replace("/", "_")).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def work(specs: Iterable[Spec], path: Path, minutes: float | None = None) -> int:
    """Do the missing runs in their order, and return how many were done here.

    Args:
        specs: All runs.
        path: The file of their lines.
        minutes: The time after which no run begins.
    """
    torch.set_num_threads(1)
    began, number = time.monotonic(), 0
    for spec in specs:
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            break
        with claimed(spec.key) as is_ours:
            if is_ours and spec not in {spec_of(line) for line in read(path)}:
                line = run(spec)
                append(path, line)
                print(spec.key, line["solved"][-1], f"{line['cpu_s']:.0f} s", flush=True)
                number += 1
    return number


@functools.cache
def held_out() -> tuple[Question, ...]:
    """Return the questions that every run is validated with."""
    return tuple(questions("validation", NUM_HELD_OUT, np.random.default_rng(0)))


def fingerprint(weights: dict[str, torch.Tensor]) -> str:
    """Return a hash of a base's weights, which differ between machines even with the same seed."""
    sums = hashlib.sha256()
    for tensor in weights.values():
        sums.update(tensor.numpy().tobytes())
    return sums.hexdigest()[:8]


def run(spec: Spec) -> dict[str, Any]:
    """Do a run and return its line: curves at each validation, of training since the last one."""
    began, point, arm = time.process_time(), POINTS[spec.point], arms.ARMS[spec.arm]
    weights = bases.base(point.strength, spec.base_seed)
    policy = Learner(
        config=arms.config_of(arm.overrides(spec.weight), point.rate),
        weights=weights,
        seed=spec.seed,
        num_steps=LONG,  # so that a short run has the questions of a long one
        kind=spec.kind or "r05",
        source=arm.source,
    )
    curves: dict[str, list[float]] = {"solved": [], "reward": [], "entropy": [], "accepted": []}
    tokens = 0
    for step in range(1, spec.steps + 1):
        policy.step()
        if step % EVERY == 0:
            answers = solved(policy, held_out(), seed=step)
            counts = policy.counts
            curves["solved"].append(round(float(np.mean(answers)), 4))
            curves["reward"].append(round(counts.reward / counts.rows, 3))
            curves["entropy"].append(round(counts.entropy / counts.steps, 3))
            curves["accepted"].append(round(counts.accepted / max(1, counts.wrong), 3))
            tokens += counts.tokens
            policy.counts = Counts()
    by_rule = [
        round(float(np.mean([right for one, right in zip(held_out(), answers, strict=True) if one.rule == rule])), 3)
        for rule in range(len(NAMES))
    ]
    return {
        **{name: getattr(spec, name) for name in Spec.__dataclass_fields__},
        "base": fingerprint(weights),
        **{name: curve for name, curve in curves.items() if any(curve)},
        "by_rule": by_rule,
        "tokens": tokens,
        "cpu_s": round(time.process_time() - began, 1),
    }
