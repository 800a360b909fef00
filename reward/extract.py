"""From a model's answer to the code in it."""

import ast
import re

# A fence with an optional language, its content, and the closing fence or the end of the answer (cut by the length).
_FENCED_BLOCK = re.compile(r"```[ \t]*([\w+.-]*)[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)
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
    blocks = [(language.lower(), code) for language, code in _FENCED_BLOCK.findall(response) if code.strip()]
    for languages in (_PYTHON, {""}):
        candidates = [code for language, code in blocks if language in languages]
        if candidates:
            return candidates[-1]
    if "```" not in response and _looks_like_code(response):
        return response
    return None


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
