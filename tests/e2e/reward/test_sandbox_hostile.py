"""Every hostile program ends as it must, in time, and leaves nothing behind: no process, descriptor, file or damage."""

import dataclasses
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hostile_programs import HOSTILE_PROGRAMS, Hostile

from reward.apps import Score, score_response
from reward.limits import Limits
from reward.problem import Problem
from reward.sandbox import Execution, Program, Sandbox

pytestmark = pytest.mark.e2e

LIMITS = Limits(test_s=0.8, memory_bytes=256 << 20)
EXPECTED = "EXPECTED-7391"
PROBLEM = Problem.from_input_output({"inputs": ["3 4"], "outputs": [EXPECTED]}, problem_id="hostile")
SUM = Problem.from_input_output({"inputs": ["3 4"], "outputs": ["7"]}, problem_id="sum")
SUM_ANSWER = "```python\nimport os\nassert os.listdir('.') == []\nprint(sum(map(int, input().split())))\n```"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    os.environ["REWARD_TEST_SECRET"] = EXPECTED
    # The trusted process is loaded with the expected text, as a trainer is.
    sandbox = Sandbox(num_slots=4)
    assert score_response(SUM, SUM_ANSWER, sandbox=sandbox).outcome == "pass"  # which starts a judge
    yield sandbox
    scratch = [slot.scratch for slot in sandbox._slots]
    sandbox.close()
    del os.environ["REWARD_TEST_SECRET"]
    assert not any(os.path.exists(path) for path in scratch)


def score(sandbox: Sandbox, program: Hostile) -> Score:
    # What must not end needs not be waited for as long as what must, which is given long, for a busy machine.
    test_s = 0.3 if program.outcomes == ("time_out",) else 0.8 if "time_out" in program.outcomes else 10.0
    limits = dataclasses.replace(LIMITS, test_s=test_s)
    return score_response(PROBLEM, f"```python\n{program.code}\n```", limits, sandbox=sandbox)


def processes_of_slots(sandbox: Sandbox) -> list[str]:
    """What runs under the users of the slots."""
    users = {slot.uid for slot in sandbox._slots}
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and folder.stat().st_uid in users - {None}:
                found.append((folder / "stat").read_text())
        except OSError:  # ended meanwhile
            continue
    return [stat for stat in found if stat.rpartition(")")[2].split()[0] != "Z"]


def scratch_files(sandbox: Sandbox) -> list[str]:
    return [name for slot in sandbox._slots for name in os.listdir(slot.scratch)]


def num_fds_without_slots(sandbox: Sandbox) -> int:
    """A slot has a connection."""
    return len(os.listdir("/proc/self/fd")) - len(sandbox._slots)


def assert_unharmed(sandbox: Sandbox) -> None:
    assert processes_of_slots(sandbox) == []
    assert scratch_files(sandbox) == []
    assert all(os.path.exists(f"/proc/{pid}") for pid in (slot.pid for slot in sandbox._slots))
    assert score_response(SUM, SUM_ANSWER, LIMITS, sandbox=sandbox).outcome == "pass"


@pytest.mark.parametrize("program", HOSTILE_PROGRAMS, ids=lambda program: program.name)
def test_hostile_program(sandbox: Sandbox, program: Hostile) -> None:
    num_fds, slots = num_fds_without_slots(sandbox), set(sandbox._slots)
    result = score(sandbox, program)
    assert result.outcome in program.outcomes, result
    assert "escaped" not in result.detail
    assert num_fds_without_slots(sandbox) == num_fds and sandbox._slots >= slots, "a slot was lost"
    assert_unharmed(sandbox)


@pytest.mark.slow
def test_all_at_once_in_random_order_print_neither_that_they_escaped_nor_what_is_expected(
    sandbox: Sandbox,
) -> None:
    programs = list(HOSTILE_PROGRAMS)
    random.Random(7).shuffle(programs)

    def run(program: Hostile) -> Execution:
        return sandbox.execute(Program(code=program.code, stdin="3 4"), limits=LIMITS, timeout_s=LIMITS.test_s)

    with ThreadPoolExecutor(4) as pool:
        executions = list(pool.map(run, programs))
    for program, execution in zip(programs, executions, strict=True):
        outcome = "fail" if execution.status == "ok" else execution.status
        assert outcome in program.outcomes, (program.name, execution)
        assert "escaped" not in execution.stdout and EXPECTED not in execution.stdout, program.name
    assert_unharmed(sandbox)


def test_budget_bounds_100_000_tests(sandbox: Sandbox) -> None:
    num_tests = 100_000
    problem = Problem.from_input_output({"inputs": ["1"] * num_tests, "outputs": ["1"] * num_tests}, problem_id="many")
    result = score_response(problem, "```python\nprint(1)\n```", Limits(solution_s=1.0), sandbox=sandbox)
    assert result.outcome == "time_out"


CALL = Problem.from_input_output({"inputs": [[1], [2]], "outputs": [[1, 2], [3, 4]], "fn_name": "f"}, problem_id="call")
FORGED_CALLS = [
    "class Yes(list):\n    def __eq__(self, other): return True\ndef f(x): return Yes()",
    "class Yes(str):\n    def __eq__(self, other): return True\ndef f(x): return Yes('7')",
    "class Yes:\n    def __eq__(self, other): return True\ndef f(x): return Yes()",
    "class Yes(dict):\n    def keys(self): return []\ndef f(x): return Yes(a=1)",
    # A walk through the frames above for what looks like the expected outputs, overwriting it on the way.
    "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
    "        for name, value in list(frame.f_locals.items()):\n"
    "            if isinstance(value, dict) and 'outputs' in value: return value['outputs'][x - 1]\n"
    "            if name in ('outputs', 'expected', 'in_outs'): value.clear(); return value\n"
    "        frame = frame.f_back\n    return None",
    "import builtins\ndef f(x):\n    builtins.all = builtins.any = builtins.bool = lambda *a: 1\n    return 0",
    "import json\ndef f(x):\n    json.loads = json.dumps = lambda *a: [1, 2]\n    return 0",
    "import os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, b'{\"value\": true}')\n"
    "        except OSError: pass\n    os._exit(0)",
]


@pytest.mark.parametrize("code", FORGED_CALLS)
def test_forged_value_does_not_pass(sandbox: Sandbox, code: str) -> None:
    result = score_response(CALL, f"```python\n{code}\n```", LIMITS, sandbox=sandbox)
    assert (result.outcome, result.num_passed) == ("fail", 0)
    assert_unharmed(sandbox)
