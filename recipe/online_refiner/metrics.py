"""Names and meaning of every metric that this extension adds to verl's, and how each is computed.

Counts and seconds are in every step's metrics, 0 where nothing happened. A mean is there only where it was measured:
not where the mode never measures it, and not over nothing.

verl's own metrics stand beside them; its ``timing_s/*`` are the seconds of its stages.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from recipe.online_refiner.method.constraint import Mean
from recipe.online_refiner.method.modes import CONSTRAINTS
from recipe.online_refiner.method.pairs import FAILURES, SKIPPED, Pair, Verdict, group_of
from recipe.online_refiner.method.step import StepState
from recipe.rewarding.answers import as_number

MOMENTS = {
    "rollout": ("rollout", "when the step begins: its engines are awake"),
    "asleep": ("rollout", "after it: engines that can sleep do"),
    "refine": ("refiner", "at the end of the refine stage: the refiner is awake"),
    "refined": ("refiner", "after that"),
}
"""Moments at which the memory of devices is read: whose engines they serve, and when."""

EXTRA = "reward/extra/"
"""The prefix of a reward function's other numbers, each as the mean over the rollouts that have it.

A name is left out if any of its values is not a finite number.
"""
OF_SOURCES = ("refiner/improvement_ratio/", "refiner/failed_ratio/")
"""The prefixes of metrics per data source with ``refiner.by_source``.

They are the share of the source's rollouts with an accepted refinement, and with a failed attempt. Rows that were lost
with a refine worker belong to no source.
"""
DISCARDED = "training/filter_groups/discarded_surplus_samples"
"""verl's count of surplus groups that it has thrown away because they exceed the batch, with DAPO's filter."""


ROLLOUTS = "refiner/num_rollouts"
"""The metric that counts the rollouts of a step, which many means are over."""


def one_each(state: StepState) -> float:
    """Return 1: the metric is one number of each mini-batch."""
    return 1.0


def counted(name: str) -> Callable[[StepState], float]:
    """Return a function that reads the count of values of a metric (``StepState.counts``); 0 if there is none."""
    return lambda state: state.counts.get(name, 0.0)


@dataclass(slots=True, frozen=True)
class Largest:
    """A metric whose value of a step is the largest one of its mini-batches."""

    meaning: str


@dataclass(slots=True, frozen=True)
class Percentile:
    """A percentile of the latencies of requests. A step's is over the requests of all its mini-batches."""

    meaning: str
    percent: int


