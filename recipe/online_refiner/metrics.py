"""Names and meaning of every metric that this extension adds to verl's, and how each is computed.

verl's own metrics stand beside them; its ``timing_s/*`` are the seconds of its stages.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from recipe.online_refiner.pairs import FAILURES, SKIPPED, Pair, Verdict, group_of
from recipe.online_refiner.step import StepState

MOMENTS = {
    "rollout": ("rollout", "when the step begins: its engines are awake"),
    "asleep": ("rollout", "after it: engines that can sleep do"),
    "refine": ("refiner", "at the end of the refine stage: the refiner is awake"),
    "refined": ("refiner", "after that"),
}
"""When the memory of devices is looked at, of whose engines."""

EXTRA = "reward/extra/"
"""Prefix of what a reward function says beside the reward: the mean over the rollouts of each number."""

MEANING = {
    "reward/mean": "task reward, mean over all responses; verl's critic/score/mean leaves out the groups that "
    "algorithm.filter_groups (metric: reward) took out of the step",
    "reward/group_std": "standard deviation of the reward within a prompt's group, mean over groups",
    "reward/zero_std_groups": "share of groups whose rewards are all equal (no gradient without a constraint)",
    "reward/num_lost": "rollouts without a reward (its function or sandbox failed), left out of the step",
    "refiner/num_rollouts": "rollouts of the step, padding not counted",
    "refiner/num_attempted": "rollouts for which a refinement was sought",
    "refiner/num_accepted": "refinements that are better by the reward gate: the pairs of Eq. 6",
    "refiner/improvement_ratio": "accepted / all rollouts",
    "refiner/num_own": "solved responses that are imitated themselves (refiner.imitate_solved)",
    "refiner/num_verbatim": "refinements that repeat the response token by token",
    "refiner/reward_gain": "r(a') - r(a), mean over accepted pairs; 0 if none",
    "refiner/edit_distance": "token edit distance between a and a', mean over about 64 scored refinements; 0 if none",
    "refiner/exposed_s": "seconds that refining adds to the step: timing_s/refine and timing_s/wait_refiner",
    "refiner/hidden_s": "streaming: seconds from the first refinement's begin to the last reward of the rollout",
    "refiner/num_drafts": "drafts that the refiner verified, each in one pass; 0 without refiner.draft",
    "refiner/drafted_tokens": "tokens of these drafts; 0 without refiner.draft",
    "refiner/spec_accept_rate": "share of these tokens that the refiner accepted; 0 without refiner.draft",
    "refiner/spec_accept_length": "tokens that a pass over a draft brought: the accepted ones, and one more",
    "refiner/latency_p50_s": "seconds from a request to the refiner's answer, its retries included, median; 0 if none "
    "was answered",
    "refiner/latency_p95_s": "the same, 95th percentile",
    "refiner/num_retries": "requests that were sent again to a busy or lost server of refiner.placement=external",
    "refiner/num_replicas": "replicas of the refiner (external: servers) that were alive when the step asked them",
    "refiner/num_restarts": "replicas that had died and were started again before the step",
    **{f"refiner/skipped/{reason}": "rollouts not attempted, by reason" for reason in SKIPPED},
    **{f"refiner/failed/{reason}": "attempts without a result, by reason" for reason in FAILURES},
    "constraint/cross_entropy_all": "-log pi_theta(a'), nats per token, over all scored refinements; 0 if none, and in "
    "steps that measure.cross_entropy_all_every leaves out",
    "constraint/cross_entropy_accepted": "the same over accepted refinements; 0 if none. Mode sft computes this and "
    "the divergences in those steps only, its loss tells the rest (actor/sft_cross_entropy)",
    "constraint/divergence": "D of Eq. 5, nats per rollout: Eq. 6 summed over tokens, mean over all rollouts; in place "
    "minus the sum of the charges, of either sign",
    "constraint/divergence_per_token": "the same of D divided by min(len a, len a'), in place by the turn's length",
    "constraint/num_rescued_groups": "groups whose rewards are all equal and that have a better refinement, where "
    "constraint.rescue_dead_groups keeps them",
    "constraint/penalty": "-eta times what responses are charged (D of Eq. 6; with credit in_reward D divided by "
    "min(len a, len a')), per response token of the batch",
    "constraint/in_place_responses": "responses that the reference model scored given the better answer; 0 if none",
    "constraint/in_place_unscored": "responses that it should have scored and did not: no replica answered, its prompt "
    "would be too long or had nothing to show",
    "constraint/in_place_tokens": "their tokens",
    "constraint/in_place_charge": "what such a token is charged, nats: log pi_0 given the better answer less "
    "log pi_theta, mean; below 0 where pi_0 finds the response less likely",
    "constraint/in_place_largest": "share of the largest token in what a response is charged, mean over them; near 1: "
    "one token decides",
    "constraint/in_place_agreement": "share of these tokens about which pi_0 given the better answer and the policy "
    "agree: more likely than not for both, or for neither",
    "constraint/soft_share": "constraint.target=soft: share of the cross-entropy's target that is pi_0's distribution, "
    "mean over the tokens of used refinements; the rest is on the written token; 0 otherwise",
    "constraint/eta": "weight of the constraint in this step",
    "actor/sft_cross_entropy": "modes sft and lagrangian: weighted cross-entropy in the loss, divided as "
    "constraint.sft_normaliser says (accepted: nats per token), mean over mini-batches with accepted refinements; 0 if "
    "none; with constraint.target=soft less the entropy of pi_0's distribution in the target",
    "kl_ref/k3": "KL(pi_theta || pi_0) on the responses, nats per token, k3 estimate; sampled at temperature 1; "
    "not a number (null in metrics.jsonl) where no replica answered",
    "tokens/rollout": "tokens of the responses, the output of tools included",
    "tokens/refine_prompt": "prompt tokens sent to the refiner; those of an external one as its server counts them, or "
    "if it does not tell in the policy's tokens",
    "tokens/refine": "tokens that the refiner generated, counted in the same way",
    "tokens/refine_kept": "tokens of responses that refinements were begun with; 0 without refiner.keep_prefix",
    "tokens/refine_log_prob": "tokens of refinements that the actor scored",
    "tokens/kl_ref": "tokens that the reference model scored for kl_ref",
    "tokens/update_actor": "prompt and response tokens of the actor update",
    "timing_s/refine": "seconds of the refine stage: wake, generate, score, sleep",
    "timing_s/wait_refiner": "streaming: seconds from the last reward of the rollout to the last refinement; a part of "
    "timing_s/gen where the trainer waits for whole batches",
    "timing_s/refine_log_prob": "seconds of log pi_theta(a')",
    "timing_s/kl_ref": "seconds of the reference log-probs for kl_ref",
    **{
        f"memory_gb/{moment}": f"GiB in use on the fullest device of the {whose}, {when}; platform cpu: of the machine"
        for moment, (whose, when) in MOMENTS.items()
    },
}
"""Every key is in every step's metrics, in every mode: what a mode does not do is 0."""


