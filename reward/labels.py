"""Checks for expected answers that no correct response could equal."""

import re

from reward.judge.math_forms import clean
from reward.judge.math_latex import MAX_DEPTH, depth
from reward.judge.math_marks import MAX_ANSWER_CHARS, find_answer, find_marked
from reward.judge.math_text import as_text

MAX_WORDS = 6
"""The largest number of words in an answer, or in each part of a list."""
_WORD = re.compile(r"[^\W\d_]{2,}")
_PROSE = re.compile(r"[^\W\d_]{2,}\s+[^\W\d_]{2,}\s")
_SIGN = re.compile(r"[^\w\s.,:;!?'\"\[\]{}()-]")  # what makes a text a formula
_DIGIT = re.compile(r"\d")
_PART = re.compile(r",(?!\d{3})|\. ")
_HTML = re.compile(r"<(\w+)[^<>]*>[^<>]*</\1>|<br */?>", re.I)
_QUOTED = re.compile(r"[\[({]\s*[\"'].*[\"']\s*[\])}]", re.DOTALL)


def is_formula(text: str) -> bool:
    """Return whether a label, as `as_text` returns it, is a formula that math-verify has to read."""
    return _SIGN.search(text) is not None or not any(map(str.isalnum, text))


def wrong_with(label: str) -> str | None:
    """Return why no answer can equal this expected one (it is a sentence, or a list's display), or None."""
    marked = find_marked(label)
    answer = label if marked is None else marked
    if len(answer) > MAX_ANSWER_CHARS or depth(answer) > MAX_DEPTH:
        return f"{answer[:80]}: it is too long, or nested too deeply"
    text = as_text(clean(answer))
    if _HTML.search(answer):
        return f"{text[:80]}: it cannot be read: give LaTeX"
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
