"""Judges: what was written to stall, fill or fool what reads it costs one question, and neither judge nor trainer."""

import functools
import os
import signal
import textwrap
import threading
from pathlib import Path

import pytest
from in_sandbox import run_python
from waiting import comes_true, is_alive

from reward.apps import Score, score_response
from reward.compare import returned_matches, stdout_matches
from reward.extract import extract_code
from reward.judge import Judge, JudgeLostError, Reply, UnjudgeableError, ask, process
from reward.judge.assertions import run_test_code
from reward.limits import Limits
from reward.problem import Problem

LIMITS = Limits(judge_s=1.0, judge_bytes=200 << 20)
COLLIDING = ",".join(str(k * ((1 << 61) - 1)) for k in range(1, 45_000))  # integers of one hash: a set takes seconds
SLOW_VALUE = f'["value", {{"set": [{COLLIDING}]}}]'.encode()
SAME = "def f(x): return x"
_FORGE = """
import os
def f(x):
    for fd in range(3, 64):
        try: os.write(fd, {text!r}.encode())
        except OSError: pass
    os._exit(0)
"""


def code_in(response: str, judge: Judge | None = None, limits: Limits = LIMITS) -> str | None:
    return (judge.ask if judge else ask)(functools.partial(extract_code, response), limits=limits).value


def matches(result: bytes, *accepted: object, limits: Limits = LIMITS) -> str:
    return ask(functools.partial(returned_matches, result, accepted), limits=limits).value


def run_tests_of(judge: Judge, test: str, returned: bytes = b'["value", 1]', limits: Limits = LIMITS) -> Reply:
    question = functools.partial(run_test_code, textwrap.dedent(test), "f")
    return judge.ask(question, limits=limits, load=int, on_call=lambda *_: ("ok", returned, 0.0))


def score(test: str, code: str = SAME, limits: Limits | None = None) -> Score:
    problem = Problem(problem_id="1", inputs=[textwrap.dedent(test)], outputs=[None], kind="test_code", fn_name="f")
    return score_response(problem, f"```python\n{textwrap.dedent(code)}\n```", limits)


def forged(text: str) -> str:
    """An answer whose function writes the text where its value is expected."""
    return f"```python\n{_FORGE.format(text=text)}\n```"


def test_the_time_in_which_a_judge_starts_is_not_the_questions() -> None:
    judge = Judge()
    os.kill(judge.pid, signal.SIGSTOP)  # its interpreter has not started yet
    threading.Timer(2.0, os.kill, (judge.pid, signal.SIGCONT)).start()
    question = functools.partial(stdout_matches, "1", "1")
    assert judge.ask(question, limits=Limits(judge_s=0.2)).value is True
    judge.close()


def test_a_question_over_its_time_or_memory_ends_alone() -> None:
    judge = Judge()
    deep = f'["value", {"[" * 100_000}{"]" * 100_000}]'.encode()
    large = f'["value", {{"bytes": "{"00" * (48 << 20)}"}}]'.encode()
    for result, num_bytes, why in (
        (SLOW_VALUE, 200 << 20, "takes more than 1 CPU seconds"),
        (large, 64 << 20, "takes more than its memory"),
        (deep, 200 << 20, "nested too deeply"),
    ):
        with pytest.raises(UnjudgeableError, match=why):
            limits = Limits(judge_s=1.0, judge_bytes=num_bytes)
            judge.ask(functools.partial(returned_matches, result, (1,)), limits=limits)
        assert judge.is_usable and code_in("```\nx\n```", judge) == "x\n"
    with pytest.raises(UnjudgeableError, match="takes more than 0.5 CPU seconds"):
        run_tests_of(judge, "while True: pass", limits=Limits(judge_s=0.5))
    judge.close()


def test_keys_that_become_one_text_are_wrong() -> None:
    assert matches(b'["value", [{"dict": [[1, 5], ["1", 1]]}]]', [{"1": 1}])
    assert matches(b'["value", {"dict": [[1, 5], ["2", 1]]}]', {"1": 5, "2": 1}) == ""


