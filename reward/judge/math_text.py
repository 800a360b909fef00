r"""Comparison of two answers as text: words, letters of options, digits that are no formula.

Upper and lower case count in formulas (`r` and `R` are two variables), and not in words and letters of options.
"""

import re
from math import gcd

TEXT = re.compile(r"\\text\{([^{}]*)\}")
_MODULO = re.compile(r"\\pmod\{([^{}]*)\}$")
_LETTER = r"[^\W\d_]"
_WORDS = re.compile(rf"(?=.*{_LETTER}{{3}}){_LETTER}(?:{_LETTER}|[ '-]){{3,}}")
_NO_WORDS = re.compile(rf"\s-|-\s|\b{_LETTER}-|-{_LETTER}\b|\b{_LETTER} (?:and|or) {_LETTER}\b")
_ARTICLE = re.compile(rf"^(?:an?|the) (?={_LETTER}{{3}}(?:{_LETTER}|[ '-])*\.?$)", re.I)
_CASELESS = re.compile(
    rf"(?<!\\)(?<!{_LETTER})(?:{_LETTER}{{4,}}|[A-Z](?=[a-z]?[aeiouy])[a-z]{{2}}|(?i:yes|no))(?!{_LETTER})"
)
_OPTION = re.compile(r"\(?[A-Z]\)?|\([a-z]\)")
_CHOICE = re.compile(
    r"(?i:(?:answer|choice|option)\b:? ?)?\(?([A-Za-z])(?:\)[:.]?| ?[:.\u2013\u2014]|-(?=[A-Z][a-z]{2})|$"
    r"|(?<=[A-H])(?: |\\ ?|\\q?quad ?)(?=\d\S*$))(?!.*[ ,;]\(?[A-Z][):])"  # C 12
)
"""An option by its letter, also where it is written out after it, and no second one."""
_WRITTEN = re.compile(r"\d+(?:-\d+)+|\d+(?:/\d+){2,}|\d+(?: \d+)+|0[xX][0-9a-fA-F]+|0\d?:\d\d|\d{1,2}:0\d")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)")
JOINTS = re.compile(r"\\[,;:! ]|[\s,.;:\u3001\u548c&]|\band\b")
_AROUND_OPTIONS = re.compile(rf"{JOINTS.pattern}|\\?[{{}}]|[()\[\]]|(?i:\b(?:option|choice|answer)s?\b)")
# In lower case: what is said in several ways.
_SAME_WORDS = {"dne": "does not exist", "no solutions": "no solution", r"\emptyset": "no solution",
               **dict.fromkeys(("all real numbers", "all reals", r"(-\infty, \infty)"), r"\mathbb{r}")}  # fmt: skip


def as_text(answer: str) -> str:
    """Return the answer without commands that set text, an article before words, and a full stop."""
    return _ARTICLE.sub("", " ".join(TEXT.sub(r"\1", answer).split())).rstrip(".")


def is_words(text: str) -> bool:
    """Return whether a text is words and no formula: letters with a run of three, and no `x - y` or `A and C`."""
    return _WORDS.fullmatch(text) is not None and _NO_WORDS.search(text) is None


def is_written(text: str) -> bool:
    """Return whether a text of digits is a date, a score, a range, a list, hexadecimal digits or a time of day.

    `10:30` is a time, since a ratio is given in lowest terms; `2:3` and `3:10` are ratios.
    """
    clock = _CLOCK.fullmatch(text)
    is_reducible = clock is not None and gcd(*map(int, clock.groups())) != 1
    return is_reducible or _WRITTEN.fullmatch(text) is not None


def is_same_text(found: str, expected: str) -> bool:
    """Return whether two answers are equal as text."""
    texts = [as_text(found), as_text(expected)]
    if not all(texts):
        return False
    texts[1] = re.sub(r"(?i:option) (?=\(?[A-Z]\)?$)", "", texts[1])
    if _OPTION.fullmatch(texts[1]):
        letter, choice = texts[1].strip("()"), _CHOICE.match(texts[0])
        said = choice[1] if choice else ""
        is_caseless = len(texts[0]) > 1 or letter.upper() in "ABCDE"  # else it may be a variable
        return said == letter or (is_caseless and said.upper() == letter.upper())
    folded = [_SAME_WORDS.get(text.casefold(), text.casefold()) for text in texts]
    if folded[0] == folded[1] and folded[0] in _SAME_WORDS.values():
        return True
    if TEXT.fullmatch(expected) and expected.startswith(r"\text"):
        return texts[0].casefold() == texts[1].casefold()
    options = JOINTS.sub("", re.sub(r"\(([A-H])\)", r"\1", texts[1]))
    if re.fullmatch("[A-H]{2,8}", options):  # several, without an order, unless it is a run of another than theirs
        in_order = sorted if options != texts[1] or options == "".join(sorted(options)) else list
        return in_order(_AROUND_OPTIONS.sub("", texts[0])) == in_order(options)
    folded = [_CASELESS.sub(lambda word: word.group().casefold(), text) for text in texts]
    return folded[0] == folded[1]


def without_modulus(answer: str) -> str:
    r"""Return an answer without the `\pmod{13}` at its end."""
    return _MODULO.sub("", answer)
