"""What the metrics of a smoke run must be. Needs neither torch nor verl."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from recipe.smoke.cases import Case

Steps = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is normal on a platform."""

    probs_differ: float
    """Mean difference of a token's probability between rollout and trainer."""
    kl_at_start: float
    """KL of the untrained policy to pi_0, in nats per token: both are the same model."""
    frees_gb: float | None
    """What an engine that sleeps must free at least; None where engines cannot sleep."""


LIMITS = {
    "gpu": Limits(probs_differ=2e-2, kl_at_start=5e-3, frees_gb=1.0),  # bfloat16, other kernels
    "cpu": Limits(probs_differ=1e-4, kl_at_start=1e-3, frees_gb=None),
}


def faults(case: Case, steps: Steps, limits: Limits) -> list[str]:
    """Return what is wrong with a run that ended well, from the metrics of its own steps; nothing if all is right."""
    found = [step["step"] for step in steps]
    if found != list(case.steps):
        return [f"its steps are {found}, not {list(case.steps)}"]
    return [line for check in CHECKS for line in check(case, steps, limits)]


def _trains(case: Case, steps: Steps, limits: Limits) -> list[str]:
    norms = {step["step"]: step.get("actor/grad_norm") for step in steps}
    lines = [f"no finite gradient in step {step}" for step, norm in norms.items() if norm is None]
    if not any(norms.values()):  # where all responses are alike there is none: a later step may be so
        lines.append("no gradient in any step")
    moved = steps[-1].get("kl_ref/k3") or 0.0
    if moved <= limits.kl_at_start:
        lines.append(f"KL to the reference at the end is {moved:.2g}: the policy has not moved")
    return lines


def _weights_arrive(case: Case, steps: Steps, limits: Limits) -> list[str]:
    differ = [step.get("training/rollout_probs_diff_mean") for step in steps]
    worst = max((value if value is not None else math.inf for value in differ), default=math.inf)
    if worst <= limits.probs_differ:
        return []
    return [f"probabilities of rollout and trainer differ by {worst:.2g} on average: are weights synced?"]


def _reference_is_frozen(case: Case, steps: Steps, limits: Limits) -> list[str]:
    kl = steps[0].get("kl_ref/k3")
    if case.goes_on or (kl is not None and abs(kl) <= limits.kl_at_start):
        return []
    return [f"KL to the reference before training is {kl}: the refiner does not have the initial weights"]


def _refiner_answers(case: Case, steps: Steps, limits: Limits) -> list[str]:
    failed = {name: sum(step[f"refiner/failed/{name}"] for step in steps) for name in ("request", "timeout", "worker")}
    lines = [f"{number:g} refinements failed ({name})" for name, number in failed.items() if number]
    if restarts := sum(step["refiner/num_restarts"] for step in steps):
        lines.append(f"{restarts:g} replicas of the refiner died")
    if not sum(step["refiner/num_accepted"] for step in steps):
        lines.append("no refinement was accepted")
    if any("draft=" in override for override in case.overrides) and not sum(
        step["refiner/drafted_tokens"] for step in steps
    ):
        lines.append("nothing was drafted")
    return lines


def _constraint_acts(case: Case, steps: Steps, limits: Limits) -> list[str]:
    name = {"penalty": "constraint/penalty", "sft": "actor/sft_cross_entropy"}[case.mode]
    return [] if any(step[name] for step in steps) else [f"{name} is 0 in all steps"]


def _engines_sleep(case: Case, steps: Steps, limits: Limits) -> list[str]:
    if limits.frees_gb is None:
        return []
    last = {name: steps[-1][f"memory_gb/{name}"] for name in ("rollout", "asleep", "refine", "refined")}
    lines = []
    if last["rollout"] - last["asleep"] < limits.frees_gb:
        lines.append(f"the rollout keeps its memory asleep: {last['rollout']:.1f} and {last['asleep']:.1f} GiB")
    if case.folder == "colocated" and last["refine"] - last["refined"] < limits.frees_gb:
        lines.append(f"the refiner keeps its memory asleep: {last['refine']:.1f} and {last['refined']:.1f} GiB")
    return lines


CHECKS: tuple[Callable[[Case, Steps, Limits], list[str]], ...] = (
    *(_trains, _weights_arrive, _reference_is_frozen, _refiner_answers, _constraint_acts, _engines_sleep),
)


COLUMNS: dict[str, Callable[[Steps], str]] = {
    "step, s": lambda steps: f"{steps[-1]['timing_s/step']:.1f}",
    "refine, s": lambda steps: f"{steps[-1]['refiner/exposed_s']:.1f}",
    "sync, s": lambda steps: f"{steps[-1].get('timing_s/update_weights') or 0.0:.1f}",
    "probs differ": lambda steps: f"{max(step['training/rollout_probs_diff_mean'] or 0.0 for step in steps):.1g}",
    "KL": lambda steps: f"{steps[0]['kl_ref/k3'] or 0.0:.2g} to {steps[-1]['kl_ref/k3'] or 0.0:.2g}",
    "accepted": lambda steps: f"{sum(step['refiner/num_accepted'] for step in steps):g}",
    "rollout GiB": lambda steps: f"{steps[-1]['memory_gb/rollout']:.1f}",
    "asleep": lambda steps: f"{steps[-1]['memory_gb/asleep']:.1f}",
    "refiner": lambda steps: f"{steps[-1]['memory_gb/refine']:.1f}",
    "asleep again": lambda steps: f"{steps[-1]['memory_gb/refined']:.1f}",
    "update, peak": lambda steps: f"{steps[-1].get('actor/perf/max_memory_allocated_gb') or 0.0:.1f}",
}
"""Of the table, from the metrics of a run's steps; seconds and memory are the last step's."""


def table(results: dict[str, tuple[Steps, list[str]]]) -> str:
    """Return the results as a Markdown table: steps and faults by the name of the case; no steps: it was not run."""
    lines = ["| case | verdict | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    for name, (steps, wrong) in results.items():
        cells = [show(steps) for show in COLUMNS.values()] if steps and not wrong else [""] * len(COLUMNS)
        verdict = "wrong" if wrong else "right" if steps else "left out"
        lines.append(f"| {name} | {verdict} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