def test_what_is_slow_to_judge_uses_up_the_answers_time() -> None:
    colliding = ",".join(str(k * ((1 << 61) - 1)) for k in range(1, 12_000))
    problem = Problem.from_input_output({"inputs": [[1]] * 100, "outputs": [1] * 100, "fn_name": "f"}, problem_id=1)
    result = score_response(problem, forged(f'["value", {{"set": [{colliding}]}}]'), Limits(solution_s=1.0))
    assert result.outcome == "time_out"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ('["value", {"bytes": 10000000000000000000000}]', "fail"),
        ('["value", {"int": 3}]', "fail"),
        ('["value", {"dict": [[[], 1]]}]', "fail"),
        ('["value", 1, [[7, [1]]]]', "fail"),
        ('["value", 2, [3]]', "fail"),
        ('["raised", 3]', "fail"),
        ('["value", {"range": [1e400, 2, 3]}]', "fail"),
        ('["value", {"tuple": {"tuple": {"tuple": "abc"}}}]', "fail"),
        ('["raised", {"error": [["ExceptionGroup"], ["m", [1]]]}]', "fail"),
        ('["raised", {"error": [["UnicodeEncodeError"], ["a", "b", 1e400, 1, "x"]]}]', "fail"),
        ('["raised", {"error": [["AssertionError", "StopIteration"], [1]]}]', "fail"),
        ('{"value": true}', "fail"),
        ("\x00", "fail"),
        (SLOW_VALUE.decode(), "output_limit"),
    ],
)
@pytest.mark.parametrize("kind", ["test_code", "call"])
def test_forged_values_neither_pass_nor_raise(text: str, outcome: str, kind: str) -> None:
    problem = {
        "test_code": Problem.from_input_output({"test_code": ["assert f(1) == 2"], "fn_name": "f"}, problem_id=1),
        "call": Problem.from_input_output({"inputs": [[1]], "outputs": [2], "fn_name": "f"}, problem_id=1),
    }[kind]
    assert score_response(problem, forged(text), LIMITS).outcome == outcome
    assert score_response(problem, "```python\ndef f(x): return x + 1\n```", LIMITS).outcome == "pass"


def test_what_test_code_does_with_a_value_is_within_the_limits() -> None:
    problem = Problem.from_input_output({"test_code": ["assert sorted(bytes(f(3))) == [1]"]}, problem_id=1)
    assert score_response(problem, forged(f'["value", {150 << 20}]'), LIMITS).outcome == "output_limit"


def test_a_killed_judge_is_replaced_and_is_no_verdict() -> None:
    judge = Judge()
    os.kill(judge.pid, signal.SIGKILL)
    with pytest.raises(JudgeLostError, match="status -9"):
        code_in("", judge)
    assert code_in("```\nx\n```") == "x\n"
    os.kill(process._idle[-1].pid, signal.SIGKILL)
    assert code_in("```\nx\n```") == "x\n"


def test_where_no_judge_can_start_is_no_verdict() -> None:
    code = """
        import functools, resource
        from reward.compare import stdout_matches
        from reward.judge import JudgeLostError, ask
        from reward.limits import Limits
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        try:
            ask(functools.partial(stdout_matches, "1", "1"), limits=Limits())
        except JudgeLostError as error:
            print(error)
    """
    done = run_python(code)
    assert done.stdout.startswith("a judge could not start ([Errno 24]"), done.stderr


def test_assertions_count_whatever_the_interpreters_options() -> None:
    code = """
        from reward import Problem, score_response
        problem = Problem.from_input_output({"test_code": ["assert f(3) == 4"], "fn_name": "f"}, problem_id=1)
        for answer in ("def f(x): return 'wrong'", "x = 1", "def f(x): return 4"):
            print(score_response(problem, f"```python\\n{answer}\\n```").outcome)
    """
    done = run_python(code, "-OO")
    assert done.stdout.split() == ["fail", "runtime_error", "pass"], done.stderr


