"""Findings on an arm's numbers, each with its figure and the key to change."""

import itertools
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean, variance

import pandas

from recipe.online_refiner import metric_names
from recipe.online_refiner.method.pairs import FAILURES, Verdict
from recipe.report.reading import Arm, Run
from recipe.runs.starts import control_command

ENDS = 0.2
"""The share of a run's steps that counts as its first steps, and as its last steps."""
FEW, FEW_RUNS = 20, 5
"""The number of steps or prompts, and of runs per arm, below which a finding is said to be uncertain."""
MAX_DEAD = 0.5
"""The largest share of groups with equal rewards; above it, less than half of the groups teach anything."""
MAX_TRUNCATED = 0.2
"""The largest share of refinements, or of responses, that may be cut by their length limit."""
MAX_FAILED = 0.05
"""The largest share of attempts that may fail for any one other reason."""
MAX_COST = 0.3
"""The largest share of a step's seconds that refining may take."""
MAX_KL = 0.5
"""The largest KL in nats per token; a policy further away often repeats itself."""
COLUMNS = {
    "reward": (metric_names.REWARD, "+.3f"),
    "validation": ("", "+.3f"),  # Arm.validation
    "KL": (metric_names.KL_REF, ".3f"),
    "accepted": (metric_names.IMPROVEMENT_RATIO, ".0%"),
}
"""The columns of the arms' table that show both ends of a curve: metric and format."""
FACTS = {
    "policy {}": "actor_rollout_ref.model.path",
    "data {}": "data.train_files",
    "constraint.mode={}": "constraint.mode",
    "constraint.eta={}": "constraint.eta",
    "refiner.template={}": "refiner.template",
    "{} prompts a step": "data.train_batch_size",
    "{} responses to each": "actor_rollout_ref.rollout.n",
    "of at most {} tokens": "data.max_response_length",
    "learning rate {}": "actor_rollout_ref.actor.optim.lr",
}
"""The settings of a run as the page describes them, each with its key."""
FAILED = {
    Verdict.TRUNCATED: (
        "Cut refinements",
        MAX_TRUNCATED,
        "of the refinements were cut by refiner.response_length, or have no clear end, and are lost.",
        "a higher refiner.response_length, or a refiner.template that asks for less",
    ),
    Verdict.LEAK: (
        "Leaks",
        MAX_FAILED,
        "of the refinements speak of the earlier answer or its score, which the policy is not shown.",
        "another refiner.template; refiner.reject_leaks=false, if the rule is wrong (filter by the verdict leak)",
    ),
    Verdict.THOUGHT: (
        "Cut thoughts",
        MAX_FAILED,
        "of the refinements were cut within the refiner's thought and are lost.",
        "a higher refiner.thought_length",
    ),
}
"""The verdicts that a key can change: title, largest share, the text that follows the share, and the key."""
RESCUING = ("sft", "lagrangian")
"""Modes that can learn from groups with equal rewards."""
CHOSEN = (Verdict.NOT_CHOSEN, Verdict.OVER_BUDGET)
"""Verdicts of responses that are not refined because other responses were chosen for it by their rewards."""
SKIPPED = {
    Verdict.TOO_LONG: "did not fit into the refiner's context; lower refiner.thought_length or refiner.response_length",
    Verdict.NO_ANSWER: "end within their thought; raise data.max_response_length, or set refiner.rewrites=response",
}
"""The reasons why no response of a run may have been refined, each with its remedy."""
LEVELS = ("act", "note", "good")
"""The levels of a finding: something should change; something should be looked at; all is well."""


