"""The time of a run on CPUs, said before it starts."""

from recipe.online_refiner.verl_glue.preflight.trials import first_rows, prompt_ids
from recipe.preflight.rules import PlannedRun
from recipe.sizing import times
from refiner_worker.config import External

LONG_S = 600
"""A run on CPUs gets a warning if a step takes more seconds than this."""


def duration(run: PlannedRun) -> tuple[str, str | None] | None:
    """Return how long a step takes on this machine at least, as a line, and a warning if that is long; None: not known.

    The cores compute as fast as they multiply matrices. Every response has its full length and is refined, and every
    prompt is as long as the first one.
    """
    config, refiner = run.config, run.blocks.refiner
    where, row = next(first_rows(run, "train_files"), ("", {}))
    if config.trainer.device != "cpu" or not row or run.plan.policy_shape is None:
        return None
    num_rollouts = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    prompt = len(prompt_ids(run, "train_files", list(row["raw_prompt"])))
    sizes = num_rollouts, prompt, config.data.max_response_length
    operations = times.num_operations(run.plan.policy_shape, *sizes)
    models = run.plan.hosted if run.blocks.refines and not isinstance(refiner, External) else []
    if models and all(one.shape is not None for one in models):  # of several models, the smallest may have all rows
        least = min(times.num_operations_of_refining(one.shape, *sizes) for one in models)
        operations += min(one.samples for use in refiner.models for one in use.settings.values()) * least
    rate, num_cores = times.operations_per_second()
    seconds = operations / rate
    said = f"a step takes {times.shown(seconds)} or more on {num_cores} cores if its responses have their full length"
    if seconds < LONG_S:
        return said, None
    return said, (
        f"{said}; lower data.max_response_length={config.data.max_response_length}, data.train_batch_size="
        f"{config.data.train_batch_size} or actor_rollout_ref.rollout.n={config.actor_rollout_ref.rollout.n}, or take "
        "a smaller model"
    )
