"""Do the missing runs, one line of JSON each; several workers may work on one file and may be killed at any time."""

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.map import bases
from experiments.map.arms import config_of
from experiments.map.model import Model, generate
from experiments.map.runner import append, claimed, fingerprint
from experiments.map.step import Learner
from experiments.map.tasks import EOS, LONGEST_ANSWER, REWARDS, RULES, Question, questions
from experiments.rates.design import (
    EVERY,
    LONG,
    METHODS,
    RESULTS,
    STEP_TOKENS,
    TRAINED_RULES,
    Spec,
    counted,
    lines_of,
    outcomes,
    spec_of,
    tuning,
)
from experiments.rates.teach import KIND, taught

NUM_HELD_OUT, NUM_OF_EIGHT = 600, 100
ALL_RULES = tuple(range(len(RULES)))
OTHER_RULES = tuple(rule for rule in ALL_RULES if rule not in TRAINED_RULES)
TOP = len(REWARDS) - 1


@functools.cache
def held_out(is_tuning: bool, rules: tuple[int, ...]) -> tuple[Question, ...]:
    """Return the questions of a validation; tuning has other questions than the runs that count."""
    drawn = questions("validation", 2 * NUM_HELD_OUT, np.random.default_rng(63), rules)
    return tuple(drawn[NUM_HELD_OUT:] if is_tuning else drawn[:NUM_HELD_OUT])


@torch.no_grad()
def answered(model: Model, asked: tuple[Question, ...], seed: int, number: int = 1) -> list[list[int]]:
    """Return `number` answers to each question, one question after the other."""
    prompts = torch.tensor([one.prompt for one in asked for _ in range(number)])
    return generate(model, prompts, LONGEST_ANSWER, EOS, torch.Generator().manual_seed(seed))


def solved(model: Model, asked: tuple[Question, ...], seed: int) -> float:
    """Return the share of the questions that a model solves, one answer each."""
    answers = answered(model, asked, seed)
    return float(np.mean([one.grade(answer) == TOP for one, answer in zip(asked, answers, strict=True)]))


def solved_by_eight(model: Model, asked: tuple[Question, ...], seed: int) -> float:
    """Return the share of the questions that at least one of eight answers solves (pass@8)."""
    several = [one for one in asked for _ in range(8)]
    answers = answered(model, asked, seed, 8)
    right = [one.grade(answer) == TOP for one, answer in zip(several, answers, strict=True)]
    return float(np.array(right).reshape(-1, 8).any(1).mean())


@torch.no_grad()
def divergence(policy: Model, reference: Model, asked: tuple[Question, ...], seed: int) -> float:
    """Return the mean over the policy's answers of log pi_theta - log pi_0, summed over an answer's tokens."""
    total, answers = 0.0, answered(policy, asked, seed)
    for one, answer in zip(asked, answers, strict=True):
        ids = torch.tensor([[*one.prompt, *answer]])
        target = ids[0, len(one.prompt) :, None]
        own, other = (
            model(ids[:, :-1])[0, len(one.prompt) - 1 :].log_softmax(-1).gather(-1, target)
            for model in (policy, reference)
        )
        total += float((own - other).sum())
    return total / len(asked)


class Curves:
    """What a run measures of its policy each EVERY tokens."""

    def __init__(self, run: Learner, spec: Spec) -> None:
        """Measure nothing yet."""
        self.run, self.spec = run, spec
        self.rules = TRAINED_RULES if spec.task == "four" else ALL_RULES
        self.asked = held_out(spec.is_tuning, self.rules)
        self.at: list[int] = []
        self.solved: list[float] = []
        self.reward: list[float] = []
        self.entropy: list[float] = []
        self.accepted: list[float] = []
        self.wrong = self.num_accepted = self.steps = self.rows = 0

    def measure(self, tokens: int) -> None:
        """Validate after so many tokens, and read the counts of the steps since the last validation."""
        counts = self.run.counts
        steps = max(1, counts.steps - self.steps)
        self.at.append(tokens)
        self.solved.append(round(solved(self.run.policy, self.asked, seed=len(self.at)), 4))
        self.reward.append(round(counts.reward / max(1, counts.rows - self.rows), 3))
        self.entropy.append(round(counts.entropy / steps, 3))
        accepted, wrong = counts.accepted - self.num_accepted, counts.wrong - self.wrong
        self.accepted.append(round(accepted / max(1, wrong), 3))
        self.wrong, self.num_accepted, self.steps, self.rows = counts.wrong, counts.accepted, counts.steps, counts.rows
        counts.reward = counts.entropy = 0.0

    def line(self) -> dict[str, list[float]]:
        """Return the curves that say anything."""
        curves = {"solved": self.solved, "reward": self.reward, "entropy": self.entropy, "accepted": self.accepted}
        return {
            "at": list(self.at),
            **{name: curve for name, curve in curves.items() if any(curve) or name == "solved"},
        }