MEANINGS = {
    "Does the refiner help?": "The last fifth of the steps of runs with a refiner, compared with that of runs without "
    "one: validation if the runs have it, else the training reward. With five runs or more of each, a difference "
    "counts if it is above two standard errors.",
    "Reward": "The mean reward of the first and of the last fifth of the steps. A change counts from 20 steps on, if "
    "it is above two standard errors, which are estimated from neighbouring steps.",
    "Does refining beat answering again?": "Each refinement is compared with the other responses to the same prompt, "
    "as if each of them were a second sample. A difference counts from 20 prompts on, if it is above two standard "
    "errors; responses to one prompt count as one observation.",
    "Accepted refinements": "The share of responses whose refinement has a higher reward. Below 10 % of the attempts "
    "most of the refiner's work is lost; if more than half of the refinements repeat the response, the refiner does "
    "not see what is wrong. Both limits are rules of thumb.",
    "Dead groups": "Prompts for which all responses have the same reward: their advantages are 0. Above 50 %, less "
    "than half of the groups teach the policy anything. The limit is a rule of thumb.",
    "Cut responses": "Responses as long as data.max_response_length. The limit of 20 % is a rule of thumb.",
    "Cut refinements": "Refinements that end at refiner.response_length, or without a clear end. The limit of 20 % is "
    "a rule of thumb.",
    "Cut thoughts": "Refinements that end within the refiner's thought. The limit of 5 % is a rule of thumb.",
    "Leaks": "Refinements that mention the earlier answer, its score or the feedback, which the policy never sees. The "
    "limit of 5 % is a rule of thumb.",
    "Failed": "Attempts that gave no refinement for one reason. The limit of 5 % is a rule of thumb.",
    "Cost of refining": "The share of a step's seconds in which the trainer waits for refinements and their "
    "probabilities. The limit of 30 % is a rule of thumb.",
    "KL": "The distance from the policy to the reference model on the policy's responses, in nats per token, in the "
    "last fifth of the steps. The limit of 0.5 is a rule of thumb: policies further away often repeat themselves.",
    "What never happened": "A setting of the run that had no effect in any step.",
}
"""The meaning of each finding, by its title up to a colon, and the origin of its limit."""


@dataclass(slots=True, kw_only=True)
class Finding:
    """One conclusion from the numbers of an arm."""

    level: str
    """One of LEVELS."""
    title: str
    figure: str
    says: str
    key: str = ""
    """The key to change, with a value; empty if nothing should change."""
    asks: str = "To change"
    """The words before the key on the page."""
    command: str = ""
    """A shell command to copy; empty if there is none."""

    @property
    def meaning(self) -> str:
        """The text that explains the finding, and where its limit comes from."""
        return MEANINGS.get(self.title.partition(":")[0], "")


def first_and_last(values: list[float]) -> tuple[float, float] | None:
    """Return the mean of the first and of the last steps; None without steps."""
    size = max(1, round(len(values) * ENDS))
    return (sum(values[:size]) / size, sum(values[-size:]) / size) if values else None


def noise(values: list[float]) -> float:
    """Return the standard error of last minus first mean, estimated by the differences between neighbouring steps."""
    squares = [(after - before) ** 2 / 2 for before, after in itertools.pairwise(values)]
    size = max(1, round(len(values) * ENDS))
    return math.sqrt(2 * sum(squares) / len(squares) / size) if squares else math.inf


def table(arms: list[Arm]) -> pandas.DataFrame:
    """Return a table of texts with one row per arm, and each column that at least one arm has."""
    rows = []
    for arm in arms:
        row = {"runs": f"{len(arm.runs)}"}
        row["steps"] = ", ".join(sorted({f"{run.num_done} of {run.num_steps or '?'}" for run in arm.runs}))
        for title, (metric, form) in COLUMNS.items():
            numbers = arm.numbers(metric or arm.validation)
            ends = first_and_last(numbers)
            row[title] = " → ".join(f"{one:{form}}" for one in ends[: len(numbers)]) if ends else ""
        seconds = arm.numbers(metric_names.STEP_S)
        row["seconds a step"] = f"{sum(seconds) / len(seconds):.3g}" if seconds else ""
        rows.append(row)
    cells = pandas.DataFrame(rows, index=[arm.name for arm in arms])
    return cells.loc[:, (cells != "").any()]


def facts(arm: Arm) -> str:
    """Return the settings of an arm's runs in one line: models, data, mode and the size of a step."""
    told = []
    for text, key in FACTS.items():
        value = arm.setting(key)
        if value is not None and (arm.refines or key != "refiner.template"):
            values = value if isinstance(value, list) else [value]
            told.append(text.format(" ".join(str(one).rstrip("/").rpartition("/")[2] for one in values)))
    return ", ".join(told) or "its settings are not there (config.yaml)"


def last_signs(arm: Arm) -> list[str]:
    """Return what the unfinished runs of an arm did last, and since when; some of them may be dead."""
    return [
        f"{run.name} is not done. Since {datetime.fromtimestamp(run.stage['since'], UTC):%Y-%m-%d %H:%M} UTC: "
        + (f"step {run.stage['step']}, " if run.stage["step"] else "")
        + run.stage["stage"]
        for run in arm.runs
        if run.stage and run.num_steps and run.num_done < run.num_steps
    ]


