"""Extraction of the code from a model's answer, in time that grows linearly with the answer's length.

markdown-it-py is not used: models also open a fence after words, close one after code and leave marks of quotes out,
which CommonMark takes for text.
"""

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_RUN = re.compile(r"`{3,}|~{3,}")
# Indentation, and marks of list items and block quotes.
_BEFORE_FENCE = re.compile(r"[ \t]*(?:(?:[-*+]|[0-9]{1,9}[.)])[ \t]+|>[ \t]*)*")
_MAX_BEFORE_FENCE = 100  # characters; a fence after more is one in the middle of a line
_NAMES_OF_PYTHON = r"(?:i?py(?:thon)?|cpython|pypy|tool_code)[0-9.]*"
_BARE_INFO = re.compile(rf"(?:{_NAMES_OF_PYTHON})?[ \t]*\r?\n", re.I)  # Python alone, or nothing
_LANGUAGE = re.compile(r"\{?[ \t]*\.?([\w+.-]*)")  # as in ```python title="x", ```{python} and ```{.python .numbered}
_PYTHON = re.compile(_NAMES_OF_PYTHON)
_BYTE_ORDER_MARK = "\ufeff"
_OPENING_TAG = re.compile(r"\s*(?:<(?:answer|code|solution|python|\|python_tag\|)>|\[PYTHON\])(?:[ \t]*\n)?")
_CLOSING_TAGS = ("</answer>", "</code>", "</solution>", "</python>", "[/PYTHON]")
_THINKING = r"(?:think|thought|reason)\w*"
_CLOSING_MARK = (
    rf"(?i:</(?:\w+[:_.-])?{_THINKING}>|\[/{_THINKING}\]|\u25c1/{_THINKING}\u25b7|<\|/{_THINKING}\|>|<\|end_(?:of_)?{_THINKING}\|>)"
    r"|<\|channel\|>final[^<\n]{0,40}<\|message\|>"
)
END_OF_THOUGHTS = re.compile(_CLOSING_MARK)
"""Marks that end a thought: a closing tag in brackets of any kind that names thinking, or gpt-oss's last channel."""
# After a line or before one, or before the tag of an answer; not in a program's text.
_END_OF_THOUGHTS = re.compile(
    rf"^[ \t]*(?:{_CLOSING_MARK})|(?:{_CLOSING_MARK})(?:[ \t]*\r?$|(?=[ \t]*<(?:answer|code|solution|python)>))", re.M
)
_END_MARKS = ("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>",
              "<end_of_turn>", "<｜end▁of▁sentence｜>", "<eos>", "</s>")  # fmt: skip
_BEFORE_CODE = re.compile(r"(?:[ \t\f]*(?:#[^\r\n]*)?[\r\n])*[ \t\f]*(?:#[^\r\n]*)?")
_PROMPT = ">>>"
_COMMANDS = ("!", "%", "$ ", "pip install ", "#")
"""Prefixes of lines that a shell or a notebook runs; comments may stand between such lines."""
_READS = re.compile(
    r"\binput\s*[(,)]|=\s*input\b|\bimport\s+input\b|\bstdin\b(?!\s*=[^=]|\.write\b|\.close\b|[\"'])|\b__stdin__\b"
    r"|\bfileinput\b|\b(?:f?d?open|read|FileIO|mmap)\s*\(\s*0\b|/dev/(?:stdin|fd/0)"
)
"""Code that reads standard input or refers to a function that does (`read = input`), but not `sys.stdin = ...`."""
_GIVES_ANOTHER, _KEEPS = re.compile(r"\bstdin\s*=[^=]"), re.compile(r"=\s*(?:sys\s*\.\s*)?stdin\s*$", re.M)
"""The statements of a harness that replaces standard input: `old = sys.stdin`, then `sys.stdin = ...`."""
_WRITES = re.compile(r"\bprint\b|write|stdout")
_COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.M)
_MODULES = {*sys.stdlib_module_names, "numpy"}
"""Modules that are not part of the answer; `from solution import f` is taken for an import of the answer itself."""
_TAB = 4  # columns
_MAX_CLOSING_INDENTATION = 3  # columns more than the opening fence's
_STATEMENTS_OF_CODE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)


def extract_code(response: str, *names: str) -> str | None:
    """Return the code of an answer, or None if it holds none.

    The last Python block is taken; if there is none, the last block that names no language (a program's output, shown
    in a plain block after the program, must not replace the program). Among several such blocks, the last that defines
    one of `names` is preferred (without `names`, the last that reads standard input), then blocks that do more than
    show values. Blocks in other languages, sessions (`>>>`) and blocks of comments or commands alone are skipped. An
    unterminated last fence reaches to the end. Text before any fence is code only if all of it parses as Python and it
    has a definition, an import, an assignment or a print: a bare word is no program. The model's thought (up to
    `</think>` or the like) is searched only if there is no code after it.
    """
    response = without_end_marks(response)
    code = _last_code(response, names)
    thoughts = end_of_thoughts(response)
    is_in_code = code is not None and _END_OF_THOUGHTS.search(code) is not None and parsed(code) is not None
    if thoughts and not is_in_code:
        return _last_code(response[thoughts:], names) or code
    return code