MEANING: dict[str, str | Mean | Largest | Percentile] = {
    "reward/mean": Mean(
        "task reward, mean over all responses, also of groups that algorithm.filter_groups (metric: reward) "
        "took out of the step, which verl's critic/score/mean leaves out; groups that verl throws away as the batch is "
        "full (sync) count as the step's own do",
        "reward/num_responses",
    ),
    "reward/num_responses": "responses that reward/mean is over; a group that is not in the step counts as many as the "
    "step's groups have on average",
    "reward/group_std": Mean(
        "standard deviation of the reward within a prompt's group, mean over the step's groups", "reward/num_groups"
    ),
    "reward/zero_std_groups": Mean(
        "share of the step's groups whose rewards are all equal (no gradient without a constraint)", "reward/num_groups"
    ),
    "reward/num_groups": "groups of the step: prompts with at least one rollout in it",
    "reward/num_lost": "rollouts without a reward (its function or sandbox failed), left out of the step",
    "refiner/num_rollouts": "rollouts of the step, padding not counted",
    "refiner/num_attempted": "rollouts for which a refinement was sought",
    "refiner/num_accepted": "refinements that are better by the reward gate: the pairs of Eq. 6",
    "refiner/improvement_ratio": Mean(
        "accepted / rollouts of the step; groups that algorithm.filter_groups took out of it are not among them",
        ROLLOUTS,
    ),
    "refiner/improvement_ratio_at_1": Mean(
        "what improvement_ratio would be with one refinement of each response: the share of its samples that are "
        "better, mean over the same rollouts; the same number with refiner.samples=1",
        ROLLOUTS,
    ),
    "refiner/num_own": "solved responses that are imitated themselves (constraint.imitate_solved)",
    "refiner/repeated_ratio": Mean(
        "share of attempted refinements that repeat the response, in its tokens or others of the "
        "same text: not better by definition, and not rewarded again",
        "refiner/num_attempted",
    ),
    "refiner/reward_gain": Mean("r(a') - r(a), mean over accepted pairs", "refiner/num_accepted"),
    "refiner/budget_kept": Mean(
        "refiner.budget: share of the acceptances, of those that earlier steps let expect from all responses, that is "
        "expected from the chosen ones",
        counted("refiner/budget_kept"),
    ),
    "refiner/edit_distance": Mean(
        "token edit distance between a and a', mean over about 64 scored refinements",
        lambda state: sum(pair.edit_distance is not None for pair in state.pairs.values()),
    ),
    "refiner/exposed_s": "seconds for which a step waits for refinements: timing_s/refine and timing_s/wait_refiner. "
    "Not in it: timing_s/refine_log_prob, and the longer update with rows of a' (modes sft and lagrangian)",
    "refiner/hidden_s": "streaming: seconds from the first refinement's begin to the last reward of the rollout",
    "refiner/latency_p50_s": Percentile(
        "seconds from a request to the refiner's answer, its retries included, median over all requests of the step", 50
    ),
    "refiner/latency_p95_s": Percentile("the same, 95th percentile", 95),
    "refiner/num_retries": "requests that were sent again to a busy or lost server of refiner.placement=external",
    "refiner/num_replicas": Mean(
        "replicas of the refiner (external: servers) that were alive when the step asked them", one_each
    ),
    "refiner/num_restarts": "replicas that had died and were started again before the step",
    **{f"refiner/skipped/{reason}": "rollouts not attempted, by reason" for reason in SKIPPED},
    **{f"refiner/failed/{reason}": "attempts without a result, by reason" for reason in FAILURES},
    "constraint/cross_entropy_all": Mean(
        "-log pi_theta(a'), nats per token, over all scored refinements, in the steps of "
        "measure.cross_entropy_all_every. Responses that are not refined, such as solved ones "
        "(refiner.skip_reward_at_least), are left out, but those of constraint.imitate_solved are not; the paper's "
        "Figure 4 has all, and reads lower",
        "tokens/refine_log_prob",
    ),
    "constraint/cross_entropy_accepted": Mean(
        "the same over accepted refinements. Mode sft computes this and the "
        "divergences in those steps only, its loss tells the rest (actor/sft_cross_entropy)",
        lambda state: sum(
            pair.num_refined_tokens for pair in state.pairs.values() if pair.nll is not None and pair.is_accepted
        ),
    ),
    "constraint/divergence": Mean(
        "D of Eq. 5, nats per rollout: Eq. 6 summed over tokens, mean over all rollouts of the "
        "step; in place minus the sum of the charges, of either sign",
        ROLLOUTS,
    ),
    "constraint/divergence_per_token": Mean(
        "the same of D divided by min(len a, len a'), in place by the turn's length", ROLLOUTS
    ),
    "constraint/num_rescued_groups": "groups whose rewards are all equal and that have a better refinement, where "
    "constraint.rescue_dead_groups keeps them",
    "constraint/penalty": Mean(
        "modes penalty and lagrangian: -eta times what responses are charged (D of Eq. 6; with "
        "credit in_reward D divided by min(len a, len a')), per response token of the batch",
        "tokens/rollout",
    ),
    "constraint/eta": Mean("weight of the constraint in this step; not in mode none", one_each),
    "actor/sft_cross_entropy": Mean(
        "modes sft and lagrangian: weighted cross-entropy in the loss, divided as constraint.sft_normaliser says "
        "(accepted: nats per token), mean over mini-batches with accepted refinements; a mode's own loss "
        "of a token takes the place of -log pi_theta(a')",
        lambda state: float(any(pair.is_used for pair in state.pairs.values())),
    ),
    "kl_ref/k3": Mean(
        "KL(pi_theta || pi_0) on the responses, nats per token, k3 estimate; sampled at temperature 1; "
        "not a number (null in metrics.jsonl) where it was asked for and no replica answered",
        counted("kl_ref/k3"),
    ),
    "tokens/rollout": "tokens of the responses, the output of tools included",
    "tokens/refine_prompt": "prompt tokens sent to the refiner, once for all samples of a request; those of an "
    "external one as its server counts them, or if it does not tell in the policy's tokens",
    "tokens/refine": "tokens that the refiner generated, of all samples (refiner.samples), counted in the same way",
    "tokens/refine_kept": "tokens of the responses' own thoughts, with which their refinements begin",
    "tokens/refine_thought": "tokens of the refiner's own thoughts, a part of tokens/refine and of no refinement",
    "tokens/refine_log_prob": "tokens of refinements that the actor scored",
    "tokens/kl_ref": "tokens that the reference model scored for kl_ref",
    "tokens/update_actor": "prompt and response tokens of the actor update, without the rows of refinements",
    "timing_s/refine": "seconds of the refine stage: wake, generate, score, sleep",
    "timing_s/wait_refiner": "streaming: seconds for which the trainer waited for refinements alone: from the last "
    "reward of the rollout, or from when it began to wait for the batch, to the last refinement; a part of "
    "timing_s/gen where the trainer waits for whole batches",
    "timing_s/refine_log_prob": "seconds of log pi_theta(a')",
    "timing_s/kl_ref": "seconds of the reference log-probs for kl_ref",
    **{
        f"memory_gb/{moment}": Largest(
            f"GiB in use on the fullest device of the {whose}, {when}; platform cpu: of the machine"
        )
        for moment, (whose, when) in MOMENTS.items()
    },
}
"""Every metric of all runs, by name. A text is the meaning of a sum, which is 0 where nothing happened. A step may lack
metrics of other kinds. The memory of a refiner's devices is there if the run hosts a refiner."""
OF_CONSTRAINTS = {name: text for one in CONSTRAINTS.values() for name, text in one.MEANING.items()}
"""Metrics of one constraint, which steps of other runs do not have."""
MEANS = {name: one for name, one in {**MEANING, **OF_CONSTRAINTS}.items() if isinstance(one, Mean)}
"""The metrics that are means. A mini-batch, and a step, has those that were measured."""
PERCENTILES = {name: one.percent for name, one in MEANING.items() if isinstance(one, Percentile)}
"""The percent of each metric that is a percentile."""
COUNTS = tuple(name for name, one in MEANING.items() if isinstance(one, str))
"""The metrics that are sums."""


