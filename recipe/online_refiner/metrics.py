"""Names and meaning of every metric that this extension adds to verl's.

verl's own metrics stand beside them; its ``timing_s/*`` are the seconds of its stages.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from recipe.online_refiner.rollout import FAILED, SKIPPED, Outcome, group_of
from recipe.online_refiner.step import StepState
from refiner_worker.copying import RUN

OUTCOMES = ("pass", "fail", "compile_error", "runtime_error", "time_out", "memory_limit", "output_limit")

MAX_EDIT_DISTANCES = 64
"""Of a step: one of two answers of 16k tokens takes 15 ms and more."""

MOMENTS = {
    "rollout": ("rollout", "when the step begins: its engines are awake"),
    "asleep": ("rollout", "behind it: all engines sleep that can"),
    "refine": ("refiner", "at the end of the refine stage: the refiner is awake"),
    "refined": ("refiner", "behind that"),
}
"""When the memory of devices is looked at, of whose engines."""

DRAFT_POSITIONS = range(1, 9)
"""Tokens of a draft whose acceptance is told one by one: as many as it has by default."""

MEANING = {
    "reward/mean": "task reward, mean over all responses; verl's critic/score/mean leaves out the groups that "
    "algorithm.filter_groups (metric: reward) took out of the step",
    "reward/group_std": "standard deviation of the reward within a prompt's group, mean over groups",
    "reward/zero_std_groups": "share of groups whose rewards are all equal (no gradient without a constraint)",
    "reward/num_lost": "rollouts without a reward (its function or sandbox failed), left out of the step",
    "sandbox/runs_per_s": "programs run for the rollouts' rewards, by the seconds of the rollout stage; 0 where none "
    "is run, as all of sandbox/*",
    "sandbox/seconds_per_run": "wall seconds of a run, waiting for a slot not counted",
    "sandbox/restarts": "sandbox processes lost and started anew since the step before",
    **{f"sandbox/outcome/{outcome}": "rollouts by what became of their program" for outcome in OUTCOMES},
    "refiner/num_rollouts": "rollouts of the step, padding not counted",
    "refiner/num_attempted": "rollouts for which a refinement was sought",
    "refiner/num_accepted": "refinements that are better by the reward gate: the pairs of Eq. 6",
    "refiner/improvement_ratio": "accepted / all rollouts",
    "refiner/num_own": "solved responses that are imitated themselves (refiner.imitate_solved)",
    "refiner/num_verbatim": "refinements that repeat the response token by token",
    "refiner/num_from_siblings": "refinements that are a solved response of the group (refiner.use_solved_sibling)",
    "refiner/copied": "share of the tokens of scored refinements that stand in the sibling or solution that only "
    f"the refiner was shown, in runs of {RUN}, and neither in question nor response; 0 where it was shown none",
    "refiner/reward_gain": "r(a') - r(a), mean over accepted pairs; 0 if none",
    "refiner/edit_distance": f"token edit distance between a and a', mean over {MAX_EDIT_DISTANCES} scored refinements "
    "drawn by the step, or all if there are fewer; 0 if none",
    "refiner/exposed_s": "seconds that refining adds to the step: timing_s/refine and timing_s/wait_refiner",
    "refiner/hidden_s": "streaming: seconds before that last reward since the first refinement was begun",
    "refiner/num_drafts": "drafts that the refiner verified, each in one pass; 0 without refiner.draft, as these:",
    "refiner/drafted_tokens": "tokens of these drafts",
    "refiner/spec_accept_rate": "share of them that the refiner accepted",
    "refiner/spec_accept_length": "tokens that a pass over a draft brought: the accepted ones, and one more",
    **{f"refiner/spec_accept_at/{n}": f"share of the drafts whose token {n} was accepted" for n in DRAFT_POSITIONS},
    "refiner/num_replicas": "replicas of the refiner that were alive when the step asked them",
    "refiner/num_restarts": "replicas that had died and were started anew before the step",
    "refiner/staleness_mean": "used refinements: how many syncs of the rollout's weights lie between those that ended "
    "the response and those of the step, as verl's training/off_policy/trajectory_staleness; 0 if none",
    "refiner/staleness_max": "the largest of them",
    **{f"refiner/skipped/{reason}": "rollouts not attempted, by reason" for reason in SKIPPED},
    **{f"refiner/failed/{reason}": "attempts without a result, by reason" for reason in FAILED},
    "constraint/cross_entropy_all": "-log pi_theta(a'), nats per token, over all scored refinements; 0 if none, and in "
    "steps that measure.cross_entropy_all_every leaves out",
    "constraint/cross_entropy_accepted": "the same over accepted refinements; 0 if none. Mode sft computes this and "
    "the divergences in those steps only, its loss tells the rest (actor/sft_cross_entropy)",
    "constraint/divergence": "D of Eq. 5, nats per rollout: Eq. 6 summed over tokens, mean over all rollouts",
    "constraint/divergence_per_token": "the same of D divided by min(len a, len a')",
    "constraint/num_rescued_groups": "groups whose rewards are all equal and that have a better refinement, where "
    "constraint.rescue_dead_groups keeps them",
    "constraint/penalty": "-eta times what responses are charged (D of Eq. 6, or the credit's cost), per response "
    "token of the batch",
    "constraint/eta": "weight of the constraint in this step",
    "actor/sft_cross_entropy": "modes sft and lagrangian: (weighted) cross-entropy in the loss, divided as "
    "constraint.sft_normaliser says (accepted: nats per token), mean over mini-batches with accepted refinements; 0 if "
    "none",
    "kl_ref/k3": "KL(pi_theta || pi_0) on the responses, nats per token, k3 estimate; sampled at temperature 1; "
    "not a number (null in metrics.jsonl) where no replica answered",
    "tokens/rollout": "tokens of the responses, the output of tools included",
    "tokens/refine_prompt": "prompt tokens sent to the refiner",
    "tokens/refine": "tokens that the refiner generated",
    "tokens/refine_kept": "tokens of responses that refinements were begun with; 0 without refiner.block",
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

WEIGHTS: dict[str, Callable[[StepState], float]] = {
    **dict.fromkeys(
        [
            *("reward/mean", "reward/group_std", "reward/zero_std_groups"),
            *("sandbox/runs_per_s", "sandbox/seconds_per_run"),
            *("refiner/improvement_ratio", "refiner/num_replicas"),
            *("constraint/divergence", "constraint/divergence_per_token", "constraint/eta"),
        ],
        lambda state: len(state.rows),
    ),
    "refiner/reward_gain": lambda state: state.metrics["refiner/num_accepted"],
    "refiner/edit_distance": lambda state: sum(one.is_scored for one in state.outcomes.values()),
    "refiner/spec_accept_rate": lambda state: state.metrics["refiner/drafted_tokens"],
    **dict.fromkeys(
        ["refiner/spec_accept_length", *(f"refiner/spec_accept_at/{position}" for position in DRAFT_POSITIONS)],
        lambda state: state.metrics["refiner/num_drafts"],
    ),
    "refiner/copied": lambda state: sum(
        one.num_refined_tokens for one in state.outcomes.values() if one.num_copied_tokens is not None
    ),
    "refiner/staleness_mean": lambda state: len(state.used),
    "constraint/cross_entropy_all": lambda state: state.metrics["tokens/refine_log_prob"],
    "constraint/cross_entropy_accepted": lambda state: sum(
        state.outcomes[row].num_refined_tokens for row in state.nll if state.outcomes[row].verdict == "accepted"
    ),
    "constraint/penalty": lambda state: state.metrics["tokens/rollout"],
    "actor/sft_cross_entropy": lambda state: bool(state.used),
    "kl_ref/k3": lambda state: state.metrics["tokens/kl_ref"],
}
"""Metrics that are means, and of how many things in a mini-batch: a step's is the mean of those. Others are sums."""
MAXIMA = ("refiner/staleness_max", *(f"memory_gb/{moment}" for moment in MOMENTS))


