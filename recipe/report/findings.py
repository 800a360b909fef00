"""What the numbers of an arm say, each with its figure and the key to change."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from recipe.online_refiner.pairs import FAILURES, Verdict
from recipe.report.reading import Arm

ENDS = 0.2
"""Share of the steps that count as the first, and as the last ones."""
FEW, FEW_RUNS = 20, 5
"""Fewer steps, or runs of an arm, say little."""
MAX_DEAD = 0.5
"""Share of groups with equal rewards above which a run learns from the minority."""
MAX_TRUNCATED = 0.2
"""Share of refinements, or of responses, that may be cut."""
MAX_FAILED = 0.05
"""Share of attempts that may fail for other reasons than their length."""
MAX_COST = 0.3
"""Share of a step's seconds that refining may take unnoticed."""
MAX_KL = 0.5
"""Nats per token; a policy further away often repeats itself."""


LOST = {
    Verdict.LEAK: (
        "Leaks",
        "of the refinements speak of the earlier answer or its score, which the policy is not shown.",
        "another refiner.template; refiner.reject_leaks=false, if the rule is wrong (filter by the verdict leak)",
    ),
    Verdict.THOUGHT: (
        "Cut thoughts",
        "of the refinements were cut within the refiner's thought and are lost.",
        "a higher refiner.thought_length",
    ),
}
"""Verdicts of attempts that have a key of their own: title, what is said of their share, and the key."""
CHOSEN = (Verdict.NOT_CHOSEN, Verdict.OVER_BUDGET)
"""Verdicts of responses that are not refined because others of their group are, by their rewards."""
SKIPPED = {
    "too_long": "did not fit into the refiner's context; lower refiner.thought_length or refiner.response_length",
    "no_answer": "end within their thought; raise data.max_response_length, or set refiner.rewrites=response",
}
"""Why whole runs go without refinements, and what to do."""
RESCUING = ("sft", "lagrangian")
"""Modes that can learn from groups with equal rewards."""
LEVELS = ("act", "note", "good")
"""Of findings: something should change; look at it; fine."""


@dataclass(slots=True, kw_only=True)
class Finding:
    """One thing that the numbers say."""

    level: str
    """One of LEVELS."""
    title: str
    figure: str
    says: str
    key: str = ""
    """What to change, if anything."""
    asks: str = "To change"
    """What the key is for."""


def first_and_last(values: list[float]) -> tuple[float, float] | None:
    """Return the mean of the first and of the last steps; None without steps."""
    size = max(1, round(len(values) * ENDS))
    return (sum(values[:size]) / size, sum(values[-size:]) / size) if values else None


def noise(values: list[float]) -> float:
    """Return the standard error of the difference of both ends of a curve, from how much neighbouring steps differ."""
    squares = [(after - before) ** 2 / 2 for before, after in itertools.pairwise(values)]
    size = max(1, round(len(values) * ENDS))
    return math.sqrt(2 * sum(squares) / len(squares) / size) if squares else math.inf


def summary(arm: Arm) -> dict[str, str]:
    """Return what an arm did, as cells of a table."""
    cells = {
        "runs": f"{len(arm.runs)}",
        "steps": ", ".join(sorted({_steps(run.steps, run.num_steps) for run in arm.runs})),
    }
    columns = {"reward": "reward/mean", "validation": arm.validation, "KL": "kl_ref/k3"}
    for title, metric in columns.items():
        ends = first_and_last(arm.numbers(metric))
        sign = "" if title == "KL" else "+"
        cells[title] = f"{ends[0]:{sign}.3f} → {ends[1]:{sign}.3f}" if ends else "–"
    ends = first_and_last(arm.numbers("refiner/improvement_ratio"))
    cells["accepted"] = f"{ends[0]:.0%} → {ends[1]:.0%}" if ends else "–"
    seconds = arm.numbers("timing_s/step")
    cells["seconds a step"] = f"{sum(seconds) / len(seconds):.3g}" if seconds else "–"
    return cells


