r"""The parser of an answer's text: LaTeX is read by pylatexenc, and commands that only change the typeface are dropped.

`\le`, `\leq` and `≤` are one sign, by the tables of pylatexenc and of Unicode; so are `x²` and `x^2`, `½` and
`\frac12`, `𝟓`, `５` and `5`.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

MAX_DEPTH = 20  # of brackets and environments: the time of math-verify doubles with each


class Node(NamedTuple):
    r"""A part of an answer.

    Example: `Node("command", "frac", ((Node("number", "1"),), (Node("number", "2"),)))` for `\frac12`.
    """

    kind: str
    """number, word (a run of letters), text (words set as such), sign, blank, line (its end), cell, command, up, down,
    group (in braces) or rows (of a matrix or the like)."""
    text: str = ""
    """The digits, letters or sign; the name of a command or environment without its backslash."""
    args: tuple[tuple["Node", ...], ...] = ()


Nodes = tuple[Node, ...]

_HIDDEN = {"\u2062": "", "\u2063": ",", "\u2064": "+"}  # characters of format that mean something
_SAME = str.maketrans({
    "\u2212": "-", "\u2010": "-", "\u2011": "-", "\u2044": "/", "\u2215": "/", "\u2236": ":", "\u2032": "'",
    "\u2019": "'", "\u22c5": "\u00b7", "\u2219": "\u00b7", "\u2217": "*", "\u2266": "\u2264", "\u2a7d": "\u2264",
    "\u2267": "\u2265", "\u2a7e": "\u2265", "\u29b0": "\u2205", "\u2223": "|", "\u27c2": "\u22a5",
    "\u2206": "\u0394", "\u2126": "\u03a9", "\u27e8": "(", "\u27e9": ")", "\u2329": "(",
    "\u232a": ")", "\u22ef": "\u2026", "\u3001": ",", "\u21d4": "\u27fa", "\u21d2": "\u27f9", "\u3008": "(",
    "\u3009": ")", "\u02da": "\u00b0",
})  # fmt: skip
"""Characters that look alike or mean the same, which Unicode's compatibility form keeps apart."""
_ALIASES = {
    "ne": "neq", "degree": "textdegree", "implies": "Longrightarrow", "iff": "Longleftrightarrow",
    "lparen": "(", "rparen": ")", "lbrack": "[", "rbrack": "]", "colon": ":", "lt": "<", "gt": ">", "|": "Vert",
    "land": "wedge", "lor": "vee", "triangle": "bigtriangleup", "vartriangle": "bigtriangleup", "gets": "leftarrow",
    "owns": "ni", "neg": "lnot",
}  # fmt: skip
"""Names of signs that the tables of pylatexenc do not have, and what stands there for them."""
_NAMES_OF_TYPE = """
    tiny scriptsize footnotesize small normalsize large Large LARGE huge Huge
    displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits
    rm bf it sf tt sl sc cal em mit bfseries itshape mdseries upshape slshape scshape rmfamily sffamily ttfamily
    normalfont boldmath unboldmath
    left right middle big Big bigg Bigg bigl Bigl biggl Biggl bigr Bigr biggr Biggr bigm Bigm biggm Biggm
    nonumber notag hline centering noindent mathstrut strut null relax nobreak allowbreak protect selectfont
    color hspace vspace mspace mskip hskip kern mkern phantom hphantom vphantom tag label rule fontsize cline
"""
_NAMES_OF_BLANKS = """
    , ; : ! > quad qquad space enspace enskip thinspace medspace thickspace negthinspace negmedspace negthickspace
    hfill hfil nobreakspace par newline linebreak break
"""
_NAMES_OF_WORDS = "text textrm textbf textit textsf texttt textsl textsc textup textnormal emph mathrm mbox hbox"
_NAMES_OF_ROWS = "matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array cases dcases rcases"
_NAMES_WITH_ARGUMENTS = "sqrt overline bar dot hat vec overrightarrow overleftrightarrow widehat tilde pmod"
_NAMES_WITH_ONE = """
    boxed fbox mathbin mathrel mathord mathop mathopen mathclose mathpunct mathinner abs norm pmod boldsymbol bm pmb
    mathscr mathds mathup mathnormal mspace phantom substack smash rlap llap mathclap label cline mathbb overarc
"""
_NAMES_WITH_TWO = (
    "dfrac tfrac cfrac sfrac binom dbinom tbinom overset underset stackrel fontsize scalebox rule colorbox"
)
_SETS_TYPE = frozenset(_NAMES_OF_TYPE.split())
"""Commands that are gone, with their arguments: sizes, styles, fonts, brackets' sizes, colours, lengths, labels."""
_BLANKS = frozenset(_NAMES_OF_BLANKS.split()) | {" ", "\n", "\t", "~"}
_WORDS = frozenset(_NAMES_OF_WORDS.split())
"""Commands whose argument is words, or a unit."""
_LETTER = re.compile("[abeiknpqrt-z]|[A-Za-z][.:]")  # a number or variable, no unit; and the mark of an option
_OPTION_MARK = re.compile(r"\([A-Ja-j]\)|[A-J]\)(?= )")
_IN_WORDS = frozenset("-'.,/:;\u00b0")
_ENDS = frozenset({"blacksquare", "square", "Box", "qed", "qedsymbol", "Blacksquare"})
_MATRICES = frozenset(_NAMES_OF_ROWS.split())
_FRACTIONS = frozenset({"frac", "dfrac", "tfrac", "cfrac", "sfrac", "nicefrac"})
_BINOMIALS = frozenset({"binom", "dbinom", "tbinom"})
_OVER = {"over": "frac", "choose": "binom", "atop": "binom"}
_MEANT = frozenset(_NAMES_WITH_ARGUMENTS.split())
"""Commands that say something and have arguments; of any other the last argument is what it shows."""
_PIECE = re.compile(
    r"(?<![\w.])(?=\d+(?:\.|E|e\d|e[-+]\d\d)|1e)(?P<mantissa>\d+(?:\.\d+)?)[eE]\+?(?P<exponent>-?\d{1,3})(?!\w)"
    r"|(?P<number>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?:\.\d{3}){2,}(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)"
    r"|(?P<word>[^\W\d_\u0370-\u03ff]+)|(?P<line>\s*\n\s*)|(?P<blank>\s+)"
    r"|(?P<dots>\.{3,})|(?P<both>\+ ?/ ?-)|(?P<sign>.)", re.DOTALL,
)  # fmt: skip
_DOLLAR = re.compile(r"(\\[^()\[\]])|\bUS(?=\\?\$)|\$|\\[()\[\]]|`|(%)", re.DOTALL)  # \$ is money
_BOLD = (
    (re.compile(r"(?<![\w)}\]])\*\*(?=\S)([^*]+)(?<=\S)\*\*(?![\d({\\-])"), r" \1 "),
    (re.compile(r"(?<=[\w)}\]])(?: ?\*\*| \*\* |\*\* (?=\d))([-+]?(?:\w+(?:\.\d+)?|\\[a-zA-Z]+(?:\{[^{}]*\})*|"
                r"\{[^{}]*\}|\((?:[^()]|\([^()]*\))*\)))(?!\w| ?\*\*)"), r"^{\1}"),  # of several the last comes first
    (re.compile(r"^\s*\*\*|\*\*\s*$|\*\*(?=\s)|(?<=\s)\*\*"), " "),
)  # fmt: skip
"""Markdown's marks of bold text, and Python's sign of a power."""
_REPEATING = re.compile("(?:\\d[\u0304-\u0307])+")
_OPENED, _CLOSED = re.compile(r"(?<!\\)\{"), re.compile(r"(?<!\\)\}")
_DEEPER = re.compile(r"[(\[{]|\\begin(?![a-zA-Z])|([)\]}]|\\end(?![a-zA-Z]))")


