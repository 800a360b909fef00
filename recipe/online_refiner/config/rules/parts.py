"""Rules on the needs of the training engine, the refiner and the constraint."""

from recipe.online_refiner import metric_names
from recipe.online_refiner.config import megatron
from recipe.online_refiner.method.constraint import refusal_of
from recipe.preflight.rules import PlannedRun, rule


@rule("config")
def engine_can_train(run: PlannedRun) -> str | None:
    """Platform, optimizer and adapters fit the training engine (``config/megatron.py``)."""
    return megatron.refusal(run.config)


@rule("config")
def refiner_goes_with_the_rest(run: PlannedRun) -> str | None:
    """The refiner goes with rollout, trainer and model (``refiner_worker/config.py``, a class a placement)."""
    return run.blocks.refiner.refusal(run.config, run.blocks)


@rule("config")
def constraint_goes_with_the_rest(run: PlannedRun) -> str | None:
    """The constraint goes with estimator, loss, refiner and placement (a class a mode); its metrics have a meaning."""
    constraint = run.blocks.constraint
    return refusal_of(constraint, run.config, run.blocks) or metric_names.meaning_refusal(constraint)