def facts(arm: Arm) -> str:
    """Return in one line what an arm's runs were told: models, data, mode, and how much a step is."""
    known = arm.setting
    files = known("data.train_files")
    if not arm.runs[0].config:
        return "its settings are not there (config.yaml)"
    named = {
        "policy {}": known("actor_rollout_ref.model.path"),
        "data {}": files if isinstance(files, str) else None,
        "constraint.mode={}": known("constraint.mode"),
        "constraint.eta={}": known("constraint.eta"),
        "refiner.template={}": known("refiner.template") if arm.refines else None,
        "{} prompts a step": known("data.train_batch_size"),
        "{} responses to each": known("actor_rollout_ref.rollout.n"),
        "of at most {} tokens": known("data.max_response_length"),
        "learning rate {}": known("actor_rollout_ref.actor.optim.lr"),
    }
    told = {text: str(value).rstrip("/").rpartition("/")[2] for text, value in named.items() if value is not None}
    return ", ".join(text.format(value) for text, value in told.items())


def last_signs(arm: Arm) -> list[str]:
    """Return what the runs of an arm that have steps left did last, and since when; some may be dead."""
    return [
        f"{run.name} is not done. Since {datetime.fromtimestamp(run.stage['since'], UTC):%Y-%m-%d %H:%M} UTC: "
        + (f"step {run.stage['step']}, " if run.stage["step"] else "")
        + run.stage["stage"]
        for run in arm.runs
        if run.stage and run.num_steps and (not run.steps or run.steps[-1]["step"] < run.num_steps)
    ]


def table(arms: list[Arm]) -> list[tuple[str, list[str]]]:
    """Return the columns of the table of all arms that any of them has numbers for, each with its title."""
    rows = [summary(arm) for arm in arms]
    columns = [(title, [row[title] for row in rows]) for title in rows[0]]
    return [(title, cells) for title, cells in columns if set(cells) != {"–"}]


def _steps(steps: list[dict[str, Any]], most: int | None) -> str:
    done = steps[-1]["step"] if steps else 0
    return f"{done}" if most is None else f"{done} of {most}"


def findings(arm: Arm, control: Arm | None = None) -> list[Finding]:
    """Return all that the numbers of an arm say; nothing of what was not measured.

    Args:
        arm: The arm.
        control: One without a refiner, if it is on the same page.
    """
    first = [*_against(arm, control), *_reward(arm), *_contest(arm)]
    others = [*_acceptance(arm), *_dead_groups(arm), *_lost(arm), *_cost(arm), *_kl(arm)]
    return [*first, *sorted(others, key=lambda one: LEVELS.index(one.level)), *_of_the_run(arm)]


def advice(arm: Arm) -> list[str]:
    """Return what became of the reward, and all that should change or be looked at, each as one line."""
    found = [one for one in findings(arm, control_of([arm])) if one.level != "good" or one.title == "Reward"]
    return [
        f"{one.title}{'' if one.title.endswith('?') else ':'} {one.figure}{'. ' if one.figure else ''}{one.says}"
        + (f" {one.asks}: {one.key}" if one.key else "")
        for one in found
    ]


def control_of(arms: list[Arm]) -> Arm | None:
    """Return the first arm that has no refiner."""
    return next((arm for arm in arms if not arm.refines), None)


def _against(arm: Arm, control: Arm | None) -> Iterator[Finding]:
    metric = arm.validation or "reward/mean"
    with_it, without = (first_and_last(one.numbers(metric)) if one else None for one in (arm, control))
    found = Finding(level="note", title="Does the refiner help?", figure="cannot tell", says="")
    if not arm.refines or with_it is None:
        return
    if control and without:
        of, gain = "validation" if arm.validation else "training reward", with_it[1] - without[1]
        found.figure = f"{gain:+.3f}"
        found.says = (
            f"The {of} ends at {with_it[1]:+.3f} with the refiner, and at {without[1]:+.3f} without ({control.name})."
        )
        if min(len(arm.runs), len(control.runs)) < FEW_RUNS:
            number = f"{len(arm.runs)} and {len(control.runs)}"
            found.says += f" With {number} runs this may be chance: make {FEW_RUNS} of each, with other seeds."
        else:
            found.level = "good" if gain > 0 else "act"
    else:
        found.says = "Only the same run without it can tell whether the refiner was the cause."
        found.key, found.asks = "constraint.mode=none in a second run; online-refiner report of both", "To compare"
    yield found