class UnreadableError(ValueError):
    """The brackets or environments of an answer are nested more deeply than MAX_DEPTH, or a brace is never closed."""


def read(text: str) -> Nodes:
    """Return the tree of an answer.

    Raises:
        UnreadableError: the answer is nested too deeply, or it was cut off within a brace.
    """
    if depth(text) > MAX_DEPTH or len(_OPENED.findall(text)) > len(_CLOSED.findall(text)):
        raise UnreadableError
    text = _in_latex(text)
    for pattern, written in _BOLD:
        text = pattern.sub(written, text)
    text = _DOLLAR.sub(lambda found: found[1] or (r"\%" if found[2] else " "), text)
    walker_type, context, _ = library()
    walker = walker_type(text, latex_context=context, tolerant_parsing=True)
    state = walker.make_parsing_state(in_math_mode=True)
    return tuple(_nodes(walker.get_latex_nodes(parsing_state=state)[0]))


def depth(text: str) -> int:
    """Return how deeply brackets and environments are nested."""
    most = now = 0
    for found in _DEEPER.finditer(text):
        now += -1 if found[1] else 1
        most = max(most, now)
    return most


@functools.cache
def library() -> tuple[Any, Any, dict[str, str]]:
    """Return pylatexenc's parser, the arguments of commands, and the signs that commands stand for."""
    import logging  # a judge imports this once for all its children

    from pylatexenc import latex2text, latexwalker, macrospec

    logging.getLogger("pylatexenc").setLevel(logging.ERROR)  # it says what it reads nevertheless
    arguments = {**dict.fromkeys(_NAMES_WITH_TWO.split(), "{{"), **dict.fromkeys(_NAMES_WITH_ONE.split(), "{")}
    arguments |= {"raisebox": "{[[{"}
    context = latexwalker.get_default_latex_context_db().filter_context(keep_which=["macros", "environments"])
    context.add_context_category(
        "answers",
        macros=[
            *(macrospec.std_macro(name, written) for name, written in arguments.items()),
            *(macrospec.std_macro(name, "*{") for name in ("operatorname", "tag", "hspace", "vspace")),
        ],
        specials=[macrospec.SpecialsSpec("&"), macrospec.SpecialsSpec("~")],
        prepend=True,
    )
    shown = latex2text.get_default_latex_context_db()
    specs = [spec for category in shown.categories() for spec in shown.d[category]["macros"].values()]
    signs = {spec.macroname: spec.simplify_repl for spec in specs if isinstance(spec.simplify_repl, str)}
    return latexwalker.LatexWalker, context, {name: sign for name, sign in signs.items() if len(sign.strip()) == 1}


