"""The base models: pi_0, which answers some questions right, refines as its prompt says, and copies what it is shown.

A base is trained from scratch on demonstrations with mistakes, so it makes such mistakes. Which kind of refiner it is
stands in the refiner's prompt: all refiners of a base are the same frozen weights, and the policy begins with them, so
arms without a refiner serve for every kind. A strong base is a weak one with more lessons, of better answers.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.map.model import Model, generate
from experiments.map.tasks import (
    EOS,
    LENGTH,
    LONGEST,
    LONGEST_ANSWER,
    NAMES,
    REFINERS,
    REWARDS,
    VOCABULARY,
    Question,
    questions,
)

FOLDER = Path(os.environ.get("MAP_BASES", "runs/map/bases"))
"""The folder of the bases; a base is trained again if the folder has none of its strength and seed."""
BY_SKILL = ["sums", "rotate", "sort", "swap", "sort_down", "successor", "reverse", "complement"]
"""The rules from the one that pi_0 does worst to the one that it does best."""
SHARES = {
    "weak": [0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35],
    "strong": [0.10, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75],
}
"""The share of right demonstrations for each rule, in the order of BY_SKILL, by strength."""
LESSONS = {"weak": 2400, "strong": 600}
"""The number of lessons by strength; a strong base also has the weak one's lessons."""
NUM_QUESTIONS, NUM_REFINED, NUM_SHOWN = 40, 48, 8
"""The number of demonstrations of each kind in a lesson."""
RATE = 3e-3
GRADE = len(REWARDS) - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """The behaviour of a refiner, which fixes an answer, spoils it, or else repeats it."""

    mends_hard: float
    """The share of wrong answers that become right, for the four rules that pi_0 does worst."""
    mends_easy: float
    """The share of wrong answers that become right, for the four rules that pi_0 does best."""
    spoils: float
    """The share of the other answers, right ones included, in which the refiner breaks a digit or two."""


KINDS = {
    **{f"r{share:02d}": Kind(share / 100, share / 100, 0.1) for share in (5, 20, 40, 60, 80, 95)},
    "careless": Kind(0.6, 0.6, 0.9),
    "early": Kind(0.05, 0.95, 0.1),
    "late": Kind(0.95, 0.05, 0.1),
}
assert tuple(KINDS) == REFINERS


def skill(question: Question) -> int:
    """Return the rank of a question's rule in BY_SKILL."""
    return BY_SKILL.index(NAMES[question.rule])


def broken(digits: list[int], number: int | np.integer, rng: np.random.Generator) -> list[int]:
    """Return digits of which ``number`` are changed."""
    digits = list(digits)
    for place in rng.choice(LENGTH, int(number), replace=False):
        digits[place] = (digits[place] + rng.integers(1, 10)) % 10
    return [int(one) for one in digits]


def answer(question: Question, strength: str, rng: np.random.Generator) -> list[int]:
    """Demonstrate an answer: right, by another rule, or with one to three broken digits."""
    if rng.random() < SHARES[strength][skill(question)]:
        return [*question.solution, EOS]
    if rng.random() < 0.5:
        return [*question.mistaken, EOS]
    return [*broken(question.solution, rng.integers(1, 4), rng), EOS]


def attempt(question: Question, rng: np.random.Generator) -> list[int]:
    """Return an answer of any kind that a policy may give, since the refiner must know all kinds."""
    draw = rng.random()
    if draw < 0.15:
        return [*question.solution, EOS]
    if draw < 0.5:
        return [*question.mistaken, EOS]
    if draw < 0.9:
        return [*broken(question.solution, rng.integers(1, LENGTH + 1), rng), EOS]
    digits = rng.integers(0, 10, LONGEST_ANSWER).tolist()
    if draw < 0.95:
        return digits
    length = rng.integers(0, LENGTH)
    return [*digits[:length], EOS]


def refinement(question: Question, kind: Kind, given: list[int], grade: int, rng: np.random.Generator) -> list[int]:
    """Demonstrate a refinement of an answer."""
    mends = kind.mends_hard if skill(question) < len(BY_SKILL) // 2 else kind.mends_easy
    if grade < GRADE and rng.random() < mends:
        return [*question.solution, EOS]
    if rng.random() < kind.spoils or grade == 0:  # what never ends cannot be repeated
        digits = given[:-1] if grade >= 2 else question.mistaken
        return [*broken(digits, rng.integers(1, 3), rng), EOS]
    return given


