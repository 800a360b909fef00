"""The method in plain loops: a Hugging Face model, one token after the other, autograd, plain gradient steps."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from recipe.backend_check.cases import Case

LEARNING_RATE, CLIP, DUAL_CLIP = 0.02, 0.2, 3.0


def answer_log_probs(model: Any, prompt: list[int], answer: list[int]) -> list[Tensor]:
    """Return log pi(answer_t | prompt, answer_<t), one scalar a token."""
    logits = model(torch.tensor([prompt + answer])).logits[0]
    return [logits[len(prompt) + t - 1].log_softmax(-1)[token] for t, token in enumerate(answer)]


def context_of(row: dict[str, Any]) -> list[int]:
    """Return what a refined turn answers."""
    return row["prompts"] + row["responses"][: row["refine_start"]]


def num_charged(row: dict[str, Any]) -> int:
    """Return min(n, m) of the turn that was refined."""
    return min(len(row["responses"]) - row["refine_start"], len(row["refine_ids"]))


def refined_log_probs(model: Any, row: dict[str, Any]) -> list[float]:
    """Return log pi(a'_t) of a row, without gradient."""
    with torch.no_grad():
        return [value.item() for value in answer_log_probs(model, context_of(row), row["refine_ids"])]


def advantages(model: Any, row: dict[str, Any], case: "Case") -> list[float]:
    """Return the advantages of a row: its refined turn is charged for Eq. 6, from each token on or as a whole.

    What the refinement was begun with is not charged for itself, nor, from each token on, for anything.
    """
    own = list(row["advantages"])
    if case.credit is None or not row["refine_used"]:
        return own
    start, num_kept = row["refine_start"], row["refine_kept"]
    charged = refined_log_probs(model, row)[: num_charged(row)]
    for t in range(start, len(own)):
        if case.credit == "whole":
            own[t] += case.eta * sum(charged[num_kept:])
        elif t >= start + num_kept:
            own[t] += case.eta * sum(charged[t - start :])
    return own


def loss(model: Any, case: "Case", of_rows: list[list[float]]) -> tuple[Tensor, Tensor]:
    """Return PPO's clipped loss (mean over all tokens) and the cross-entropy of accepted refinements."""
    policy, crossed, num_tokens, num_refined = torch.zeros(()), torch.zeros(()), 0, 0
    for row, charged in zip(case.rows, of_rows, strict=True):
        found = answer_log_probs(model, row["prompts"], row["responses"])
        for t, (log_prob, advantage) in enumerate(zip(found, charged, strict=True)):
            if row["response_mask"][t]:
                ratio = (log_prob - row["old_log_probs"][t]).exp()
                gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
                if advantage < 0:  # dual clip, arXiv 1912.09729
                    gain = torch.max(gain, torch.tensor(DUAL_CLIP * advantage))
                policy = policy - gain
                num_tokens += 1
        if row["refine_used"] and case.token_weights:
            for t, log_prob in enumerate(answer_log_probs(model, context_of(row), row["refine_ids"])):
                p = log_prob.detach().exp().item()
                by_policy = {"chord": p * (1 - p), "dft": p, "shaped": 0.1 * p / (p + 0.1) ** 2}
                weight = by_policy.get(case.token_weights, 1.0) * row["refine_weights"][t]
                crossed = crossed - weight * log_prob
                num_refined += 1
    return policy / num_tokens, crossed / (num_tokens if case.normaliser == "batch" else max(1, num_refined))


def train(model: Any, case: "Case") -> float:
    """Take plain gradient steps on the model, and return the cross-entropy's mean over the epochs."""
    values = []
    of_rows = [advantages(model, row, case) for row in case.rows]
    for _ in range(case.epochs):
        policy, crossed = loss(model, case, of_rows)
        model.zero_grad()
        (policy + case.eta * crossed).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.grad
        values.append(crossed.item())
    return sum(values) / len(values)