def of_step(parts: list[StepState]) -> dict[str, float]:
    """Return the metrics of a step that has several mini-batches; verl's aggregator goes by words in their names."""
    combined = {}
    for name in MEANING:
        values = [float(part.metrics[name]) for part in parts if name in part.metrics]
        if name.startswith("timing_s/") or len(values) < len(parts):  # seconds are the step's already
            continue
        weights = [WEIGHTS[name](part) if name in WEIGHTS else 1.0 for part in parts]
        if name in MAXIMA:
            combined[name] = max(values)
        elif name in WEIGHTS:
            known = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
            known = known or [(value, 1.0) for value in values]
            combined[name] = sum(value * weight for value, weight in known) / sum(weight for _, weight in known)
        else:
            combined[name] = sum(values)
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


def sandbox_metrics(infos: list[dict[str, Any]], rollout_s: float) -> dict[str, float]:
    """Summarise what ``reward.verl_reward`` says of its runs; the seconds are those of the rollout stage."""
    extras = [info for info in infos if "sandbox_runs" in info]
    if not extras:
        return {}
    num_runs = sum(extra["sandbox_runs"] for extra in extras)
    outcomes = [extra["outcome"] for extra in extras]
    return {
        "sandbox/runs_per_s": num_runs / rollout_s,
        "sandbox/seconds_per_run": sum(extra["sandbox_run_s"] for extra in extras) / max(1, num_runs),
        "sandbox/restarts": sum(extra["sandbox_restarts"] for extra in extras),
        **{f"sandbox/outcome/{outcome}": outcomes.count(outcome) for outcome in OUTCOMES},
    }


