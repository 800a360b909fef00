"""Every number of experiments/results/lab.md, from the committed metrics and the protocol.

    python -m experiments.lab.findings [experiments/results/lab.yaml]

Prints the tables and draws the figure of the final runs.

`calibrate` and `tune`: mean outcomes by learning rate or weight, what was taken in bold. *Outcome*: interquartile mean
over runs. *P*: the probability that a run of one arm is above one of the other. In brackets: 95 % intervals by
bootstrap over runs, too narrow for so few. *Step*: held-out share. Reward and what follows: means over the last five
steps. *Not compiling*: of all answers; 0 where nothing is compiled. *KL*: to the reference model, nats a token.
*Accepted*: refinements with a higher reward, by all rollouts. Blank: not measured, or 0 in every step.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.bootstrap import interval
from experiments.lab import metrics, protocol
from experiments.lab.arms import STATIC
from experiments.lab.protocol import Protocol
from experiments.lab.statistics import holm, interquartile_mean, permutation_p
from recipe.online_refiner import metric_names

COLOUR = "#1d5fb8"
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8f98",
    "grid.color": "#e5e7eb",
}
ROW = 0.24  # height of an arm's row in the figure, in inches
FIRST, LAST = slice(5), slice(-5, None)
RUN = re.compile(r"(?P<algorithm>\w+?)-(?P<arm>\w+)-seed\d+")
Steps = metrics.Steps


def _mean(*names: str, at: slice = LAST, if_any: bool = False) -> Callable[[Steps], float | None]:
    """Return a function that computes a metric's mean over some steps, or the mean of its ratio to a second metric.

    With ``if_any`` the mean is None if all values are 0, since a stage that a mode leaves out reports 0.
    """

    def mean(steps: Steps) -> float | None:
        values = [[step[name] for name in names] for step in steps if step.keys() >= set(names)]
        quotients = [value[0] / value[1] if len(value) > 1 else value[0] for value in values]
        return float(np.mean(quotients[at])) if any(quotients) or (quotients and not if_any) else None

    return mean


SIDE = {  # what else is told of an arm: means over the last five steps, and of what is accepted over the first five
    "reward": _mean(metric_names.REWARD),
    "not compiling": _mean("sandbox/outcome/compile_error", metric_names.NUM_ROLLOUTS),
    "tokens an answer": _mean("response_length/mean"),
    "entropy": _mean("actor/entropy_loss"),
    "KL": _mean(metric_names.KL_REF, if_any=True),
    "accepted, first 5 steps": _mean(metric_names.IMPROVEMENT_RATIO, at=FIRST, if_any=True),
    "accepted, last 5": _mean(metric_names.IMPROVEMENT_RATIO, if_any=True),
}
Arms = Mapping[str, Sequence[Steps]]
Trials = Mapping[str, Mapping[float, Sequence[str]]]


def by_algorithm(runs: Mapping[str, Steps]) -> dict[str, dict[str, list[Steps]]]:
    """Sort the final runs, by their names, into algorithms and arms."""
    found: dict[str, dict[str, list[Steps]]] = defaultdict(lambda: defaultdict(list))
    for name, steps in runs.items():
        if parts := RUN.fullmatch(name):
            found[parts["algorithm"]][parts["arm"]].append(steps)
    return found


def outcomes_of(rules: Protocol, arms: Arms) -> dict[str, list[float]]:
    """Return the outcome of each run of each arm."""
    return {name: [rules.outcome(rules.held_out_of(run)) for run in runs] for name, runs in arms.items()}


def page(rules: Protocol, path: Path) -> str:
    """Return the page's part about an experiment, from its protocol's file and the metrics beside it."""
    is_done = {"calibrate": bool(rules.learning_rates) and rules.learning_rate is not None, "tune": rules.is_tuned}
    phases = [phase for phase, is_one in is_done.items() if is_one]
    parts = [chosen(rules, phase, metrics.read(metrics.path_of(path, phase))) for phase in phases]
    rates = path.with_name(f"{path.stem}_base") / "rates.json"
    if rates.exists():
        parts.append(of_base_model(json.loads(rates.read_text())["held_out"]))
    final = metrics.read(metrics.path_of(path, "final"))
    if is_done["tune"] and final.keys() >= dict(rules.runs("final")).keys():  # none is left out
        parts.append(tables(rules, final))
    return "\n\n".join(parts)


def chosen(rules: Protocol, phase: str, runs: Mapping[str, Steps]) -> str:
    """Return the values that `calibrate` or `tune` tried, with mean outcome and spread over seeds, chosen ones bold."""
    found = {name: rules.held_out_of(steps) for name, steps in runs.items()}
    taken = {"learning rate": rules.learning_rate, **(rules.weights or {})}
    trials = rules.trials(phase)
    values = sorted({value for by_value in trials.values() for value in by_value})
    rows = [[phase, *(f"{value:g}" for value in values)]]
    for name, by_value in trials.items():
        means = {value: f"{rules.mean_outcome(found, names):.3f}" for value, names in by_value.items()}
        means |= {value: f"**{means[value]}**" for value in means.keys() & {taken.get(name)}}
        rows.append([f"`{name}`", *(means.get(value, "") for value in values)])
    return f"{_markdown(rows)}\n\n{_spread(rules, trials, found)}"


def _spread(rules: Protocol, trials: Trials, found: Mapping[str, Mapping[int, float]]) -> str:
    groups = [names for by_value in trials.values() for names in by_value.values()]
    variances = [np.var([rules.outcome(found[name]) for name in names], ddof=1) for names in groups if len(names) > 1]
    between = (
        f"Runs with one value differ by {np.sqrt(np.mean(variances)):.3f} (standard deviation). " if variances else ""
    )
    collapsed = [f"`{name}`" for names in groups for name in names if rules.collapses(found[name])]
    return f"{between}Collapsed: {', '.join(collapsed) or 'none'}."


def of_base_model(rates: Mapping[str, float]) -> str:
    """Return the table of a base model's share of solved held-out problems, and its results on wrong answers."""
    columns = {
        "solved": "right",
        "improved": "improves",
        "worsened": "worsens",
        "repeated": "repeats right ones",
        "canonical": "the same text twice",
    }
    values = [f"{100 * rates[name]:.0f} %" for name in columns]
    return _markdown([["base model", *columns.values()], ["held-out", *values]])


