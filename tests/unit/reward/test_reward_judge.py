"""Judges: what was written to stall, fill or fool the process that reads it costs a judge, not the trainer."""

import functools
import json
import operator
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from reward.apps import score_response
from reward.judge import Judge, JudgeLostError, UnjudgeableError, ask
from reward.limits import Limits
from reward.problem import Problem

REPOSITORY = Path(__file__).parents[3]
LIMITS = Limits(judge_s=1.0, judge_bytes=200 << 20)
COLLIDING = ",".join(str(k * ((1 << 61) - 1)) for k in range(1, 45_000))  # integers of one hash: a set takes seconds
_FORGE = """
import os
def f(x):
    for fd in range(3, 64):
        try: os.write(fd, {text!r}.encode())
        except OSError: pass
    os._exit(0)
"""


def forged(text: str) -> str:
    """An answer whose function writes the text where its value is expected."""
    return f"```python\n{_FORGE.format(text=text)}\n```"


def test_the_time_in_which_a_judge_starts_is_not_the_questions() -> None:
    judge = Judge()
    os.kill(judge.pid, signal.SIGSTOP)  # its interpreter has not started yet
    threading.Timer(2.0, os.kill, (judge.pid, signal.SIGCONT)).start()
    limits = Limits(judge_s=0.2)  # six times as much of the wall clock
    assert judge.ask("stdout_matches", "1", "1", limits=limits).value is True
    judge.close()


def test_a_question_over_its_time_ends_its_judge_only_and_is_not_waited_for_busily() -> None:
    started = time.process_time()
    with pytest.raises(UnjudgeableError, match="takes more than 1 CPU seconds"):
        ask("returned_matches", f'["value", {{"set": [{COLLIDING}]}}]'.encode(), (1,), limits=LIMITS)
    assert time.process_time() - started < 0.3
    assert ask("returned_matches", b'["value", 1]', (1,), limits=LIMITS).value == ""


def test_keys_that_become_one_text_are_wrong() -> None:
    for pairs, accepted in (('[1, 5], ["1", 1]', {"1": 1}), ('[null, 1], ["null", 1]', {"null": 1})):
        result = f'["value", [{{"dict": [{pairs}]}}]]'.encode()
        assert ask("returned_matches", result, ([accepted],), limits=LIMITS).value
    assert (
        ask("returned_matches", b'["value", {"dict": [[1, 5], ["2", 1]]}]', ({"1": 5, "2": 1},), limits=LIMITS).value
        == ""
    )


def test_a_question_over_its_memory_ends_its_judge_only() -> None:
    limits = Limits(judge_s=1.0, judge_bytes=64 << 20)
    for result, why in (
        (f'["value", {{"bytes": "{"00" * (48 << 20)}"}}]', "takes more than its memory"),
        (f'["value", {"[" * 100_000}{"]" * 100_000}]', "nested too deeply"),
    ):
        with pytest.raises(UnjudgeableError, match=why):
            ask("returned_matches", result.encode(), (1,), limits=limits)
        assert ask("returned_matches", b'["value", 1]', (1,), limits=limits).value == ""


def test_what_is_slow_to_judge_uses_up_the_answers_time() -> None:
    colliding = ",".join(str(k * ((1 << 61) - 1)) for k in range(1, 12_000))
    problem = Problem.from_input_output({"inputs": [[1]] * 100, "outputs": [1] * 100, "fn_name": "f"}, problem_id=1)
    started = time.monotonic()
    result = score_response(problem, forged(f'["value", {{"set": [{colliding}]}}]'), Limits(solution_s=1.0))
    assert result.outcome == "time_out"
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ('["value", {"bytes": 10000000000000000000000}]', "fail"),
        ('["value", {"bytes": 100000000000000}]', "fail"),
        ('["value", {"int": 3}]', "fail"),
        ('["value", {"range": [1, 2, 0]}]', "fail"),
        ('["value", {"values": 3}]', "fail"),
        ('["value", {"iterator": [[1, 2], 3, 4]}]', "fail"),
        ('["value", {"dict": [[[], 1]]}]', "fail"),
        ('["value", 2, 2, 3]', "fail"),
        ('["value", 1, [[7, [1]]]]', "fail"),
        ('["value", {"known": 7}]', "fail"),
        ('["value", {"known": 0}, [[0, [{"known": 0}]]]]', "fail"),
        ('["raised", 3]', "fail"),
        ('{"value": true}', "fail"),
        ("[]", "fail"),
        ("\x00", "fail"),
        (f'["value", {{"set": [{COLLIDING}]}}]', "output_limit"),
    ],
)
@pytest.mark.parametrize("kind", ["value", "test_code", "call"])
def test_forged_values_neither_pass_nor_raise(text: str, outcome: str, kind: str) -> None:
    problem = {
        "value": Problem(
            problem_id="v", inputs=[[1]], outputs=[functools.partial(operator.eq, 1)], kind="value", fn_name="f"
        ),
        "test_code": Problem.from_input_output({"test_code": ["assert f(1) == 1"], "fn_name": "f"}, problem_id=1),
        "call": Problem.from_input_output({"inputs": [[1]], "outputs": [1], "fn_name": "f"}, problem_id=1),
    }[kind]
    assert score_response(problem, forged(text), LIMITS).outcome == outcome
    assert score_response(problem, "```python\ndef f(x): return x\n```", LIMITS).outcome == "pass"