@pytest.mark.parametrize(
    "test", ["import time\nwhile True: time.sleep(0.1)", "x = {k * ((1 << 61) - 1) for k in range(120_000)}"]
)
def test_judges_end_with_the_trusted_process_whatever_they_do(test: str) -> None:
    code = f"""
        import functools, os, signal, threading, time
        from pathlib import Path
        from reward.judge import Judge
        from reward.judge.assertions import run_test_code
        from reward.limits import Limits
        judges = []
        starter = threading.Thread(target=lambda: judges.append(Judge()))
        starter.start()
        starter.join()
        (judge,) = judges  # its starter has ended
        question = functools.partial(run_test_code, {test!r}, "f")
        limits = dict(limits=Limits(judge_s=60.0), load=int, on_call=lambda *_: None)
        threading.Thread(target=judge.ask, args=(question,), kwargs=limits).start()
        children = ""
        while not children: children = Path(f"/proc/{{judge.pid}}/task/{{judge.pid}}/children").read_text()
        print(judge.pid, children, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_python(code)
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 2, done.stderr
    assert comes_true(lambda: not any(map(is_alive, pids)))


def test_a_module_of_the_users_with_the_packages_name_is_not_in_the_way(tmp_path: Path) -> None:
    for name in ("reward", "recipe", "scripts"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(name)")
    code = f"""
        import sys
        from reward import Problem, score_response
        sys.path.insert(0, {str(tmp_path)!r})  # as Ray does with the folder in which a job was started
        problem = Problem.from_input_output({{"inputs": ["3"], "outputs": ["4"]}}, problem_id=1)
        print(score_response(problem, "```python\\nprint(int(input()) + 1.0)\\n```").outcome)
    """
    done = run_python(code)
    assert done.stdout == "pass\n", done.stderr


@pytest.mark.parametrize(
    "message", [b"", b"{", b"3", b"?", b'?["f"]', b"[1, 2]", b'["passed", ""]x', b'{"value": 3}', b"[" * 5000]
)
def test_a_child_that_says_what_it_may_not_is_no_pass(message: bytes) -> None:
    judge = Judge()
    text = len(message).to_bytes(4, "big") + message
    test = f"""
        import os, stat
        for fd in range(3, 64):
            try: is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
            except OSError: continue
            if is_socket: os.write(fd, {text!r})
        os._exit(0)
    """
    with pytest.raises(UnjudgeableError):
        run_tests_of(judge, test)
    judge = judge if judge.is_usable else Judge()
    assert run_tests_of(judge, "assert f(1) == 1").value == ("passed", "")


def test_a_long_answer_gets_a_verdict() -> None:
    limits = Limits(judge_bytes=16 << 20)
    problem = Problem.from_input_output({"inputs": ["3"], "outputs": ["3"]}, problem_id=1)
    response = f"```python\n#{chr(0x1F600) * (8 << 20)}\nprint(3)\n```"
    unread = score_response(problem, response, limits)
    assert (unread.outcome, unread.feedback) == ("compile_error", "It cannot be read: it takes more than its memory")
    assert score_response(problem, "```python\nprint('3 ')\n```", limits).outcome == "pass"


def test_no_memory_for_what_a_call_returns_is_a_verdict() -> None:
    test = """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))
        assert f(1)
    """
    long = Limits(output_bytes=8 << 20, file_bytes=32 << 20)
    assert score(test, "def f(x): return 'x' * (7 << 20)", long).outcome == "output_limit"


@pytest.mark.parametrize(
    ("test", "seconds"),
    [
        ("import os\nif f(1) != 2: os._exit(3)", 0),
        ("import os\nif f(1) != 2: os.kill(os.getpid(), 8)", 0),
        (
            """
        import signal
        def late(*_): raise TimeoutError
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 1)
        try: f(1)
        except TimeoutError: assert False
        """,
            3,
        ),
    ],
    ids=["exit", "signal", "leave"],
)
def test_test_code_that_ends_or_leaves_a_call_is_a_verdict(test: str, seconds: int) -> None:
    slow = f"import time\ndef f(x):\n    time.sleep({seconds})\n    return x"
    assert score(test, slow).outcome == "output_limit"
    assert score("assert f(2) == 3").outcome == "fail"
    assert score("assert f(2) == 2").outcome == "pass"


def test_the_time_that_test_code_waits_has_an_end_however_often_it_calls() -> None:
    test = "import time\nwhile not f(1): time.sleep(0.5)\nassert f(2) == 2"
    assert score(test, "def f(x): return 0", Limits(judge_s=0.3)).outcome == "output_limit"
    assert score(test, SAME).outcome == "pass"


@pytest.mark.parametrize(
    "test",
    [
        "open(f('/proc/{pid}/environ'))",
        "import os\nopen(f(f'/proc/{os.getppid()}/status'))",
        "open(f('{file}'))",
        "import os\nos.unlink(f('{file}'))",
        "import os\nos.kill(os.getppid(), f(0))",
        "import os\nif not os.fork(): os._exit(f(0))",
        "import os\nos.execv('/bin/true', ['true'])",
        "import socket\nsocket.socket()",
    ],
)
def test_test_code_reaches_nothing_outside(test: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    result = score(test.replace("{file}", str(file)).replace("{pid}", str(os.getpid())))
    assert result.outcome == "fail"
    assert "PermissionError" in result.detail
    assert file.read_text() == "x"


@pytest.mark.parametrize(
    "test",
    [
        "import numpy as np\nassert np.linalg.det(np.eye(f(2))) == 1 and np.random.rand(2).shape == (2,)",
        "import pytest\nwith pytest.raises(ZeroDivisionError): f(1) // 0\nassert f(1) == pytest.approx(1)",
        "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    return f(3)\n"
        "assert asyncio.run(main()) == 3",
        "import datetime, zoneinfo\nwinter = datetime.datetime(2020, 1, 1)\n"
        "assert zoneinfo.ZoneInfo('Europe/Berlin').utcoffset(winter).seconds == f(3600)",
        "import xml.dom.minidom, sqlite3.dbapi2\nassert f(1) == 1",  # not loaded before
    ],
)
def test_test_code_finds_what_it_needs(test: str) -> None:
    assert score(test).outcome == "pass"


def test_what_test_code_writes_reaches_no_log(capfd: pytest.CaptureFixture[str]) -> None:
    judge = Judge()
    test = "import sys\nprint(f(1), file=sys.stderr)\nassert f(1) == 'forged'"
    assert run_tests_of(judge, test, b'["value", "forged"]').value[0] == "passed"
    judge.close()
    assert capfd.readouterr().err == ""
