"""Numbers that are followed by the words of a unit, as in `18 dollars`."""

import re

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
_TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mbox)\s*\{([^{}]*)\}")
_FACTOR = re.compile(
    r"(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore)[a-z]*|bn|gross|(?<!.)\s*k(?=\s|$)", re.I
)
_PER_CENT = re.compile(r"\bper[ -]cents?\b", re.I)


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
    texts = _TEXT.findall(answer)
    return {factor.strip().casefold().rstrip("s") for text in texts for factor in _FACTOR.findall(text)}


def _is_of_unit(word: str) -> bool:
    first, *others = word.split("/")
    return all(
        _SHORT.fullmatch(part)
        or (_WORD.fullmatch(part) and part not in _NO_UNITS.split() and not _LARGE.fullmatch(part))
        for part in [first, *(other for other in others if other not in _PER)]
    )
