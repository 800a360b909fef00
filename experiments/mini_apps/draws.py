"""Random test inputs that several families share."""

import random

WORDS = [
    "apple",
    "river",
    "stone",
    "cloud",
    "tiger",
    "lemon",
    "chair",
    "music",
    "bread",
    "ocean",
    "paper",
    "light",
    "garden",
    "window",
    "silver",
    "orange",
    "yellow",
    "banana",
    "pepper",
    "rabbit",
    "summer",
    "winter",
    "letter",
    "bottle",
    "button",
    "castle",
    "dragon",
    "engine",
    "forest",
    "guitar",
    "hammer",
    "island",
]


def number(rng: random.Random) -> int:
    """One integer in [-60, 60]."""
    return rng.randint(-60, 60)


def natural(rng: random.Random) -> int:
    """One integer in [1, 120]."""
    return rng.randint(1, 120)


def numbers(rng: random.Random, low: int = -20, high: int = 40, shortest: int = 3, longest: int = 8) -> list[int]:
    """Return a list of `shortest` to `longest` integers in [low, high]."""
    return [rng.randint(low, high) for _ in range(rng.randint(shortest, longest))]


def word(rng: random.Random) -> str:
    """One lower-case word of five or six letters."""
    return rng.choice(WORDS)


def words(rng: random.Random, shortest: int = 3, longest: int = 7) -> list[str]:
    """Return a list of words."""
    return [rng.choice(WORDS) for _ in range(rng.randint(shortest, longest))]


def sentence(rng: random.Random) -> str:
    """Words with single blanks between them."""
    return " ".join(words(rng))


def lines(*values: object) -> str:
    """Standard input with one value a line; a list becomes a line with blanks."""
    return "".join((" ".join(map(str, v)) if isinstance(v, list) else str(v)) + "\n" for v in values)
