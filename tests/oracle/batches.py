"""What engines are checked against: small batches, and the method in plain loops on a Hugging Face model."""

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from models import kinds_of, picture, positions_of, sees, tokens_of
from soft import TOP_K, padded_top
from torch import Tensor

EOS, NUM_ROWS = 2, 8
WORDS = 7
"""The first token that is neither special nor of a picture."""
LENGTHS = [(3, 5, 3), (4, 2, 6), (2, 4, 4), (5, 3, 1), (3, 6, 2), (2, 3, 7), (6, 4, 4), (3, 1, 1)]
"""The lengths of (prompt, a, a'): a' shorter, longer, identical, only EOS, shorter again, long, equal, padding."""
IDENTICAL, PADDING = 2, 7
TOOL_OUTPUT = {0: (1, 3), 5: (1, 2)}  # rows of two turns: where in the response a tool's output and turn 2 begin
KEPT = {0: 1, 6: 2}  # rows whose a' was begun with so many tokens of the turn
PICTURES = {0: [(2, 2)], 2: [(3, 2)], 3: [(3, 2)], 5: [(1, 2), (2, 3)], 6: [(4, 5)]}
"""The pictures of rows, by their sides in tokens, for models that see; the other rows are text."""
TWINS = {3: 2}
"""Rows with the prompt and a' of another row, and other pictures."""
ACCEPTED = {
    "none": [0] * NUM_ROWS,
    "all": [1] * (NUM_ROWS - 1) + [0],
    "some": [1, 0, 1, 1, 0, 0, 0, 0],  # of two ranks, with every second row each, one has three and the other none
}
FIXED: dict[str, Any] = {"micro_batch_size": 2}
DYNAMIC = {False: {"max_tokens": 16}, True: {"max_tokens": 48}}
"""The sizes of dynamic micro-batches, by whether rows have pictures."""
SFT: dict[str, Any] = {"eta": 0.7, "token_weights": "uniform"}
SOFT: dict[str, Any] = {**SFT, "is_soft": True}
LAGRANGIAN = {"eta": 0.1, "token_weights": "charged", "normaliser": "batch", "penalises": True, "epochs": 2}
PENALTY = {"eta": 0.1, "penalises": True}
LEARNING_RATE, CLIP, DUAL_CLIP = 0.02, 0.2, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows, and what is done with them."""

    accepted: str  # a key of `ACCEPTED`
    eta: float
    token_weights: str | None = None  # None: the loss is verl's
    normaliser: str = "accepted"
    penalises: bool = False  # whether the rows' advantages have Eq. 6 in them
    epochs: int = 1
    is_soft: bool = False  # examples/own_constraint: pi_0's distribution at each token of a' but its last one is known
    micro_batch_size: int | None = None
    max_tokens: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list, repr=False)


def all_batches(model: Any) -> list[Batch]:
    """Return every mode with all kinds of refinements and micro-batches; the model gives the rollouts' log-probs."""
    sizes = [FIXED, DYNAMIC[sees(model)]]
    modes = [
        *itertools.product([SFT], ACCEPTED, sizes),
        *itertools.product((PENALTY, LAGRANGIAN), ("all", "some"), sizes),
    ]
    modes += [(SFT, "some", {"micro_batch_size": 1}), (SFT, "some", {"micro_batch_size": 4})]
    modes += [({**SFT, **one}, "some", FIXED) for one in ({"epochs": 3}, {"normaliser": "batch"})]
    modes += [({**SFT, "eta": 0.0}, "all", FIXED), (SOFT, "all", FIXED), (SOFT, "some", sizes[1])]
    batches = [Batch(**mode, **size, accepted=accepted) for mode, accepted, size in modes]
    return [replace(one, rows=rows_of(model, one)) for one in batches]


