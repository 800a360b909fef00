"""What the end of a run says of refinements that were cut, and of what was asked for and never happened."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from omegaconf import DictConfig

MAX_TRUNCATED = 0.2
SKIPPED = {
    "too_long": "did not fit into the refiner's context; lower refiner.thought_length or refiner.response_length",
    "no_answer": "end within their thought; raise data.max_response_length, or set refiner.rewrites=response",
}
"""Why whole runs go without refinements, and what to do."""


def advice(steps: Iterable[dict[str, Any]], config: DictConfig) -> list[str]:
    """Return lines on refinements that were cut, and on what never happened, from a run's metrics."""
    steps = list(steps)
    return [*_lost([step for step in steps if step["refiner/num_attempted"]]), *never(steps, config)]


def _lost(refined: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what was lost of the refinements of some steps; the share that was cut always."""
    if not refined:
        return
    share = sum(step["refiner/failed/truncated"] for step in refined) / sum(
        step["refiner/num_attempted"] for step in refined
    )
    line = f"refinements cut by refiner.response_length: {share:.0%}"
    if share > MAX_TRUNCATED:
        line += (
            ". They are lost: raise it (it may exceed data.max_response_length), or choose a refiner.template that "
            "asks for less or says where an answer ends ({% set stop = ... %})"
        )
    yield line
    if cut := sum(step.get("refiner/failed/thought") or 0.0 for step in refined):
        yield f"refinements cut within the refiner's thought: {cut:g}; raise refiner.thought_length"
    if leaks := sum(step.get("refiner/failed/leak") or 0.0 for step in refined):
        yield (
            f"refinements that speak of the refiner's prompt or of the reward: {leaks:g}; they are lost: choose a "
            "refiner.template that asks for the answer alone"
        )


def never(steps: Sequence[dict[str, Any]], config: DictConfig) -> Iterator[str]:
    """Yield what did not happen in any step, though the run was told what to do with it.

    It is a refinement, a response with the highest reward, or a group of equal rewards.
    """

    def total(*names: str) -> float:
        return sum(step.get(name) or 0.0 for step in steps for name in names)

    if not total("refiner/num_attempted"):
        for name, why in SKIPPED.items():
            if skipped := total(f"refiner/skipped/{name}"):
                yield f"nothing was refined: {skipped:g} responses {why}"
        return
    most, groups = config.refiner.skip_reward_at_least, config.algorithm.get("filter_groups")
    if most is not None and not total("refiner/skipped/max_reward", "refiner/num_own"):
        yield (
            f"no response reached refiner.skip_reward_at_least={most}: nothing was solved, or the reward is shaped (by "
            "length, for one) and stays below; set it to the least that a solved response gets"
        )
    waits = ["constraint.rescue_dead_groups=true"] if config.constraint.rescue_dead_groups else []
    if groups and groups.enable and groups.metric == "reward":
        waits.append("algorithm.filter_groups.metric=reward")
    if waits and not total("reward/zero_std_groups", "training/filter_groups/evicted_samples"):
        yield (
            f"no group was ever dead (equal rewards), so that {' and '.join(waits)} did nothing: a shaped reward "
            "differs within groups that all failed; take the shaping out of it, or filter by what says what is solved"
        )
