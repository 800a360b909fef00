"""Every metric that this extension adds to verl's: its name, its meaning, and how a step's value is made of several.

The code that writes a metric and the code that reads it import its name from here. A name is a plain string, because
verl's trackers take no other key (``orjson``). Metrics of one constraint alone are in its class
(``Constraint.MEANING``). verl's own metrics stand beside them in ``metrics.jsonl``.

Counts and seconds are in every step's metrics, 0 where nothing happened. A step lacks a mean that the mode never
measures, or that would be over no values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recipe.online_refiner.method.constraint import Constraint, Mean
from recipe.online_refiner.method.pairs import FAILURES, SKIPPED, Verdict
from recipe.online_refiner.method.penalty import PenaltyPart


@dataclass(slots=True, frozen=True)
class Largest:
    """A metric whose value of a step is the largest one of its mini-batches."""

    meaning: str


@dataclass(slots=True, frozen=True)
class Percentile:
    """A percentile of the latencies of requests. A step's value is over the requests of all its mini-batches."""

    meaning: str
    percent: int


MEANING: dict[str, str | Mean | Largest | Percentile] = {}
"""Every metric of all runs, by name. A text is the meaning of a sum, which is 0 where nothing happened. A step may lack
metrics of other kinds. The memory of a refiner's devices is there if the run hosts a refiner."""


def metric(name: str, meaning: str | Mean | Largest | Percentile) -> str:
    """Add a metric to :data:`MEANING` and return its name."""
    MEANING[name] = meaning
    return name


def mean_of_counted(name: str, meaning: str) -> str:
    """Add a mean over as many values as ``StepState.counts`` has under its name, and return its name."""
    return metric(name, Mean(meaning, counted(name)))


def counted(name: str) -> Callable[[Any], float]:
    """Return a function that reads the count of values of a metric (``StepState.counts``); 0 if there is none."""
    return lambda state: state.counts.get(name, 0.0)


def one_each(state: Any) -> float:
    """Return 1: the metric is one number of each mini-batch."""
    return 1.0


def meanings_of(constraint: Constraint) -> dict[str, str]:
    """Return the meaning in words of each metric that a constraint alone has, by name."""
    return {name: one if isinstance(one, str) else one.meaning for name, one in constraint.MEANING.items()}


def meaning_refusal(constraint: Constraint) -> str | None:
    """Return one line if ``MEANING`` of a constraint lacks its metrics, the words for one, or the count of a mean."""
    said, own, penalty = f"constraint.mode={constraint.mode}", type(constraint), constraint.penalty
    meanings = meanings_of(constraint)
    if wordless := [name for name, text in meanings.items() if not text.strip()]:
        return f"{said}: {own.__name__}.MEANING has no words for {wordless[0]}; {to_declare(wordless[0])}"
    counts = {*MEANING, *meanings}
    for name, one in constraint.MEANING.items():
        if isinstance(one, Mean) and isinstance(one.over, str) and one.over not in counts:
            return f"{said}: {own.__name__}.MEANING: {name} is a mean over {one.over}; {to_declare(one.over)}"
    writers: list[type] = [] if own.pair_metrics is Constraint.pair_metrics else [own]
    writers += [] if penalty is None or type(penalty).metrics is PenaltyPart.metrics else [type(penalty)]
    if not writers or meanings:
        return None
    method = "pair_metrics" if writers[0] is own else "metrics"
    return (
        f"{said}: {writers[0].__name__}.{method} computes metrics, and {own.__name__}.MEANING is empty; "
        f"{to_declare('constraint/NAME')}"
    )


def to_declare(name: str) -> str:
    """Return what to write into a constraint's class so that it has a metric of this name."""
    return f'write what each metric means, such as MEANING: ClassVar = {{"{name}": "charged responses"}}'


SECONDS = "timing_s/"
"""The prefix of verl's metrics of timers."""


def seconds_of(stage: str) -> str:
    """Return the name that verl gives to the seconds of a timer."""
    return f"{SECONDS}{stage}"