def _rows(state: StepState) -> float:
    return len(state.pairs)


def num_learned_tokens(state: StepState) -> int:
    """Return the tokens of used refinements that the refiner has written itself."""
    return sum(pair.num_refined_tokens - pair.num_kept_tokens for pair in state.pairs.values() if pair.is_used)


WEIGHTS: dict[str, Callable[[StepState], float]] = {
    **dict.fromkeys(
        [
            *("reward/mean", "reward/group_std", "reward/zero_std_groups"),
            *("refiner/improvement_ratio", "refiner/num_replicas"),
            *("constraint/divergence", "constraint/divergence_per_token", "constraint/eta"),
        ],
        _rows,
    ),
    "refiner/reward_gain": lambda state: state.metrics["refiner/num_accepted"],
    "refiner/edit_distance": lambda state: sum(pair.edit_distance is not None for pair in state.pairs.values()),
    "refiner/spec_accept_rate": lambda state: state.metrics["refiner/drafted_tokens"],
    "refiner/spec_accept_length": lambda state: state.metrics["refiner/num_drafts"],
    **dict.fromkeys(
        ["refiner/latency_p50_s", "refiner/latency_p95_s"],
        lambda state: sum(pair.latency_s is not None for pair in state.pairs.values()),
    ),
    "constraint/cross_entropy_all": lambda state: state.metrics["tokens/refine_log_prob"],
    "constraint/cross_entropy_accepted": lambda state: sum(
        pair.num_refined_tokens for pair in state.pairs.values() if pair.nll is not None and pair.is_accepted
    ),
    "constraint/penalty": lambda state: state.metrics["tokens/rollout"],
    "constraint/soft_share": lambda state: num_learned_tokens(state),
    "constraint/in_place_largest": lambda state: state.metrics["constraint/in_place_responses"],
    **dict.fromkeys(
        ["constraint/in_place_charge", "constraint/in_place_agreement"],
        lambda state: state.metrics["constraint/in_place_tokens"],
    ),
    "actor/sft_cross_entropy": lambda state: bool(state.used),
    "kl_ref/k3": lambda state: state.metrics["tokens/kl_ref"],
}
"""Metrics that are means, and of how many things in a mini-batch: a step's is the mean of those. Others are sums."""
MAXIMA = tuple(f"memory_gb/{moment}" for moment in MOMENTS)


