"""Is a final answer the expected one? Asked of a judge, and where that takes math-verify, of a confined fork of it.

math-verify reads LaTeX by a grammar. It looks for answers by patterns of its own, which take any number that stands
somewhere: here the answer is found first, and math-verify gets nothing else.
"""

import collections
import itertools
import re
import sys
from typing import Any

from reward.judge.no_code import forbid_code

MAX_ANSWER_CHARS = 2000
MAX_DEPTH = 20  # of brackets: math-verify's time doubles with each
_BRACE = re.compile(r"\\{1,2}(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)  # of a box, escaped, or any other
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_STATED = re.compile(r"\banswer(?:[ \t]+is|[ \t]*:|(?=\s+(?:\$|\\[(\[])))[\s:*]*", re.I)
_DISPLAY = re.compile(r"\$\$.*?\$\$|\\\[.*?\\\]|\$[^$\n]*\$|\\\([^\n]*?\\\)", re.DOTALL)
_SENTENCE = re.compile(r"(?:(?!\.(?:\s|$))[^\n])*")
_BETWEEN_BOXES = re.compile(r"(?:[\s$,;&]|\\[()\[\],;! ]|\\?q?quad|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)*")
_MATHS_MARKS = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]|\*\*(?!\d)|(?<!\d)\*\*|`|\\(?:boxed|fbox)(?![a-zA-Z])")
_PER_CENT = re.compile(r"\s*(?:\\?%|per ?cent(?:age)?|pct)\s*$", re.I)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|[ '-]){3,}")
_WARM_UP = (
    (r"\frac{1}{2}x^2-\sqrt{3}\pi", r"\frac{x^2}{2}-\pi\sqrt{3}"),
    (r"[0,1)\cup(2,\infty)", r"x \in (0,1)"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\{1,2\}"),
    ("(x-1)(x+1)=5", "y=x^2-1"),
    ("72", "72.5"),
    ("-5,000", r"10\%"),
    (r"2^{10}\cdot 3", r"\text{(A)}"),
)
_INTEGER = re.compile(r"-?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)", re.ASCII)
_NONSENSE = ("1=2", "x=x+1")  # equations without a solution: all of them are equal, says math-verify


def load() -> bool:
    """Import what reading needs and use it once, which sets up its tables; returns whether that was to be done."""
    if "math_verify" in sys.modules:
        return False
    import logging  # judges of programs start without

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it does not limit time
    for pair in _WARM_UP:
        verify(*map(_read, pair))
    forbid_code("sympy.parsing")
    return True


def grade_text(response: str, answer: str) -> tuple[str, float, str]:
    """Find the answer, and grade what needs no mathematics: no answer, equal texts, whole numbers.

    Returns:
        Outcome (pass, fail, no_answer, unreadable, or "" if that is for `grade_math` to say), points in [0, 1], and
        what was found in the response.
    """
    found = find_answer(response)
    if found is None:
        return "no_answer", 0.0, ""
    if len(found) > MAX_ANSWER_CHARS or _depth(found) > MAX_DEPTH:
        return "unreadable", 0.0, "it is too long, or nested too deeply"
    texts = [_as_text(clean(found)), _as_text(_expected(answer))]
    if all(texts) and texts[0] == texts[1]:
        return "pass", 1.0, found
    numbers = [text.replace(",", "") for text in texts]
    if all(map(_INTEGER.fullmatch, texts)):
        is_right = int(numbers[0]) == int(numbers[1])
        return "pass" if is_right else "fail", float(is_right), found
    return "", 0.0, found


def grade_math(found: str, answer: str) -> tuple[str, float, str]:
    """Outcome (pass, fail), points, and the answer that `grade_text` found."""
    is_right = is_equal(clean(found), _expected(answer))
    return "pass" if is_right else "fail", float(is_right), found


def find_answer(text: str) -> str | None:
    r"""The final answer in a text, or None.

    The last mark counts: a `\boxed{}`, or what stands behind `####` in its line. Without either it is what the last
    "answer is" or "answer:" says, up to the end of its sentence; without that the only formula of a text that has no
    numbers beside it; or else the whole text, if that is one line.
    """
    marked = find_marked(text)
    if marked is not None:
        return marked.strip() or None
    stated = _last(_STATED, text)
    if stated is None:
        whole = text.strip()
        if len(whole) > MAX_ANSWER_CHARS:
            return None
        formulas = _DISPLAY.findall(whole)
        if len(formulas) == 1 and not any(map(str.isdigit, whole.replace(formulas[0], ""))):
            return formulas[0]
        return whole if whole and "\n" not in whole else None
    shown = _DISPLAY.match(text, stated.end())
    rest = _SENTENCE.match(text, shown.end() if shown else stated.end())
    assert rest is not None  # it matches nothing, too
    return f"{shown.group() if shown else ''}{rest.group()}".strip() or None


def find_marked(text: str) -> str | None:
    """What the last mark says; boxes with nothing but `,`, "and" or "or" between them say it together."""
    boxes = list(_boxes(text))
    hashes = _last(_HASHES, text)
    if hashes is not None and (not boxes or hashes.start() > boxes[-1][0]):
        return hashes.group(1)
    if not boxes:
        return None
    if not boxes[-1][2].strip():
        return ""
    contents = [boxes[-1][2]]
    for (_, end, content), (start, _, _) in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        if not _BETWEEN_BOXES.fullmatch(text, end, start):
            break
        contents.append(content)
    return ", ".join(dict.fromkeys(reversed(contents)))


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(collections.deque(pattern.finditer(text), maxlen=1)), None)


def _boxes(text: str) -> list[tuple[int, int, str]]:
    """Start, end and content of the outermost boxes that are closed."""
    found: list[tuple[int, int, str]] = []
    opened: list[re.Match[str]] = []
    for brace in _BRACE.finditer(text):
        if brace.group().endswith("{") and brace.group() != r"\{":
            opened.append(brace)
        elif brace.group() == "}" and opened:
            box = opened.pop()
            if box.group() != "{":
                while found and found[-1][0] > box.start():
                    found.pop()
                found.append((box.start(), brace.end(), text[box.end() : brace.start()]))
    return found


def clean(answer: str) -> str:
    """The answer without what marks it as mathematics, and without a full stop."""
    return " ".join(_MATHS_MARKS.sub(" ", answer).replace("\u2212", "-").split()).rstrip(".,;: ")


def is_equal(found: str, expected: str) -> bool:
    """Whether math-verify finds two answers equal, which differ as text."""
    if _WORDS.fullmatch(_as_text(expected)):  # to it a word is a product of letters, in any order
        return False
    gold, other = _read(expected), _read(found)
    if not gold or not other or not verify(gold, other):
        return False
    return "=" not in expected or not any(verify(gold, _read(nonsense)) for nonsense in _NONSENSE)


def _expected(answer: str) -> str:
    marked = find_marked(answer)
    return clean(answer if marked is None else marked)


def _as_text(answer: str) -> str:
    return " ".join(_TEXT.sub(r"\1", answer).split()).casefold().rstrip(".")


def _depth(text: str) -> int:
    depths = itertools.accumulate(("([{".find(mark) >= 0) - (")]}".find(mark) >= 0) for mark in text)
    return max(depths, default=0)


def verify(gold: list[Any], found: list[Any]) -> bool:
    """math-verify's comparison, whose limits of time are those of this process."""
    import math_verify

    return math_verify.verify(gold, found, timeout_seconds=None)


def _read(answer: str) -> list[Any]:
    import math_verify

    share = _PER_CENT.search(answer)
    latex = f"${answer[: share.start()]}$%" if share else f"${answer}$"
    read = math_verify.parse(latex, (math_verify.LatexExtractionConfig(),), parsing_timeout=None)
    return [value for value in read if not isinstance(value, str)]