def skipped_for(verdict: Verdict) -> str:
    """Return the metric that counts the rollouts that were not attempted for one reason."""
    return f"refiner/skipped/{verdict}"


def failed_for(verdict: Verdict) -> str:
    """Return the metric that counts the attempts without a result for one reason."""
    return f"refiner/failed/{verdict}"


# ---- rewards

NUM_RESPONSES = metric(
    "reward/num_responses",
    "responses over which reward/mean is taken; a group that is not in the step counts as many as the step's groups "
    "have on average",
)
REWARD = metric(
    "reward/mean",
    Mean(
        "mean reward of all responses. Unlike verl's critic/score/mean, it includes the groups that "
        "algorithm.filter_groups took out of the step; surplus groups that verl throws away because the batch is full "
        "count as the step's groups do",
        NUM_RESPONSES,
    ),
)
NUM_GROUPS = metric("reward/num_groups", "groups of the step: prompts with at least one rollout in it")
GROUP_STD = metric(
    "reward/group_std",
    Mean("standard deviation of the rewards within a group, mean over the step's groups", NUM_GROUPS),
)
ZERO_STD_GROUPS = metric(
    "reward/zero_std_groups",
    Mean("share of the step's groups whose rewards are all equal (no gradient without a constraint)", NUM_GROUPS),
)
NUM_LOST = metric("reward/num_lost", "rollouts without a reward (its function or sandbox failed), left out of the step")
EXTRA = "reward/extra/"
"""The prefix of a reward function's other numbers, each as the mean over the rollouts that have it.

A name is left out if any of its values is not a finite number.
"""

# ---- refinements

NUM_ROLLOUTS = metric("refiner/num_rollouts", "rollouts of the step, padding not counted")
NUM_ATTEMPTED = metric("refiner/num_attempted", "rollouts that the refiner was asked to refine")
NUM_ACCEPTED = metric(
    "refiner/num_accepted", "accepted refinements, whose reward is higher than their response's: the pairs of Eq. 6"
)
IMPROVEMENT_RATIO = metric(
    "refiner/improvement_ratio",
    Mean(
        "share of the step's rollouts with an accepted refinement; groups that algorithm.filter_groups took out of the "
        "step are not counted",
        NUM_ROLLOUTS,
    ),
)
IMPROVEMENT_RATIO_AT_1 = metric(
    "refiner/improvement_ratio_at_1",
    Mean(
        "what refiner/improvement_ratio would be with refiner.samples=1: the share of a rollout's samples that are "
        "better, mean over the same rollouts",
        NUM_ROLLOUTS,
    ),
)
NUM_OWN = metric("refiner/num_own", "solved responses that are imitated themselves (constraint.imitate_solved)")
REPEATED_RATIO = metric(
    "refiner/repeated_ratio",
    Mean(
        "share of attempted refinements whose text is that of the response; they are not better by definition, and not "
        "rewarded again",
        NUM_ATTEMPTED,
    ),
)
REWARD_GAIN = metric("refiner/reward_gain", Mean("r(a') - r(a), mean over accepted pairs", NUM_ACCEPTED))
BUDGET_KEPT = mean_of_counted(
    "refiner/budget_kept",
    "with refiner.budget: expected acceptances of the chosen responses, divided by those expected if all responses "
    "were refined; the expectations come from earlier steps",
)
EDIT_DISTANCE = metric(
    "refiner/edit_distance",
    Mean(
        "token edit distance between a and a', mean over about 64 scored refinements",
        lambda state: sum(pair.edit_distance is not None for pair in state.pairs.values()),
    ),
)
EXPOSED_S = metric(
    "refiner/exposed_s",
    "seconds for which a step waits for refinements: timing_s/refine plus timing_s/wait_refiner. It does not include "
    "timing_s/refine_log_prob, nor the longer update with refined rows (modes sft and lagrangian)",
)
HIDDEN_S = metric(
    "refiner/hidden_s",
    "with refiner.streaming: seconds from the begin of the first refinement to the last reward of the rollout",
)
LATENCY_P50_S = metric(
    "refiner/latency_p50_s",
    Percentile(
        "seconds from a request to the refiner's answer, its retries included, median over all requests of the step", 50
    ),
)
LATENCY_P95_S = metric("refiner/latency_p95_s", Percentile("95th percentile of these latencies", 95))
NUM_RETRIES = metric(
    "refiner/num_retries", "requests that were sent again to a busy or lost server of refiner.placement=external"
)
NUM_REPLICAS = metric(
    "refiner/num_replicas",
    Mean("replicas of the refiner (external: servers) that were alive when the step asked them", one_each),
)
NUM_RESTARTS = metric("refiner/num_restarts", "replicas that had died and were started again before the step")
MEANING |= {skipped_for(verdict): "rollouts that were not refined" for verdict in SKIPPED}
MEANING |= {failed_for(verdict): "refinements that failed" for verdict in FAILURES}
IMPROVEMENT_RATIO_OF = "refiner/source_improvement_ratio/"
"""The prefix of metrics per data source with ``refiner.by_source`` or ``constraint.by_source``: the share of the
source's rollouts with an accepted refinement."""
FAILED_RATIO_OF = "refiner/source_failed_ratio/"
"""The prefix of the share of a source's rollouts with a failed attempt, as above."""
ETA_OF = "constraint/source_eta/"
"""The prefix of the weight of each data source that ``constraint.by_source`` names."""
REPLICAS_OF = "refiner/source_replicas/"
"""The prefix of the number of replicas, or servers by URL, for a data source that ``refiner.by_source`` names."""
OF_SOURCES = (IMPROVEMENT_RATIO_OF, FAILED_RATIO_OF, ETA_OF, REPLICAS_OF)
"""The prefixes of metrics per data source."""

