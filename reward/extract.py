"""From a model's answer to the code in it, in time that grows with its length only.

markdown-it-py is not used: models also open a fence behind words and close one behind code, which CommonMark takes for
text.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_RUN = re.compile(r"`{3,}")
_BEFORE_FENCE = re.compile(r"[ \t]*(?:(?:[-*+]|[0-9]{1,9}[.)])[ \t]+)*")  # indentation, and marks of list items
_INFO = re.compile(r"[^`\n]*\n")  # the line behind an opening fence
_NAMES_OF_PYTHON = r"(?:i?py(?:thon)?|cpython|pypy|tool_code)[0-9.]*"
_BARE_INFO = re.compile(rf"(?:{_NAMES_OF_PYTHON})?[ \t]*\r?\n", re.I)  # Python alone, or nothing
_BLANK_LINE = re.compile(r"[ \t\r]*(?:\n|\Z)")
_LANGUAGE = re.compile(r"\{?[ \t]*\.?([\w+.-]*)")  # as in ```python title="x", ```{python} and ```{.python .numbered}
_PYTHON = re.compile(_NAMES_OF_PYTHON)
_BYTE_ORDER_MARK = "\ufeff"
_TAGS = re.compile(  # around an answer
    r"\A\s*(?:<(?:answer|code|solution|python|\|python_tag\|)>|\[PYTHON\])(?:[ \t]*\n)?"
    r"|(?:</(?:answer|code|solution|python)>|\[/PYTHON\])\s*\Z"
)
# Behind a line or before one, or before the tag of an answer; not in a program's text.
_END_OF_THOUGHTS = re.compile(
    r"^[ \t]*</think(?:ing)?>|</think(?:ing)?>(?:[ \t]*\r?$|(?=[ \t]*<(?:answer|code|solution|python)>))", re.M
)
_END_MARKS = ("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>",
              "<end_of_turn>", "<｜end▁of▁sentence｜>", "<eos>", "</s>")  # fmt: skip
_COMMANDS = ("!", "%", "$ ", "pip install ", "#")
"""What lines begin with that a shell or a notebook runs; comments may stand between them."""
_READS = re.compile(
    r"\binput\s*[(,)]|=\s*input\b|\bimport\s+input\b|\bstdin\b(?!\s*=[^=]|\.write\b|\.close\b|[\"'])|\b__stdin__\b"
    r"|\bfileinput\b|\b(?:f?d?open|read|FileIO|mmap)\s*\(\s*0\b|/dev/(?:stdin|fd/0)"
)
"""What reads standard input, or names what does (`read = input`); `sys.stdin = ...` gives it another."""
_WRITES = re.compile(r"\bprint\b|write|stdout")
_COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.M)
_MAX_CLOSING_INDENTATION = 3  # characters more than the opening fence's
_STATEMENTS_OF_CODE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)


def extract_code(response: str, *names: str) -> str | None:
    """Find the code of an answer, or None when it holds none.

    The last Python block counts; without one the last block that names no language (a program's output, shown in a
    plain block after the program, must not replace it). Of these the last that defines one of `names` comes first, or
    if the answer is to define none, the last that reads standard input. Blocks in other languages, of comments or
    commands alone and of sessions (`>>>`) do not count. An unterminated last fence reaches to the end. Text before any
    fence is code only if all of it parses as Python and it has a definition, an import, an assignment or a print: a
    bare word is no program. What a model thought first (up to `</think>`) is looked at only where there is no code
    behind it.
    """
    response = without_end_marks(response)
    code = _last_code(response, names)
    thoughts = max((found.end() for found in _END_OF_THOUGHTS.finditer(response)), default=0)
    is_in_code = code is not None and _END_OF_THOUGHTS.search(code) is not None and parsed(code) is not None
    if thoughts and not is_in_code:
        return _last_code(response[thoughts:], names) or code
    return code


def without_end_marks(response: str) -> str:
    """The answer without the tokens that end a model's turn, where they were left in the text."""
    kept, end = len(response), len(response.rstrip())
    while mark := next((mark for mark in _END_MARKS if response.endswith(mark, 0, end)), ""):
        kept = end = end - len(mark)
        while end and response[end - 1].isspace():
            end -= 1
    return response[:kept]


def _last_code(response: str, names: tuple[str, ...]) -> str | None:
    found = [(_language(info), code) for info, code in _fenced_blocks(response)]
    blocks = [(language, code.removeprefix(_BYTE_ORDER_MARK)) for language, code in found if is_program(code)]
    named = [code for language, code in blocks if _PYTHON.fullmatch(language)]
    if named:
        return _last_of(named, names)
    outside = _TAGS.sub("", response.partition("```")[0])
    if _looks_like_code(outside):  # in no fence, or in one that the prompt opened
        return outside
    unnamed = [code for language, code in blocks if not language]
    # Behind them may stand what the program writes.
    return _last_of([*itertools.filterfalse(_looks_like_code, unnamed), *filter(_looks_like_code, unnamed)], names)


def _last_of(blocks: list[str], names: tuple[str, ...]) -> str | None:
    def is_wanted(code: str) -> bool:
        return any(defines(code, name) for name in names) if names else is_filter(code)

    return next(filter(is_wanted, reversed(blocks)), blocks[-1] if blocks else None)


def _language(info: str) -> str:
    """The language that the text behind a fence names, in lower case, or ""."""
    named = _LANGUAGE.match(info)
    return named.group(1).lower() if named else ""


@dataclass(slots=True, kw_only=True, frozen=True)
class _Run:
    """Three or more backticks."""

    marks: str
    end: int  # where it ends in the text
    before: str | None  # what makes its line begin as a fence's may; None: it is in the middle of a line
    is_first: bool  # in its line


