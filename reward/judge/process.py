"""The trusted process's side of the judges: starts them, asks them, and keeps the idle ones for the next question."""

import atexit
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from reward.judge.protocol import (
    ENDED_STATUS,
    MAX_MESSAGE_BYTES,
    MEMORY_STATUS,
    READY,
    SECRET_BYTES,
    BrokenProtocolError,
    Call,
    question_message,
    read_call,
    read_reply,
    result_message,
)
from reward.limits import Limits
from reward.sandbox.standard_streams import inherited_stderr

_WORKER = Path(__file__).with_name("worker.py")
_ROOT = str(Path(__file__).parents[2])
_NUM_CORES = os.cpu_count() or 1
_WALL_FACTOR = 6  # of the CPU seconds that a question may take; calls of the answer have limits of their own
_START_S = 120.0  # wall seconds in which a judge must have started, and loaded what a question needs
_MAX_CORE_S = 2.0  # wall seconds for which a question keeps others from a core
# Return codes with which a question can end its judge; any other end says nothing about the question.
_ENDS_BY_QUESTION: dict[int, str] = {
    **dict.fromkeys((-signal.SIGXCPU, -signal.SIGPROF), "it takes more than {judge_s:.3g} CPU seconds"),
    MEMORY_STATUS: "it takes more than its memory",
}
# Return codes of one that what it runs has crashed or ended.
_CRASHES: dict[int, str] = {
    **dict.fromkeys((-signal.SIGSEGV, -signal.SIGABRT), "it is nested too deeply"),
    **dict.fromkeys((-signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL, -signal.SIGTRAP), "it crashes"),
    ENDED_STATUS: "it ends its own process",
}


def _is_row(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, list) and list(map(type, value)) == list(kinds)


def _are_faults(value: Any) -> bool:
    return isinstance(value, list) and all(_is_row(row, (int, str, str)) for row in value)


# What a task's value is, see `reward.judge.tasks`.
_IS_VALUE: dict[str, Callable[[Any], bool]] = {
    "extract_code": lambda value: value is None or isinstance(value, str),
    "extract_tested": lambda value: value is None or isinstance(value, str),
    "stdout_matches": lambda value: isinstance(value, bool),
    "returned_matches": lambda value: isinstance(value, str),
    "returned_satisfies": lambda value: isinstance(value, str),
    "run_test_code": lambda value: _is_row(value, (str, str)),
    "faults_of_tests": _are_faults,
    "faults_together": _are_faults,
    "grade_text": lambda value: _is_row(value, (str, float, str)),
    "grade_math": lambda value: _is_row(value, (str, float, str)),
    "grade_puzzle": lambda value: _is_row(value, (str, float, str)),
}


@dataclass(slots=True, kw_only=True, frozen=True)
class Reply:
    """What a judge answers."""

    value: Any  # the task's: bool, text, None, and lists of these
    seconds: float  # CPU seconds that it took


class UnjudgeableError(Exception):
    """The question took more than its limits: what was to be judged is to blame."""

    def __init__(self, why: str, *, is_crash: bool = False) -> None:
        """Say why; `is_crash`: it crashed the judge, or ended it."""
        super().__init__(why)
        self.is_crash = is_crash


class JudgeLostError(Exception):
    """The judge did not answer: nothing that the answer may be blamed for."""