# ---- tokens

TOKENS_ROLLOUT = metric("tokens/rollout", "tokens of the responses, the output of tools included")
TOKENS_REFINE_PROMPT = metric(
    "tokens/refine_prompt",
    "prompt tokens sent to the refiner, once for all samples of a request; an external server's own count, or, "
    "if it sends none, the policy's tokens",
)
TOKENS_REFINE = metric(
    "tokens/refine", "tokens that the refiner generated for all samples (refiner.samples), counted in the same way"
)
TOKENS_REFINE_KEPT = metric(
    "tokens/refine_kept", "tokens of the responses' own thoughts, with which their refinements begin"
)
TOKENS_REFINE_THOUGHT = metric(
    "tokens/refine_thought",
    "tokens of the refiner's own thoughts, which are a part of tokens/refine but not of a refinement",
)
TOKENS_REFINE_LOG_PROB = metric("tokens/refine_log_prob", "tokens of refinements that the actor scored")
TOKENS_KL_REF = metric("tokens/kl_ref", "tokens that the reference model scored for kl_ref")
TOKENS_UPDATE_ACTOR = metric(
    "tokens/update_actor", "prompt and response tokens of the actor update, without the rows of refinements"
)

# ---- the constraint

CROSS_ENTROPY_ALL = metric(
    "constraint/cross_entropy_all",
    Mean(
        "-log pi_theta(a') in nats per token, over all scored refinements, in every step that "
        "measure.cross_entropy_all_every selects. Responses that are not refined are left out, except those of "
        "constraint.imitate_solved. The paper's Figure 4 includes them, so its values are lower",
        TOKENS_REFINE_LOG_PROB,
    ),
)
CROSS_ENTROPY_ACCEPTED = metric(
    "constraint/cross_entropy_accepted",
    Mean(
        "-log pi_theta(a') in nats per token, over accepted refinements. In mode sft, this and the divergences are "
        "computed in the steps of constraint/cross_entropy_all only; actor/sft_cross_entropy is there in every step",
        lambda state: sum(
            pair.num_refined_tokens for pair in state.pairs.values() if pair.nll is not None and pair.is_accepted
        ),
    ),
)
DIVERGENCE = metric(
    "constraint/divergence",
    Mean(
        "D of Eq. 5 in nats per rollout: Eq. 6 summed over tokens, mean over all rollouts of the step. With "
        "target=in_place, or a constraint of your own that charges tokens, it is minus the sum of the charges",
        NUM_ROLLOUTS,
    ),
)
DIVERGENCE_PER_TOKEN = metric(
    "constraint/divergence_per_token",
    Mean(
        "D divided by min(len a, len a'), or minus the charges by the turn's length; mean over all rollouts",
        NUM_ROLLOUTS,
    ),
)
NUM_RESCUED_GROUPS = metric(
    "constraint/num_rescued_groups",
    "groups whose rewards are all equal and that constraint.rescue_dead_groups keeps, since they have a better "
    "refinement",
)
PENALTY = metric(
    "constraint/penalty",
    Mean(
        "in modes with a penalty: -eta times the divergence of the charged responses (with credit in_reward "
        "divided by min(len a, len a')), per response token of the batch",
        TOKENS_ROLLOUT,
    ),
)
ETA = metric("constraint/eta", Mean("weight eta of the constraint in this step; mode none has none", one_each))
SFT_LOSS = "sft_cross_entropy"
"""The name of the cross-entropy among the metrics of the actor's loss; verl puts ``actor/`` before it."""
SFT_CROSS_ENTROPY = metric(
    f"actor/{SFT_LOSS}",
    Mean(
        "in modes sft and lagrangian: weighted cross-entropy in the loss, divided as constraint.sft_normaliser says "
        "(accepted: nats per token), mean over mini-batches with accepted refinements. If a mode has a loss of its "
        "own, this is its loss instead of -log pi_theta(a')",
        lambda state: float(any(pair.is_used for pair in state.pairs.values())),
    ),
)
KL_REF = mean_of_counted(
    "kl_ref/k3",
    "KL(pi_theta || pi_0) on the responses in nats per token, by the k3 estimate at temperature 1; "
    "null in metrics.jsonl if it was due and no replica answered",
)