def lesson(asked: list[Question], strength: str, rng: np.random.Generator) -> list[tuple[list[int], list[int]]]:
    """Return a lesson's prompts with the answers to be learnt."""
    pairs = []
    for place, question in enumerate(asked):
        if place < NUM_QUESTIONS:
            pairs.append((question.prompt, answer(question, strength, rng)))
        elif place < NUM_QUESTIONS + NUM_REFINED:
            name, given = REFINERS[rng.integers(len(REFINERS))], attempt(question, rng)
            grade = question.grade(given)
            prompt = question.refine_prompt(name, given, grade)
            pairs.append((prompt, refinement(question, KINDS[name], given, grade, rng)))
        else:
            is_right = rng.random() < 0.85
            shown = question.solution if is_right else broken(question.solution, rng.integers(1, 4), rng)
            copies = rng.random() < 0.9
            pairs.append(
                (question.shown_prompt([*shown, EOS]), [*shown, EOS] if copies else answer(question, strength, rng))
            )
    return pairs


def loss_of(model: Model, pairs: list[tuple[list[int], list[int]]]) -> Tensor:
    """Return the summed cross-entropy of the answers."""
    longest = max(len(prompt) + len(written) for prompt, written in pairs)
    ids = torch.zeros(len(pairs), longest, dtype=torch.long)
    mask = torch.zeros(len(pairs), longest)
    for row, (prompt, written) in enumerate(pairs):
        ids[row, : len(prompt) + len(written)] = torch.tensor(prompt + written)
        mask[row, len(prompt) : len(prompt) + len(written)] = 1
    logits = model(ids[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return losses @ mask[:, 1:].flatten()


def teach(model: Model, strength: str, number: int, rng: np.random.Generator) -> None:
    """Train a model by ``number`` lessons."""
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=number, pct_start=0.05)
    size = NUM_QUESTIONS + NUM_REFINED + NUM_SHOWN
    for _ in range(number):
        pairs = lesson(questions("base", size, rng), strength, rng)
        total = sum(len(written) for _, written in pairs)
        loss = (loss_of(model, pairs[:NUM_QUESTIONS]) + loss_of(model, pairs[NUM_QUESTIONS:])) / total
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@cache
def base(strength: str, seed: int) -> dict[str, Tensor]:
    """Return the weights of a base, trained if they are not in FOLDER."""
    file = FOLDER / f"{strength}-{seed}.pt"
    if not file.exists():
        torch.manual_seed(seed)
        model = Model(VOCABULARY, LONGEST)
        if strength != "weak":
            model.load_state_dict(base("weak", seed))
        teach(model, strength, LESSONS[strength], np.random.default_rng(seed + list(LESSONS).index(strength)))
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        torch.save(model.state_dict(), part)
        part.replace(file)
    return torch.load(file)


def model_of(weights: dict[str, Tensor]) -> Model:
    """Return a model with these weights."""
    model = Model(VOCABULARY, LONGEST)
    model.load_state_dict(weights)
    return model


def rates(model: Model, number: int = 800, seed: int = 7) -> dict[str, float]:
    """Measure pi_0 on questions that nothing is trained or validated with.

    Returns:
        The share of questions that it solves, of each rule too; of wrong answers the share that a second sample beats,
        and for each kind of refiner the shares that it beats, solves and makes worse.
    """
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    asked = questions("measure", number, rng)
    answers = generate(model, torch.tensor([one.prompt for one in asked]), LONGEST_ANSWER, EOS, generator)
    grades = [one.grade(given) for one, given in zip(asked, answers, strict=True)]
    found = {"solved": float(np.mean([grade == GRADE for grade in grades]))}
    for name in BY_SKILL:
        of_rule = [grade == GRADE for one, grade in zip(asked, grades, strict=True) if NAMES[one.rule] == name]
        found[f"solved/{name}"] = float(np.mean(of_rule))
    wrong = [place for place, grade in enumerate(grades) if grade < GRADE]
    prompts = {"second": [asked[place].prompt for place in wrong]}
    for kind in REFINERS:
        prompts[kind] = [asked[place].refine_prompt(kind, answers[place], grades[place]) for place in wrong]
    before = np.array([grades[place] for place in wrong])
    for kind, batch in prompts.items():
        others = generate(model, torch.tensor(batch), LONGEST_ANSWER, EOS, generator)
        after = np.array([asked[place].grade(other) for place, other in zip(wrong, others, strict=True)])
        found |= {
            f"better/{kind}": float((after > before).mean()),
            f"mended/{kind}": float((after == GRADE).mean()),
            f"worse/{kind}": float((after < before).mean()),
        }
    return found