def sign_of(name: str) -> str | None:
    r"""Return the sign that a command stands for, such as `≤` for `leq`; None: it stands for no sign."""
    name = _ALIASES.get(name, name)
    sign = library()[2].get(name, name if len(name) == 1 and not name.isalpha() else None)
    sign = sign.translate(_SAME) if sign else sign
    return sign if sign in (None, "\u2026") else unicodedata.normalize("NFKC", sign).translate(_SAME)


def _in_latex(text: str) -> str:
    """Return text whose characters have the compatibility form of Unicode, what is raised or a fraction as LaTeX."""
    if text.isascii():
        return text
    text = _REPEATING.sub(lambda found: rf"\overline{{{''.join(filter(str.isdigit, found[0]))}}}", text)
    return "".join(_written(kind, "".join(run)) for kind, run in groupby(text.translate(_SAME), key=_kind))


def _kind(character: str) -> str:
    if character.isascii():
        return ""
    category = unicodedata.category(character)
    if category in ("Cf", "Nd", "Zs", "Zl", "Zp", "Pd"):
        return category
    kind = unicodedata.decomposition(character).partition(">")[0]
    is_double_struck = kind == "<font" and "DOUBLE-STRUCK" in unicodedata.name(character, "")
    return "double" if is_double_struck and category == "Lu" else kind


def _written(kind: str, run: str) -> str:
    match kind:
        case "Cf":
            return "".join(_HIDDEN.get(character, "") for character in run)
        case "Nd":
            return "".join(str(unicodedata.decimal(digit)) for digit in run)
        case "Zs" | "Zl" | "Zp":
            return "\n" if kind == "Zl" or kind == "Zp" else " "
        case "Pd":
            return run
    plain = unicodedata.normalize("NFKC", run).translate(_SAME)
    match kind:
        case "<super" | "<sub":
            return f"{'^' if kind == '<super' else '_'}{{{plain}}}"
        case "<fraction":
            return "".join(map(_fraction, run))
        case "double":
            return "".join(rf"\mathbb{{{letter}}}" for letter in plain)
    return plain


def _fraction(character: str) -> str:
    over, _, under = unicodedata.normalize("NFKC", character).partition("\u2044")
    return rf"\frac{{{over}}}{{{under}}}" if under else f"{over}/"


def _nodes(found: Iterable[Any]) -> Iterator[Node]:
    """Yield the parts that nodes of pylatexenc stand for."""
    found = list(found)
    places = [place for place, node in enumerate(found) if getattr(node, "macroname", None) in _OVER]
    if len(places) == 1:  # as TeX, which takes no second one in the same braces
        sides = found[: places[0]], found[places[0] + 1 :]
        yield Node("command", _OVER[found[places[0]].macroname], tuple(tuple(_nodes(side)) for side in sides))
        return
    is_delimiter = False
    for place, node in enumerate(found):
        kind, name = type(node).__name__, getattr(node, "macroname", None)
        if kind == "LatexCharsNode":
            yield from pieces(node.chars.removeprefix(".") if is_delimiter else node.chars)
        elif kind == "LatexMacroNode" and name == "not":
            yield from _negated(node)
        elif kind == "LatexMacroNode":
            yield from _of_macro(node, is_last=place + 1 == len(found))
        elif kind == "LatexSpecialsNode":
            yield Node("blank", "~") if node.specials_chars == "~" else Node("cell")
        elif kind == "LatexGroupNode":
            yield Node("group", node.delimiters[0], (tuple(_nodes(node.nodelist)),))
        elif kind == "LatexEnvironmentNode":
            yield from _of_environment(node)
        elif kind == "LatexMathNode":
            yield from _nodes(node.nodelist)
        is_delimiter = name in ("left", "right")