def _reward(arm: Arm) -> Iterator[Finding]:
    numbers = arm.numbers("reward/mean")
    ends = first_and_last(numbers)
    if not ends:
        return
    change, chance = ends[1] - ends[0], 2 * noise(numbers)
    says = f"The policy's mean reward {'rose' if change > 0 else 'did not rise'} by the last {ENDS:.0%} of the steps"
    if len(numbers) < FEW or abs(change) < chance:
        level, says = "note", f"{says}; in {len(numbers)} steps such a change may be chance."
    else:
        level, says = "good" if change > 0 else "act", f"{says}."
    yield Finding(level=level, title="Reward", figure=f"{ends[0]:+.3f} → {ends[1]:+.3f}", says=says)


def _contest(arm: Arm) -> Iterator[Finding]:
    contests = [run.contest for run in arm.runs]
    number = sum(one.num_responses for one in contests)
    if not number:
        return
    refined = sum(one.num_refined for one in contests) / number
    again = sum(one.num_resampled for one in contests) / number
    found = Finding(
        level="good",
        title="Does refining beat answering again?",
        figure=f"{refined:.0%} against {again:.0%}",
        says=f"{number} responses were refined. Their refinement scored higher in {refined:.0%}, another response to "
        f"the same prompt in {again:.0%}. ",
    )
    chosen = arm.total(*(f"refiner/skipped/{one}" for one in CHOSEN))
    if chosen or arm.setting("algorithm.filter_groups.enable"):
        found.level = "note"
        found.says += "But those were chosen by what their siblings got, so this is not fair: online-refiner check is."
    elif refined > again:
        found.says += "So the refiner knows more than another try does."
    else:
        found.level, found.key = "act", f"{_better_refiner(arm)}, or a higher actor_rollout_ref.rollout.n"
        found.says += "So another try is at least as good: refine otherwise, or spend the time on more responses."
    yield found


def _better_refiner(arm: Arm) -> str:
    models = {"external": " or model at refiner.url", "shared": ""}
    return f"another refiner.template{models.get(arm.setting('refiner.placement'), ' or refiner.model_path')}"


def _acceptance(arm: Arm) -> Iterator[Finding]:
    ends = first_and_last(arm.numbers("refiner/improvement_ratio"))
    attempted, accepted = arm.total("refiner/num_attempted"), arm.total("refiner/num_accepted")
    if not ends or not attempted:
        return
    share, repeated = accepted / attempted, arm.numbers("refiner/repeated_ratio")
    level, key = ("note", _better_refiner(arm)) if share < 0.1 else ("good", "")
    says = f"of all responses had an accepted refinement; of the attempts {share:.0%}."
    says += "" if ends[1] <= ends[0] else " It should fall as the policy learns."
    if repeated and sum(repeated) / len(repeated) > 0.5:
        level, key = "act", "another refiner.template; a reward function that returns feedback"
        says += f" {sum(repeated) / len(repeated):.0%} repeat the response as it is."
    figure = f"{ends[0]:.0%} → {ends[1]:.0%}"
    yield Finding(level=level, title="Accepted refinements", figure=figure, says=f"{figure} {says}", key=key)


def _dead_groups(arm: Arm) -> Iterator[Finding]:
    numbers = arm.numbers("reward/zero_std_groups")
    if numbers and arm.setting("actor_rollout_ref.rollout.n") != 1:
        says = "of the prompts got equal rewards for all their responses, which teach the policy nothing by themselves."
        key = "other problems in data.train_files"
        if arm.setting("constraint.mode") in RESCUING and not arm.setting("algorithm.filter_groups.enable"):
            key = f"constraint.rescue_dead_groups=true, or {key}"
        yield _share("Dead groups", sum(numbers) / len(numbers), MAX_DEAD, says, key)


