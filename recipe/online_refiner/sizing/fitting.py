"""Constants fitted to some runs, and what they predict for others."""

import statistics
from dataclasses import dataclass, replace

import numpy as np

from recipe.online_refiner.sizing.constants import Constants
from recipe.online_refiner.sizing.fleet import Group, simulate
from recipe.online_refiner.sizing.measured import Run
from recipe.online_refiner.sizing.replicas import Pace


@dataclass(slots=True, kw_only=True)
class Prediction:
    """Of the seconds that refining adds to a run's step: means over its steps, which are played one by one."""

    name: str
    measured_s: float
    predicted_s: float
    is_fitted: bool
    """Whether its exposed seconds were among those that constants were fitted to."""

    @property
    def error(self) -> float:
        """Relative; 0 where both are 0."""
        return self.predicted_s / self.measured_s - 1 if self.measured_s else float(self.predicted_s > 0)


def fit(runs: list[Run]) -> Constants:
    """Fit constants to runs whose refine stage comes after the rollout, so that its seconds are sums.

    exposed seconds = pass_s * passes + token_s * tokens + stage_s, least squares of relative errors; then what a token
    of a response costs more, so that rollouts take what they took.

    Raises:
        ValueError: If one refined during its rollout, or none refined.
    """
    rows, seconds = [], []
    units = [_bare(Pace(pass_s=1.0, token_s=0.0)), _bare(Pace(pass_s=0.0, token_s=1.0))]
    for run in runs:
        if run.config.refiner.placement != "colocated":
            raise ValueError(f"{run.name}: constants are fitted to runs with refiner.placement=colocated")
        for step, *played in zip(run.steps, *map(run.play, units), strict=True):
            if measured := step.metrics["refiner/exposed_s"]:
                rows.append([*(one.exposed_s for one in played), 1.0])
                seconds.append(measured)
    if not rows:
        raise ValueError("none of the runs to fit refined anything")
    pass_s, token_s, stage_s = not_negative(np.array(rows), np.array(seconds))
    pace = Pace(pass_s=pass_s, token_s=token_s)
    update, score = (_tokens_per_s(runs, stage) for stage in ("update_actor", "old_log_prob"))
    return Constants(
        rollout=pace,
        refiner=pace,
        origin=f"fitted to {', '.join(run.name for run in runs)}",
        rollout_width=width(runs, pace),
        stage_s=stage_s,
        train_tokens_per_s=update,
        score_tokens_per_s=min(score, 4 * update),  # with rollout_correction.bypass_mode nothing is computed
    )


def width(runs: list[Run], pace: Pace) -> float:
    """Return what a token of a response costs, in tokens of the refiner, so that rollouts take what they took."""
    found = []
    for run in runs:
        for step in run.steps:
            setting = run.setting(_bare(pace), step)
            once, twice = (
                simulate(
                    setting, [Group(responses=group.responses, refinements=[]) for group in step.groups(factor)]
                ).rollout_s
                for factor in (1.0, 2.0)
            )
            if twice > once:
                found.append(1 + (step.metrics["timing_s/gen"] - once) / (twice - once))
    return max(0.1, statistics.median(found)) if found else 1.0


def predict(runs: list[Run], fitted: list[str]) -> tuple[Constants, list[Prediction]]:
    """Fit constants to the named runs and predict what refining adds to a step of each.

    A named run without a refiner tells what its responses' tokens cost, those of a LoRA policy apart from others.

    Raises:
        ValueError: If a name is of no run.
    """
    named = {run.name: run for run in runs}
    if missing := [name for name in fitted if name not in named]:
        raise ValueError(f"no run called {missing[0]}; there are: {', '.join(named)}")
    constants = fit([named[name] for name in fitted if _refines(named[name])])
    of_adapter = [named[name] for name in fitted if _has_adapter(named[name])]
    with_adapter = replace(constants, rollout_width=width(of_adapter, constants.rollout)) if of_adapter else constants
    predictions = [
        Prediction(
            name=run.name,
            measured_s=statistics.fmean(step.metrics["refiner/exposed_s"] for step in run.steps),
            predicted_s=statistics.fmean(
                played.exposed_s for played in run.play(with_adapter if _has_adapter(run) else constants)
            ),
            is_fitted=run.name in fitted,
        )
        for run in runs
    ]
    return constants, predictions


def _refines(run: Run) -> bool:
    return bool(run.config.constraint.mode != "none")


def _has_adapter(run: Run) -> bool:
    return bool(run.config.actor_rollout_ref.model.lora_rank)


def _bare(pace: Pace) -> Constants:
    return Constants(rollout=pace, refiner=pace, stage_s=0.0)


def _tokens_per_s(runs: list[Run], stage: str) -> float:
    """Return how many tokens of a step's rows one GPU takes in a second."""
    rates = []
    for run in runs:
        num_gpus = run.config.trainer.nnodes * run.config.trainer.n_gpus_per_node
        for step in run.steps:
            if step.metrics.get(f"timing_s/{stage}"):
                rates.append(step.metrics["tokens/update_actor"] / step.metrics[f"timing_s/{stage}"] / num_gpus)
    return statistics.median(rates) if rates else float("inf")


def not_negative(rows: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Return the least squares of relative errors; a coefficient that would be negative is left out."""
    names = list(range(rows.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(rows[:, names] / seconds[:, None], np.ones(len(seconds)), rcond=None)
        if (found >= 0).all():
            break
        names.remove(names[int(found.argmin())])
    solution = [0.0] * rows.shape[1]
    for name, value in zip(names, found, strict=True):
        solution[name] = float(value)
    return solution
