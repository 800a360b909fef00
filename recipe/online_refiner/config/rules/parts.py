"""Rules on the needs of the training engine, the refiner and the constraint."""

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
    """The constraint goes with estimator, loss, refiner and placement (``method``, a class a mode)."""
    return refusal_of(run.blocks.constraint, run.config, run.blocks)
