"""Expected answers that nobody who has solved the problem writes."""

import re

from reward.judge.math_marks import find_answer, find_marked
from reward.judge.math_text import as_text, clean

MAX_WORDS = 6
"""Of an answer in words, or of each of several."""
_WORD = re.compile(r"[^\W\d_]{2,}")
_PROSE = re.compile(r"[^\W\d_]{2,}\s+[^\W\d_]{2,}\s")
_SIGN = re.compile(r"[^\w\s.,:;!?'\"\[\]{}()-]")  # what makes a text a formula
_DIGIT = re.compile(r"\d")
_PART = re.compile(r",(?!\d{3})|\. ")
_QUOTED = re.compile(r"[\[({]\s*[\"'].*[\"']\s*[\])}]", re.DOTALL)


def is_formula(text: str) -> bool:
    """Whether a label, as `as_text` gives it, is for math-verify to read."""
    return _SIGN.search(text) is not None or not any(map(str.isalnum, text))


def wrong_with(label: str) -> str | None:
    """Say why no answer can be equal to an expected one, where its words show it: a sentence, or a list's display."""
    marked = find_marked(label)
    text = as_text(clean(label if marked is None else marked))
    if _QUOTED.fullmatch(text):
        return f"{text[:80]}: it is a list as text, give its one entry"
    parts = _PART.split(text)
    before = [part[: number.start()] for part in parts if (number := _DIGIT.search(part))]
    num_before = len(_WORD.findall(" ".join(before)))
    is_long = num_before > 1 or any(len(_WORD.findall(part)) > MAX_WORDS for part in parts)
    is_said = marked is None and "answer" in label.casefold() and find_answer(label) != label.strip()
    if is_said or (_PROSE.match(text) if is_formula(text) else is_long):
        return f"{text[:80]}: it is a sentence, give the answer alone"
    return None
