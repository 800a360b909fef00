"""What a step's mode and credit stand for, in plain Python: from the numbers that went into the advantages.

A record of a step holds ``responses``, ``rm_scores``, ``old_log_probs``, ``values`` and ``group`` of each row; a pair
has ``ids`` and ``log_probs`` of a', and its ``reward``.
"""

import math
import statistics
from typing import Any

from rapidfuzz.distance import Levenshtein

ETA, GAMMA, LAMBDA, MAX_GAP = 0.05, 0.99, 0.9, 5.0


def crossed(record: dict[str, Any], pairs: dict[int, dict[str, Any]]) -> float:
    """Return the sum of all weighted -log pi(a'_t)."""
    if record["settings"]["pair_weights"] is None:
        return sum(divergence(record["responses"][index], pair) for index, pair in pairs.items())
    total = 0.0
    for index, pair in pairs.items():
        known = [(math.exp(log_prob), log_prob) for log_prob in pair["log_probs"]]
        center, scale = mixed_group(record, pairs, record["group"][index])
        total -= (pair["reward"] - center) / scale * sum(0.1 * p / (p + 0.1) ** 2 * log_prob for p, log_prob in known)
    return total


def mixed_group(record: dict[str, Any], pairs: dict[int, dict[str, Any]], group: str) -> tuple[float, float]:
    """Return mean and deviation of a group's rewards together with those of its accepted refinements."""
    rewards = [*groups_of(record)[group], *(pair["reward"] for n, pair in pairs.items() if record["group"][n] == group)]
    return statistics.mean(rewards), statistics.stdev(rewards) + 1e-6


def divergence(response: list[int], pair: dict[str, Any]) -> float:
    """Return D of Eq. 6."""
    return -sum(pair["log_probs"][: len(response)])


def expected_advantages(record: dict[str, Any], pairs: dict[int, dict[str, Any]]) -> list[list[float]]:
    """Return the advantages that a step's mode and credit stand for."""
    settings, responses = record["settings"], record["responses"]
    own = {"penalty": "return_to_go", "lagrangian": "whole"}.get(settings["mode"])
    credit = own and (settings["credit"] or own)
    penalties, scores = ([[0.0] * len(ids) for ids in responses], [list(row) for row in record["rm_scores"]])
    if credit == "return_to_go":
        for index, pair in pairs.items():
            penalties[index] = penalty(responses[index], pair, settings["alignment"])
    elif credit == "in_reward":
        for index, pair in pairs.items():
            scores[index][-1] -= ETA * divergence(responses[index], pair) / min(len(responses[index]), len(pair["ids"]))
    elif credit in ("whole", "centred"):
        costs = {index: divergence(responses[index], pair) for index, pair in pairs.items()}
        for index, cost in (centred(record, costs) if credit == "centred" else costs).items():
            penalties[index][-1] = -ETA * cost  # of which every token before has the return-to-go
    advantages = (gae if record["estimator"] == "gae" else group_relative)({**record, "rm_scores": scores}, penalties)
    for index, row in enumerate(advantages):
        if credit == "silent" or (credit == "routed" and index in pairs):
            advantages[index] = [0.0] * len(row)
        if credit == "members" and any(record["group"][other] == record["group"][index] for other in pairs):
            center, scale = mixed_group(record, pairs, record["group"][index])
            advantages[index] = [(sum(scores[index]) - center) / scale] * len(row)
    for index, pair in pairs.items():
        both = list(zip(responses[index], pair["ids"], strict=False))
        at = next((t for t, (a, b) in enumerate(both) if a != b), len(both))
        if credit == "exonerate":
            advantages[index][:at] = [max(value, 0.0) for value in advantages[index][:at]]
        if credit == "divergence" and at < len(both):
            gap = pair["log_probs"][at] - record["old_log_probs"][index][at]
            advantages[index][at] += ETA * min(0.0, max(-MAX_GAP, gap))
    return advantages


def centred(record: dict[str, Any], costs: dict[int, float]) -> dict[int, float]:
    """Return each D minus its siblings' mean, failures that nobody mended counting as the group's largest."""
    found, rewards = {}, list(map(sum, record["rm_scores"]))
    for group in set(record["group"]):
        rows = [index for index, name in enumerate(record["group"]) if name == group]
        charged = [index for index in rows if index in costs]
        if charged:
            worst, best = max(costs[index] for index in charged), max(rewards[index] for index in charged)
            own = {row: costs.get(row, worst if rewards[row] <= best else 0.0) for row in rows}
            found |= {row: own[row] - statistics.mean(own[other] for other in rows if other != row) for row in rows}
    return found


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