def findings(arm: Arm, control: Arm | None = None) -> list[Finding]:
    """Return the findings on an arm; numbers that were not measured give none.

    Args:
        arm: The arm.
        control: The arm without a refiner, if one is on the same page.
    """
    first = [*_against(arm, control), *_reward(arm), *_contest(arm)]
    others = [*_acceptance(arm), *_dead_groups(arm), *_cut_responses(arm), *_failed(arm), *_cost(arm), *_kl(arm)]
    others += [Finding(level="act", title="What never happened", figure="", says=one) for one in _never(arm)]
    return [*first, *sorted(others, key=lambda one: LEVELS.index(one.level))]


def summary(found: list[Finding]) -> str:
    """Return the number of findings of each level in one line."""
    act, note, good = (sum(one.level == level for one in found) for level in LEVELS)
    return f"{act} {'thing' if act == 1 else 'things'} to change, {note} to look at, {good} fine"


def origin(run: Run) -> tuple[str, str] | None:
    """Return the date, seed and versions of a run in one line, and the command that repeats it.

    None for a run of an earlier release, which noted no start.
    """
    if not run.starts:
        return None
    first, last = run.starts[0], run.starts[-1]
    told = [f"started {first['at']}"]
    if len(run.starts) > 1:
        told.append(f"{len(run.starts)} times, the last {last['at']}")
    if (seed := run.config.get("data.seed")) is not None:
        told.append(f"data.seed={seed}")
    told += [f"{name} {number}" for name, number in last["versions"].items()]
    told += [f"commit {last['commit']}"] if last["commit"] else []
    return ", ".join(told), shlex.join(last["command"])


def advice(arm: Arm) -> list[str]:
    """Return one line on how the reward changed, and one for each finding that should be changed or looked at."""
    found = [one for one in findings(arm) if one.level != "good" or one.title == "Reward"]
    return [
        f"{one.title}{'' if one.title.endswith('?') else ':'} {one.figure}{'. ' if one.figure else ''}{one.says}"
        + (f" {one.asks}: {one.key}" if one.key else "")
        for one in found
    ]


def control_of(arms: list[Arm]) -> Arm | None:
    """Return the first arm that has no refiner."""
    return next((arm for arm in arms if not arm.refines), None)


def _against(arm: Arm, control: Arm | None) -> Iterator[Finding]:
    metric = arm.validation or metric_names.REWARD
    title, with_it = "Does the refiner help?", _last_of_runs(arm, metric)
    without = _last_of_runs(control, metric) if control else []
    if not arm.refines or not with_it:
        return
    if control is None or not without:
        says = "Only the same run without it can tell whether the refiner was the cause."
        key = "start a second run with constraint.mode=none, and give both folders to online-refiner report"
        run = arm.runs[0]
        command = control_command(run.starts[-1]["command"], str(run.config.get("run_dir"))) if run.starts else ""
        yield Finding(
            level="note", title=title, figure="cannot tell", says=says, key=key, asks="To compare", command=command
        )
        return
    of, ends = "validation" if arm.validation else "training reward", (fmean(with_it), fmean(without))
    says = f"The {of} ends at {ends[0]:+.3f} with the refiner, and at {ends[1]:+.3f} without ({control.name})."
    gain, level = ends[0] - ends[1], "note"
    if min(len(with_it), len(without)) < FEW_RUNS:
        number = f"{len(with_it)} and {len(without)}"
        says += f" With {number} runs this may be chance: make {FEW_RUNS} of each, with other seeds."
    elif abs(gain) < 2 * math.sqrt(sum(variance(one) / len(one) for one in (with_it, without))):
        says += " Runs that differ in their seed only differ as much: this may be chance."
    else:
        level = "good" if gain > 0 else "act"
    yield Finding(level=level, title=title, figure=f"{gain:+.3f}", says=says)


def _last_of_runs(arm: Arm, metric: str) -> list[float]:
    """Return a metric's mean over the last steps of each run that has it."""
    ends = [first_and_last(Arm(name=run.name, runs=[run]).numbers(metric)) for run in arm.runs]
    return [both[1] for both in ends if both]


