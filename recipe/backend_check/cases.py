"""The batches: every mode, all kinds of refinements and micro-batches; none, some and all refinements accepted."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from recipe.backend_check.reference import answer_log_probs, num_charged

EOS, KEPT_WEIGHT, NUM_ROWS = 2, 0.25, 8
# Lengths of (prompt, a, a'): a' shorter, longer, identical, only EOS, shorter than the prompt's successor, long, equal
# length, padding.
LENGTHS = [(3, 5, 3), (4, 2, 6), (2, 4, 4), (5, 3, 1), (3, 6, 2), (2, 3, 7), (6, 4, 4), (3, 1, 1)]
IDENTICAL, PADDING = 2, 7
TOOL_OUTPUT = {0: (1, 3), 5: (1, 2)}
"""Rows of two turns: where in the response the output of a tool begins, and where the second turn does."""
KEPT = {0: 1, 6: 2}
"""Rows whose a' was begun with so many tokens of the turn."""
ACCEPTED = {
    "none": [0] * NUM_ROWS,
    "all": [1] * (NUM_ROWS - 1) + [0],
    "some": [1, 0, 1, 1, 0, 0, 0, 0],  # of two ranks, with every second row each, one has three and the other none
}
USUAL_SIZES = ({"micro_batch_size": 2}, {"max_tokens": 16})
OTHER_SIZES = ({"micro_batch_size": 1}, {"micro_batch_size": 4})
"""Of micro-batches, fixed and dynamic."""
SFT = {"eta": 0.7, "token_weights": "uniform", "normaliser": "accepted"}
LAGRANGIAN = {"eta": 0.1, "token_weights": "charged", "normaliser": "batch", "credit": "whole", "epochs": 2}
PENALTY = {"eta": 0.1, "credit": "return_to_go"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A batch, and what is done with it."""

    accepted: str
    """A key of ``ACCEPTED``."""
    eta: float
    token_weights: str | None = None
    """None: the loss is verl's."""
    normaliser: str = "accepted"
    credit: str | None = None
    """None: the advantages stay as they are."""
    epochs: int = 1
    micro_batch_size: int | None = None
    max_tokens: int | None = None
    rows: list[dict[str, Any]] = field(repr=False)


def all_cases(model: Any) -> list[Case]:
    """Return the cases for a Hugging Face model, which gives the rollouts' log-probs."""
    return [
        Case(rows=rows_of(model, settings["accepted"], settings.get("token_weights")), **settings)
        for settings in _settings()
    ]


def _settings() -> Iterator[dict[str, Any]]:
    for name, sizes in itertools.product(ACCEPTED, USUAL_SIZES):
        yield {**SFT, **sizes, "accepted": name}
    for sizes in OTHER_SIZES:
        yield {**SFT, **sizes, "accepted": "some"}
    yield {**SFT, **USUAL_SIZES[0], "accepted": "some", "epochs": 3}
    for mode, name, sizes in itertools.product((PENALTY, LAGRANGIAN), ("all", "some"), USUAL_SIZES):
        yield {**mode, **sizes, "accepted": name}
    for weights in ("edited", "chord", "dft", "shaped"):
        yield {**SFT, "token_weights": weights, **USUAL_SIZES[0], "accepted": "some"}
    yield {**SFT, "eta": 0.0, **USUAL_SIZES[0], "accepted": "all"}
    yield {**SFT, "normaliser": "batch", **USUAL_SIZES[0], "accepted": "some"}


def rows_of(model: Any, accepted: str, token_weights: str | None) -> list[dict[str, Any]]:
    """Draw rows whose old log-probs are near enough to the model's that some ratios are clipped and some are not."""
    generator = torch.Generator().manual_seed(7)
    rows = []
    for index, (num_prompt, num_response, num_refined) in enumerate(LENGTHS):
        prompt, response, refined = (
            torch.randint(5, 90, (n,), generator=generator).tolist() for n in (num_prompt, num_response, num_refined)
        )
        response[-1] = refined[-1] = EOS
        if index == IDENTICAL:
            refined = list(response)
        with torch.no_grad():
            old = torch.stack(answer_log_probs(model, prompt, response))
        old += 0.3 * torch.randn(len(old), generator=generator)
        mask = [int(index != PADDING)] * num_response
        tool, start = TOOL_OUTPUT.get(index, (0, 0))
        num_kept = KEPT.get(index, 0)
        refined[:num_kept] = response[start : start + num_kept]
        mask[tool:start] = [0] * (start - tool)
        row = {
            **{"prompts": prompt, "responses": response, "input_ids": prompt + response},
            **{"position_ids": list(range(num_prompt + num_response)), "loss_mask": mask, "response_mask": mask},
            **{"old_log_probs": old.tolist(), "refine_ids": refined, "refine_mask": [1] * num_refined},
            "advantages": torch.randn(num_response, generator=generator).tolist(),
            "edited": torch.randint(0, 2, (num_refined,), generator=generator).tolist(),
            "refine_used": ACCEPTED[accepted][index],
            **{"refine_start": start, "refine_kept": num_kept},
        }
        rows.append({**row, "refine_weights": known_weights(row, token_weights)})
    return rows


def known_weights(row: dict[str, Any], token_weights: str | None) -> list[float]:
    """Return what is known of the tokens of a' before the update."""
    weights = [1.0] * len(row["refine_ids"])
    if token_weights == "edited":
        weights = [1.0 if edited else KEPT_WEIGHT for edited in row["edited"]]
    elif token_weights == "charged":
        weights = [float(t < num_charged(row)) for t in range(len(row["refine_ids"]))]
    return [0.0] * row["refine_kept"] + weights[row["refine_kept"] :]