def begun(spec: Spec, weights: dict[str, Tensor]) -> tuple[Learner, int]:
    """Return a run before its first step, and the tokens that its preparation wrote."""
    method = METHODS[spec.method]
    run = Learner(
        config=config_of(method.overrides(spec.weight), spec.rate),
        weights=weights,
        seed=spec.seed,
        num_steps=LONG // STEP_TOKENS,
        kind=KIND if spec.kind == "taught" else spec.kind,
        source=method.source,
        rules=TRAINED_RULES if spec.task == "four" else ALL_RULES,
        has_hole=spec.task == "hole",
    )
    if spec.kind != "taught":
        return run, 0
    refines = method.source == "refiner"
    run.reference, tokens = taught(spec.strength, spec.base_seed, refines=refines, seed=spec.seed)
    return run, tokens


def do(spec: Spec) -> dict[str, Any]:
    """Do a run until it has written its tokens, and return its line."""
    began = time.process_time()
    weights = bases.base(spec.strength, spec.base_seed)
    run, spent = begun(spec, weights)
    curves, tokens = Curves(run, spec), spent
    start = solved(run.policy, curves.asked, seed=0)
    while tokens < spec.tokens:
        run.step()
        before, tokens = tokens, spent + run.counts.tokens
        if tokens // EVERY > before // EVERY or tokens >= spec.tokens:
            curves.measure(min(tokens, spec.tokens))
    few = curves.asked[:NUM_OF_EIGHT]
    more = {}
    if spec.task == "four":
        more["others"] = round(solved(run.policy, held_out(spec.is_tuning, OTHER_RULES), seed=1), 4)
        more["others_start"] = round(solved(bases.model_of(weights), held_out(spec.is_tuning, OTHER_RULES), seed=1), 4)
    return {
        **{name: getattr(spec, name) for name in Spec.__dataclass_fields__},
        "base": fingerprint(weights),
        "start": round(start, 4),
        **curves.line(),
        "pass_at_8": round(solved_by_eight(run.policy, few, seed=1), 4),
        "kl": round(divergence(run.policy, bases.model_of(weights), few, seed=1), 3),
        "steps": run.counts.steps,
        **more,
        "cpu_s": round(time.process_time() - began, 1),
    }


def next_spec(phase: str, held: set[Spec]) -> Spec | None:
    """Return the first run of a phase that has no line and is not in `held`; None if there is none."""
    found = outcomes(lines_of("tune"))
    if phase == "tune":
        return next((spec for spec in tuning(found) if spec not in held), None)
    done = {spec_of(line) for line in lines_of("run")}
    return next((spec for spec in counted(found) if spec not in done and spec not in held), None)


def work(phase: str, minutes: float | None = None, folder: Path = RESULTS) -> int:
    """Do the missing runs of a phase in their order and return how many were done here.

    Args:
        phase: `tune` or `run`.
        minutes: No run begins after so many minutes; None: without end.
        folder: Where the lines are written.
    """
    torch.set_num_threads(1)
    began, number = time.monotonic(), 0
    held: set[Spec] = set()  # runs of other workers
    while minutes is None or time.monotonic() - began < 60 * minutes:
        spec = next_spec(phase, held)
        if spec is None:
            break
        with claimed(f"rates/{spec.key}") as is_ours:
            if not is_ours:
                held.add(spec)
                continue
            line = do(spec)
            append(folder / f"{phase}.jsonl", line)
            print(spec.key, line["solved"][-1], f"{line['cpu_s']:.0f} s", flush=True)
            number += 1
    return number
