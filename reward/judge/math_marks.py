"""Where a text says its final answer."""

import re

from reward.extract import END_OF_THOUGHTS, without_end_marks

MAX_ANSWER_CHARS = 2000
_BRACE = re.compile(r"\\{1,2}(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)  # of a box, escaped, or any other
_BARE_BOX = re.compile(r"\\(?:boxed|fbox) ?(-?\d(?:[\d.,]*\d)?)(?![\w\\^{/])")
_HASHES = re.compile(r"(?P<margin>^[ \t*]*)?(?<!#)####(?!#)[ \t]*(?:\n\s*(?![#\s]))?(?P<line>[^\n]*)", re.M)
_PREFIX = re.compile(r"[*_ \t]*(?:the |my )?(?:final )?answer(?:[*_ \t]+is\b|[*_ \t]*[:\uff1a])[*_ \t]*", re.I)
_FORMULA = re.compile(r"[\d$\\]|^[*_ \t]*\(?[A-Za-z]\)?[*_. \t]*$")
_PROSE = re.compile(r"[*_ \t]*(?:\(?[0-9A-Za-z]{1,3}[.)][*_ \t]+)?[A-Za-z]{2,}(?:[ \t:]|$)")
_NOUNS = ("\u7b54\u6848", "\u7b54\u3048", "\uc815\ub2f5", r"\b\u043e\u0442\u0432\u0435\u0442", r"\br\u00e9ponse",
          r"\brespuesta", r"\bantwort", r"\brisposta", r"\bresposta")  # fmt: skip
"""The word "answer" in other languages."""
_STATED = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]*\**|\*\*)(?:the |my )?(?:final )?answer[*_: \t]*\n\s*"
    r"(?=[*_]*(?:[\d\\$(\[{]|[+-](?!\s)|[A-Za-z]+[*_.]*[ \t]*$|[A-Za-z]\s*=))"
    rf"|(?:{'|'.join(_NOUNS)})(?:[ \t]+(?:finale?|correcta?|correcte))?"
    r"(?:[ \t]+(?:est|es|ist|\u00e8|\u00e9|lautet)\b|[*_ \t]*[:\uff1a\u662f\u4e3a\u70ba\u306f\uc740])[\s:\uff1a*]*"
    r"|\b(?:answer|(?:correct|right) (?:option|choice))"
    r"(?:(?:[ \t](?:to|of|for)[ \t](?:[^\n.!?;]|\.(?=\d)){1,80}?)?[*_ \t]+is(?:\b|(?=n't))|[*_ \t]*[:\uff1a]"
    r"|(?=\s+(?:\$|\\[(\[])))[\s:\uff1a*]*",
    re.I | re.M,
)
_OPEN, _CLOSE = "<answer>", "</answer>"
_CUT_CLOSE = re.compile(r"<(?:/a?n?s?w?e?r?)?\Z")
_BEGUN = re.compile(r"\s*[\d\\$(\[{+-]|\n?\w")
_DISPLAY = re.compile(r"\$\$.*?\$\$|\\\[.*?\\\]|\$[^$\n]*\$|\\\([^\n]*?\\\)", re.DOTALL)
_CLAUSE = re.compile(r"[.!?;]\s|,\s+(?=(?:so|thus|hence|therefore|then)\b)", re.I)  # ends after it
_STATES = re.compile(r"[a-z\s,]*\b(?:is|are|equals|get|gets|gives|obtain)[\s:]*", re.I)
_DENIES = re.compile(
    r"\b(?:or|nor|not|no|never|none|neither|nothing|cannot|but|if|unless|either|maybe|perhaps|than|wrong|false)\b", re.I
)
_SENTENCE = re.compile(r"(?:(?!\.(?:\s|$))[^\n\u3002])*")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;&]|\\[()\[\],;! ]|\\?q?quad|\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b|\b[a-zA-Z](?:_\{?\w\}?)?\s*=)*"
)

