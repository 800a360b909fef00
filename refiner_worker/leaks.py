"""Whether a refinement speaks of what the policy never sees: the refiner's prompt, the reward, the earlier answer."""

import re

RUN = 5
"""Words in a row that are no chance."""
WORD = re.compile(r"[^\W_]+(?:\.\d+)?")
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
POINTS = {"reward", "rewards", "score", "scored", "scores", "point", "points"}
EARLIER = re.compile(r"\b(?:previous|earlier)\s+(?:\w+\s+)?(?:answer|response|solution|reply|attempt)s?\b")


def speaks_of_prompt(text: str, *, own: str, given: str, reward: float) -> bool:
    """Tell whether a refinement speaks of what stands in the refiner's prompt alone.

    It does if it has one of these, and ``given`` does not have the same:

    - RUN words in a row of the refiner's own prompt,
    - the reward, as the prompt writes it, in one sentence with a word of POINTS,
    - words of EARLIER for an answer before it.

    ``own`` is the refiner's prompt without question, response, feedback and solutions: the template's own words;
    ``given`` what the refinement may repeat: all those.
    """
    if _runs(text) & (_runs(own) - _runs(given)):
        return True
    known, told = given.lower(), set(WORD.findall(own.lower())) - set(WORD.findall(given.lower()))
    numbers = {f"{abs(reward):.2f}", f"{abs(reward):g}", str(abs(reward))} & told
    for sentence in SENTENCE.split(text.lower()):
        said = set(WORD.findall(sentence))
        if said & numbers and said & POINTS:
            return True
    return any(one[0] not in known for one in EARLIER.finditer(text.lower()))


def _runs(text: str) -> set[tuple[str, ...]]:
    found = WORD.findall(text.lower())
    return {tuple(found[place : place + RUN]) for place in range(len(found) - RUN + 1)}
