"""Programs and test code of the reward's tests, run in one sandbox of the process, with one program at a time."""

import subprocess
import sys
import textwrap
from pathlib import Path

from reward.apps import Score, score_response
from reward.limits import Limits
from reward.problem import Problem
from reward.sandbox import Execution, Program, Sandbox, shared_sandbox

LIMITS = Limits()


def sandbox() -> Sandbox:
    """Return the sandbox, started at the first call."""
    return shared_sandbox(num_slots=1)


def run(code: str, stdin: str = "", *, timeout_s: float = 5.0, limits: Limits = LIMITS, **fields: object) -> Execution:
    """Run a program, or with the further fields of `Program` a call."""
    program = Program(code=textwrap.dedent(code), stdin=stdin, **fields)  # type: ignore[arg-type]
    return sandbox().execute(program, limits=limits, timeout_s=timeout_s)


def run_python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script in an interpreter of its own, which finds the package."""
    command = [sys.executable, *options, "-c", textwrap.dedent(code)]
    return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)


def score(tests: list[str], code: str, fn_name: str | None = None, **limits: float) -> Score:
    """Score an answer by test code, which may be such as no data set is let have."""
    problem = Problem(problem_id="1", inputs=tests, outputs=[None] * len(tests), kind="test_code", fn_name=fn_name)
    return score_response(problem, f"```python\n{code}\n```", Limits(**limits), sandbox=sandbox())  # type: ignore[arg-type]