def tables(rules: Protocol, runs: Mapping[str, Steps]) -> str:
    """Return the page's tables in Markdown: outcomes, contrasts and other measurements for each algorithm."""
    parts = []
    for algorithm, arms in by_algorithm(runs).items():
        outcomes = outcomes_of(rules, arms)
        title = f"**{algorithm.upper()}**"
        parts += [title, _arms(rules, arms, outcomes), _contrasts(rules, outcomes), _side(rules, arms)]
    return "\n\n".join(parts) + "\n"


def _arms(rules: Protocol, arms: Arms, outcomes: Mapping[str, list[float]]) -> str:
    rows = [["arm", "seeds", "outcome", "lowest seed", "collapsed"]]
    for name, runs in arms.items():
        collapsed = sum(rules.collapses(rules.held_out_of(run)) for run in runs)
        own = outcomes[name]
        row = [f"`{name}`", str(len(runs)), _with_interval(interquartile_mean, own), f"{min(own):.3f}"]
        rows.append([*row, f"{collapsed} of {len(runs)}"])
    return _markdown(rows)


def _side(rules: Protocol, arms: Arms) -> str:
    held_out = {name: [rules.held_out_of(run) for run in runs] for name, runs in arms.items()}
    steps = list(next(iter(held_out.values()))[0])
    rows = [["arm", *(f"step {step}" for step in steps), *SIDE]]
    for name, runs in arms.items():
        side = [[value for run in runs if (value := mean(run)) is not None] for mean in SIDE.values()]
        shares = [f"{np.mean([run[step] for run in held_out[name]]):.3f}" for step in steps]
        means = [f"{np.mean(values):#.3g}".replace("-", "−") if values else "" for values in side]
        rows.append([f"`{name}`", *shares, *means])
    return _markdown(rows)