def _runs(text: str) -> Iterator[_Run]:
    start = 0  # of the line
    for line in text.split("\n"):
        for number, found in enumerate(_RUN.finditer(line)):
            begins_line = number == 0 and _BEFORE_FENCE.fullmatch(line, 0, found.start()) is not None
            before = line[: found.start()] if begins_line else None
            yield _Run(marks=found.group(), end=start + found.end(), before=before, is_first=number == 0)
        start += len(line) + 1


def _fenced_blocks(text: str) -> Iterator[tuple[str, str]]:
    """(text behind the opening fence, content) of each block.

    As in CommonMark, whatever the indentation of the opening fence, but for fences of `~` and block quotes. More is
    accepted: fences in the middle of a line, which open a block if a language alone stands behind them, and close one
    if they alone end the line.
    """
    opening, info, content = None, "", 0
    for run in _runs(text):
        if opening is not None and _is_left_open(text, opening, run):
            yield info, text[content : run.end - len(run.marks)]
            opening = None
        if opening is None:
            if (line := _line_behind(text, run)) is not None:
                opening, info, content = run, line.strip(" \t\r\n"), run.end + len(line)
        elif run.end > content and _closes(text, run, opening):
            yield info, _without_indentation(text[content : run.end - len(run.marks)], opening.before or "")
            opening = None
    if opening is not None:
        yield info, _without_indentation(text[content:], opening.before or "")


def _is_left_open(text: str, opening: _Run, run: _Run) -> bool:
    """Whether a fence that names Python shows that a block was never closed, or that prose spoke of fences."""
    line = _line_behind(text, run)
    if run.before is None or line is None or not _PYTHON.fullmatch(_language(line.strip())):
        return False
    return opening.before is None or (_is_near(run, opening) and run.marks.startswith(opening.marks))


def _is_near(run: _Run, opening: _Run) -> bool:
    return len(run.before or "") <= len(opening.before or "") + _MAX_CLOSING_INDENTATION


def _line_behind(text: str, run: _Run) -> str | None:
    """What stands behind an opening fence, with the line's end; None: it opens nothing."""
    line = _INFO.match(text, run.end)  # up to the next backtick only, so that no part of a long line is read twice
    if line is None or (run.before is None and not _BARE_INFO.fullmatch(line.group())):
        return None
    return line.group()


def _closes(text: str, run: _Run, opening: _Run) -> bool:
    """Whether the run closes the block; in strings and comments of code few are where a closing fence may be."""
    if not run.marks.startswith(opening.marks):
        return False
    if run.before is None or run.before.strip():
        return run.is_first and _BLANK_LINE.match(text, run.end) is not None
    return _is_near(run, opening)


def _without_indentation(content: str, before: str) -> str:
    """The lines without as many blanks as stand before the opening fence, or before the first line of code."""
    lines = content.split("\n")
    code = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    width = min(len(before), len(code) - len(code.lstrip(" \t")))  # it may stand at the margin nevertheless
    return "\n".join(line[:width].lstrip(" \t") + line[width:] for line in lines) if width else content


def _looks_like_code(text: str) -> bool:
    tree = parsed(text)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, (*_STATEMENTS_OF_CODE, ast.AugAssign)):
            return True
        if isinstance(node, ast.AnnAssign) and node.value is not None:  # without a value, prose: "Answer: x"
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            return True
    return False


def parsed(text: str) -> ast.Module | None:
    """Its tree, or None if it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # all of them mean that the text is no program
        return None


def is_program(code: str) -> bool:
    """Whether there is more in it than comments and commands, and it does not begin as a transcript (`>>> f(1)`)."""
    lines = [line for line in map(str.lstrip, code.splitlines()) if line and not line.startswith(_COMMANDS)]
    return bool(lines) and not lines[0].startswith(">>>")


def is_filter(code: str) -> bool:
    """Whether it seems to read standard input and to write; what a line of comment says of it does not count."""
    code = _COMMENT_LINE.sub("", code)
    return _READS.search(code) is not None and _WRITES.search(code) is not None


def defines(code: str, name: str) -> bool:
    """Whether it gives the name a meaning: a function, a class, a method of a class, or an assignment.

    A function without a body, and what is taken of the name itself or of an attribute of that name (`f = s.f`) give
    none. Where it does not compile, as an answer that was cut short, a line that begins so does.
    """
    if name not in code:
        return False
    tree = parsed(code)
    if tree is None:
        begins = rf"^[ \t]*(?:(?:async[ \t]+)?def[ \t]+|class[ \t]+){name}\b|^{name}[ \t]*(?::[^=\n]*)?=(?!=)"
        return re.search(begins, code, re.M) is not None
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # also under `if`, `try` and the like, and in classes, but in no function
        if _is_definition(node, name):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.expr)):
            nodes += ast.iter_child_nodes(node)
    return False


def _is_definition(node: ast.AST, name: str) -> bool:
    match node:
        case ast.FunctionDef(name=own, body=body) | ast.AsyncFunctionDef(name=own, body=body):
            return own == name and not all(map(_says_nothing, body))
        case ast.ClassDef(name=own) | ast.AnnAssign(target=ast.Name(id=own), value=ast.expr()):
            return own == name
        case ast.Assign(targets=targets, value=value):
            inner = [] if isinstance(value, ast.Lambda) else list(ast.walk(value))
            read = {getattr(part, "id", None) or getattr(part, "attr", None) for part in inner}
            names = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            return name not in read and any(part.id == name and isinstance(part.ctx, ast.Store) for part in names)
    return False


def _says_nothing(statement: ast.stmt) -> bool:
    """Whether it is what a function's body is left out with."""
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError"))):
            return True
    return False
