"""What one question does to its judge is nothing to the next, and to nobody else."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from reward.apps import Score, score_response
from reward.judge import Judge, JudgeLostError, UnjudgeableError, process, protocol
from reward.limits import Limits
from reward.problem import Problem

REPOSITORY = Path(__file__).parents[3]
SAME = "def f(x): return x"
COLLIDING = ",".join(str(k * ((1 << 61) - 1)) for k in range(1, 45_000))  # integers of one hash: a set takes seconds
SLOW_VALUE = f'["value", {{"set": [{COLLIDING}]}}]'.encode()


def score(test: str, code: str = SAME, limits: Limits | None = None) -> Score:
    problem = Problem.from_input_output({"test_code": [textwrap.dedent(test)], "fn_name": "f"}, problem_id=1)
    return score_response(problem, f"```python\n{textwrap.dedent(code)}\n```", limits)


def score_unchecked(test: str, code: str = SAME, limits: Limits | None = None) -> Score:
    problem = Problem(problem_id="1", inputs=[textwrap.dedent(test)], outputs=[None], kind="test_code", fn_name="f")
    return score_response(problem, f"```python\n{textwrap.dedent(code)}\n```", limits)


def assert_judges_are_right() -> None:
    for expected, outcome in (("3 5", "pass"), ("3 4", "fail")):
        problem = Problem.from_input_output({"inputs": ["3"], "outputs": [expected]}, problem_id=2)
        assert score_response(problem, "```python\nprint('3  5')\n```").outcome == outcome
    for expected, outcome in ((2, "pass"), (3, "fail")):
        assert score(f"assert f(2) == {expected}").outcome == outcome


@pytest.mark.parametrize(
    "change",
    [
        "import re\nre.compile = re.match = None",
        "import math\nmath.isclose = math.isfinite = lambda *_: True",
        "import sys\nsys.setrecursionlimit(150)",
    ],
)
def test_test_code_changes_no_judge_for_others(change: str) -> None:
    judges = list(process._idle)
    assert score(f"{change}\nassert f(1) == 1").outcome == "pass"
    assert score(f"assert f(1) == 1\n{change}").outcome == "pass"
    assert_judges_are_right()
    assert set(judges) <= set(process._idle)


@pytest.mark.parametrize(
    "message",
    [b"", b"{", b"3\n3", b'{"question": 1}\n{}', b'{"question": 9, "call": 3}\n', b'{"question": 1, "call": 3}\n'],
)
@pytest.mark.parametrize("others", [b"", b'{"question": 1, "seconds": 0.0}\n{"value": 3}'])
def test_a_judge_that_says_what_it_may_not_is_lost(message: bytes, others: bytes) -> None:
    judge = Judge()
    test = f"""
        import os, stat
        for fd in range(3, 64):
            try: is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
            except OSError: continue
            if is_socket: os.write(fd, {b"".join(len(text).to_bytes(4, "big") + text for text in (message, others))!r})
    """
    with pytest.raises(JudgeLostError, match="a judge gave"):
        judge.ask("run_test_code", textwrap.dedent(test), "f", limits=Limits())
    assert not judge.is_usable


def test_the_time_of_a_question_is_its_own_after_one_with_more() -> None:
    judge = Judge()
    judge.ask("extract_code", "", limits=Limits(judge_s=30.0))
    with pytest.raises(UnjudgeableError, match="more than 1 CPU"):
        judge.ask("returned_matches", SLOW_VALUE, (1,), limits=Limits(judge_s=1.0))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    judge = Judge()
    judge.ask("extract_code", "", limits=Limits(judge_s=30.0))
    with pytest.raises(UnjudgeableError, match="more than 1 CPU"):
        judge.ask("run_test_code", "while True: pass", "f", limits=Limits(judge_s=1.0))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 6.0


def test_a_long_answer_gets_a_verdict() -> None:
    limits = Limits(judge_bytes=100 << 20)
    problem = Problem.from_input_output({"inputs": ["3"], "outputs": ["3"]}, problem_id=1)
    response = f"```python\n#{chr(0x1F600) * (8 << 20)}\nprint(3)\n```"
    assert score_response(problem, response, limits).outcome == "compile_error"
    assert score_response(problem, "```python\nprint('3 ')\n```", limits).outcome == "pass"


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "GeneratorExit", "BaseException(1)"])
def test_test_code_may_raise_anything(error: str) -> None:
    assert score(f"if f(1) != 1: raise {error}").outcome == "pass"
    assert score(f"if f(1) != 1: raise {error}", "def f(x): return 2").outcome == "fail"


def test_a_judge_in_a_long_step_ends_with_the_trusted_process() -> None:
    code = """
        import os, signal, sys, threading, time
        from pathlib import Path
        from reward.judge import Judge
        from reward.limits import Limits
        judges = []
        starter = threading.Thread(target=lambda: judges.append(Judge()))
        starter.start()
        starter.join()
        (judge,) = judges
        assert judge.ask("extract_code", "```\\nx\\n```", limits=Limits()).value  # its starter has ended
        children = Path(f"/proc/{judge.pid}/task/{judge.pid}/children").read_text()
        question = ("returned_matches", sys.stdin.buffer.read(), (1,))
        threading.Thread(target=judge.ask, args=question, kwargs={"limits": Limits(judge_s=60.0)}).start()
        time.sleep(1)
        print(judge.pid, children, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    colliding = ",".join(str(k * ((1 << 61) - 1)) for k in range(1, 120_000))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=REPOSITORY,
        input=f'["value", {{"set": [{colliding}]}}]'.encode(),
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 2
    ended = time.monotonic()
    while any(os.path.exists(f"/proc/{pid}") and _state(pid) not in "ZX" for pid in pids):
        assert time.monotonic() < ended + 5.0
        time.sleep(0.05)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def test_what_a_program_wrote_is_no_question_and_no_other_result() -> None:
    secret, result = os.urandom(protocol.SECRET_BYTES), b"cos\nsystem\n(S'true'\ntR."
    message = protocol.result_message(secret, 1, 2, "ok", result, 0.5)
    assert protocol.read_result(secret, 1, 2, message) == ("ok", result, 0.5)
    question = protocol.question_message(secret, (1, "task", ("text",), 1.0, 2))
    assert protocol.read_question(secret, question) == (1, "task", ("text",), 1.0, 2)
    for unlike in (result, message[1:], message, os.urandom(protocol.SECRET_BYTES) + question[protocol.SECRET_BYTES :]):
        with pytest.raises(protocol.BrokenProtocolError):
            protocol.read_question(secret, unlike)
    for number, num_calls, unlike in ((1, 1, message), (2, 2, message), (1, 2, question), (1, 2, result)):
        with pytest.raises(protocol.BrokenProtocolError):
            protocol.read_result(secret, number, num_calls, unlike)


def test_no_memory_for_what_a_call_returns_is_a_verdict() -> None:
    test = """
        import resource
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
        assert f(1)
    """
    assert score_unchecked(test, "def f(x): return 'x' * 1000").outcome == "pass"
    long = Limits(output_bytes=8 << 20, file_bytes=32 << 20)
    assert score_unchecked(test, "def f(x): return 'x' * (7 << 20)", long).outcome == "output_limit"
    assert_judges_are_right()


ENDINGS = {
    "exit": "import os\nif f(1) != 2: os._exit(3)",
    "exit without a word": "import os\nif f(1) != 2: os._exit(0)",
    "signal": "import os\nif f(1) != 2: os.kill(os.getpid(), 8)",
    "handler": """
        import signal
        def late(*_): raise TimeoutError
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try: f(1)
        except TimeoutError: assert False
    """,
    "thread": """
        import threading
        thread = threading.Thread(target=lambda: f(1), daemon=True)
        thread.start()
        thread.join(0.2)
        assert not thread.is_alive()
    """,
}


@pytest.mark.parametrize("test", ENDINGS.values(), ids=ENDINGS)
def test_test_code_that_ends_or_leaves_a_call_is_a_verdict_and_ends_its_judge(test: str) -> None:
    slow = "import time\ndef f(x):\n    time.sleep(0.6)\n    return x"
    for _ in range(2):
        assert score_unchecked(test, slow).outcome == "output_limit"
        assert_judges_are_right()


def test_the_time_that_test_code_waits_has_an_end_however_often_it_calls() -> None:
    limits = Limits(judge_s=0.3)
    test = "import time\nwhile not f(1): time.sleep(0.05)\nassert f(2) == 2"
    started = time.monotonic()
    assert score_unchecked(test, "def f(x): return 0", limits).outcome == "output_limit"
    assert time.monotonic() - started < 10
    assert score_unchecked(test, SAME, limits).outcome == "pass"


def test_the_time_of_test_code_is_exact() -> None:
    judge = Judge()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(UnjudgeableError, match="more than 0.5 CPU"):
        judge.ask("run_test_code", "while True: pass", "f", limits=Limits(judge_s=0.5))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 1.2


class Slow:
    """It takes seconds to read as a part of a question."""

    def __reduce__(self) -> tuple:
        return sum, (range(60_000_000),)


def test_the_time_of_a_question_does_not_end_the_reading_of_the_next() -> None:
    judge = Judge()
    judge.ask("extract_code", "", limits=Limits(judge_s=0.5))
    assert judge.ask("returned_matches", b'["value", 1]', (Slow(), 1), limits=Limits()).value == ""