def streaming_metrics(outcomes: list[Outcome]) -> dict[str, float]:
    """Tell how much of the refining was hidden behind the rollout, from what was refined during it."""
    attempted = [one for one in outcomes if one.verdict not in SKIPPED]
    if not attempted:
        return {}
    last_reward = max(one.started_at for one in outcomes)  # a group is begun when its last response is rewarded
    return {
        "timing_s/wait_refiner": max(0.0, max(one.refined_at for one in attempted) - last_reward),
        "refiner/hidden_s": max(0.0, last_reward - min(one.started_at for one in attempted)),
    }


def staleness_metrics(step: int, versions: list[int]) -> dict[str, float]:
    """Tell how far the weights that wrote the responses of used refinements lie behind.

    Args:
        step: The step, which began with the weights of the one before.
        versions: The step whose weights wrote the end of each.
    """
    staleness = [step - 1 - version for version in versions] or [0]
    return {"refiner/staleness_mean": float(np.mean(staleness)), "refiner/staleness_max": max(staleness)}


def draft_metrics(num_drafts: int, num_tokens: int, *accepted: int) -> dict[str, float]:
    """Summarise the refiner's speculative decoding from the counts of ``refiner_worker/drafts.py``."""
    return {
        "refiner/num_drafts": num_drafts,
        "refiner/drafted_tokens": num_tokens,
        "refiner/spec_accept_rate": sum(accepted) / max(1, num_tokens),
        "refiner/spec_accept_length": 1 + sum(accepted) / num_drafts if num_drafts else 0.0,
        **{
            f"refiner/spec_accept_at/{position}": count / max(1, num_drafts)
            for position, count in zip(DRAFT_POSITIONS, accepted, strict=False)
        },
    }


def stage_metrics(state: StepState, distances: list[int]) -> dict[str, float]:
    """Summarise a refine stage; of some of its scored refinements the edit distances are known."""
    outcomes = list(state.outcomes.values())
    gains = [
        one.refined_reward - state.rewards[row] for row, one in state.outcomes.items() if one.verdict == "accepted"
    ]
    verdicts = [one.verdict for one in outcomes]
    shown = [one for one in outcomes if one.num_copied_tokens is not None]
    return {
        "refiner/num_attempted": sum(verdict not in (*SKIPPED, "own") for verdict in verdicts),
        "refiner/num_accepted": len(gains),
        "refiner/improvement_ratio": len(gains) / max(1, len(outcomes)),
        "refiner/num_own": verdicts.count("own"),
        "refiner/num_verbatim": sum(one.is_verbatim and one.verdict != "own" for one in outcomes),
        "refiner/num_from_siblings": sum(
            one.is_scored and one.verdict != "own" and not one.num_generated_tokens for one in outcomes
        ),
        "refiner/copied": sum(one.num_copied_tokens or 0 for one in shown)
        / max(1, sum(one.num_refined_tokens for one in shown)),
        "refiner/reward_gain": float(np.mean(gains)) if gains else 0.0,
        "refiner/edit_distance": float(np.mean(distances)) if distances else 0.0,
        **{f"refiner/skipped/{reason}": verdicts.count(reason) for reason in SKIPPED},
        **{f"refiner/failed/{reason}": verdicts.count(reason) for reason in FAILED},
        "tokens/refine_prompt": sum(one.num_prompt_tokens for one in outcomes),
        "tokens/refine": sum(one.num_generated_tokens for one in outcomes),
        "tokens/refine_kept": sum(one.num_kept_tokens for one in outcomes),
    }


def constraint_metrics(state: StepState, *, is_due: bool) -> dict[str, float]:
    """Summarise log pi_theta(a'), as far as it was computed.

    Args:
        state: Of a step.
        is_due: Whether it was computed of all scored refinements, not only of those that are used.
    """
    values = {
        "constraint/divergence": state.divergence,
        "constraint/divergence_per_token": state.divergence_per_token,
    }
    measured = {"constraint/cross_entropy_accepted": lambda one: one.verdict == "accepted"}
    if is_due:
        measured["constraint/cross_entropy_all"] = lambda one: True
    for name, counts in measured.items():
        rows = [row for row in state.nll if counts(state.outcomes[row])]
        num_tokens = sum(state.outcomes[row].num_refined_tokens for row in rows)
        values[name] = sum(state.nll[row] for row in rows) / max(1, num_tokens)
    values["tokens/refine_log_prob"] = sum(state.outcomes[row].num_refined_tokens for row in state.nll)
    return values
