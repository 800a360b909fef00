"""How each metric of :mod:`~recipe.online_refiner.metric_names` is computed."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from recipe.online_refiner import metric_names
from recipe.online_refiner.method.constraint import Constraint, Mean
from recipe.online_refiner.method.modes import CONSTRAINTS
from recipe.online_refiner.method.pairs import FAILURES, SKIPPED, Pair, Verdict, group_of
from recipe.online_refiner.method.step import StepState
from recipe.rewarding.answers import as_number
from refiner_worker.client import RunEndedError

OF_CONSTRAINTS = {name: text for one in CONSTRAINTS.values() for name, text in one.MEANING.items()}
"""Metrics of one constraint, which steps of other runs do not have."""
MEANS = {name: one for name, one in {**metric_names.MEANING, **OF_CONSTRAINTS}.items() if isinstance(one, Mean)}
"""The metrics that are means. A step lacks a mean that none of its mini-batches has measured."""


def of_step(parts: list[StepState], own: Mapping[str, str | Mean] = OF_CONSTRAINTS) -> dict[str, float]:
    """Return the metrics of a step that has several mini-batches; verl's aggregator goes by words in their names.

    ``own`` has the metrics of the run's constraint, by name (``Constraint.MEANING``).

    A metric that some mini-batches lack is averaged over those that have it. A number of the reward function is dropped
    if a mini-batch has dropped it, but not if none of the mini-batch's rollouts has it.
    """
    combined = latency_metrics([pair for part in parts for pair in part.pairs.values()])
    extras = {name for part in parts for name in part.metrics if name.startswith(metric_names.EXTRA)}
    of_sources = {name for part in parts for name in part.metrics if name.startswith(metric_names.OF_SOURCES)}
    means = {name: one for name, one in own.items() if isinstance(one, Mean)} | MEANS
    for name in (*metric_names.MEANING, *own, *extras, *of_sources):
        having = [part for part in parts if name in part.metrics]
        values = [float(part.metrics[name]) for part in having]
        is_left_out = name in extras and any(part.counts.get(name) and name not in part.metrics for part in parts)
        is_known = name.startswith(metric_names.SECONDS) or name in metric_names.PERCENTILES  # the step's already
        if is_known or not values or is_left_out:
            continue
        mean = Mean("", metric_names.counted(name)) if name in extras else means.get(name)
        if name in of_sources:
            mean = Mean("", partial(num_of_source, source=name.split("/", 2)[2]))
        if isinstance(metric_names.MEANING.get(name), metric_names.Largest):
            combined[name] = max(values)
        elif mean is None:
            combined[name] = sum(values)
        else:
            weighed = [
                (value, mean.weight(part)) for value, part in zip(values, having, strict=True) if mean.weight(part)
            ]
            weighed = weighed or [(value, 1.0) for value in values]
            combined[name] = sum(value * weight for value, weight in weighed) / sum(weight for _, weight in weighed)
    return combined


def declared(constraint: Constraint, found: Mapping[str, float]) -> Mapping[str, float]:
    """Return the metrics that a constraint or its penalty has computed, all of which are in its ``MEANING``.

    Raises:
        RunEndedError: If ``MEANING`` lacks a metric, which a step of several mini-batches would lose.
    """
    if lacking := [name for name in found if name not in constraint.MEANING]:
        raise RunEndedError(
            f"constraint.mode={constraint.mode}: {type(constraint).__name__}.MEANING lacks the metric {lacking[0]}, "
            f"which the constraint computes; {metric_names.to_declare(lacking[0])}"
        )
    return found


def zeros() -> dict[str, float]:
    """Return every count and sum of seconds at 0: where a step starts."""
    return dict.fromkeys(metric_names.COUNTS, 0.0)


def reward_metrics(
    rewards: Mapping[str, float], filtered: Mapping[float, int], num_discarded: int = 0
) -> dict[str, float]:
    """Summarise the rewards of a step's rollouts, by their keys, and of groups that are not in the step.

    ``filtered`` counts the groups that DAPO's filter took out, by the reward that all responses of a group had, and
    ``num_discarded`` the surplus groups that verl threw away (``metric_names.DISCARDED``).
    """
    by_group: dict[str, list[float]] = {}
    for key, reward in rewards.items():
        by_group.setdefault(group_of(key), []).append(reward)
    stds = np.array([np.std(values) for values in by_group.values()])
    means = [float(np.mean(list(rewards.values()))), *filtered]
    sizes = [len(by_group) + num_discarded, *filtered.values()]
    return {
        metric_names.REWARD: float(np.average(means, weights=sizes)),
        metric_names.NUM_RESPONSES: sum(sizes) * len(rewards) / len(by_group),
        metric_names.GROUP_STD: float(stds.mean()),
        metric_names.ZERO_STD_GROUPS: float((stds < 1e-8).mean()),
        metric_names.NUM_GROUPS: len(by_group),
    }


def num_saying(said: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the number of responses that have each of the reward function's other fields, by name."""
    return dict(Counter(metric_names.EXTRA + name for extras in said for name in extras))


