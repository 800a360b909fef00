"""Pairs of response and refinement with the policy's log-prob of every token (Figure 6 of the paper)."""

from typing import Any

from recipe.report.refinements import Index, split
from recipe.report.runs import Run, finite, printable

Place = tuple[int, str]
"""Step and key: what names a rollout in a run."""


def choose(runs: list[Run], num_pairs: int) -> list[list[dict[str, Any]]]:
    """Read some pairs of each run: equal shares for the runs, spread evenly over what was recorded in a run.

    Returns:
        For each run its pairs as they stand in ``tokens.jsonl``.
    """
    sizes = [run.num_rows("tokens") for run in runs]
    chosen = []
    for run, size, share in zip(runs, sizes, split(num_pairs, sizes), strict=True):
        lines = {place * (size - 1) // max(1, share - 1) for place in range(share)}
        chosen.append(list(run.rows("tokens", keep=lines)))
    return chosen


def table(pairs: list[list[dict[str, Any]]], indexes: list[Index]) -> list[dict[str, Any]]:
    """Return the pairs for the page's script: run by place, step, both rewards, tokens as [text, log-prob]."""
    return [
        {
            "run": place,
            "step": pair["step"],
            "rewards": list(found.rewards.get((pair["step"], pair["key"]), ())),
            **{
                side: [[printable(text), finite(log_prob)] for text, log_prob in pair[side]]
                for side in ("response", "refined")
            },
        }
        for place, (found, members) in enumerate(zip(indexes, pairs, strict=True))
        for pair in members
    ]


def gain(pair: dict[str, Any]) -> float:
    """Return by how much the refinement of a pair of the table is better; 0 if its rewards are not known."""
    reward, refined_reward = pair["rewards"] or (0.0, 0.0)
    return (refined_reward or 0.0) - reward
