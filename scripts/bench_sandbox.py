"""Executions and scored answers a second of the sandbox, beside what else could run them, in one run.

    python scripts/bench_sandbox.py [--seconds 5] [--drivers 2]

Executions: one short program on standard input, by the sandbox and by a bare `python -I -S` subprocess, which isolates
nothing. Scored answers: generated problems of APPS's format with five tests each and their reference solutions, by
`reward.apps.score_response` and by verl's own `prime_code`, which scores correct call-based answers 0.0: stdin problems
only. The contestants take turns, so that a change of the machine's speed meets all of them.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from recipe.mini_apps.generator import MiniProblem, generate
from reward.apps import score_response
from reward.limits import Limits
from reward.problem import Problem
from reward.sandbox import LocalSandbox, Program

CODE = "a, b = map(int, input().split())\nprint(a + b)\n"
STDIN, STDOUT = "3 4\n", "7\n"
ROUNDS = 5
NUM_PROBLEMS = 40
NUM_TESTS = 5


def rate_with_threads(run: Callable[[int], object], *, seconds: float, num_drivers: int) -> float:
    """Calls a second of `run(index)` from as many threads."""
    counts = [0] * num_drivers
    started = time.monotonic()

    def drive(driver: int) -> None:
        while time.monotonic() - started < seconds:
            run(driver + counts[driver] * num_drivers)
            counts[driver] += 1

    threads = [threading.Thread(target=drive, args=(driver,)) for driver in range(num_drivers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - started)


def run_bare(_: int) -> None:
    """Run the program in an interpreter of its own, without any isolation."""
    command = [sys.executable, "-I", "-S", "-c", CODE]
    result = subprocess.run(command, input=STDIN, env={}, capture_output=True, text=True)
    assert result.stdout == STDOUT


def stdin_problems() -> list[MiniProblem]:
    """Generated stdin problems, cut to the same number of tests."""
    return [problem for problem in generate() if problem.fn_name is None][:NUM_PROBLEMS]


def input_output(problem: MiniProblem) -> dict[str, list[str]]:
    """The tests in APPS's format."""
    return {"inputs": list(problem.inputs[:NUM_TESTS]), "outputs": list(problem.outputs[:NUM_TESTS])}


def rate_of_prime_code(problems: list[MiniProblem], *, seconds: float, num_drivers: int) -> float:
    """Answers a second scored by verl's prime_code, from as many processes (it is not safe in threads)."""
    counts = multiprocessing.Value("i", 0)
    processes = [
        multiprocessing.Process(target=_drive_prime_code, args=(problems, seconds, counts, driver, num_drivers))
        for driver in range(num_drivers)
    ]
    started = time.monotonic()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return counts.value / (time.monotonic() - started)


def _drive_prime_code(problems: list[MiniProblem], seconds: float, counts, driver: int, step: int) -> None:
    from verl.utils.reward_score.prime_code import compute_score

    started, index = time.monotonic(), driver
    with contextlib.redirect_stdout(io.StringIO()):
        while time.monotonic() - started < seconds:
            problem = problems[index % len(problems)]
            passed, _ = compute_score(f"```python\n{problem.solution}\n```", input_output(problem))
            assert passed is True, problem.problem_id
            index += step
            with counts.get_lock():
                counts.value += 1


def main() -> None:
    """Run the benchmark and print its table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--drivers", type=int, default=2, help="answers that run at a time")
    arguments = parser.parse_args()
    # Import what is measured before it is: verl's takes seconds.
    import verl.utils.reward_score.prime_code  # noqa: F401

    sandbox = LocalSandbox(num_slots=arguments.drivers)
    limits = Limits(test_s=30.0, solution_s=60.0)
    problems = stdin_problems()
    checked = [Problem.from_input_output(input_output(p), problem_id=p.problem_id) for p in problems]
    program = Program(code=CODE, stdin=STDIN)

    def run_sandbox(_: int) -> None:
        assert sandbox.execute(program, limits=limits, timeout_s=30.0).stdout == STDOUT

    def score_one(index: int) -> None:
        answer = f"```python\n{problems[index % len(problems)].solution}\n```"
        assert score_response(checked[index % len(problems)], answer, limits, sandbox=sandbox).score == 1.0

    pace = {"seconds": arguments.seconds / ROUNDS, "num_drivers": arguments.drivers}
    contestants = {
        "executions_sandbox": lambda: rate_with_threads(run_sandbox, **pace),
        "executions_bare_subprocess": lambda: rate_with_threads(run_bare, **pace),
        "answers_sandbox": lambda: rate_with_threads(score_one, **pace),
        "answers_prime_code": lambda: rate_of_prime_code(problems, **pace),
    }
    rates = dict.fromkeys(contestants, 0.0)
    for _ in range(ROUNDS):
        for name, measure in contestants.items():
            rates[name] += measure() / ROUNDS
    layers = sandbox.layers
    sandbox.close()
    result = {
        **{f"{name}_per_s": round(rate, 1) for name, rate in rates.items()},
        "executions_ratio": round(rates["executions_sandbox"] / rates["executions_bare_subprocess"], 2),
        "answers_ratio": round(rates["answers_sandbox"] / rates["answers_prime_code"], 2),
        "drivers": arguments.drivers,
        "cores": os.cpu_count(),
        "layers": [name for name, reason in layers.items() if not reason],
    }
    for name, value in result.items():
        print(f"{name:<36}{value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
