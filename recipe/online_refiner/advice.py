"""What the numbers of a run say about its refiner's settings. Needs neither torch nor verl."""

from collections.abc import Iterable, Sequence
from typing import Any

MAX_TRUNCATED = 0.2
MAX_COPIED = 0.5


def advice(steps: Iterable[dict[str, Any]]) -> list[str]:
    """Return lines on refinements that were cut, and on those that were copied, from the metrics of steps."""
    refined = [step for step in steps if _num_asked(step)]
    if not refined:
        return []
    share = sum(step["refiner/failed/truncated"] for step in refined) / sum(map(_num_asked, refined))
    line = f"refinements cut by refiner.response_length: {share:.0%}"
    if share > MAX_TRUNCATED:
        line += (
            ". They are lost: raise it (it may exceed data.max_response_length), or choose a refiner.template that "
            "asks for less or says where an answer ends ({% set stop = ... %})"
        )
    return [line, *filter(None, [copying(refined)])]


def _num_asked(step: dict[str, Any]) -> float:
    """Return how many rollouts were sent to the refiner."""
    return step["refiner/num_attempted"] - step.get("refiner/num_from_siblings", 0)


def copying(steps: Sequence[dict[str, Any]]) -> str:
    """Return a warning if the refinements of a step are copied to a large part; else nothing."""
    share = max(step.get("refiner/copied") or 0.0 for step in steps)
    if share <= MAX_COPIED:
        return ""
    return (
        f"{share:.0%} of the refinements' tokens are copied from a solution or sibling that only the refiner saw: the "
        "policy is taught answers, not corrections; take them out of refiner.context"
    )
