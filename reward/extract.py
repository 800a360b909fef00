"""From a model's answer to the code in it, in time that grows with its length only."""

import ast
import re
from collections.abc import Iterator

_FENCE = "```"
_LANGUAGE = re.compile(r"[\w+.-]*")
_PYTHON = {"python", "python3", "py"}
_STATEMENTS_OF_CODE = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AugAssign,
)


def extract_code(response: str) -> str | None:
    """Find the code of an answer, or None when it holds none.

    The last ```python block counts; without one the last block that names no language (a program's output, shown
    in a plain block after the program, must not replace it). Blocks in other languages and empty blocks do not
    count. An unterminated last fence reaches to the end. An answer without any fence is code only if all of it
    parses as Python and it has a definition, an import, an assignment or a print: a bare word is no program.
    """
    blocks = [(language.lower(), code) for language, code in _fenced_blocks(response) if code.strip()]
    for languages in (_PYTHON, {""}):
        candidates = [code for language, code in blocks if language in languages]
        if candidates:
            return candidates[-1]
    if _FENCE not in response and _looks_like_code(response):
        return response
    return None


def _fenced_blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, content) of each block: a fence with an optional language, and all up to the next fence or the end."""
    start = text.find(_FENCE)
    while start >= 0:
        behind = start + len(_FENCE)
        # What may name a language ends with the line; looked for up to the next backtick only, so that no part of a
        # long line is read twice.
        tick = text.find("`", behind)
        line, newline, _ = text[behind : tick if tick >= 0 else len(text)].partition("\n")
        language = line.removesuffix("\r").strip(" \t")
        if not newline or not _LANGUAGE.fullmatch(language):
            start = text.find(_FENCE, start + 1)
            continue
        content = behind + len(line) + 1
        end = text.find(_FENCE, content)
        yield language, text[content : end if end >= 0 else len(text)]
        start = text.find(_FENCE, end + len(_FENCE)) if end >= 0 else -1


def _looks_like_code(text: str) -> bool:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # all of them mean that the answer is no program
        return False
    for node in ast.walk(tree):
        if isinstance(node, _STATEMENTS_OF_CODE):
            return True
        if isinstance(node, ast.AnnAssign) and node.value is not None:  # without a value, prose: "Answer: x"
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            return True
    return False
