r"""How final answers are written: one form of each notation, units behind numbers, and when two are the same text.

Upper and lower case count in formulas (`r` and `R` are two variables), and not in words and letters of options.
"""

import re
from collections.abc import Callable

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")


def _as_exponent(power: re.Match[str]) -> str:
    exponent = power.group(1)
    return f"^{exponent}" if exponent.startswith("{") else f"^{{{exponent}}}"


NOTATIONS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"(?<![\w)}\]])\*\*(?=\S)([^*]+)(?<=\S)\*\*(?![\d({\\-])", r" \1 "),  # **bold**
    (
        r"(?<=[\w)}\]])(?: ?\*\*| \*\* |\*\* (?=\d))"
        r"([-+]?(?:\w+(?:\.\d+)?|\\[a-zA-Z]+(?:\{[^{}]*\})*|\{[^{}]*\}|\((?:[^()]|\([^()]*\))*\)))"
        r"(?!\w| ?\*\*)",  # of several Python takes the last first: those are not read
        _as_exponent,
    ),  # x**2
    (r"^\s*\*\*|\*\*\s*$|\*\*(?=\s)|(?<=\s)\*\*", " "),  # marks of bold that are left
    (r"\\(?:boldsymbol|bm|underline|displaystyle)(?![a-zA-Z])", " "),
    (r"\\?\$|(?<!\\)\\[()\[\]]|`|\\(?:boxed|fbox)(?![a-zA-Z])", " "),  # marks of mathematics
    (r"\u221a(\d+(?:\.\d+)?|[a-zA-Z]|\([^()]*\))(?![\w^.])", r"\\sqrt{\1}"),
    (r"(?<![\d}])" + _TEXT.pattern.replace("[^{}]*", r"\s*-?\d[\d.,]*\s*"), r"\1"),  # \text{5}
    (r"(?<=\d)(?:\\[,;:! ]|\{,\}|,\\!)(?=\d{3}(?!\d))", ""),  # 10\,000
    (r"^(?:\s|\\[,;:! ]|~)+|(?:\s|\\[,;:! ]|~)+$", ""),
    ("~", " "),
    ("\u2212", "-"),
    ("\u221e", r"\\infty "),
    ("\u00b0", r"^\\circ "),
    ("\u00b7", r"\\cdot "),
    (r"\s+", " "),
    (r"^ | $", ""),
    (r"(?i)^(?:approximately|\\approx|\u2248) ?(?=[\d.\\-])", ""),
    (r"^\u2013 ?(?=[\d.\\])", "-"),  # a dash for a sign
    (r"[.,;: ]+$", ""),
)
"""What answers are written with, and what stands for it from then on, in this order; nothing else changes a text."""
_PATTERNS = [(re.compile(pattern), written) for pattern, written in NOTATIONS]
_MODULO = re.compile(r"\s*\\p?mod\s*(?:\{[^{}]*\}|\d+)$")
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
MAX_WORDS = 6
_COUNTED = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?(?:/\d+)?) ([A-Za-z]+(?:[ /-][A-Za-z]+)*)(?:\^\{?[23]\}?)?", re.ASCII)
_AS_TEXT = re.compile(r"^\\(?:text|mathrm)\{([^{}]*\d[^{}]*)\}$")
_WORD = re.compile(r"(?=...)[a-z]+?[aeiou][a-z]*|[aeiou][a-z]{2,}s")  # no product of variables such as `abc` and `xyz`
_SHORT = re.compile(r"of|in|cm|mm|km|kg|mg|lb|lbs|oz|ft|yd|mi|hr|hrs|mph|kmh|kph|ml|sq")
_PER = {"h", "s"}
_NO_UNITS = """
    and or nor to over fewer short
    minus plus times divided multiplied squared cubed factorial choose mod modulo base point root
    sqrt log exp sin cos tan cot negative remainder dozen dozens score gross pi percent infinity infinite half halves
    double doubled twice triple tripled thrice grand lakh lakhs crore crores mil kilo mega giga
    third thirds fourth fourths quarter quarters fifth fifths sixth sixths seventh sevenths eighth eighths ninth
    ninths tenth tenths eleventh twelfth twelfths zero one two three four five six seven eight nine ten eleven twelve
    thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty
    ninety not no never neither either but maybe perhaps possibly probably wrong incorrect false unless except
    tens if nothing unknown without instead rather versus than least most above below under between
    through until till from alpha beta gamma
    delta epsilon theta lambda sigma omega
"""  # they change the number, take it back or go on to another one
_LARGE = re.compile(r"(?:hundred|thousand|million|billion|trillion|percent)[a-z]*")
_FACTOR = re.compile(
    r"(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore)[a-z]*|bn|gross|(?<!.)\s*k(?=\s|$)", re.I
)
_PER_CENT = re.compile(r"\bper[ -]cents?\b", re.I)
_TEXT_OF_UNIT = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mbox)\s*\{([^{}]*)\}")


def clean(answer: str) -> str:
    """The answer in one notation, without what marks it as mathematics, and without a full stop."""
    for pattern, written in _PATTERNS:
        answer = pattern.sub(written, answer)
    return answer


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


def unit_as_text(answer: str) -> str:
    r"""`18 dollars` as `18 \text{ dollars}`, which math-verify reads as 18; any other answer as it is."""
    answer = _AS_TEXT.sub(r"\1", answer)
    counted = _COUNTED.fullmatch(answer)
    if counted is None or _PER_CENT.search(answer):
        return answer
    words = re.split("[ -]", counted.group(2).casefold())
    if len(words) > MAX_WORDS or not all(map(_is_of_unit, words)):
        return answer
    return f"{counted.group(1)} \\text{{ {counted.group(2)}}}"


def has_other_factors(found: str, expected: str) -> bool:
    r"""Whether the text in one answer multiplies it and that in the other does not: `3\text{ dozen}` is not 3.

    A `k` in the expected answer alone may be a unit, of temperature.
    """
    of_found, of_expected = _factors(found), _factors(expected)
    return bool(of_found - of_expected or of_expected - of_found - {"k"})


def _factors(answer: str) -> set[str]:
    texts = _TEXT_OF_UNIT.findall(answer)
    return {factor.strip().casefold().rstrip("s") for text in texts for factor in _FACTOR.findall(text)}


def _is_of_unit(word: str) -> bool:
    first, *others = word.split("/")
    return all(
        _SHORT.fullmatch(part)
        or (_WORD.fullmatch(part) and part not in _NO_UNITS.split() and not _LARGE.fullmatch(part))
        for part in [first, *(other for other in others if other not in _PER)]
    )
