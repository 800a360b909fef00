"""A program to run, and what one run of it did."""

import re
from dataclasses import dataclass
from typing import Literal

from reward.limits import Limits
from reward.sandbox.jail.values import arguments_text

Status = Literal["ok", "compile_error", "runtime_error", "time_out", "memory_limit", "output_limit", "infra_error"]
NO_ARGUMENTS = arguments_text([])
_PLACE = re.compile(r'File "solution\.py", line ([0-9]+)')


@dataclass(slots=True, kw_only=True)
class Program:
    """What to run once.

    Example: `Program(code="print(int(input()) + 1)", stdin="3")` runs as a program, and
    `Program(code="def f(x): return x", fn_name="f", arguments=arguments_text([3]))` is called as `f(3)`.
    """

    code: str  # Python source
    stdin: str = ""  # standard input; call-based: empty
    fn_name: str | None = None  # function, or method of class Solution, to call; None: run as `__main__`
    arguments: str = NO_ARGUMENTS  # of the call, as `arguments_text` gives them
    is_tested: bool = False  # call-based: test code asks, which also sees exceptions and changed arguments

    def max_result_bytes(self, limits: Limits) -> int:
        """Return how many bytes a call may write: its value and, for test code, the arguments that it changed."""
        changed = limits.output_bytes + len(self.arguments) if self.is_tested else 0
        return limits.output_bytes + changed


@dataclass(slots=True, kw_only=True)
class Execution:
    """What one run did."""

    status: Status  # ok: it ran to the end with exit status 0 (and, if call-based, returned)
    stdout: str = ""  # standard output, of a program with status ok
    result: bytes = b""  # of a call: text of what it returned or raised; untrusted, so to be read in a judge only
    detail: str = ""  # one line for people: what went wrong, and in which line of the program
    seconds: float = 0.0  # time used, as `Limits.test_s` counts it


def last_words(stderr: str) -> str:
    """Return the last line that a program wrote to standard error, and the line of its source, as syntax errors do."""
    words, places = stderr.strip().rpartition("\n")[2][:300], _PLACE.findall(stderr)
    return f"{words} (solution.py, line {places[-1]})" if places else words
