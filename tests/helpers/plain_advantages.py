"""What a step's mode and credit stand for, in plain Python: from the numbers that went into the advantages.

A record of a step holds ``responses``, ``rm_scores``, ``old_log_probs``, ``values`` and ``group`` of each row; a pair
has ``ids`` and ``log_probs`` of a', and its ``reward``; ``in_place`` has log pi_0 of the turns that it scored.
"""

import math
import statistics
from typing import Any

from rapidfuzz.distance import Levenshtein

ETA, GAMMA, LAMBDA = 0.05, 0.99, 0.9


def divergence(response: list[int], pair: dict[str, Any]) -> float:
    """Return D of Eq. 6."""
    return -sum(pair["log_probs"][: len(response)])


def expected_advantages(record: dict[str, Any], pairs: dict[int, dict[str, Any]]) -> list[list[float]]:
    """Return the advantages that a step's mode and credit stand for."""
    settings, responses = record["settings"], record["responses"]
    own = {"penalty": "return_to_go", "lagrangian": "whole"}.get(settings["mode"])
    credit = own and (settings["credit"] or own)
    penalties, scores = ([[0.0] * len(ids) for ids in responses], [list(row) for row in record["rm_scores"]])
    if settings["target"] == "in_place":
        credit = "token"
        for index, scores_of in record["in_place"].items():
            penalties[index] = in_place(record, index, scores_of)
    elif credit == "return_to_go":
        for index, pair in pairs.items():
            penalties[index] = penalty(responses[index], pair, settings["alignment"])
    elif credit == "in_reward":
        for index, pair in pairs.items():
            scores[index][-1] -= ETA * divergence(responses[index], pair) / min(len(responses[index]), len(pair["ids"]))
    elif credit == "whole":
        for index, pair in pairs.items():  # every token before the last one has the return-to-go
            penalties[index][-1] = -ETA * divergence(responses[index], pair)
    return (gae if record["estimator"] == "gae" else group_relative)({**record, "rm_scores": scores}, penalties)


def penalty(response: list[int], pair: dict[str, Any], alignment: str) -> list[float]:
    """Return eta * log pi(a'_c(t)) of every token of a response."""
    ids, log_probs = pair["ids"], pair["log_probs"]
    if alignment == "position":
        return [ETA * log_probs[t] if t < len(ids) else 0.0 for t in range(len(response))]
    charged = [0.0] * len(response)
    for tag, start, end, other, _ in Levenshtein.opcodes(response, ids):
        for t in range(start, end):
            if tag == "replace":
                charged[t] = ETA * log_probs[other + t - start]
            elif tag == "delete":
                charged[t] = ETA * log_probs[min(other, len(ids) - 1)]
    return charged


def in_place(record: dict[str, Any], index: int, reference: list[float]) -> list[float]:
    """Return eta * (log pi_0 - log pi_theta) of every token: as a reward for gae, as what is added to an advantage."""
    own = record["old_log_probs"][index]
    charged = [ETA * (theirs - ours) for theirs, ours in zip(reference, own, strict=True)]
    if record["estimator"] == "gae":
        return charged
    return [here - after for here, after in zip(charged, [*charged[1:], 0.0], strict=True)]  # summed up again


def groups_of(record: dict[str, Any]) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for group, scores in zip(record["group"], record["rm_scores"], strict=True):
        groups.setdefault(group, []).append(sum(scores))
    return groups


def group_relative(record: dict[str, Any], penalties: list[list[float]]) -> list[list[float]]:
    """Return (r - mean) / std of the group, plus the penalties from here to the end."""
    groups, advantages = groups_of(record), []
    for group, scores, charged in zip(record["group"], record["rm_scores"], penalties, strict=True):
        outcome = (sum(scores) - statistics.mean(groups[group])) / (statistics.stdev(groups[group]) + 1e-6)
        advantages.append([outcome + sum(charged[t:]) for t in range(len(charged))])
    return advantages


def gae(record: dict[str, Any], penalties: list[list[float]]) -> list[list[float]]:
    """Return generalised advantages of reward + penalty, whitened over the batch."""
    advantages = []
    for scores, values, charged in zip(record["rm_scores"], record["values"], penalties, strict=True):
        row, following, carried = [], 0.0, 0.0
        for score, value, p in reversed(list(zip(scores, values, charged, strict=True))):
            carried = score + p + GAMMA * following - value + GAMMA * LAMBDA * carried
            following = value
            row.insert(0, carried)
        advantages.append(row)
    flat = [value for row in advantages for value in row]
    mean, std = statistics.mean(flat), math.sqrt(statistics.variance(flat) + 1e-8)
    return [[(value - mean) / std for value in row] for row in advantages]
