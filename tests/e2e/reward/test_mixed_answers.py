"""Good, wrong and hostile answers, scored by three processes at once: no verdict depends on what runs beside it."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.mini_apps.generator import generate

pytestmark = pytest.mark.e2e
REPOSITORY = Path(__file__).parents[3]
NUM_PROCESSES = 3
SCORER = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from reward import Limits, Problem, score_response
from reward.sandbox import LocalSandbox
problems, answers, num_slots = json.load(open(sys.argv[1])), json.load(open(sys.argv[2])), int(sys.argv[3])
problems = {key: Problem.from_input_output(tests, problem_id=key) for key, tests in problems.items()}
sandbox = LocalSandbox(num_slots=num_slots)
limits = Limits(test_s=1.0, memory_bytes=256 << 20)
def score(answer):
    result = score_response(problems[answer[0]], answer[1], limits, sandbox=sandbox)
    return [result.outcome, result.num_passed]
with ThreadPoolExecutor(num_slots) as pool:
    scores = list(pool.map(score, answers))
sandbox.close()
print(json.dumps(scores))
"""


def distinct_answers(hostile: list, problems_per_family: int) -> tuple[dict[str, dict], list[tuple[str, str]]]:
    """Problems by id, and (problem, answer) pairs, good and wrong ones by the problem, and hostile programs."""
    problems = generate(None, seed=3, problems_per_family=problems_per_family)
    tests = {problem.problem_id: problem.input_output for problem in problems}
    answers = []
    for problem in problems:
        good = problem.solution
        for code in (good, f"{good}\nprint('and more')", f"raise ValueError\n{good}", f"{good}\n)"):
            answers.append((problem.problem_id, f"```python\n{code}\n```"))
    stdin = next(problem.problem_id for problem in problems if "fn_name" not in problem.input_output)
    return tests, [*answers, *((stdin, f"```python\n{program.code}\n```") for program in hostile)]


def certain(hostile: list, *, time_outs: slice) -> list:
    """Programs that always end in the same way when they run alone: where the clock and a limit race, some do not."""
    ending = [program for program in hostile if len(program.outcomes) == 1]
    endless = [program for program in ending if program.outcomes == ("time_out",)]
    return [program for program in ending if program not in endless] + endless[time_outs]


def start(folder: Path, name: str, answers: list, num_slots: int) -> subprocess.Popen:
    (folder / name).write_text(json.dumps(answers))
    return subprocess.Popen(
        [sys.executable, "-c", SCORER, str(folder / "problems"), str(folder / name), str(num_slots)],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(folder / "scratch")},
        stdout=subprocess.PIPE,
        text=True,
    )


def scores_of(process: subprocess.Popen) -> list:
    output, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.parametrize(
    ("num_answers", "problems_per_family", "time_outs"),
    [
        (320, 1, slice(None, None, 3)),  # waiting for time-outs takes most of the time
        pytest.param(10_000, 2, slice(None), marks=[pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(3600)]),
    ],
)
def test_no_verdict_differs_from_the_one_that_the_answer_gets_alone(
    num_answers: int, problems_per_family: int, time_outs: slice, tmp_path: Path, hostile_programs: list
) -> None:
    (tmp_path / "scratch").mkdir()
    problems, answers = distinct_answers(certain(hostile_programs, time_outs=time_outs), problems_per_family)
    (tmp_path / "problems").write_text(json.dumps(problems))
    alone = scores_of(start(tmp_path, "alone", answers, 1))
    assert {outcome for outcome, _ in alone} >= {"pass", "fail", "runtime_error", "compile_error", "time_out"}
    assert num_answers >= len(answers)
    drawn = [index % len(answers) for index in range(num_answers)]  # each of them, and as often as any other
    random.Random(5).shuffle(drawn)
    parts = [drawn[part::NUM_PROCESSES] for part in range(NUM_PROCESSES)]
    processes = [
        start(tmp_path, f"part {number}", [answers[index] for index in part], 2) for number, part in enumerate(parts)
    ]
    for part, process in zip(parts, processes, strict=True):
        for index, score in zip(part, scores_of(process), strict=True):
            assert score == alone[index], answers[index]
    assert list((tmp_path / "scratch").iterdir()) == []