def _contrasts(rules: Protocol, outcomes: Mapping[str, list[float]]) -> str:
    pairs = {_title(pair): pair for pair in rules.contrasts or () if set(pair) <= outcomes.keys()}
    p_values = {title: permutation_p(outcomes[a], outcomes[b]) for title, (a, b) in pairs.items()}
    corrected = {title: f"{p:.3f}" for title, p in holm(p_values).items()}
    highest = max(outcomes, key=lambda name: float(np.mean(outcomes[name])))
    for pair in ([highest, name] for name in _baselines(rules, outcomes) if name != highest):
        pairs |= {_title(pair): pair}
    rows = [["contrast", "difference of means", "p", "p, corrected"]]
    for title, (a, b) in pairs.items():
        difference = _with_interval(_difference, outcomes[a], outcomes[b], sign="+")
        p = f"{permutation_p(outcomes[a], outcomes[b]):.3f}"
        rows.append([title, difference, p, corrected.get(title, "highest arm, seen afterwards")])
    return _markdown(rows)


def _baselines(rules: Protocol, arms: Iterable[str]) -> list[str]:
    against = {pair[1] for pair in rules.contrasts or ()} & set(arms)
    return [name for name in ("none", *STATIC) if name in against]


def _title(pair: Sequence[str]) -> str:
    return f"`{pair[0]}` − `{pair[1]}`"


def _difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return first.mean(-1) - second.mean(-1)


def _with_interval(statistic: Callable[..., np.ndarray], *samples: Sequence[float], sign: str = "") -> str:
    value, low, high = interval(statistic, *samples)
    form = f"{sign}.3f"
    return f"{value:{form}} ({low:{form}} to {high:{form}})".replace("-", "−")


def _markdown(rows: Iterable[Sequence[str]]) -> str:
    header, *body = rows
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@matplotlib.rc_context(STYLE)
def outcomes(by_algorithm: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Draw a panel per algorithm and a row per arm: its runs as dots, their interquartile mean with its interval."""
    heights = [len(arms) for arms in by_algorithm.values()]
    figure = Figure(figsize=(6.4, 0.9 + sum(heights) * ROW + 0.45 * len(heights)), layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (algorithm, arms) in zip(panels, by_algorithm.items(), strict=True):
        for row, (name, values) in enumerate(arms.items()):
            middle, low, high = interval(interquartile_mean, values)
            if name == "none":
                axes.axvline(middle, color="#8a8f98", linewidth=0.8, linestyle="--")
            axes.plot(values, [row] * len(values), "o", color=COLOUR, alpha=0.35, markersize=4, markeredgewidth=0)
            axes.plot([low, high], [row, row], color=COLOUR, linewidth=2)
            axes.plot(middle, row, "D", color=COLOUR, markersize=5)
        axes.set_title(algorithm.upper())
        axes.set_yticks(range(len(arms)), list(arms))
        axes.set_ylim(len(arms) - 0.4, -0.6)
        axes.grid(axis="x")
        axes.grid(False, axis="y")
    panels[-1].set_xlabel("outcome: mean on held-out problems", loc="right")
    return figure


def main() -> None:
    """Print the tables; draw the figure, if there are final runs."""
    path = Path((sys.argv[1:] or ["experiments/results/lab.yaml"])[0])
    rules, runs = protocol.read(path), metrics.read(metrics.path_of(path, "final"))
    print(page(rules, path))
    if runs:
        found = {algorithm: outcomes_of(rules, arms) for algorithm, arms in by_algorithm(runs).items()}
        outcomes(found).savefig(path.with_name(f"{path.stem}_outcomes.png"), dpi=150)


if __name__ == "__main__":
    main()
