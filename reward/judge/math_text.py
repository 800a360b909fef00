r"""How final answers are written: what is not part of them, and when two are the same text.

Upper and lower case count in formulas (`r` and `R` are two variables), and not in words and letters of options.
"""

import re

_BOLD = re.compile(r"(?<![\w)}\]])\*\*(?=\S)([^*]+)(?<=\S)\*\*(?![\d({\\-])")
_POWER = re.compile(
    r"(?<=[\w)}\]])(?: ?\*\*| \*\* |\*\* (?=\d))"
    r"([-+]?(?:\w+(?:\.\d+)?|\\[a-zA-Z]+(?:\{[^{}]*\})*|\{[^{}]*\}|\((?:[^()]|\([^()]*\))*\)))"
    r"(?!\w| ?\*\*)"  # of several Python takes the last first: those are not read
)
_STARS = re.compile(r"^\s*\*\*|\*\*\s*$|\*\*(?=\s)|(?<=\s)\*\*")
_SIGNS = {"\u2212": "-", "\u221e": r"\infty ", "\u00b0": r"^\circ ", "\u00b7": r"\cdot "}
_ROOT = re.compile(r"\u221a(\d+(?:\.\d+)?|[a-zA-Z]|\([^()]*\))(?![\w^.])")
_DASH = re.compile(r"^\u2013 ?(?=[\d.\\])")
_ABOUT = re.compile(r"^(?:approximately|\\approx|\u2248) ?(?=[\d.\\-])", re.I)
_MATHS_MARKS = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]|`|\\(?:boxed|fbox)(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_LETTER = r"[^\W\d_]"
_WORDS = re.compile(rf"(?=.*{_LETTER}{{3}}){_LETTER}(?:{_LETTER}|[ '-]){{3,}}")
_NO_WORDS = re.compile(rf"\s-|-\s|\b{_LETTER}-|-{_LETTER}\b|\b{_LETTER} (?:and|or) {_LETTER}\b")
_CASELESS = re.compile(
    rf"(?<!\\)(?<!{_LETTER})(?:{_LETTER}{{4,}}|[A-Z](?=[a-z]?[aeiouy])[a-z]{{2}}|(?i:yes|no))(?!{_LETTER})"
)
_OPTION = re.compile(r"\(?[A-E]\)?")


def clean(answer: str) -> str:
    """The answer without what marks it as mathematics, and without a full stop."""
    answer = _STARS.sub(" ", _POWER.sub(_as_exponent, _BOLD.sub(r" \1 ", answer)))
    answer = _ROOT.sub(r"\\sqrt{\1}", _MATHS_MARKS.sub(" ", answer))
    for sign, command in _SIGNS.items():
        answer = answer.replace(sign, command)
    return _DASH.sub("-", _ABOUT.sub("", " ".join(answer.split()))).rstrip(".,;: ")


def _as_exponent(power: re.Match[str]) -> str:
    exponent = power.group(1)
    return f"^{exponent}" if exponent.startswith("{") else f"^{{{exponent}}}"


def as_text(answer: str) -> str:
    """The answer without commands that set text, and without a full stop."""
    return " ".join(_TEXT.sub(r"\1", answer).split()).rstrip(".")


def is_words(text: str) -> bool:
    """Whether a text is words and no formula: letters with a run of three, and no `x - y` or `A and C`."""
    return _WORDS.fullmatch(text) is not None and _NO_WORDS.search(text) is None


def is_same_text(found: str, expected: str) -> bool:
    """Whether two answers are equal as text."""
    texts = [as_text(found), as_text(expected)]
    if not all(texts):
        return False
    if (_TEXT.fullmatch(expected) and expected.startswith(r"\text")) or _OPTION.fullmatch(texts[1]):
        return texts[0].casefold() == texts[1].casefold()
    folded = [_CASELESS.sub(lambda word: word.group().casefold(), text) for text in texts]
    return folded[0] == folded[1]
