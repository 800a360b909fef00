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
_SPACE_IN_NUMBER = re.compile(r"(?<=\d)(?:\\[,;:! ]|\{,\}|,\\!)(?=\d{3}(?!\d))")
_SPACES_AROUND = re.compile(r"^(?:\s|\\[,;:! ]|~)+|(?:\s|\\[,;:! ]|~)+$")
_STYLE = re.compile(r"\\(?:boldsymbol|bm|underline|displaystyle)(?![a-zA-Z])")
_MODULO = re.compile(r"\s*\\p?mod\s*(?:\{[^{}]*\}|\d+)$")
_SIGNS = {"\u2212": "-", "\u221e": r"\infty ", "\u00b0": r"^\circ ", "\u00b7": r"\cdot "}
_ROOT = re.compile(r"\u221a(\d+(?:\.\d+)?|[a-zA-Z]|\([^()]*\))(?![\w^.])")
_DASH = re.compile(r"^\u2013 ?(?=[\d.\\])")
_ABOUT = re.compile(r"^(?:approximately|\\approx|\u2248) ?(?=[\d.\\-])", re.I)
_MATHS_MARKS = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]|`|\\(?:boxed|fbox)(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_NUMBER_IN_FONT = re.compile(r"(?<![\d}])" + _TEXT.pattern.replace("[^{}]*", r"\s*-?\d[\d.,]*\s*"))
_LETTER = r"[^\W\d_]"
_WORDS = re.compile(rf"(?=.*{_LETTER}{{3}}){_LETTER}(?:{_LETTER}|[ '-]){{3,}}")
_NO_WORDS = re.compile(rf"\s-|-\s|\b{_LETTER}-|-{_LETTER}\b|\b{_LETTER} (?:and|or) {_LETTER}\b")
_CASELESS = re.compile(
    rf"(?<!\\)(?<!{_LETTER})(?:{_LETTER}{{4,}}|[A-Z](?=[a-z]?[aeiouy])[a-z]{{2}}|(?i:yes|no))(?!{_LETTER})"
)
_OPTION = re.compile(r"\(?[A-E]\)?")
_LABEL = re.compile(r"\(([A-E])\) ?(?=\S)")  # of an option that is written out behind it
_OPTIONS = re.compile(r"[A-H]{2,8}")
_JOINTS = re.compile(r"\\[,;:! ]|[\s,.;:]|\band\b")
_LINKS = {"", "and", "or"}
"""Words between answers that are read one by one."""
_NAME_BEHIND = re.compile(
    r"(?P<value>[^<>]+?)\s*=\s*(?P<name>(?:[A-DF-HJ-Za-df-hj-z]|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi))"
    r"(?:_(?:\w|\{\w+\}))?)"  # e and i are numbers
)
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_RELATION = re.compile(r"\\(?:approx|neq?|leq?|geq?|lt|gt|in|sim|equiv)(?![a-zA-Z])")
_EXPONENT = re.compile(r"\s*\^\s*(?:\{[-+\d]+\}|\d)")


def clean(answer: str) -> str:
    """The answer without what marks it as mathematics, and without a full stop."""
    answer = _STARS.sub(" ", _POWER.sub(_as_exponent, _BOLD.sub(r" \1 ", answer)))
    answer = _ROOT.sub(r"\\sqrt{\1}", _MATHS_MARKS.sub(" ", _STYLE.sub(" ", answer)))
    answer = _NUMBER_IN_FONT.sub(r"\1", answer)
    answer = _SPACES_AROUND.sub("", _SPACE_IN_NUMBER.sub("", answer)).replace("~", " ")
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
    if _OPTION.fullmatch(texts[1]):
        label = _LABEL.match(texts[0])
        return (label[1] if label else texts[0].strip("()")).casefold() == texts[1].strip("()").casefold()
    if _TEXT.fullmatch(expected) and expected.startswith(r"\text"):
        return texts[0].casefold() == texts[1].casefold()
    if _OPTIONS.fullmatch(texts[1]):
        return _JOINTS.sub("", texts[0]) == texts[1]
    folded = [_CASELESS.sub(lambda word: word.group().casefold(), text) for text in texts]
    return folded[0] == folded[1]


def is_compound(answer: str) -> bool:
    r"""Whether it goes on behind words: `2\text{ hours }30\text{ minutes}`, of which math-verify reads the 2 alone."""
    before, *parts = _TEXT.split(answer)
    for words, behind in zip(parts[::2], parts[1::2], strict=True):
        goes_on = any(map(str.isdigit, words)) or any(map(str.isalnum, _EXPONENT.sub("", behind, count=1)))
        if goes_on and any(map(str.isalnum, before)) and words.strip(" ,;").casefold() not in _LINKS:
            return True
        before += words + behind
    return False


def is_same_compound(found: str, expected: str) -> bool:
    """Whether two answers of numbers and words are the same, but for what joins them."""
    texts = [_JOINTS.sub("", _TEXT.sub(r" \1 ", answer)).casefold() for answer in (found, expected)]
    return texts[0] == texts[1]


def without_modulus(found: str, expected: str) -> str:
    r"""An answer without a `\pmod{13}` that the expected one does not have."""
    return found if "mod" in expected else _MODULO.sub("", found)


def with_name_first(found: str, expected: str) -> str:
    """`12 = a` as `a = 12`, which math-verify reads as 12, where no name or equation is asked for."""
    ends = _NAME_BEHIND.fullmatch(found)
    if ends is None or "=" in expected or ends["name"] in expected or _RELATION.search(found):
        return found
    is_value = not any(map(str.isalpha, _COMMAND.sub("", ends["value"])))
    return f"{ends['name']} = {ends['value']}" if is_value else found