def _reward(arm: Arm) -> Iterator[Finding]:
    numbers = arm.numbers(metric_names.REWARD)
    if ends := first_and_last(numbers):
        change, level = ends[1] - ends[0], "note"
        says = (
            f"The policy's mean reward {'rose' if change > 0 else 'did not rise'} by the last {ENDS:.0%} of the steps"
        )
        if len(numbers) < FEW or abs(change) < 2 * noise(numbers):
            says += f"; in {len(numbers)} steps such a change may be chance"
        else:
            level = "good" if change > 0 else "act"
        yield Finding(level=level, title="Reward", figure=f"{ends[0]:+.3f} → {ends[1]:+.3f}", says=f"{says}.")


def _contest(arm: Arm) -> Iterator[Finding]:
    rows = [(run.path + prompt, *won) for run in arm.runs for prompt, *won in run.contest]
    if not rows:
        return
    contest = pandas.DataFrame(rows, columns=["prompt", "refined", "again"]).set_index("prompt").astype(float)
    refined, again = contest.mean()
    centred = contest["refined"] - contest["again"] - (refined - again)
    gains = centred.groupby("prompt").sum()  # answers to one prompt are alike
    error = math.sqrt((gains**2).sum() * len(gains) / max(1, len(gains) - 1)) / len(rows)
    says = (
        f"{len(rows)} responses to {len(gains)} prompts were refined. Their refinement scored higher in {refined:.0%}, "
        f"another response to the same prompt in {again:.0%}. "
    )
    level, key = "note", ""
    if arm.total(*(metric_names.skipped_for(one) for one in CHOSEN)) or _filters(arm):
        says += "But those were chosen by what their siblings got, so this is not fair: online-refiner check is."
    elif len(gains) < FEW or abs(refined - again) < 2 * error:
        says += "Such a difference may be chance."
    elif refined > again:
        level = "good"
        says += "So the refiner knows more than another try does."
    else:
        level, key = "act", f"{_better_refiner(arm)}, or a higher actor_rollout_ref.rollout.n"
        says += "So another try is better: change how the refiner is asked, or spend the time on more responses."
    title, figure = "Does refining beat answering again?", f"{refined:.0%} against {again:.0%}"
    yield Finding(level=level, title=title, figure=figure, says=says, key=key)


def _filters(arm: Arm) -> bool:
    return bool(arm.setting("algorithm.filter_groups.enable"))


def _better_refiner(arm: Arm) -> str:
    models = {"external": " or model at refiner.url", "shared": ""}
    return f"another refiner.template{models.get(arm.setting('refiner.placement'), ' or refiner.model_path')}"


def _acceptance(arm: Arm) -> Iterator[Finding]:
    ends = first_and_last(arm.numbers(metric_names.IMPROVEMENT_RATIO))
    attempted, repeated = arm.total(metric_names.NUM_ATTEMPTED), arm.numbers(metric_names.REPEATED_RATIO)
    if not ends or not attempted:
        return
    share, figure = arm.total(metric_names.NUM_ACCEPTED) / attempted, f"{ends[0]:.0%} → {ends[1]:.0%}"
    says = f"{figure} of all responses had an accepted refinement; of the attempts {share:.0%}."
    says += "" if ends[1] <= ends[0] else " It should fall as the policy learns."
    level, key = ("note", _better_refiner(arm)) if share < 0.1 else ("good", "")
    if repeated and fmean(repeated) > 0.5:
        level, key = "act", "another refiner.template; a reward function that returns feedback"
        says += f" {fmean(repeated):.0%} repeat the response as it is."
    yield Finding(level=level, title="Accepted refinements", figure=figure, says=says, key=key)


def _share(title: str, share: float, limit: float, says: str, key: str, level: str = "act") -> Finding:
    """Return the finding on a share: all is well up to `limit`, and above it `key` should change."""
    says = f"{share:.0%} {says} Up to {limit:.0%} is fine."
    if share <= limit:
        level, key = "good", ""
    return Finding(level=level, title=title, figure=f"{share:.0%}", says=says, key=key)


