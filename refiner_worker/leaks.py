"""Whether a refinement speaks of what the policy never sees: the refiner's prompt, the reward, the earlier answer."""

import re

RUN = 5
"""Words in a row that are no chance."""
WORD = re.compile(r"[^\W_]+(?:\.\d+)?")
SENTENCE = re.compile(r"[^\n.!?]*(?:\.\d[^\n.!?]*)*")
POINTS = {"reward", "rewards", "score", "scored", "scores", "point", "points"}
EARLIER = re.compile(
    r"\b(?:previous|earlier|original|given|old)\s+(?:answer|response|solution|program|code|reply|attempt)\b"
)


def speaks_of_prompt(text: str, *, own: str, given: str, reward: float) -> bool:
    """Tell whether a refinement speaks of what stands in the refiner's prompt alone.

    It does if it has one of these, and ``given`` does not have the same:

    - RUN words in a row of the refiner's own prompt,
    - the reward, as the prompt writes it, in one sentence with a word of POINTS,
    - the words EARLIER for an answer before it.

    Args:
        text: The refinement.
        own: The refiner's prompt without question, response and solutions: the template's words and the feedback.
        given: What the refinement may repeat: prompt and response, and solutions that the refiner was shown.
        reward: r(s0, a).
    """
    if _runs(text) & (_runs(own) - _runs(given)):
        return True
    known = given.lower()
    number = f"{reward:.2f}"
    for sentence in SENTENCE.findall(text.lower()):
        if sentence.strip() and sentence.strip() not in known:
            said = set(WORD.findall(sentence))
            if number in said and said & POINTS or any(one[0] not in known for one in EARLIER.finditer(sentence)):
                return True
    return False


def _runs(text: str) -> set[tuple[str, ...]]:
    found = WORD.findall(text.lower())
    return {tuple(found[place : place + RUN]) for place in range(len(found) - RUN + 1)}
