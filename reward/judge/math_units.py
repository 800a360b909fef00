"""Words and units beside the number of an answer: which of them change it, and which contradict each other."""

import re

from reward.judge.math_text import JOINTS, TEXT

WITH_EXPONENT = re.compile(TEXT.pattern + r"(?:\^\{[-+\d]+\})?")
_MARK = "\uffff"
_CHANGING = r"""
    hundred\w* thousand\w* million\w* billion\w* trillion\w* dozen\w* lakhs? crores? gross grand mil bn mn kilo mega
    giga tens percent\w* half halves thirds? (?:four|fif|six|seven|eigh|nin|ten|eleven|twelf)ths? squared cubed
    factorial doubled? tripled? halved twice thrice zero one two three four five six seven eight nine ten eleven twelve
    (?:twen|thir|for|fif|six|seven|eigh|nine)(?:ty|teen) minus plus negative quarters? not? never neither but maybe
    perhaps possibly probably wrong incorrect false unless except if nothing unknown instead rather versus alpha beta
    gamma delta epsilon theta lambda sigma omega
"""
_CHANGES = re.compile(
    rf"(?i:(?<!nearest )\b(?:{'|'.join(_CHANGING.split())})\b(?!-| decimal| significant)|\bto the (?!nearest)\w+"
    r"|^\d +k\b|\b(?:than|least|most|up to|under|over|above|below|fewer|short)\s*$"
    r"|\b(?:or|and) (?:more|less|fewer|greater|higher|lower|above|below|over|under|up|so)\b)|^\d +[MB]\b(?!\.)"
)
"""Text that changes the value of the number beside it, or leaves no single value."""
_SAID = re.compile(r"(\d?)(?: |\\[,;: ])*" + TEXT.pattern)
_UNLIKE = [[cell.split("=") for cell in line.split()] for line in (
    "am pm", "bc=bce ad=ce", "left right",
    "up down", "north south east west", "profit=gain loss", "increase decrease", "usd=dollar=dollars eur=euro=euros="
    "\u20ac gbp=pound=pounds=\u00a3 jpy=yen=\u00a5 inr=rupee=rupees=\u20b9 cent=cents",
)]  # fmt: skip
"""Words of one line exclude each other, except those that mean the same."""
_NAMES_OF_UNITS = """
    degree=degrees=deg radian=radians=rad=rads inch=inches foot=feet=ft yard=yards=yd mile=miles=mi
    second=seconds=sec=secs=s minute=minutes=min=mins hour=hours=hr=hrs=h day=days week=weeks month=months year=years
    celsius=c fahrenheit=f kelvin=k pound=pounds=lb=lbs
    ounce=ounces=oz ton=tons cup=cups pint=pints quart=quarts gallon=gallons=gal
"""
_UNITS = {name: line.partition("=")[0] for line in _NAMES_OF_UNITS.split() for name in line.split("=")}
"""Names of units, and one name of each."""
_PREFIXES = {"nano": "n", "micro": "\u03bc", "milli": "m", "centi": "c", "deci": "d", "kilo": "k", "": ""}
_METRIC = re.compile(
    rf"({'|'.join(_PREFIXES)})(met(?:er|re)|gram|lit(?:er|re))s?|([{''.join(_PREFIXES.values())}]?)([mgl])"
)
_RATES = {"mph": "mile/hour", "kmh": "km/hour", "kph": "km/hour"}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_DIVIDES = frozenset(("/", "per", "a", "an", "each", "every"))
_SAID_UNITS = re.compile(rf"(/\s*)?{TEXT.pattern}(?:\^\{{(-?\d+)\}})?|\^\\circ")
_HOUR_OF_DAY = re.compile(r"\b[ap]\.m\b")


def is_compound(answer: str) -> bool:
    r"""Return whether numbers follow words: of `2\text{ hours }30\text{ minutes}` math-verify reads only the 2."""
    marked = WITH_EXPONENT.sub(_mark, answer)
    return re.search(rf"\w[^{_MARK}]*{_MARK}\W*\w", marked) is not None


def _mark(words: re.Match[str]) -> str:
    is_joint = words[1].strip(" ,;").casefold() in ("", "and", "or")
    return " " if is_joint else f"{_MARK}{any(map(str.isdigit, words[1])) or ''}"


def is_same_compound(found: str, expected: str) -> bool:
    """Return whether two answers of numbers and words are the same, except for what joins them."""
    texts = [JOINTS.sub("", TEXT.sub(r" \1 ", answer)).casefold() for answer in (found, expected)]
    return texts[0] == texts[1]


def says_another_number(found: str, expected: str) -> bool:
    r"""Return whether the text beside the numbers makes the answers differ: `3\text{ dozen}` is not 3.

    A `k` that only the expected answer has does not count: it may be kelvin instead of thousand.
    """
    texts = [list(map(" ".join, _SAID.findall(answer))) for answer in (found, expected)]
    of_found, of_expected = (
        {change.strip("0123456789 ").casefold().rstrip("s") for text in some for change in _CHANGES.findall(text)}
        for some in texts
    )
    words = [set(re.findall(r"\w+|[^\w\s]", " ".join(some).casefold())) for some in texts]
    kinds = ([[cell for cell in line if said.intersection(cell)] for said in words] for line in _UNLIKE)
    is_unlike = any(one and other and one != other for one, other in kinds) or _has_unlike_units(found, expected)
    return is_unlike or bool(of_found - of_expected or of_expected - of_found - {"k"})


def _has_unlike_units(found: str, expected: str) -> bool:
    """Return whether both answers have units of measure that differ; with pi and no unit, radians are assumed."""
    units = [units_of(answer) for answer in (found, expected)]
    if r"\pi" in expected and not units[1]:
        return units[0] == {"degree": 1}
    return all(units) and units[0] != units[1]


def units_of(answer: str) -> dict[str, int]:
    r"""Return the exponents of the known units in an answer: `{"m": 1, "second": -2}` for `5 \text{m/s}^{2}`."""
    units: dict[str, int] = {}
    for said in _SAID_UNITS.finditer(answer):
        if said[2] is None:
            units["degree"] = 1
            continue
        words = _HOUR_OF_DAY.sub("", said[2].casefold())
        words = re.sub(r"\w+", lambda word: _RATES.get(word[0], word[0]), words)
        sign, power = -1 if said[1] else 1, 1
        tokens = re.findall(r"[^\W\d_]+|/", words)
        for place, token in enumerate(tokens):
            unit = _unit(token, is_last=place + 1 == len(tokens))
            if unit:
                units[unit], power = sign * power, 1
            sign, power = -1 if token in _DIVIDES else sign, _POWERS.get(token, power)
        if said[3] and tokens and (unit := _unit(tokens[-1], is_last=True)):
            units[unit] *= int(said[3])
    return units


def _unit(word: str, *, is_last: bool) -> str:
    """Return the name of a known unit, or nothing."""
    if metric := _METRIC.fullmatch(word):
        return metric[3] + metric[4] if metric[4] else _PREFIXES[metric[1]] + metric[2][0]
    return "inch" if word == "in" and is_last else _UNITS.get(word, "")
