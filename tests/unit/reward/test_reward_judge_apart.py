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


def assert_judges_are_right() -> None:
    for expected, outcome in (("3 5", "pass"), ("3 4", "fail")):
        problem = Problem.from_input_output({"inputs": ["3"], "outputs": [expected]}, problem_id=2)
        assert score_response(problem, "```python\nprint('3  5')\n```").outcome == outcome
    for expected, outcome in ((2, "pass"), (3, "fail")):
        assert score(f"assert f(2) == {expected}").outcome == outcome


@pytest.mark.parametrize(
    "change",
    [
        "import builtins\nbuiltins.all = lambda x: True",
        "import reward.compare\nreward.compare._words_match = lambda a, b: True",
        "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()",
        "import signal\nsignal.setitimer(signal.ITIMER_REAL, 5.0)",
        "import os, signal\nos.fork() or signal.pause()",
    ],
)
def test_test_code_changes_no_judge_for_others(change: str) -> None:
    judges = list(process._idle)
    assert score(f"{change}\nassert f(1) == 1").outcome == "pass"
    assert score(f"assert f(1) == 1\n{change}").outcome == "pass"
    assert_judges_are_right()
    assert set(judges) <= set(process._idle)


@pytest.mark.parametrize("workers", [1, 4])
def test_calls_from_several_threads(workers: int) -> None:
    test = f"""
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor({workers}) as pool:
            assert list(pool.map(f, range(20))) == [2 * x for x in range(20)]
    """
    for _ in range(3):
        assert score(test, "def f(x): return 2 * x").outcome == "pass"
        assert score(test, "def f(x): return 2 * x if x < 19 else 0").outcome == "fail"


IN_TIME = {
    "thread": """
        import threading
        found = []
        thread = threading.Thread(target=lambda: found.append(f(1)), daemon=True)
        thread.start()
        thread.join(0.2)
        assert found == [1]
    """,
    "alarm": """
        import signal
        def late(*_): raise TimeoutError
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert f(1) == 1
        signal.setitimer(signal.ITIMER_REAL, 0)
    """,
}


@pytest.mark.parametrize("test", IN_TIME.values(), ids=IN_TIME)
def test_a_call_that_the_test_does_not_wait_for_is_nobody_elses(test: str) -> None:
    slow = "import time\ndef f(x):\n    time.sleep(0.6)\n    return x"
    for _ in range(3):
        assert score(test, slow).outcome == "fail"
        assert_judges_are_right()


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


def test_test_code_calls_from_one_process_only() -> None:
    test = """
        import os
        child = os.fork()
        if child == 0:
            try:
                f(1)
            except RuntimeError as error:
                os._exit("processes of its own" in str(error))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert f(2) == 2
    """
    judges = list(process._idle)
    assert score(test).outcome == "pass"
    assert_judges_are_right()
    assert set(judges) <= set(process._idle)


def test_what_a_program_wrote_is_no_question_and_no_other_result() -> None:
    secret, result = os.urandom(protocol.SECRET_BYTES), b"cos\nsystem\n(S'true'\ntR."
    message = protocol.result_message(secret, 1, 2, "ok", result)
    assert protocol.read_result(secret, 1, 2, message) == ("ok", result)
    question = protocol.question_message(secret, (1, "task", ("text",), 1.0, 2))
    assert protocol.read_question(secret, question) == (1, "task", ("text",), 1.0, 2)
    for unlike in (result, message[1:], message, os.urandom(protocol.SECRET_BYTES) + question[protocol.SECRET_BYTES :]):
        with pytest.raises(protocol.BrokenProtocolError):
            protocol.read_question(secret, unlike)
    for number, num_calls, unlike in ((1, 1, message), (2, 2, message), (1, 2, question), (1, 2, result)):
        with pytest.raises(protocol.BrokenProtocolError):
            protocol.read_result(secret, number, num_calls, unlike)


def test_test_code_that_waits_for_what_never_comes_is_a_verdict() -> None:
    test = """
        import queue, threading
        results = queue.Queue()
        threading.Thread(target=lambda: results.put(f(1))).start()
        assert results.get() == 1
    """
    limits = Limits(judge_s=0.5)
    assert score(test, limits=limits).outcome == "pass"
    started = time.monotonic()
    assert score(test, "def f(x): return object()", limits).outcome == "output_limit"
    assert time.monotonic() - started < 30


def test_memory_is_limited_while_a_call_runs() -> None:
    test = """
        import threading, time
        most = 0
        def fill():
            global most
            for _ in range(5):
                time.sleep(0.1)
                held = []
                try:
                    while len(held) < 20:
                        held.append(bytes(16 << 20))
                except MemoryError:
                    pass
                most = max(most, len(held))
        thread = threading.Thread(target=fill)
        thread.start()
        f(1)
        thread.join()
        assert most < 10
    """
    slow = "import time\ndef f(x):\n    time.sleep(0.6)\n    return x"
    assert score(test, slow, Limits(judge_bytes=128 << 20)).outcome == "pass"


def test_no_memory_for_what_a_call_returns_is_a_verdict() -> None:
    test = """
        import resource
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
        assert f(1)
    """
    assert score(test, "def f(x): return 'x' * 1000").outcome == "pass"
    long = Limits(output_bytes=8 << 20, file_bytes=32 << 20)
    assert score(test, "def f(x): return 'x' * (7 << 20)", long).outcome == "output_limit"
    assert_judges_are_right()


@pytest.mark.parametrize("timer", ["signal.alarm(1)", "signal.setitimer(signal.ITIMER_VIRTUAL, 0.2)"])
def test_an_alarm_that_test_code_does_not_handle_is_a_verdict(timer: str) -> None:
    test = f"import signal\nassert f(1) == 1\n{timer}\nif f(2) != 2:\n    while True: pass"
    assert score(test).outcome == "pass"
    assert score(test, "def f(x): return x % 2").outcome == "output_limit"
    assert_judges_are_right()


class Slow:
    """It takes seconds to read as a part of a question."""

    def __reduce__(self) -> tuple:
        return sum, (range(60_000_000),)


def test_the_time_of_a_question_does_not_end_the_reading_of_the_next() -> None:
    judge = Judge()
    judge.ask("extract_code", "", limits=Limits(judge_s=0.1))
    assert judge.ask("returned_matches", b'["value", 1]', (Slow(), 1), limits=Limits()).value == ""