# ---- seconds, by the timers that verl's trainer holds

REFINE_TIMER, WAIT_TIMER, LOG_PROB_TIMER, KL_TIMER = "refine", "wait_refiner", "refine_log_prob", "kl_ref"
"""The timers of this extension's stages."""
REFINE_S = metric(
    seconds_of(REFINE_TIMER), "seconds of the refine stage: to wake the refiner, generate, reward and put it to sleep"
)
WAIT_S = metric(
    seconds_of(WAIT_TIMER),
    "with refiner.streaming: seconds for which the trainer waited for refinements alone, from the last reward of the "
    "rollout (or from when the trainer began to wait) to the last refinement; a part of timing_s/gen if the trainer "
    "waits for whole batches",
)
LOG_PROB_S = metric(seconds_of(LOG_PROB_TIMER), "seconds to compute log pi_theta(a')")
KL_S = metric(seconds_of(KL_TIMER), "seconds to compute the reference log-probs for kl_ref")

# ---- memory

FULLEST = "GiB in use on the fullest device of the {} (with platform=cpu, of the machine)"
MEMORY_ROLLOUT = metric(
    "memory_gb/rollout", Largest(FULLEST.format("rollout when the step begins, while its engines are awake"))
)
MEMORY_ASLEEP = metric(
    "memory_gb/asleep", Largest(FULLEST.format("rollout after the rollout, when engines that can sleep are asleep"))
)
MEMORY_REFINE = metric(
    "memory_gb/refine", Largest(FULLEST.format("refiner at the end of the refine stage, while the refiner is awake"))
)
MEMORY_REFINED = metric("memory_gb/refined", Largest(FULLEST.format("refiner after the refine stage")))

# ---- verl's

DISCARDED = "training/filter_groups/discarded_surplus_samples"
"""verl's count of surplus groups that it has thrown away because they exceed the batch, with DAPO's filter."""
STEP_S = seconds_of("step")
"""verl's seconds of a whole step."""

PERCENTILES = {name: one.percent for name, one in MEANING.items() if isinstance(one, Percentile)}
"""The percent of each metric that is a percentile."""
COUNTS = tuple(name for name, one in MEANING.items() if isinstance(one, str))
"""The metrics that are sums."""