@pytest.mark.parametrize(("number", "outcome"), [("0", "pass"), ("-1", "fail"), ("1", "fail"), ("[]", "fail")])
def test_a_container_of_the_arguments_is_known_by_its_number_alone(number: str, outcome: str) -> None:
    problem = Problem.from_input_output({"test_code": ["assert f([1]) == [1]"], "fn_name": "f"}, problem_id=1)
    assert score_response(problem, forged(f'["value", {{"known": {number}}}]'), LIMITS).outcome == outcome


def test_what_test_code_does_with_a_value_is_within_the_limits() -> None:
    problem = Problem.from_input_output({"test_code": ["assert sorted(bytes(f(3))) == [1]"]}, problem_id=1)
    assert score_response(problem, forged(f'["value", {150 << 20}]'), LIMITS).outcome == "output_limit"


def test_a_killed_judge_is_replaced_and_is_no_verdict() -> None:
    judge = Judge()
    os.kill(judge.pid, signal.SIGKILL)
    with pytest.raises(JudgeLostError, match="status -9"):
        judge.ask("extract_code", "", limits=LIMITS)
    from reward.judge import process

    assert ask("extract_code", "```\nx\n```", limits=LIMITS).value == "x\n"
    os.kill(process._idle[-1].pid, signal.SIGKILL)
    assert ask("extract_code", "```\nx\n```", limits=LIMITS).value == "x\n"


def run_python(code: str, *options: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("options", "environment"), [(["-O"], {}), (["-OO"], {}), ([], {"PYTHONOPTIMIZE": "2"})])
def test_assertions_count_whatever_the_interpreters_options(options: list[str], environment: dict[str, str]) -> None:
    code = """
        from reward import Problem, score_response
        check = "def check(candidate):\\n    assert candidate(3) == 4\\ncheck(candidate)"
        for tests in (["assert f(3) == 4"], [check]):
            problem = Problem.from_input_output({"test_code": tests, "fn_name": "f"}, problem_id=1)
            for answer in ("def f(x): return 'wrong'", "x = 1", "def f(x): return 4"):
                print(score_response(problem, f"```python\\n{answer}\\n```").outcome)
    """
    done = run_python(code, *options, environment=environment)
    assert done.stdout.split() == ["fail", "runtime_error", "pass"] * 2, done.stderr


def test_judges_end_with_the_trusted_process() -> None:
    code = """
        import os, signal
        import threading, time
        from reward.judge import Judge
        from reward.limits import Limits
        judge = Judge()
        question = ("run_test_code", "import time\\nwhile True: time.sleep(0.1)", "f")
        threading.Thread(target=judge.ask, args=question, kwargs={"limits": Limits()}).start()
        time.sleep(1)
        print(judge.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    pid = int(run_python(code).stdout)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_forked_process_has_judges_of_its_own() -> None:
    assert ask("extract_code", "```\nx\n```", limits=LIMITS).value == "x\n"
    pid = os.fork()
    if pid == 0:
        from reward.judge import process

        os._exit(0 if not process._idle and ask("extract_code", "```\ny\n```", limits=LIMITS).value == "y\n" else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert ask("extract_code", "```\nx\n```", limits=LIMITS).value == "x\n"


def test_a_judge_that_users_bring_may_raise() -> None:
    judge = functools.partial(json.loads, s=3)
    problem = Problem(problem_id="v", inputs=[[1]], outputs=[judge], kind="value", fn_name="f")
    result = score_response(problem, "```python\ndef f(x): return x\n```", LIMITS)
    assert result.outcome == "output_limit" and "TypeError" in result.detail


def test_standard_streams_may_be_closed() -> None:
    code = """
        import json, os
        os.closerange(0, 3)
        from reward import Problem, score_response
        problem = Problem.from_input_output({"inputs": ["3"], "outputs": ["4"]}, problem_id=1)
        score = score_response(problem, "```python\\nprint(int(input()) + 1)\\n```")
        os.write(int(os.environ["RESULT_FD"]), score.outcome.encode())
    """
    reader, writer = os.pipe()
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=REPOSITORY,
        env={**os.environ, "RESULT_FD": str(writer)},
        pass_fds=[writer],
        check=True,
    )
    os.close(writer)
    with open(reader) as file:
        assert file.read() == "pass"
