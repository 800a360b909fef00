"""The tasks: eight rules that turn six digits into six digits, their exact reward, and what the model reads.

An instance is a rule and six digits. The million digit strings are dealt once into four parts that share none: one
that validates, one that base models are measured on, one that they learn from, one that policies train on. So a policy
is never asked what validates it or what its base has seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LENGTH = 6
BLANK, EOS, GO, SEPARATOR, REFINE, SHOWN = range(10, 16)
FIRST_RULE = 16


def neighbour_sums(digits: list[int]) -> list[int]:
    """Return each digit plus the next one, modulo 10; the last one plus the first."""
    return [(one + other) % 10 for one, other in zip(digits, digits[1:] + digits[:1], strict=True)]


RULES: dict[str, Callable[[list[int]], list[int]]] = {
    "reverse": lambda digits: digits[::-1],
    "rotate": lambda digits: digits[1:] + digits[:1],
    "swap": lambda digits: [digits[place ^ 1] for place in range(LENGTH)],
    "successor": lambda digits: [(one + 1) % 10 for one in digits],
    "complement": lambda digits: [9 - one for one in digits],
    "sort": sorted,
    "sort_down": lambda digits: sorted(digits, reverse=True),
    "sums": neighbour_sums,
}
NAMES = list(RULES)
MISTAKEN_FOR = {
    "reverse": "rotate",
    "rotate": "reverse",
    "swap": "reverse",
    "successor": "complement",
    "complement": "successor",
    "sort": "sort_down",
    "sort_down": "sort",
    "sums": "successor",
}
"""The rule that a base model follows by mistake."""

REWARDS = [-1.0, -0.6, *(-0.3 + 1.3 * right / LENGTH for right in range(LENGTH)), 1.0]
"""Eq. 8's form: no answer; an answer of another length; six digits, by how many are right."""
FIRST_REWARD = FIRST_RULE + len(RULES)
REFINERS = ("r05", "r20", "r40", "r60", "r80", "r95", "careless", "early", "late")
"""Kinds of refinements that the base models learn to write (``bases.py``)."""
FIRST_REFINER = FIRST_REWARD + len(REWARDS)
VOCABULARY = FIRST_REFINER + len(REFINERS)
LONGEST_ANSWER = LENGTH + 2
"""The largest number of tokens of an answer: six digits, EOS, and one more."""
PROMPT_LENGTHS = {"question": LENGTH + 2, "refine": LENGTH + LONGEST_ANSWER + 6, "shown": LENGTH + LONGEST_ANSWER + 4}
LONGEST = max(PROMPT_LENGTHS.values()) + LONGEST_ANSWER

_DEALT = np.random.default_rng(63).permutation(10**LENGTH)
PARTS = {
    "validation": _DEALT[:50_000],
    "measure": _DEALT[50_000:100_000],
    "base": _DEALT[100_000:500_000],
    "policy": _DEALT[500_000:],
}


@dataclass(frozen=True, slots=True)
class Question:
    """An instance: the index of its rule, and its digits."""

    rule: int
    digits: tuple[int, ...]

    @property
    def solution(self) -> list[int]:
        """The right six digits."""
        return list(RULES[NAMES[self.rule]](list(self.digits)))

    @property
    def mistaken(self) -> list[int]:
        """What the rule yields that this one is mistaken for."""
        return list(RULES[MISTAKEN_FOR[NAMES[self.rule]]](list(self.digits)))

    @property
    def prompt(self) -> list[int]:
        """What the policy reads."""
        return [FIRST_RULE + self.rule, *self.digits, GO]

    def grade(self, answer: list[int]) -> int:
        """Return the index of an answer's reward in REWARDS."""
        if not answer or answer[-1] != EOS or max(answer[:-1], default=0) > 9:
            return 0
        if len(answer) != LENGTH + 1:
            return 1
        return 2 + sum(one == other for one, other in zip(answer, self.solution, strict=False))

    def refine_prompt(self, refiner: str, answer: list[int], grade: int) -> list[int]:
        """Return what the refiner reads: which kind of refinement, question, response, reward."""
        kind, reward = FIRST_REFINER + REFINERS.index(refiner), FIRST_REWARD + grade
        question = [FIRST_RULE + self.rule, *self.digits]
        return [REFINE, kind, *question, SEPARATOR, *_filled(answer), reward, GO]

    def shown_prompt(self, answer: list[int]) -> list[int]:
        """Return what pi_0 reads before it scores a response in place: the question and a better answer."""
        return [SHOWN, FIRST_RULE + self.rule, *self.digits, SEPARATOR, *_filled(answer), GO]


def _filled(answer: list[int]) -> list[int]:
    return answer + [BLANK] * (LONGEST_ANSWER - len(answer))


def questions(
    part: str, number: int, rng: np.random.Generator, rules: Sequence[int] = range(len(RULES))
) -> list[Question]:
    """Draw questions about some rules from a part, none with the digits of another question of this call."""
    chosen = rng.choice(PARTS[part], number, replace=False)
    drawn = np.asarray(rules)[rng.integers(len(rules), size=number)]
    return [Question(int(rule), tuple(map(int, f"{one:0{LENGTH}d}"))) for rule, one in zip(drawn, chosen, strict=True)]