def of_step(parts: list[StepState], own: Mapping[str, str | Mean] = OF_CONSTRAINTS) -> dict[str, float]:
    """Return the metrics of a step that has several mini-batches; verl's aggregator goes by words in their names.

    ``own`` has the metrics of the run's constraint, by name (``Constraint.MEANING``).

    A metric that some mini-batches lack is averaged over those that have it. A number of the reward function is dropped
    if a mini-batch has dropped it, but not if none of the mini-batch's rollouts has it.
    """
    combined = latency_metrics([pair for part in parts for pair in part.pairs.values()])
    extras = {name for part in parts for name in part.metrics if name.startswith(EXTRA)}
    of_sources = {name for part in parts for name in part.metrics if name.startswith(OF_SOURCES)}
    means = {name: one for name, one in own.items() if isinstance(one, Mean)} | MEANS
    for name in (*MEANING, *own, *extras, *of_sources):
        having = [part for part in parts if name in part.metrics]
        values = [float(part.metrics[name]) for part in having]
        is_left_out = name in extras and any(part.counts.get(name) and name not in part.metrics for part in parts)
        if name.startswith("timing_s/") or name in PERCENTILES or not values or is_left_out:
            continue  # seconds are the step's already
        mean = Mean("", counted(name)) if name in extras else means.get(name)
        if name in of_sources:
            mean = Mean("", partial(num_of_source, source=name.split("/", 2)[2]))
        if isinstance(MEANING.get(name), Largest):
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


def zeros() -> dict[str, float]:
    """Return every count and sum of seconds at 0: where a step starts."""
    return dict.fromkeys(COUNTS, 0.0)


def reward_metrics(
    rewards: Mapping[str, float], filtered: Mapping[float, int], num_discarded: int = 0
) -> dict[str, float]:
    """Summarise the rewards of a step's rollouts, by their keys, and of groups that are not in the step.

    ``filtered`` counts the groups that DAPO's filter took out, by the reward that all responses of a group had, and
    ``num_discarded`` the surplus groups that verl threw away (:data:`DISCARDED`).
    """
    by_group: dict[str, list[float]] = {}
    for key, reward in rewards.items():
        by_group.setdefault(group_of(key), []).append(reward)
    stds = np.array([np.std(values) for values in by_group.values()])
    means = [float(np.mean(list(rewards.values()))), *filtered]
    sizes = [len(by_group) + num_discarded, *filtered.values()]
    return {
        "reward/mean": float(np.average(means, weights=sizes)),
        "reward/num_responses": sum(sizes) * len(rewards) / len(by_group),
        "reward/group_std": float(stds.mean()),
        "reward/zero_std_groups": float((stds < 1e-8).mean()),
        "reward/num_groups": len(by_group),
    }


