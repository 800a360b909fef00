r"""How final answers are written: one form of each notation, words after numbers, and when two are the same text.

Upper and lower case count in formulas (`r` and `R` are two variables), and not in words and letters of options.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from math import gcd
from unicodedata import normalize

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
WITH_EXPONENT = re.compile(_TEXT.pattern + r"(?:\s*\^\s*(?:\{[-+\d]+\}|\d))?")
_MARK = "\uffff"


def _with_period(repeating: re.Match[str]) -> str:
    whole, once, period = (re.sub(r"\D", "", digits) for digits in repeating.groups())
    of_once = int(whole + once or "0")
    value = Fraction(int(f"{of_once}{period}") - of_once, (10 ** len(period) - 1) * 10 ** len(once))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value)


_SIGNS = str.maketrans({
    "\u2212": "-", "\u00b1": r"\pm ", "\u221e": r"\infty ", "\u00b7": r"\cdot ", "\u2032": "'", "\u2033": "''",
    "\u2264": r"\le ", "\u2265": r"\ge ", "\u00b0": r"^\circ ", "\u2103": r"^\circ C", "\u2109": r"^\circ F",
    "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2208": r"\in ", "\u2209": r"\notin ", "\u2216": r"\setminus ",
    "\u2282": r"\subset ", "\u2286": r"\subseteq ", "\u221b": "cbrt", "\u230a": r"\lfloor ", "\u230b": r"\rfloor ",
    "\u2308": r"\lceil ", "\u2309": r"\rceil ", "\u2260": r"\ne ", "\u2102": r"\mathbb{C}", "\u2115": r"\mathbb{N}",
    "\u211a": r"\mathbb{Q}", "\u211d": r"\mathbb{R}", "\u2124": r"\mathbb{Z}", "\u2220": r"\angle ",
    "\u25b3": r"\triangle ",
})  # fmt: skip
_IN_BRACKETS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_FUNCTION = r"(?:arc)?(?:sin|cos|tan|cot|csc)h?|ln|log|exp|(?:arc)?sech?(?=[(^]| ?x)"  # 5 sec is a time
_FUNCTION += r"|(?:min|max)(?=\()|(?:gcd|lcm)(?=\([\d, ]+\))"
_ARGUMENT = r"(?= ?(?:[\d(|^_{]|\\[a-zA-Z({|]|[\u03b1-\u03c9])|x(?![a-zA-Z])| [a-zA-Z](?![a-zA-Z]))"
_UNIT = r"(?:of|in|[cmk]m|[mk]g|lbs?|oz|ft|yd|mi|hrs?|mph|kmh|kph|ml|sq|[ap]m|usd|eur|gbp|jpy|inr|deg"
_UNIT += r"|(?=[a-z]{3})[a-z]+?[aeiou][a-z]*|[aeiou][a-z]{2,}s)"  # no product of variables such as `abc` and `xyz`
_UNITS = rf"{_UNIT}(?:/(?:{_UNIT}|[hs]))*"
NOTATIONS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"\\(?:mathrm|text|textrm)\s*\{\s*([ie])\s*\}", r"\1"),  # the numbers i and e, which are no units
    (r"(?<![\w)}\]])\*\*(?=\S)([^*]+)(?<=\S)\*\*(?![\d({\\-])", r" \1 "),  # **bold**
    (r"(?<=[\w)}\]])(?: ?\*\*| \*\* |\*\* (?=\d))([-+]?(?:\w+(?:\.\d+)?|\\[a-zA-Z]+(?:\{[^{}]*\})*|\{[^{}]*\}"
     r"|\((?:[^()]|\([^()]*\))*\)))(?!\w| ?\*\*)", r"^{\1}"),  # x**2; of several Python takes the last first: not read
    (r"^\s*\*\*|\*\*\s*$|\*\*(?=\s)|(?<=\s)\*\*", " "),  # marks of bold that are left
    (r"\\lg(?![a-zA-Z])", r"\\log_{10}"),
    (r"\\(?:boldsymbol|bm|underline|displaystyle)(?![a-zA-Z])", " "),
    (r"(?:\bUS)?\\?\$|(?<!\\)\\[()\[\]]|`|\\(?:boxed|fbox)(?![a-zA-Z])", " "),  # marks of mathematics
    ("[\uff01-\uff0f\uff1a-\uff5e\U0001d400-\U0001d7cb]", lambda letter: normalize("NFKC", letter[0])),
    ("([\u00b2\u00b3\u00b9\u2070\u2071\u2074-\u207f]+)|[\u2080-\u209c]+",
     lambda x: f"{'^' if x[1] else '_'}{{{normalize('NFKC', x[0])}}}".replace("\u2212", "-")),
    *((r"(?:\u221a|(?<![a-zA-Z])sqrt ?(?=[\d(])|\\sqrt ?(?=\())"
       rf"((?:\d+(?:\.\d+)?|[a-zA-Z])(?![\w^.])|{_IN_BRACKETS})", r"\\sqrt{\1}"),) * 3,  # one within another
    (rf"(?<![a-zA-Z\\])cbrt ?(\d+|[a-zA-Z](?!\w)|{_IN_BRACKETS})", r"\\sqrt[3]{\1}"),
    (rf"\\sqrt ?(\[\w+\]) ?(\d(?!\d)|[a-zA-Z](?!\w)|{_IN_BRACKETS})", r"\\sqrt\1{\2}"),
    (r"(?<![a-zA-Z\\])log(2|10)(?=\()", r"\\log_{\1}"),
    (rf"\\(?:operatorname\*?|mathrm|text|textrm) ?\{{ ?({_FUNCTION}) ?\}}{_ARGUMENT}", r"\1"),
    (rf"(?<![a-zA-Z\\])([b-zB-Z]?)({_FUNCTION}){_ARGUMENT}", r"\1\\\2 "),
    (r"\\(ln|log) *(\w+) *(?=/ *\\\1)", r"\\\1(\2)"),  # ln 3 / ln 2
    (rf"(?<![a-zA-Z\\])abs({_IN_BRACKETS})", r"|\1|"),
    (r" (?=\\(?:cup|cap|in|notin|setminus|subset(?:eq)?)(?![a-zA-Z]))", ""),
    (r"(?<![\d}])" + _TEXT.pattern.replace("[^{}]*", r"\s*-?\d[\d.,]*\s*"), r"\1"),  # \text{5}
    (r"(?<=\d)(?:\\[,;:! ]|\{,\}|,\\!)(?=\d{3}(?!\d))", ""),  # 10\,000
    (r"[\s~]+", " "),
    (r"^(?: |\\[,;:! ])+|(?: |\\[,;:! \\])+$", ""),
    (r"^= ?", ""),  # the end of a line of working
    (r"\+ ?/ ?-", r"\\pm "),
    (r"\\degree(?![a-z])", r"^\\circ "),
    (r"\\varnothing|\u2205", r"\\emptyset"),
    (r"(?<![a-zA-Z\\])(pi|theta)(?![a-zA-Z])", r"\\\1 "),
    (r"\\mathbb ?([CNQRZ])(?![a-zA-Z])", r"\\mathbb{\1}"),
    (r"(\\(?:text|textrm|mathrm|mbox) ?\{[^{}^]*[a-zA-Z]) ?\^ ?(?:\{([23])\}|([23])) ?\}", r"\1}^\2\3"),  # \text{cm^2}
    ("[\u00bc-\u00be\u2153-\u215e]", lambda x: r"\frac{{{}}}{{{}}}".format(*normalize("NFKC", x[0]).split("\u2044"))),
    ("(?:\\d[\u0304-\u0307])+", lambda x: r"\overline{{{}}}".format("".join(filter(str.isdigit, x[0])))),
    (r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot) ?|(?=\())(\{\d+\}(?:\d*\\dot ?\{\d\})?|\(\d+\)|\d)", _with_period),
    (r"(\d*)\.(\d*?)(\d{1,9}?)\3\3+(?:\.{3}|\u2026|\\l?dots)", _with_period),  # 0.333...
    (r"(?i)^(?:approximately|\\approx|\u2248) ?(?=[\d.\\-])", ""),
    (r"^\u2013 ?(?=[\d.\\])", "-"),  # a dash for a sign
    (r"[.,;: ]+$", ""),
    (r"^\\(?:text|mathrm)\{([^{}]*\d[^{}]*)\}$", r"\1"),  # \text{5 cm}
    (r"^[-+]?\d{1,3}(?: \d{3})+(?![\d/]| ?[\d/])", lambda spaced: spaced[0].replace(" ", "")),  # 1 234 567
    (r"(?<![\w.])(?=\d+(?:\.|E|e\d|e[-+]\d\d)|1e)(\d+(?:\.\d+)?)[eE]\+?(-?\d{1,3})(?!\w)", r"\1\\cdot 10^{\2}"),
    (r"(?<![\d.,^_])(\d+)(?: |\\[,;: ])+(\d{1,2}) ?/ ?([1-9]\d*)(?!\d|\.\d)",  # 3 1/2
     lambda mixed: rf"\frac{{{int(mixed[1]) * int(mixed[3]) + int(mixed[2])}}}{{{mixed[3]}}}"),
    (r"(?i) ?(\\text ?\{)? ?(?:\\?%|\bper ?cent(?:age)?|\bpct) ?(?(1)\})$", r"\\%"),
    (r" ?(?:\^ ?(?:\\circ|\{ ?\\circ ?\})|\bdegrees?) ?(\\(?:text|mathrm) ?\{)? ?([CF])\b ?(?(1)\})", r"\\text{ \2}"),
    (r"^([\u20ac\u00a3\u00a5\u20b9]) ?(.+)$|^(.+?) ?([\u20ac\u00a3\u00a5\u20b9])$", r"\2\3\\text{ \1\4}"),  # of money
    (r"(?i)(:\d\d|\d ) ?(\\text ?\{)? ?([ap])\.?m(?![a-z])\.?(?(2)\})$", r"\1\\text{ \3m}"),  # 2:30 p.m.
    (r"^\(([0-9A-F]+)\)(?=_)", r"\1"),  # (2102)_3
    (r"\\(?:(?:left|right) ?\\)?([lr])angle(?![a-z])", lambda side: "()"[side[1] == "r"]),
    (r"^([^<>=]+?) ?(>|\\g[et][a-z]*) ?([^<>=]+?) ?(>|\\g[et][a-z]*) ?([^<>=]+)$",  # 3 > x > 1
     lambda x: re.sub(r"\\g(?=[et])", r"\\l", "{4} {3} {2} {1} {0}".format(*x.groups()).replace(">", "<"))),
    (r"^((?!.*(?<![a-zA-Z\\])[ab](?![a-zA-Z])).*\+ ?)c$", r"\1C"),  # the constant of an integral
    (r"^((?:[^<>a-zA-Z\\]|\\[^a-zA-Z]|\\(?:[dt]?frac|sqrt|pi))+)= ?([A-DF-HJ-Za-df-hj-z](?:_\w)?)$", r"\2=\1"),  # 2=a
    (r"(?ai)^((?=\S*\d)[-+]?[\d,./]*(?: ?\\[dt]?frac ?(?:\{\d+\}|\d) ?(?:\{\d+\}|\d))?) "  # 18 dollars
     rf"({_UNITS}(?:[ -]{_UNITS}){{0,5}})(?:\^\{{?[23]\}}?)?$", r"\1 \\text{ \2}"),
)  # fmt: skip
"""What answers are written with, and what stands for it from then on, in this order, after the signs."""
_PATTERNS = [(re.compile(pattern), written) for pattern, written in NOTATIONS]
_MODULO = re.compile(r" ?\\p?mod ?(\{[^{}]*\}|\d+)$")
_LETTER = r"[^\W\d_]"
_WORDS = re.compile(rf"(?=.*{_LETTER}{{3}}){_LETTER}(?:{_LETTER}|[ '-]){{3,}}")
_NO_WORDS = re.compile(rf"\s-|-\s|\b{_LETTER}-|-{_LETTER}\b|\b{_LETTER} (?:and|or) {_LETTER}\b")
_CASELESS = re.compile(
    rf"(?<!\\)(?<!{_LETTER})(?:{_LETTER}{{4,}}|[A-Z](?=[a-z]?[aeiouy])[a-z]{{2}}|(?i:yes|no))(?!{_LETTER})"
)
_OPTION = re.compile(r"\(?[A-Z]\)?|\([a-z]\)")
_CHOICE = re.compile(
    r"(?i:(?:answer|choice|option)\b:? ?)?\(?([A-Za-z])(?:\)[:.]?| ?[:.\u2013\u2014]|$"
    r"|(?<=[A-H])(?: |\\ ?|\\q?quad ?)(?=\d\S*$))(?!.*[ ,;]\(?[A-Z][):])"  # C 12
)
"""An option by its letter, also where it is written out after it, and no second one."""
_WRITTEN = re.compile(r"\d+(?:-\d+)+|\d+(?:/\d+){2,}|\d+(?: \d+)+|0[xX][0-9a-fA-F]+|0\d?:\d\d|\d{1,2}:0\d")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)")
_JOINTS = re.compile(r"\\[,;:! ]|[\s,.;:\u3001\u548c&]|\band\b")
_AROUND_OPTIONS = re.compile(rf"{_JOINTS.pattern}|\\?[{{}}]|[()\[\]]|(?i:\b(?:option|choice|answer)s?\b)")
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
"""Text that makes another number, or none, of the one beside it."""
_SAID = re.compile(r"(\d?)(?: |\\[,;: ])*" + _TEXT.pattern.replace("mathbf|", ""))
_UNLIKE = [[cell.split("=") for cell in line.split()] for line in (
    "am pm", "bc=bce ad=ce", "c=celsius f=fahrenheit k=kelvin", "degree=degrees radian=radians", "left right",
    "up down", "north south east west", "profit=gain loss", "increase decrease", "usd=dollar=dollars eur=euro=euros="
    "\u20ac gbp=pound=pounds=\u00a3 jpy=yen=\u00a5 inr=rupee=rupees=\u20b9 cent=cents",
)]  # fmt: skip
"""Words of one line exclude each other, except those that mean the same."""


def clean(answer: str) -> str:
    """The answer in one notation, without what marks it as mathematics, and without a full stop."""
    answer = answer.translate(_SIGNS)
    for pattern, written in _PATTERNS:
        answer = pattern.sub(written, answer)
    return answer


def as_text(answer: str) -> str:
    """The answer without commands that set text, and without a full stop."""
    return " ".join(_TEXT.sub(r"\1", answer).split()).rstrip(".")


def is_words(text: str) -> bool:
    """Whether a text is words and no formula: letters with a run of three, and no `x - y` or `A and C`."""
    return _WORDS.fullmatch(text) is not None and _NO_WORDS.search(text) is None


def is_written(text: str) -> bool:
    """Whether a text of digits is no formula: a date, a score, a range, a list, hexadecimal digits, a time of day.

    `10:30` is a time, since a ratio is given in lowest terms; `2:3` and `3:10` are ratios.
    """
    clock = _CLOCK.fullmatch(text)
    is_reducible = clock is not None and gcd(*map(int, clock.groups())) != 1
    return is_reducible or _WRITTEN.fullmatch(text) is not None


def is_same_text(found: str, expected: str) -> bool:
    """Whether two answers are equal as text."""
    texts = [as_text(found), as_text(expected)]
    if not all(texts):
        return False
    texts[1] = re.sub(r"(?i:option) (?=\(?[A-Z]\)?$)", "", texts[1])
    if _OPTION.fullmatch(texts[1]):
        letter, choice = texts[1].strip("()"), _CHOICE.match(texts[0])
        said = choice[1] if choice else ""
        is_caseless = len(texts[0]) > 1 or letter.upper() in "ABCDE"  # else it may be a variable
        return said == letter or (is_caseless and said.upper() == letter.upper())
    if _TEXT.fullmatch(expected) and expected.startswith(r"\text"):
        return texts[0].casefold() == texts[1].casefold()
    options = _JOINTS.sub("", re.sub(r"\(([A-H])\)", r"\1", texts[1]))
    if re.fullmatch("[A-H]{2,8}", options):  # several, without an order, unless it is a run of another than theirs
        in_order = sorted if options != texts[1] or options == "".join(sorted(options)) else list
        return in_order(_AROUND_OPTIONS.sub("", texts[0])) == in_order(options)
    folded = [_CASELESS.sub(lambda word: word.group().casefold(), text) for text in texts]
    return folded[0] == folded[1]


def is_compound(answer: str) -> bool:
    r"""Whether it goes on after words: `2\text{ hours }30\text{ minutes}`, of which math-verify reads the 2 alone."""
    marked = WITH_EXPONENT.sub(_mark, answer)
    return re.search(rf"\w[^{_MARK}]*{_MARK}\W*\w", marked) is not None


def _mark(words: re.Match[str]) -> str:
    is_joint = words[1].strip(" ,;").casefold() in ("", "and", "or")
    return " " if is_joint else f"{_MARK}{any(map(str.isdigit, words[1])) or ''}"


def is_same_compound(found: str, expected: str) -> bool:
    """Whether two answers of numbers and words are the same, except for what joins them."""
    texts = [_JOINTS.sub("", _TEXT.sub(r" \1 ", answer)).casefold() for answer in (found, expected)]
    return texts[0] == texts[1]


def without_modulus(found: str, expected: str) -> list[str]:
    r"""Two answers without `\pmod{13}`, where both have the same or one has none."""
    answers = [found, expected]
    moduli = {modulus.strip("{}") for answer in answers for modulus in _MODULO.findall(answer)}
    return answers if len(moduli) > 1 else [_MODULO.sub("", answer) for answer in answers]


def says_another_number(found: str, expected: str) -> bool:
    r"""Whether the text in one answer makes another number of it than that in the other: `3\text{ dozen}` is not 3.

    A `k` in the expected answer alone may be a unit, of temperature.
    """
    texts = [list(map(" ".join, _SAID.findall(answer))) for answer in (found, expected)]
    of_found, of_expected = (
        {change.strip("0123456789 ").casefold().rstrip("s") for text in some for change in _CHANGES.findall(text)}
        for some in texts
    )
    words = [set(re.findall(r"\w+|[^\w\s]", " ".join(some).casefold())) for some in texts]
    kinds = ([[cell for cell in line if said.intersection(cell)] for said in words] for line in _UNLIKE)
    is_unlike = any(one and other and one != other for one, other in kinds)
    return is_unlike or bool(of_found - of_expected or of_expected - of_found - {"k"})