def pieces(text: str) -> Iterator[Node]:
    """Yield the parts of text without commands."""
    for piece in _PIECE.finditer(text):
        kind = piece.lastgroup
        if kind == "exponent":
            yield Node("number", piece["mantissa"])
            yield Node("sign", "\u00b7")
            yield Node("number", "10")
            yield Node("up", args=(tuple(pieces(piece["exponent"])),))
        elif kind == "dots":
            yield Node("sign", "\u2026")
        elif kind == "both":
            yield Node("sign", "\u00b1")
        else:
            yield Node(kind or "", " " if kind == "blank" else piece.group())


def _arguments(node: Any) -> list[Nodes]:
    """Return the arguments of a command that are there, without braces."""
    given = node.nodeargd.argnlist if node.nodeargd else ()
    return [_inner(argument) for argument in given or () if argument is not None]


def _inner(argument: Any) -> Nodes:
    if type(argument).__name__ == "LatexGroupNode":
        return tuple(_nodes(argument.nodelist))
    return tuple(_nodes([argument]))


def _negated(node: Any) -> Iterator[Node]:
    for sign, *rest in filter(None, map(list, _arguments(node))):
        yield Node("sign", unicodedata.normalize("NFC", f"{sign.text}\u0338"))
        yield from rest


def _of_macro(node: Any, *, is_last: bool) -> Iterator[Node]:
    name, arguments = node.macroname.rstrip("*"), _arguments(node)
    if name in _BLANKS or (name in _ENDS and is_last):
        yield Node("blank", f"\\{name}")
    elif name == "\\":
        yield Node("line")
    elif name in _SETS_TYPE:
        yield from ()
    elif (name in _FRACTIONS or name in _BINOMIALS) and len(arguments) > 1:
        yield Node("command", "frac" if name in _FRACTIONS else "binom", tuple(arguments[-2:]))
    elif name == "abs" or name == "norm":
        bar = Node("sign", "|" if name == "abs" else "\u2016")
        yield from (bar, *(arguments[-1] if arguments else ()), bar)
    elif name in _WORDS or name == "operatorname":
        yield from _words(arguments[-1] if arguments else ())
    elif name == "mathbb" and arguments:
        yield from (Node("sign", f"\\mathbb{{{part.text}}}") for part in arguments[0] if part.text)
    elif name in _MEANT and arguments:
        yield Node("command", name, tuple(arguments))
    elif arguments and name not in ("item", "verb"):
        yield from arguments[-1]
    else:
        sign = sign_of(name)
        yield Node("sign", sign) if sign else Node("command", name)


def _words(content: Nodes) -> Iterator[Node]:
    """Yield words as one text; content with digits or formulas, and letters that are no unit, as if set so."""
    text = "".join(part.text if part.kind in ("word", "sign", "text") else " " for part in content)
    if (mark := _OPTION_MARK.match(text)) and len(content) > len(mark[0]):  # each sign and the letter is one part
        yield from (*content[: len(mark[0])], *_words(content[len(mark[0]) :]))
        return
    if re.search(r"[^\W\d_]{2}", text):  # else the brackets may be those of an option
        behind = (*content[1:], Node(""))  # CO2 is no word and a number
        content = tuple(
            part if after.kind == "number" else _in_words(part) for part, after in zip(content, behind, strict=True)
        )
    is_words = all(part.kind in ("word", "blank", "text", "line") or part.text in _IN_WORDS for part in content)
    if all(part.kind == "blank" for part in content):
        yield Node("blank", " ")
    elif not re.search(r"[^\W_]", text):
        yield from content
    elif is_words and not _LETTER.fullmatch(text.strip()):
        yield Node("text", " ".join(text.split()))
    else:
        yield from content


def _in_words(part: Node) -> Node:
    is_word = (part.kind == "word" and len(part.text) > 1) or (part.kind == "sign" and part.text in "()")
    return part._replace(kind="text") if is_word else part


def _of_environment(node: Any) -> Iterator[Node]:
    name = node.environmentname.rstrip("*")
    inner = list(_nodes(node.nodelist))
    if name not in _MATRICES:
        yield from (part for part in inner if part.kind != "cell")
        return
    rows: list[list[list[Node]]] = [[[]]]
    for part in inner:
        if part.kind == "line" and not part.text:
            rows.append([[]])
        elif part.kind == "cell":
            rows[-1].append([])
        elif part.kind != "line":
            rows[-1][-1].append(part)
    cells = [tuple(Node("cell", args=(tuple(cell),)) for cell in row) for row in rows if any(row)]
    yield Node("rows", name, tuple(cells))