def of_step(parts: list[StepState]) -> dict[str, float]:
    """Return the metrics of a step that has several mini-batches; verl's aggregator goes by words in their names."""
    combined = {}
    extras = {name for part in parts for name in part.metrics if name.startswith(EXTRA)}
    for name in (*MEANING, *extras):
        values = [float(part.metrics[name]) for part in parts if name in part.metrics]
        if name.startswith("timing_s/") or len(values) < len(parts):  # seconds are the step's already
            continue
        weigh = _rows if name in extras else WEIGHTS.get(name)
        if name in MAXIMA:
            combined[name] = max(values)
        elif weigh is None:
            combined[name] = sum(values)
        else:
            known = [(value, weigh(part)) for value, part in zip(values, parts, strict=True) if weigh(part)]
            known = known or [(value, 1.0) for value in values]
            combined[name] = sum(value * weight for value, weight in known) / sum(weight for _, weight in known)
    return combined


def zeros() -> dict[str, float]:
    """Return every metric at 0: where a step starts."""
    return dict.fromkeys(MEANING, 0.0)


def reward_metrics(rewards: Mapping[str, float], filtered: Mapping[float, int]) -> dict[str, float]:
    """Summarise rewards by group.

    Args:
        rewards: Of the step's rollouts, by their keys.
        filtered: How many groups DAPO's filter took out, by the reward that all of a group's responses had.
    """
    by_group: dict[str, list[float]] = {}
    for key, reward in rewards.items():
        by_group.setdefault(group_of(key), []).append(reward)
    stds = np.array([np.std(values) for values in by_group.values()])
    means = [float(np.mean(list(rewards.values()))), *filtered]
    sizes = [len(rewards), *(count * len(rewards) / len(by_group) for count in filtered.values())]
    return {
        "reward/mean": float(np.average(means, weights=sizes)),
        "reward/group_std": float(stds.mean()),
        "reward/zero_std_groups": float((stds < 1e-8).mean()),
    }


