"""Where a text says its final answer."""

import collections
import re

MAX_ANSWER_CHARS = 2000
_BRACE = re.compile(r"\\{1,2}(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)  # of a box, escaped, or any other
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_STATED = re.compile(r"\banswer(?:[ \t]+is|[ \t]*:|(?=\s+(?:\$|\\[(\[])))[\s:*]*", re.I)
_DISPLAY = re.compile(r"\$\$.*?\$\$|\\\[.*?\\\]|\$[^$\n]*\$|\\\([^\n]*?\\\)", re.DOTALL)
_SENTENCE = re.compile(r"(?:(?!\.(?:\s|$))[^\n])*")
_BETWEEN_BOXES = re.compile(r"(?:[\s$,;&]|\\[()\[\],;! ]|\\?q?quad|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)*")


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