def without_end_marks(response: str) -> str:
    """Return the answer without the tokens that end a model's turn, where they were left in the text."""
    kept, end = len(response), len(response.rstrip())
    while mark := next((mark for mark in _END_MARKS if response.endswith(mark, 0, end)), ""):
        kept = end = end - len(mark)
        while end and response[end - 1].isspace():
            end -= 1
    return response[:kept]


def end_of_thoughts(response: str) -> int:
    """Return the index in `response` at which the answer begins, after the model's thought."""
    return max((found.end() for found in _END_OF_THOUGHTS.finditer(response)), default=0)


def _last_code(response: str, names: tuple[str, ...]) -> str | None:
    found = [(_language(info), code) for info, code in _fenced_blocks(response)]
    blocks = [(language, code.removeprefix(_BYTE_ORDER_MARK)) for language, code in found if is_program(code)]
    named = [code for language, code in blocks if _PYTHON.fullmatch(language)]
    if named:
        return _last_of(named, [code for code in named if not shows_values(code)], names)
    outside = _without_tags(response.partition("```")[0])
    if _looks_like_code(outside):  # in no fence, or in one that the prompt opened
        return outside
    unnamed = [code for language, code in blocks if not language]
    return _last_of(unnamed, [code for code in unnamed if _looks_like_code(code)], names) if unnamed else None


def _last_of(blocks: list[str], better: list[str], names: tuple[str, ...]) -> str:
    def is_wanted(code: str) -> bool:
        return any(defines(code, name) for name in names) if names else is_filter(code)

    return next(filter(is_wanted, reversed(blocks)), (better or blocks)[-1])


def _without_tags(text: str) -> str:
    """Return the text without tags around it, such as `<answer>` or `[PYTHON]`."""
    begin, end = _OPENING_TAG.match(text), len(text.rstrip())
    for tag in _CLOSING_TAGS:
        if text.endswith(tag, 0, end):
            return text[begin.end() if begin else 0 : end - len(tag)]
    return text[begin.end() :] if begin else text


def _language(info: str) -> str:
    """Return the language that the text after a fence names, in lower case, or ""."""
    named = _LANGUAGE.match(info)
    return named.group(1).lower() if named else ""


class _Fence(NamedTuple):
    """Three or more characters that open a block."""

    before: str | None  # what stands before them; None: more than a fence's line may begin with
    marks: str
    info: str  # what stands behind them


def _fenced_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield (text after the opening fence, content) of each block.

    Blocks are found as in CommonMark, except that the opening fence may have any indentation and that a fence of
    backticks may stand in the middle of a line: it opens a block if only a language follows it, and closes a block if
    nothing follows it.
    """
    opening: _Fence | None = None
    start = 0  # of the content
    for line in _LINE.finditer(text):
        runs = list(_RUN.finditer(line.group()))
        found = _opening(line.group(), runs)
        if opening is not None and found is not None and _is_left_open(opening, found):
            yield opening.info, _without_indentation(text[start : line.start()], opening.before or "")
            opening = None
        if opening is not None and runs and _closes(line.group(), runs[0], opening):
            content = text[start : line.start() + runs[0].start()]
            yield opening.info, _without_indentation(content, opening.before or "")
            opening, found = None, _opening(line.group(), runs[1:])
        if opening is None and found is not None:
            opening, start = found, line.end()
    if opening is not None:
        yield opening.info, _without_indentation(text[start:], opening.before or "")


def _before(line: str, run: re.Match[str]) -> str | None:
    before = line[: run.start()]
    return before if len(before) <= _MAX_BEFORE_FENCE and _BEFORE_FENCE.fullmatch(before) else None


def _opening(line: str, runs: list[re.Match[str]]) -> _Fence | None:
    if not runs:
        return None
    first, last = runs[0], runs[-1]
    before, behind = _before(line, first), line[first.end() :]
    if before is not None and behind.endswith("\n") and (first.group()[0] == "~" or "`" not in behind):
        return _Fence(before=before, marks=first.group(), info=behind.strip())
    if last.group()[0] == "`" and _BARE_INFO.fullmatch(line, last.end()):
        return _Fence(before=None, marks=last.group(), info=line[last.end() :].strip())
    return None


def _is_left_open(opening: _Fence, found: _Fence) -> bool:
    """Return whether the fence `found` names Python and so opens a new block although `opening` was not closed."""
    if found.before is None or found.marks[0] != "`" or not _PYTHON.fullmatch(_language(found.info)):
        return False
    return opening.before is None or (_is_near(found.before, opening) and found.marks.startswith(opening.marks))


def _closes(line: str, run: re.Match[str], opening: _Fence) -> bool:
    """Return whether the fence `run` of a line closes the block; a fence in a string or comment of code rarely does."""
    if not run.group().startswith(opening.marks):
        return False
    before, quotes = _before(line, run), ">" if ">" in (opening.before or "") else ""
    is_tilde, is_last = run.group()[0] == "~", not line[run.end() :].strip()
    if before is None or before.strip(f" \t{quotes}"):
        return is_last and not is_tilde
    return _is_near(before, opening) and (is_last or not is_tilde)


def _is_near(before: str, opening: _Fence) -> bool:
    return _width(before) <= _width(opening.before or "") + _MAX_CLOSING_INDENTATION


def _without_indentation(content: str, before: str) -> str:
    """Return the lines without the indentation and marks of quotes that `before`, the opening fence's prefix, has."""
    depth = before.count(">")
    width = _width(before.rpartition(">")[2].removeprefix(" ") if depth else before)
    if not depth and not width:
        return content
    marks = re.compile(rf"(?:[ \t]*> ?){{0,{depth}}}")
    unmarked = [marks.sub("", line, count=1) for line in content.split("\n")]
    code = next((line for line in unmarked if line.strip() and not line.lstrip().startswith("#")), "")
    width = min(width, _width(code[: len(code) - len(code.lstrip(" \t"))]))  # it may stand at the margin nevertheless
    lines = []
    for line in unmarked:
        rest = line.lstrip(" \t")
        blank = line[: len(line) - len(rest)]
        lines.append(blank.expandtabs(_TAB)[width:] + rest)
    return "\n".join(lines)