def extra_metrics(said: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Average each number that the reward function says beside the reward, over the responses that have it.

    Example: ``extra_metrics([{"num_passed": 1}, {"num_passed": 2, "outcome": "pass"}])`` is
    ``{"reward/extra/num_passed": 1.5}``.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for extras in said:
        for name, value in extras.items():
            if isinstance(value, int | float | np.number) and math.isfinite(value):
                found[EXTRA + name].append(float(value))
    return {name: float(np.mean(values)) for name, values in found.items()}


def streaming_metrics(pairs: Sequence[Pair]) -> dict[str, float]:
    """Tell how much of the refining was hidden behind the rollout, from what was refined during it."""
    attempted = [pair for pair in pairs if not pair.verdict.is_skipped]
    if not attempted:
        return {}
    last_reward = max(pair.started_at for pair in pairs)  # a group is begun when its last response is rewarded
    return {
        "timing_s/wait_refiner": max(0.0, max(pair.refined_at for pair in attempted) - last_reward),
        "refiner/hidden_s": max(0.0, last_reward - min(pair.started_at for pair in attempted)),
    }


def draft_metrics(num_drafts: int, num_tokens: int, *accepted: int) -> dict[str, float]:
    """Summarise the refiner's speculative decoding from the counts of ``refiner_worker/drafts.py``."""
    return {
        "refiner/num_drafts": num_drafts,
        "refiner/drafted_tokens": num_tokens,
        "refiner/spec_accept_rate": sum(accepted) / max(1, num_tokens),
        "refiner/spec_accept_length": 1 + sum(accepted) / num_drafts if num_drafts else 0.0,
    }


def refine_metrics(state: StepState) -> dict[str, float]:
    """Summarise a refine stage."""
    pairs = list(state.pairs.values())
    verdicts = [pair.verdict for pair in pairs]
    gains = [pair.refined_reward - pair.reward for pair in pairs if pair.is_accepted]
    distances = [pair.edit_distance for pair in pairs if pair.edit_distance is not None]
    latencies = [pair.latency_s for pair in pairs if pair.latency_s is not None]
    median_s, late_s = np.percentile(latencies, [50, 95]) if latencies else (0.0, 0.0)
    return {
        "refiner/num_attempted": sum(not one.is_skipped and one is not Verdict.OWN for one in verdicts),
        "refiner/num_accepted": len(gains),
        "refiner/improvement_ratio": len(gains) / max(1, len(pairs)),
        "refiner/num_own": verdicts.count(Verdict.OWN),
        "refiner/num_verbatim": sum(pair.is_verbatim and pair.verdict is not Verdict.OWN for pair in pairs),
        "refiner/reward_gain": float(np.mean(gains)) if gains else 0.0,
        "refiner/edit_distance": float(np.mean(distances)) if distances else 0.0,
        "refiner/latency_p50_s": float(median_s),
        "refiner/latency_p95_s": float(late_s),
        "refiner/num_retries": sum(pair.num_retries for pair in pairs),
        **{f"refiner/skipped/{reason}": verdicts.count(reason) for reason in SKIPPED},
        **{f"refiner/failed/{reason}": verdicts.count(reason) for reason in FAILURES},
        "constraint/soft_share": sum(pair.soft_mass for pair in pairs) / max(1, num_learned_tokens(state)),
        "tokens/refine_prompt": sum(pair.num_prompt_tokens for pair in pairs),
        "tokens/refine": sum(pair.num_generated_tokens for pair in pairs),
        "tokens/refine_kept": sum(pair.num_kept_tokens for pair in pairs),
    }


def constraint_metrics(state: StepState, *, is_due: bool) -> dict[str, float]:
    """Summarise log pi_theta(a'), as far as it was computed.

    Args:
        state: Of a step.
        is_due: Whether it was computed of all scored refinements, not only of those that are used.
    """
    values = divergence_metrics(state)
    scored = [pair for pair in state.pairs.values() if pair.nll is not None]
    measured = {"constraint/cross_entropy_accepted": [pair for pair in scored if pair.is_accepted]}
    if is_due:
        measured["constraint/cross_entropy_all"] = scored
    for name, pairs in measured.items():
        num_tokens = sum(pair.num_refined_tokens for pair in pairs)
        values[name] = sum(pair.nll or 0.0 for pair in pairs) / max(1, num_tokens)
    values["tokens/refine_log_prob"] = sum(pair.num_refined_tokens for pair in scored)
    return values


def divergence_metrics(state: StepState) -> dict[str, float]:
    """Summarise what responses are charged for."""
    return {
        "constraint/divergence": state.divergence,
        "constraint/divergence_per_token": state.divergence_per_token,
    }


def in_place_metrics(charged: Tensor, reference_log_probs: Tensor, log_probs: Tensor, turn: Tensor) -> dict[str, float]:
    """Summarise how pi_0 has scored the turns of some responses.

    Args:
        charged: (B, T) from ``constraint.charge_in_place``.
        reference_log_probs: (B, T) under pi_0.
        log_probs: (B, T) under the policy.
        turn: (B, T) the tokens that were scored.
    """
    mask, size = turn.bool(), charged.abs()
    chosen = [of[mask].exp() > 0.5 for of in (reference_log_probs, log_probs)]
    num_tokens = int(mask.sum())
    return {
        "constraint/in_place_responses": len(charged),
        "constraint/in_place_tokens": num_tokens,
        "constraint/in_place_charge": float(charged.sum()) / num_tokens,
        "constraint/in_place_largest": float((size.amax(-1) / size.sum(-1).clamp(min=1e-8)).mean()),
        "constraint/in_place_agreement": float((chosen[0] == chosen[1]).float().mean()),
    }


def kl_to_reference(*, log_probs: Tensor, ref_log_probs: Tensor, response_mask: Tensor) -> float:
    """Return the k3 estimate of KL(pi_theta || pi_0) on the responses, in nats per token.

    k3 = exp(d) - 1 - d with d = log pi_0 - log pi_theta: unbiased for samples of pi_theta, never negative
    (J. Schulman, "Approximating KL divergence", 2020).

    Args:
        log_probs: (B, T) under the policy.
        ref_log_probs: (B, T) under the reference model.
        response_mask: (B, T) the tokens to count.

    Returns:
        The mean; NaN if no token is counted, as nothing is known then.
    """
    mask = response_mask.bool()
    if not mask.any():
        return math.nan
    difference = (ref_log_probs - log_probs)[mask].double()
    return float((difference.expm1() - difference).mean())