def _dead_groups(arm: Arm) -> Iterator[Finding]:
    numbers = arm.numbers(metric_names.ZERO_STD_GROUPS)
    if numbers and arm.setting("actor_rollout_ref.rollout.n") != 1:
        says = "of the prompts got equal rewards for all their responses, which teach the policy nothing by themselves."
        key, rescues = "other problems in data.train_files", arm.setting("constraint.rescue_dead_groups")
        if arm.setting("constraint.mode") in RESCUING and not rescues and not _filters(arm):
            key = f"constraint.rescue_dead_groups=true, or {key}"
        yield _share("Dead groups", fmean(numbers), MAX_DEAD, says, key)


def _cut_responses(arm: Arm) -> Iterator[Finding]:
    most, ratio = arm.setting("data.max_response_length"), "response_length/clip_ratio"
    steps = arm.table.reindex(columns=[ratio, "response_length/max"]).dropna()
    if most and len(steps):
        # verl's ratio is of the responses as long as the step's longest one, whatever the limit is.
        share = steps[ratio].where(steps["response_length/max"] >= most, 0.0).mean()
        says = f"of the policy's responses reached data.max_response_length={most}; such an answer often has no end."
        yield _share("Cut responses", share, MAX_TRUNCATED, says, "a higher data.max_response_length", level="note")


def _failed(arm: Arm) -> Iterator[Finding]:
    attempted = arm.total(metric_names.NUM_ATTEMPTED)
    for verdict in FAILURES:
        failed = arm.total(metric_names.failed_for(verdict))
        if attempted and failed:
            says = "of the attempts failed so: filter the refinements by this verdict."
            title, limit, says, key = FAILED.get(verdict, (f"Failed: {verdict}", MAX_FAILED, says, "see their detail"))
            yield _share(title, failed / attempted, limit, says, key)


def _cost(arm: Arm) -> Iterator[Finding]:
    whole = arm.total(metric_names.STEP_S)
    if whole and arm.total(metric_names.NUM_ATTEMPTED):
        share = arm.total(metric_names.EXPOSED_S, metric_names.LOG_PROB_S) / whole
        says = "of a step's seconds are spent on refining, the longer update not counted."
        key = "a lower refiner.max_refinements_per_group"
        if arm.setting("refiner.placement") == "colocated":
            key += " or refiner.budget, or refiner.placement=dedicated with refiner.n_gpus_per_node"
        yield _share("Cost of refining", share, MAX_COST, says, key, level="note")


def _kl(arm: Arm) -> Iterator[Finding]:
    if ends := first_and_last(arm.numbers(metric_names.KL_REF)):
        level, key = "good", ""
        says = f"The policy is {ends[1]:.3g} nats per token from the reference model at the end"
        if ends[1] > MAX_KL:
            says += ", which is far: look whether its responses are still sound"
            eta = "a higher constraint.eta, or " if arm.refines else ""
            level, key = "act", f"{eta}a lower actor_rollout_ref.actor.optim.lr"
        yield Finding(level=level, title="KL", figure=f"{ends[1]:.3g}", says=f"{says}.", key=key)


def _never(arm: Arm) -> Iterator[str]:
    """Yield a line on each event that the run's settings deal with and that happened in no step.

    Such an event is a refinement, a response with the highest reward, or a group of equal rewards.
    """
    if not arm.total(metric_names.NUM_ATTEMPTED):
        skipped = {why: arm.total(metric_names.skipped_for(reason)) for reason, why in SKIPPED.items()}
        yield from (f"nothing was refined: {number:g} responses {why}" for why, number in skipped.items() if number)
        return
    most = arm.setting("refiner.skip_reward_at_least")
    if most is not None and not arm.total(metric_names.skipped_for(Verdict.MAX_REWARD), metric_names.NUM_OWN):
        yield (
            f"no response reached refiner.skip_reward_at_least={most}: nothing was solved, or the reward is shaped (by "
            "length, for one) and stays below; set it to the least that a solved response gets"
        )
    by_reward = _filters(arm) and arm.setting("algorithm.filter_groups.metric") == "reward"
    waiting = {
        "constraint.rescue_dead_groups=true": arm.setting("constraint.rescue_dead_groups"),
        "algorithm.filter_groups.metric=reward": by_reward,
    }
    keys = " and ".join(key for key, is_set in waiting.items() if is_set)
    if keys and not arm.total(metric_names.ZERO_STD_GROUPS, "training/filter_groups/evicted_samples"):
        yield (
            f"no group was ever dead (equal rewards), so that {keys} did nothing: a shaped reward differs within "
            "groups that all failed; take the shaping out of it, or filter by what says what is solved"
        )