_BOX_TOKENS = (("<|begin_of_box|>", "\\boxed{"), ("<|end_of_box|>", "}"))
"""GLM's tokens around a final answer."""


def find_answer(text: str) -> str | None:
    r"""Return the final answer in a response, or None.

    What the model thought first (up to `</think>` or the like) is looked at only where nothing is found after it. The
    last mark counts: a `\boxed{}` or GLM's box, what follows `####` in its line or the next, or between `<answer>` and
    `</answer>`, which a stop text may have cut. Without any it is what the last "answer is", "answer to ... is",
    "correct option is", "answer:" or heading "Answer" says, in another language too, up to its sentence's end; without
    that the only formula of a text that has no numbers beside it, or of one line whose last words state it ("thus it
    is $4$."); or else the text of one line.
    """
    text = without_end_marks(text)
    begin = max((thoughts.end() for thoughts in END_OF_THOUGHTS.finditer(text)), default=0)
    return _find(text[begin:]) or (_find(text) if begin else None)


def _find(text: str) -> str | None:
    begin, end = text.rfind(_OPEN), text.rfind(_CLOSE)
    if begin > end and _BEGUN.match(text, begin + len(_OPEN)):  # a stop text, or the longest response, took its end
        end = begin + len(_CUT_CLOSE.sub("", text[begin:]))
    begin = text.rfind(_OPEN, 0, max(end, 0))
    if begin >= 0 and find_marked(text[end:]) is None and not _STATED.search(text, end + len(_CLOSE)):
        found = _find_unquoted(text[begin + len(_OPEN) : end])
        if found is not None:
            return found
    return _find_unquoted(text)


def _find_unquoted(text: str) -> str | None:
    marked = find_marked(text)
    if marked is not None:
        return marked.strip() or None
    *_, stated = (None, *_STATED.finditer(text))
    if stated is None:
        whole = text.strip()
        if len(whole) > MAX_ANSWER_CHARS:
            return None
        formulas = _DISPLAY.findall(whole)
        if len(formulas) == 1 and _is_stated(formulas[0], whole):
            return formulas[0]
        return whole if whole and "\n" not in whole else None
    shown = _DISPLAY.match(text, stated.end())
    rest = _SENTENCE.match(text, shown.end() if shown else stated.end())
    assert rest is not None  # it matches nothing, too
    return f"{shown.group() if shown else ''}{rest.group()}".strip() or None


def _is_stated(formula: str, whole: str) -> bool:
    """Whether the only formula of a text is its answer: no number stands beside it, or its one line ends in it."""
    if not any(map(str.isdigit, whole.replace(formula, ""))):
        return True
    before, _, behind = whole.rpartition(formula)
    clause = _CLAUSE.split(before)[-1]
    is_end = "\n" not in whole and behind in ("", ".")
    return is_end and _STATES.fullmatch(clause) is not None and _DENIES.search(clause) is None


def find_marked(text: str) -> str | None:
    """What the last mark says; boxes with nothing but `,`, "and", "or" or `x =` between them say it together."""
    if all(token in text for token, _ in _BOX_TOKENS):
        for token, written in _BOX_TOKENS:
            text = text.replace(token, written)
    text = _BARE_BOX.sub(r"\\boxed{\1}", text)
    boxes = list(_boxes(text))
    hashes = _last_hashes(text)
    if hashes is not None and (not boxes or hashes[0] > boxes[-1][0]):
        return hashes[1]
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


def _last_hashes(text: str) -> tuple[int, str] | None:
    """Return where the last `####` stands that marks an answer and is no heading, and the answer."""
    end = len(text.rstrip())
    for hashes in reversed(list(_HASHES.finditer(text))):
        line = hashes["line"]
        prefix = _PREFIX.match(line)
        line = line[prefix.end() :] if prefix else line
        is_answer = hashes["margin"] is not None and _FORMULA.search(line) and not _PROSE.match(line)
        if is_answer or hashes.end() >= end:
            return hashes.start(), line
    return None


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
