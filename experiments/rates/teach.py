"""A reference model that is trained on its own better answers before a run begins."""

import numpy as np
import torch

from experiments.map import bases
from experiments.map.bases import loss_of
from experiments.map.model import Model, generate
from experiments.map.tasks import EOS, LONGEST_ANSWER, questions

NUM_QUESTIONS, NUM_STEPS, BATCH, RATE, KIND = 1500, 40, 64, 1e-3, "r20"
"""The pilot's values: 40 gradient steps on the better answers to 1,500 questions, by a weak refiner."""


def taught(strength: str, base_seed: int, *, refines: bool, seed: int) -> tuple[Model, int]:
    """Train a copy of pi_0 on its own better answers.

    Args:
        strength: How strong pi_0 is.
        base_seed: Which base it is.
        refines: Whether the better answers are refinements of its wrong answers, or second samples.
        seed: The questions, the samples and the batches are drawn by it.

    Returns:
        The trained model, and how many tokens were written for that.
    """
    model = bases.model_of(bases.base(strength, base_seed))
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    asked = questions("measure", NUM_QUESTIONS, rng)
    with torch.no_grad():
        prompts = torch.tensor([one.prompt for one in asked])
        answers = generate(model, prompts, LONGEST_ANSWER, EOS, generator)
        grades = [one.grade(answer) for one, answer in zip(asked, answers, strict=True)]
        wrong = [place for place, grade in enumerate(grades) if grade < bases.GRADE]
        asks = [
            asked[place].refine_prompt(KIND, answers[place], grades[place]) if refines else asked[place].prompt
            for place in wrong
        ]
        others = generate(model, torch.tensor(asks), LONGEST_ANSWER, EOS, generator)
    pairs = [
        (ask, other)
        for place, ask, other in zip(wrong, asks, others, strict=True)
        if asked[place].grade(other) > grades[place]
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for _ in range(NUM_STEPS):
        batch = [pairs[place] for place in rng.choice(len(pairs), min(BATCH, len(pairs)), replace=False)]
        loss = loss_of(model, batch) / sum(len(written) for _, written in batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model, sum(map(len, answers)) + sum(map(len, others))
