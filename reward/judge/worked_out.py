r"""Is a number worked out? `2 + 6` is 8, but whoever repeats the question's sum has not answered it.

math-verify takes both for equal, and a policy that is rewarded for it stops answering: it repeats.
"""

import re

_SIDES = re.compile(r"=|\\approx(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mathit|mbox)\s*\{[^{}]*\}(?:\s*\^\s*(?:\{[-+\d]+\}|\d))?")
_SCIENTIFIC = re.compile(r"(?:(?<!\d)|(?:\\times|\\cdot|\*|×)\s*)10\s*\^\s*(?:\{\s*[-+]?\d+\s*\}|\d)")
_NO_PART = re.compile(r"\\(?:left|right|q?quad)(?![a-zA-Z])|\\[,;:! %$]|\^?\s*\{?\s*\\circ\}?(?![a-zA-Z])|[%\s]")
_BRACES = re.compile("[{}]")
_FRACTION = r"\\[cdt]?frac(?![a-zA-Z])"
_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_NAME = re.compile(r"\\?[a-zA-Z]+(?:_\w+)?")
_NUMBER = re.compile(rf"[-+]?(?:(?P<whole>{_WHOLE}(?:\.0+)?)|(?:{_WHOLE})?(?:\.\d+|/\d+|{_FRACTION}\d+))")
_QUOTIENT = re.compile(rf"{_FRACTION}|(?<=[\d)}}])/(?=[\d({{\\])")
_UNDONE = re.compile(
    r"[*×÷!|√]"  # factorials and magnitudes are calculations, too
    r"|(?<=[\d)}])(?:[-+±](?=[-+\d.({\\])|\^|\((?=[-+\d.\\]))"
    r"|\\(?!(?:[cdt]?frac|overline|l?dots|in)(?![a-zA-Z]))[a-zA-Z]+"
)


def is_left_undone(found: str, expected: str) -> bool:
    r"""Whether the expected answer is a plain number, and the one that was found a calculation of it.

    `6 - 1 = 5` is worked out, for one side is. A fraction is a number, but `14/2` is none where 7 is expected; a
    root, a power or a logarithm is none but where it is expected.
    """
    values = [_BRACES.sub("", _bare(side)) for side in _SIDES.split(expected)]
    values = [value for value in values if not _NAME.fullmatch(value)]
    numbers = [_NUMBER.fullmatch(value) for value in values]
    if not numbers or not all(numbers):
        return False
    quotients = 0 if "%" not in expected and any(number and number["whole"] for number in numbers) else 1
    sides = [_bare(side) for side in _SIDES.split(found) if any(map(str.isdigit, side))]
    return bool(sides) and all(_UNDONE.search(side) or len(_QUOTIENT.findall(side)) > quotients for side in sides)


def _bare(side: str) -> str:
    """Without texts, spaces, powers of ten, and signs for per cent and degrees."""
    return _NO_PART.sub("", _SCIENTIFIC.sub("", _TEXT.sub("", side)))