class Judge:
    """A judge process; used by one thread at a time."""

    def __init__(self) -> None:
        """Start it; it ends with this process.

        Raises:
            JudgeLostError: it could not be started.
        """
        self.is_usable = True
        self._number = 0  # of the last question
        self._secret = os.urandom(SECRET_BYTES)  # which no program knows
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-X", "utf8", "-W", "ignore", str(_WORKER), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=inherited_stderr(),
                    pass_fds=[theirs.fileno()],
                    env=threads,
                    cwd="/",
                    start_new_session=True,
                )
            # An installation in place is found by this process's hooks, which the other one does not have.
            paths = [os.path.abspath(path) for path in (*sys.path, _ROOT)]
            self._connection.send((self._secret, paths))
        except OSError as error:
            self.is_usable = False
            self._connection.close()
            raise JudgeLostError(f"a judge could not start ({error})") from error

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, task: str, *arguments: Any, limits: Limits, on_call: Call | None = None) -> Reply:
        """Have a task of `reward.judge.tasks` done.

        Args:
            task: its name.
            arguments: what it takes; untrusted text goes as it is.
            limits: `judge_s` and `judge_bytes` are the task's.
            on_call: runs a function of the answer, for tasks that call some.

        Raises:
            UnjudgeableError: it took too much, or failed on what it was given.
            JudgeLostError: the judge was killed; the question can be asked again, of another one.
        """
        self._number += 1
        try:
            message = self._converse((task, arguments, limits.judge_s, limits.judge_bytes), limits, on_call)
            value, seconds, error_line = read_reply(self._number, message, _IS_VALUE[task])
        except (OSError, EOFError) as error:
            self.close()
            raise self._why_it_ended(limits) from error
        except BrokenProtocolError as error:
            self.close()
            raise JudgeLostError(f"a judge gave {error}") from error
        except BaseException:  # it is in the middle of a question
            self.close()
            raise
        if error_line:
            self.close()  # its memory may be in pieces
            raise UnjudgeableError(error_line)
        return Reply(value=value, seconds=seconds)

    def _converse(self, question: tuple, limits: Limits, on_call: Call | None) -> bytes:
        """Ask, make the calls that it wants made, and return its last message."""
        words = b""
        self._hand_over(question_message(self._secret, (self._number, *question)))
        wall_s = _WALL_FACTOR * limits.judge_s
        left_s = wall_s
        for num_calls in itertools.count(1):
            with _cores:  # not while a function of the answer runs, nor for one that only waits
                asked = time.monotonic()
                if words:
                    self._connection.send_bytes(words)
                self._connection.poll(min(_MAX_CORE_S, left_s))
            if not self._connection.poll(max(left_s - (time.monotonic() - asked), 0.0)):
                self.close()
                raise UnjudgeableError(f"it takes more than {wall_s:.3g} seconds by the wall clock")
            left_s = max(left_s - (time.monotonic() - asked), 0.0)
            message = self._connection.recv_bytes(MAX_MESSAGE_BYTES)
            call = read_call(self._number, message)
            if call is None:
                return message
            if on_call is None:
                raise BrokenProtocolError("a call where there is nothing to call")
            words = result_message(self._secret, self._number, num_calls, *on_call(*call))
        raise AssertionError  # the count has no end

    def _hand_over(self, question: bytes) -> None:
        """Send a question, and wait until its time begins."""
        self._connection.send_bytes(question)
        with _cores:
            self._connection.poll(_MAX_CORE_S)
        if not self._connection.poll(_START_S):
            raise BrokenProtocolError(f"no sign of life for {_START_S:.0f} seconds")
        if self._connection.recv_bytes(MAX_MESSAGE_BYTES) != READY:
            raise BrokenProtocolError("an answer before the question was begun")

    def close(self) -> None:
        """End it."""
        self.is_usable = False
        self._connection.close()
        self._process.kill()  # it has no effect on one that has ended by itself
        self._process.wait()

    def _why_it_ended(self, limits: Limits) -> Exception:
        status = self._process.returncode
        if status in _CRASHES:
            return UnjudgeableError(_CRASHES[status], is_crash=True)
        if status in _ENDS_BY_QUESTION:
            return UnjudgeableError(_ENDS_BY_QUESTION[status].format(judge_s=limits.judge_s))
        return JudgeLostError(f"a judge ended with status {status}")


def ask(task: str, *arguments: Any, limits: Limits, on_call: Call | None = None) -> Reply:
    """Ask an idle judge or a new one, and another where it is lost, up to `limits.infra_attempts` times.

    Arguments, reply and errors are those of `Judge.ask`.
    """
    for attempts_left in reversed(range(limits.infra_attempts)):
        try:
            with _borrowed_judge() as judge:
                return judge.ask(task, *arguments, limits=limits, on_call=on_call)
        except JudgeLostError:
            if not attempts_left:
                raise
    raise AssertionError("at least one attempt")


@contextlib.contextmanager
def _borrowed_judge() -> Iterator[Judge]:
    with _lock:
        judge = _idle.pop() if _idle else None
    judge = judge or Judge()
    owner = os.getpid()
    try:
        yield judge
    finally:
        if judge.is_usable and os.getpid() == owner:
            with _lock:
                _idle.append(judge)


def _close_all() -> None:
    with _lock:
        while _idle:
            _idle.pop().close()


def _forget_parents_judges() -> None:
    """Let a forked child start its own: those of its parent serve the parent alone."""
    global _lock, _idle, _cores
    _lock, _idle, _cores = threading.Lock(), [], threading.BoundedSemaphore(_NUM_CORES)


_lock = threading.Lock()
_cores = threading.BoundedSemaphore(_NUM_CORES)  # judges that work at a time: more would only take from programs
_idle: list[Judge] = []
atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_parents_judges)