def _lost(arm: Arm) -> Iterator[Finding]:
    if attempted := arm.total("refiner/num_attempted"):
        failed = {one: arm.total(f"refiner/failed/{one}") / attempted for one in FAILURES}
        says = "of the refinements were cut by refiner.response_length, or have no clear end, and are lost."
        key = "a higher refiner.response_length, or a refiner.template that asks for less"
        yield _share("Cut refinements", failed.pop(Verdict.TRUNCATED), MAX_TRUNCATED, says, key)
        for verdict, (title, says, key) in LOST.items():
            if share := failed.pop(verdict):
                yield _share(title, share, MAX_FAILED, says, key)
        kinds = ", ".join(f"{name} {share:.0%}" for name, share in failed.items() if share)
        says = f"of the attempts failed otherwise ({kinds}): filter the refinements by these verdicts."
        others = _share("Failed attempts", sum(failed.values()), MAX_FAILED, says, "see their detail")
        if others.level != "good":
            yield others
    # verl's ratio is of the responses as long as the step's longest one, whatever the limit is.
    longest, ratios = arm.numbers("response_length/max"), arm.numbers("response_length/clip_ratio")
    if ratios and len(longest) == len(ratios):
        most = arm.setting("data.max_response_length") or math.inf
        cut = [ratio for ratio, length in zip(ratios, longest, strict=True) if length >= most]
        says = f"of the policy's responses reached data.max_response_length={most}; such an answer often has no end."
        key, share = "a higher data.max_response_length", sum(cut) / len(ratios)
        yield _share("Cut responses", share, MAX_TRUNCATED, says, key, level="note")


def _cost(arm: Arm) -> Iterator[Finding]:
    whole = arm.total("timing_s/step")
    if whole and arm.total("refiner/num_attempted"):
        share = arm.total("refiner/exposed_s", "timing_s/refine_log_prob") / whole
        says = "of a step's seconds are spent on refining, the longer update not counted."
        key = "a lower refiner.max_refinements_per_group"
        if arm.setting("refiner.placement") == "colocated":
            key += " or refiner.budget, or refiner.placement=dedicated with refiner.n_gpus_per_node"
        yield _share("Cost of refining", share, MAX_COST, says, key, level="note")


def _share(title: str, share: float, limit: float, says: str, key: str, level: str = "act") -> Finding:
    """Return what a share says: fine up to a limit, and above it what to change."""
    is_bad = share > limit
    text = f"{share:.0%} {says} Up to {limit:.0%} is fine."
    return Finding(
        level=level if is_bad else "good", title=title, figure=f"{share:.0%}", says=text, key=key if is_bad else ""
    )


def _kl(arm: Arm) -> Iterator[Finding]:
    if ends := first_and_last(arm.numbers("kl_ref/k3")):
        is_far = ends[1] > MAX_KL
        says = f"The policy is {ends[1]:.3g} nats per token from the reference model at the end"
        says += ", which is far: look whether its responses are still sound." if is_far else "."
        key = "a lower actor_rollout_ref.actor.optim.lr" if is_far else ""
        if key and arm.refines:
            key = f"a higher constraint.eta, or {key}"
        yield Finding(level="act" if is_far else "good", title="KL", figure=f"{ends[1]:.3g}", says=says, key=key)


def _of_the_run(arm: Arm) -> Iterator[Finding]:
    for line in _never(arm):
        yield Finding(level="act", title="What never happened", figure="", says=line)


def _never(arm: Arm) -> Iterator[str]:
    """Yield what did not happen in any step, though the run was told what to do with it.

    It is a refinement, a response with the highest reward, or a group of equal rewards.
    """
    if not arm.total("refiner/num_attempted"):
        for name, why in SKIPPED.items():
            if skipped := arm.total(f"refiner/skipped/{name}"):
                yield f"nothing was refined: {skipped:g} responses {why}"
        return
    most = arm.setting("refiner.skip_reward_at_least")
    if most is not None and not arm.total("refiner/skipped/max_reward", "refiner/num_own"):
        yield (
            f"no response reached refiner.skip_reward_at_least={most}: nothing was solved, or the reward is shaped (by "
            "length, for one) and stays below; set it to the least that a solved response gets"
        )
    waits = ["constraint.rescue_dead_groups=true"] if arm.setting("constraint.rescue_dead_groups") else []
    filters = arm.setting("algorithm.filter_groups") or {}
    if filters.get("enable") and filters.get("metric") == "reward":
        waits.append("algorithm.filter_groups.metric=reward")
    if waits and not arm.total("reward/zero_std_groups", "training/filter_groups/evicted_samples"):
        yield (
            f"no group was ever dead (equal rewards), so that {' and '.join(waits)} did nothing: a shaped reward "
            "differs within groups that all failed; take the shaping out of it, or filter by what says what is solved"
        )