def extra_metrics(said: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Average each of the reward function's other numbers over the responses that have it.

    A name is left out if any of its values is not a finite number, since a mean of the others would be misleading.

    Example: ``extra_metrics([{"num_passed": 1}, {"num_passed": 2, "outcome": "pass"}])`` is
    ``{"reward/extra/num_passed": 1.5}``.
    """
    found: dict[str, list[float | None]] = defaultdict(list)
    for extras in said:
        for name, value in extras.items():
            found[metric_names.EXTRA + name].append(as_number(value))
    numbers = {name: [one for one in values if one is not None] for name, values in found.items()}
    return {name: float(np.mean(values)) for name, values in numbers.items() if len(values) == len(found[name])}


def streaming_metrics(pairs: Sequence[Pair], began_at: float) -> dict[str, float]:
    """Return the seconds of refining that the rollout hides, and the seconds for which a step waits for refinements.

    The trainer began to wait at ``began_at`` (seconds since the epoch); an asynchronous trainer has trained until then.
    """
    attempted = [pair for pair in pairs if pair.verdict not in SKIPPED]
    if not attempted:
        return {}
    last_reward = max(pair.started_at for pair in pairs)  # a group is begun when its last response is rewarded
    last_refined = max(pair.refined_at for pair in attempted)
    return {
        metric_names.WAIT_S: max(0.0, last_refined - max(last_reward, began_at)),
        metric_names.HIDDEN_S: max(0.0, last_reward - min(pair.started_at for pair in attempted)),
    }


def refine_metrics(state: StepState) -> dict[str, float]:
    """Summarise a refine stage."""
    pairs = list(state.pairs.values())
    verdicts = [pair.verdict for pair in pairs]
    gains = [pair.refined_reward - pair.reward for pair in pairs if pair.is_accepted]
    distances = [pair.edit_distance for pair in pairs if pair.edit_distance is not None]
    num_attempted = sum(one not in (*SKIPPED, Verdict.OWN) for one in verdicts)
    means = {
        metric_names.IMPROVEMENT_RATIO: mean_of([pair.is_accepted for pair in pairs]),
        metric_names.IMPROVEMENT_RATIO_AT_1: mean_of([pair.num_better / pair.num_samples for pair in pairs]),
        metric_names.REPEATED_RATIO: ratio(sum(pair.is_repeated for pair in pairs), num_attempted),
        metric_names.REWARD_GAIN: mean_of(gains),
        metric_names.EDIT_DISTANCE: mean_of(distances),
    }
    return {
        metric_names.NUM_ATTEMPTED: num_attempted,
        metric_names.NUM_ACCEPTED: len(gains),
        metric_names.NUM_OWN: verdicts.count(Verdict.OWN),
        metric_names.NUM_RETRIES: sum(pair.num_retries for pair in pairs),
        **{metric_names.skipped_for(reason): verdicts.count(reason) for reason in SKIPPED},
        **{metric_names.failed_for(reason): verdicts.count(reason) for reason in FAILURES},
        **known(means),
        **latency_metrics(pairs),
        metric_names.TOKENS_REFINE_PROMPT: sum(pair.num_prompt_tokens for pair in pairs),
        metric_names.TOKENS_REFINE: sum(pair.num_generated_tokens for pair in pairs),
        metric_names.TOKENS_REFINE_KEPT: sum(pair.num_kept_tokens for pair in pairs),
        metric_names.TOKENS_REFINE_THOUGHT: sum(pair.num_thought_tokens for pair in pairs),
        **source_metrics(state),
    }


def latency_metrics(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the percentiles of the latencies of answered requests; empty if there are none."""
    latencies = [pair.latency_s for pair in pairs if pair.latency_s is not None]
    percents = metric_names.PERCENTILES if latencies else {}
    return {name: float(np.percentile(latencies, percent)) for name, percent in percents.items()}


def source_metrics(state: StepState) -> dict[str, float]:
    """Summarise the refinements of each data source, where anything differs by it (``metric_names.OF_SOURCES``)."""
    found = {}
    for source in {pair.source for pair in state.pairs.values()} - {""}:
        verdicts = [pair.verdict for pair in state.pairs.values() if pair.source == source]
        found[metric_names.IMPROVEMENT_RATIO_OF + source] = verdicts.count(Verdict.ACCEPTED) / len(verdicts)
        found[metric_names.FAILED_RATIO_OF + source] = sum(one in FAILURES for one in verdicts) / len(verdicts)
    return found


def num_of_source(state: StepState, source: str) -> float:
    """Return the number of rollouts of a data source."""
    return sum(pair.source == source for pair in state.pairs.values())


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean; None if there are no values."""
    return float(np.mean(values)) if values else None


def ratio(part: float, whole: float) -> float | None:
    """Return ``part / whole``; None if ``whole`` is 0."""
    return part / whole if whole else None


def known(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics that were measured."""
    return {name: value for name, value in values.items() if value is not None}


def constraint_metrics(state: StepState, *, is_due: bool) -> dict[str, float]:
    """Summarise the divergences of responses and log pi_theta(a'); if ``is_due``, over all scored refinements."""
    pairs = list(state.pairs.values())
    divergences = [state.measured(row) for row in state.pairs]
    scored = [pair for pair in pairs if pair.nll is not None]
    measured = {metric_names.CROSS_ENTROPY_ACCEPTED: [pair for pair in scored if pair.is_accepted]}
    if is_due:
        measured[metric_names.CROSS_ENTROPY_ALL] = scored
    means = {
        name: ratio(sum(pair.nll or 0.0 for pair in some), sum(pair.num_refined_tokens for pair in some))
        for name, some in measured.items()
    }
    return {
        metric_names.DIVERGENCE: sum(one.nats for one in divergences) / max(1, len(pairs)),
        metric_names.DIVERGENCE_PER_TOKEN: sum(one.per_token for one in divergences) / max(1, len(pairs)),
        **known(means),
        metric_names.TOKENS_REFINE_LOG_PROB: sum(pair.num_refined_tokens for pair in scored),
    }


def kl_to_reference(*, log_probs: Tensor, ref_log_probs: Tensor, response_mask: Tensor) -> float:
    """Return the k3 estimate of KL(pi_theta || pi_0) on the responses, in nats per token.

    k3 = exp(d) - 1 - d with d = log pi_0 - log pi_theta: unbiased for samples of pi_theta, never negative
    (J. Schulman, "Approximating KL divergence", 2020).

    All are (B, T). NaN if the mask counts no token: nothing is known then.
    """
    mask = response_mask.bool()
    if not mask.any():
        return math.nan
    difference = (ref_log_probs - log_probs)[mask].double()
    return float((difference.expm1() - difference).mean())