def rows_of(model: Any, batch: Batch) -> list[dict[str, Any]]:
    """Draw rows whose old log-probs are near enough to the model's that some ratios are clipped and some are not.

    ``log_probs`` and ``charged`` are what the method has to find: log pi(a'_t), and what each token of a is charged for
    (``constraint.alignment=position``), nothing where a' was begun with it.
    """
    generator = torch.Generator().manual_seed(7)
    rows: list[dict[str, Any]] = []
    for index, (num_prompt, num_response, num_refined) in enumerate(LENGTHS):
        prompt, response, refined = (
            torch.randint(WORDS, 90, (n,), generator=generator).tolist()
            for n in (num_prompt, num_response, num_refined)
        )
        response[-1] = refined[-1] = EOS
        if index == IDENTICAL:
            refined = list(response)
        pictures = pictures_of(model, index) if sees(model) else {}
        prompt = tokens_of(model, pictures) + prompt
        if pictures and index in TWINS:
            prompt, refined = (list(rows[TWINS[index]]["columns"][name]) for name in ("prompts", "refine_ids"))
        mask, used = [int(index != PADDING)] * num_response, ACCEPTED[batch.accepted][index]
        (tool, start), num_kept = TOOL_OUTPUT.get(index, (0, 0)), KEPT.get(index, 0)
        refined[:num_kept] = response[start : start + num_kept]
        mask[tool:start] = [0] * (start - tool)
        with torch.no_grad():
            old = log_probs_of(model, prompt, response, pictures)
            old = old + 0.3 * torch.randn(num_response, generator=generator)
            found = log_probs_of(model, prompt + response[:start], refined, pictures).tolist()
        advantages = torch.randn(num_response, generator=generator).tolist()
        num_refined = len(refined)
        num_pairs = min(num_response - start, num_refined)
        charged, pairs = [0.0] * num_response, [-1] * num_response
        if used:
            pairs[start + num_kept : start + num_pairs] = range(num_kept, num_pairs)
            charged[start + num_kept : start + num_pairs] = found[num_kept:num_pairs]
        if batch.penalises:
            for t in range(start + num_kept, num_response):
                advantages[t] += batch.eta * sum(charged[t:])
        num_weighted = num_pairs if batch.token_weights == "charged" else num_refined
        weights = [float(num_kept <= t < num_weighted) for t in range(num_refined)]
        columns = {
            "prompts": prompt,
            "responses": response,
            "input_ids": prompt + response,
            "position_ids": positions_of(model, prompt + response, pictures).tolist(),
            "loss_mask": mask,
            "response_mask": mask,
            "old_log_probs": old.tolist(),
            "advantages": advantages,
            "refine_weights": weights,
            "refine_ids": refined,
            "refine_mask": [1] * num_refined,
            "refine_used": used,
            "refine_start": start,
            "refine_counterparts": pairs,
            "refine_shown": index + 1,
        }
        if batch.is_soft:
            teacher = torch.randn(num_refined - 1, 96, generator=generator).log_softmax(-1).topk(TOP_K)
            ids, log_probs = padded_top((teacher.indices.int().numpy(), teacher.values.numpy()), num_refined)
            columns |= {"refine_top_ids": ids.tolist(), "refine_top_log_probs": log_probs.tolist()}
        rows.append({"columns": columns, "log_probs": found, "charged": charged, "pictures": pictures})
    return rows


def pictures_of(model: Any, index: int) -> dict[str, Any]:
    """Return the pictures of a row as a processor gives them; {} for a row of text."""
    found = [picture(model, *sides, seed=10 * index + n) for n, sides in enumerate(PICTURES.get(index, []))]
    return {name: torch.cat([one[name] for one in found]) for name in found[0]} if found else {}


def log_probs_of(model: Any, prompt: list[int], answer: list[int], pictures: dict[str, Any]) -> Tensor:
    """Return log pi(answer_t | prompt, answer_<t), (len answer,)."""
    return table_of(model, prompt, answer, pictures).gather(-1, torch.tensor(answer)[:, None])[:, 0]


def table_of(model: Any, prompt: list[int], answer: list[int], pictures: dict[str, Any]) -> Tensor:
    """Return log pi of every token at each place of an answer, (len answer, vocabulary)."""
    ids = prompt + answer
    logits = model(torch.tensor([ids]), **kinds_of(model, ids), **pictures).logits  # positions are the model's own
    return logits[0, len(prompt) - 1 : -1].log_softmax(-1)


def soft_losses(table: Tensor, row: dict[str, Any]) -> Tensor:
    """Return for each token of a' the KL over pi_0's likeliest tokens; a'_t gets the remaining probability."""
    losses = []
    for place, token in enumerate(row["refine_ids"]):
        left, found = 1.0, torch.zeros(())
        for likely, log_prob in zip(row["refine_top_ids"][place], row["refine_top_log_probs"][place], strict=True):
            chance = math.exp(log_prob)
            left, found = left - chance, found + chance * (log_prob - table[place, likely])
        losses.append(found - left * table[place, token])
    return torch.stack(losses)


def loss(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return PPO's clipped loss (mean over all tokens) and the cross-entropy of accepted refinements."""
    policy, crossed, num_tokens, num_refined = torch.zeros(()), torch.zeros(()), 0, 0
    for row, pictures in ((one["columns"], one["pictures"]) for one in batch.rows):
        prompt, response, refined = row["prompts"], row["responses"], row["refine_ids"]
        old, advantages = torch.tensor(row["old_log_probs"]), torch.tensor(row["advantages"])
        ratio = (log_probs_of(model, prompt, response, pictures) - old).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        gain = torch.where(advantages < 0, gain.max(DUAL_CLIP * advantages), gain)  # dual clip, arXiv 1912.09729
        policy = policy - (gain * torch.tensor(row["response_mask"])).sum()
        num_tokens += sum(row["response_mask"])
        if row["refine_used"] and batch.token_weights:
            table = table_of(model, prompt + response[: row["refine_start"]], refined, pictures)
            losses = -table.gather(-1, torch.tensor(refined)[:, None])[:, 0]
            losses = soft_losses(table, row) if batch.is_soft else losses
            crossed = crossed + (losses * torch.tensor(row["refine_weights"])).sum()
            num_refined += len(refined)
    return policy / num_tokens, crossed / (num_tokens if batch.normaliser == "batch" else max(1, num_refined))


def train(model: Any, batch: Batch) -> float:
    """Take plain gradient steps on the model, and return the cross-entropy's mean over the epochs."""
    values = []
    for _ in range(batch.epochs):
        policy, crossed = loss(model, batch)
        model.zero_grad()
        (policy + batch.eta * crossed).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:  # no row has a picture
                    parameter -= LEARNING_RATE * parameter.grad
        values.append(crossed.item())
    return sum(values) / len(values)
