"""Words and units beside the number of an answer: those that change it, and those that contradict each other."""

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
    "am pm", "bc=bce ad=ce", "c=celsius f=fahrenheit k=kelvin", "left right",
    "up down", "north south east west", "profit=gain loss", "increase decrease", "usd=dollar=dollars eur=euro=euros="
    "\u20ac gbp=pound=pounds=\u00a3 jpy=yen=\u00a5 inr=rupee=rupees=\u20b9 cent=cents",
)]  # fmt: skip
"""Words of one line exclude each other, except those that mean the same."""
_MEASURES = [[set(cell.split("=")) for cell in line.split()] for line in (
    "degree=degrees=deg=\u00b0 radian=radians=rad=rads",
    "second=seconds=sec=secs=s minute=minutes=min=mins hour=hours=hr=hrs=h day=days week=weeks month=months year=years",
    "mm=millimeter=millimeters cm=centimeter=centimeters m=meter=meters=metre=metres km=kilometer=kilometers "
    "inch=inches foot=feet=ft yard=yards=yd mile=miles=mi",
    "mg=milligram=milligrams g=gram=grams kg=kilogram=kilograms pound=pounds=lb=lbs ounce=ounces=oz ton=tons",
    "ml=milliliter=milliliters liter=liters=litre=litres cup=cups pint=pints quart=quarts gallon=gallons",
)]  # fmt: skip
"""Units of one line measure the same."""
_COMPOUND = {"mph": ("mile", "hour"), "kmh": ("km", "hour"), "kph": ("km", "hour")}


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

    A `k` in the expected answer alone may be a unit, of temperature.
    """
    texts = [list(map(" ".join, _SAID.findall(answer))) for answer in (found, expected)]
    of_found, of_expected = (
        {change.strip("0123456789 ").casefold().rstrip("s") for text in some for change in _CHANGES.findall(text)}
        for some in texts
    )
    words = [set(re.findall(r"\w+|[^\w\s]", " ".join(some).casefold())) for some in texts]
    kinds = ([[cell for cell in line if said.intersection(cell)] for said in words] for line in _UNLIKE)
    is_unlike = any(one and other and one != other for one, other in kinds) or _measure_apart(found, expected, words)
    return is_unlike or bool(of_found - of_expected or of_expected - of_found - {"k"})


def _measure_apart(found: str, expected: str, words: list[set[str]]) -> bool:
    """Return whether two answers have different units of one quantity; with pi and no unit, radians are assumed."""
    for said, answer in zip(words, (found, expected), strict=True):
        said.update({"\u00b0"} if r"^\circ" in answer else (), {"inch"} if r"\text{in}" in answer else ())
        said.update(unit for word in said & _COMPOUND.keys() for unit in _COMPOUND[word])
    if r"\pi" in expected and not words[1] and "\u00b0" in words[0]:
        return True
    for line in _MEASURES:
        one, other = ([cell for cell in line if said & cell] for said in words)
        if one and other and not any(cell in other for cell in one):
            return True
    return False