def num_saying(said: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the number of responses that have each of the reward function's other fields, by name."""
    return dict(Counter(EXTRA + name for extras in said for name in extras))


def extra_metrics(said: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Average each of the reward function's other numbers over the responses that have it.

    A name is left out if any of its values is not a finite number, since a mean of the others would be misleading.

    Example: ``extra_metrics([{"num_passed": 1}, {"num_passed": 2, "outcome": "pass"}])`` is
    ``{"reward/extra/num_passed": 1.5}``.
    """
    found: dict[str, list[float | None]] = defaultdict(list)
    for extras in said:
        for name, value in extras.items():
            found[EXTRA + name].append(as_number(value))
    numbers = {name: [one for one in values if one is not None] for name, values in found.items()}
    return {name: float(np.mean(values)) for name, values in numbers.items() if len(values) == len(found[name])}


def streaming_metrics(pairs: Sequence[Pair], began_at: float) -> dict[str, float]:
    """Return the seconds of refining that the rollout hides, and those that a step waits for refinements.

    The trainer began to wait at ``began_at`` (seconds since the epoch); an asynchronous trainer has trained until then.
    """
    attempted = [pair for pair in pairs if pair.verdict not in SKIPPED]
    if not attempted:
        return {}
    last_reward = max(pair.started_at for pair in pairs)  # a group is begun when its last response is rewarded
    last_refined = max(pair.refined_at for pair in attempted)
    return {
        "timing_s/wait_refiner": max(0.0, last_refined - max(last_reward, began_at)),
        "refiner/hidden_s": max(0.0, last_reward - min(pair.started_at for pair in attempted)),
    }


def refine_metrics(state: StepState) -> dict[str, float]:
    """Summarise a refine stage."""
    pairs = list(state.pairs.values())
    verdicts = [pair.verdict for pair in pairs]
    gains = [pair.refined_reward - pair.reward for pair in pairs if pair.is_accepted]
    distances = [pair.edit_distance for pair in pairs if pair.edit_distance is not None]
    num_attempted = sum(one not in (*SKIPPED, Verdict.OWN) for one in verdicts)
    means = {
        "refiner/improvement_ratio": mean_of([pair.is_accepted for pair in pairs]),
        "refiner/improvement_ratio_at_1": mean_of([pair.num_better / pair.num_samples for pair in pairs]),
        "refiner/repeated_ratio": ratio(sum(pair.is_repeated for pair in pairs), num_attempted),
        "refiner/reward_gain": mean_of(gains),
        "refiner/edit_distance": mean_of(distances),
    }
    return {
        "refiner/num_attempted": num_attempted,
        "refiner/num_accepted": len(gains),
        "refiner/num_own": verdicts.count(Verdict.OWN),
        "refiner/num_retries": sum(pair.num_retries for pair in pairs),
        **{f"refiner/skipped/{reason}": verdicts.count(reason) for reason in SKIPPED},
        **{f"refiner/failed/{reason}": verdicts.count(reason) for reason in FAILURES},
        **known(means),
        **latency_metrics(pairs),
        "tokens/refine_prompt": sum(pair.num_prompt_tokens for pair in pairs),
        "tokens/refine": sum(pair.num_generated_tokens for pair in pairs),
        "tokens/refine_kept": sum(pair.num_kept_tokens for pair in pairs),
        "tokens/refine_thought": sum(pair.num_thought_tokens for pair in pairs),
        **source_metrics(state),
    }


def latency_metrics(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the percentiles of the latencies of answered requests; empty if there are none."""
    latencies = [pair.latency_s for pair in pairs if pair.latency_s is not None]
    return {name: float(np.percentile(latencies, q)) for name, q in PERCENTILES.items()} if latencies else {}


def source_metrics(state: StepState) -> dict[str, float]:
    """Summarise the refinements of each data source, where refiners differ by it (:data:`OF_SOURCES`)."""
    accepted, failed = OF_SOURCES
    found = {}
    for source in {pair.source for pair in state.pairs.values()} - {""}:
        verdicts = [pair.verdict for pair in state.pairs.values() if pair.source == source]
        found[accepted + source] = verdicts.count(Verdict.ACCEPTED) / len(verdicts)
        found[failed + source] = sum(one in FAILURES for one in verdicts) / len(verdicts)
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
    """Summarise the charges of responses and log pi_theta(a'); if ``is_due``, over all scored refinements."""
    pairs = list(state.pairs.values())
    measured_charges = [state.measured(row) for row in state.pairs]
    scored = [pair for pair in pairs if pair.nll is not None]
    measured = {"constraint/cross_entropy_accepted": [pair for pair in scored if pair.is_accepted]}
    if is_due:
        measured["constraint/cross_entropy_all"] = scored
    means = {
        name: ratio(sum(pair.nll or 0.0 for pair in some), sum(pair.num_refined_tokens for pair in some))
        for name, some in measured.items()
    }
    return {
        "constraint/divergence": sum(one.nats for one in measured_charges) / max(1, len(pairs)),
        "constraint/divergence_per_token": sum(one.per_token for one in measured_charges) / max(1, len(pairs)),
        **known(means),
        "tokens/refine_log_prob": sum(pair.num_refined_tokens for pair in scored),
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