def _width(before: str) -> int:
    return len(before.expandtabs(_TAB))


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
    """Return the syntax tree of the text, or None if it is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # all of them mean that the text is no program
        return None


def is_program(code: str) -> bool:
    """Return whether code holds more than comments and commands, and does not begin as a session (`>>> f(1)`)."""
    before = _BEFORE_CODE.match(code)
    start = before.end() if before else 0
    if start == len(code) or code.startswith(_PROMPT, start):
        return False
    return not all(line.startswith(_COMMANDS) for line in map(str.lstrip, code.splitlines()) if line)


def shows_values(code: str) -> bool:
    """Return whether code only shows values, as a program's output does: its expressions call nothing."""
    tree = parsed(code)
    if tree is None or not all(isinstance(statement, ast.Expr) for statement in tree.body):
        return False
    return not any(isinstance(node, ast.Call) for node in ast.walk(tree))


def is_filter(code: str) -> bool:
    """Return whether code seems to read standard input and to write; lines of comment are ignored."""
    code = _COMMENT_LINE.sub("", code)
    reading = _KEEPS.sub("", code) if _GIVES_ANOTHER.search(code) else code
    return _READS.search(reading) is not None and _WRITES.search(code) is not None


def defines(code: str, name: str) -> bool:
    """Return whether code binds `name` by a definition, a class with such a method, an assignment or an import.

    These bindings do not count: a function without a body; an assignment whose value has the same name (`f = cache(f)`)
    or, if the code uses names that it does not define, an attribute of that name (`f = s.f`); an import from a module
    other than numpy and the standard library, such as the answer itself. If the code does not compile, as in an answer
    that was cut short, a line that begins like a definition or an assignment is enough.
    """
    if name not in code:
        return False
    tree = parsed(code)
    if tree is None:
        begins = rf"^[ \t]*(?:(?:async[ \t]+)?def[ \t]+|class[ \t]+){name}\b|^{name}[ \t]*(?::[^=\n]*)?=(?!=)"
        return re.search(begins, code, re.M) is not None
    is_use = _is_use(tree)
    nodes: list[ast.AST] = [tree]
    for node in nodes:  # also under `if`, `try` and the like, and in classes, but in no function
        if name in _names(node, is_use=is_use):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.expr)):
            nodes += ast.iter_child_nodes(node)
    return False


def _is_use(tree: ast.Module) -> bool:
    """Return whether a block uses names or modules of another block, such as `Solution()` or `import solution`."""
    bound = {"self", *dir(builtins)}
    read: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ctx):
                (read if isinstance(ctx, ast.Load) else bound).add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.Import() | ast.ImportFrom():
                bound.update(_names(node, is_use=False))
    return not read <= bound


def _names(node: ast.AST, *, is_use: bool) -> list[str]:
    """Return the names that a statement defines; `is_use`: without those copied from another block by the same name."""
    match node:
        case ast.FunctionDef(name=name, body=body) | ast.AsyncFunctionDef(name=name, body=body):
            return [] if all(map(_says_nothing, body)) else [name]
        case ast.ClassDef(name=name):
            return [name]
        case ast.ImportFrom(module=module, names=names):
            return [alias.asname or alias.name for alias in names if (module or "").partition(".")[0] in _MODULES]
        case ast.Import(names=names):
            return [alias.asname or root for alias in names if (root := alias.name.partition(".")[0]) in _MODULES]
        case ast.Assign(targets=targets, value=value):
            inner = [] if isinstance(value, ast.Lambda) else list(ast.walk(value))
            read = {part.id for part in inner if isinstance(part, ast.Name)}
            read |= {part.attr for part in inner if is_use and isinstance(part, ast.Attribute)}
            stored = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            return [part.id for part in stored if isinstance(part.ctx, ast.Store) and part.id not in read]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
    return []


def _says_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement stands for a function body that was left out, such as `pass` or `...`."""
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError"))):
            return True
    return False
