"""The trusted process's side of the judges, which starts and asks them, and keeps idle ones for the next question.

`pebble.ProcessPool` is not used, because it unpickles what its workers send. Judges read hostile text, and a worker
that such a text has taken over could run code in the trainer. Besides, its tasks cannot ask back, as test code does.

    trusted process --question (pickled)--> judge --fork--> child, confined and limited
           <-------- how the child ended, CPU seconds --------+         |
           <---- channel of this question: "ready", calls of the answer, its value as JSON
"""

import atexit
import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_origin

from reward.limits import Limits

T = TypeVar("T")
Call = Callable[[str, str], tuple[str, bytes, float]]
"""(function of the answer, arguments as text) -> (how the run ended, what it returned or raised as text, seconds)"""
_WORKER = Path(__file__).with_name("worker.py")
_ROOT = str(Path(__file__).parents[2])
_WALL_FACTOR = 20  # of the CPU seconds that a question may take, on however busy a machine; for what waits
_START_S = 120.0  # wall seconds in which a judge must have started, and loaded what a question needs
_MAX_MESSAGE_BYTES = 1 << 28


@dataclass(slots=True, kw_only=True, frozen=True)
class Reply(Generic[T]):
    """What a judge answers."""

    value: T
    seconds: float  # CPU seconds that it took


class UnjudgeableError(Exception):
    """The question exceeded its limits, or made its reader fail; the judged answer is to blame."""


class JudgeLostError(Exception):
    """The judge did not answer, which is not the judged answer's fault."""


class Judge:
    """A judge process; used by one thread at a time."""

    def __init__(self) -> None:
        """Start the judge, which ends with this process; JudgeLostError if it does not start."""
        self.is_usable = True
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        try:
            self._connection, theirs = Pipe()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-X", "utf8", "-W", "ignore", str(_WORKER), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=threads,
                    cwd="/",
                    start_new_session=True,
                )
            self.pid = self._process.pid
            # An installation in place is found by this process's hooks, which the other one does not have.
            self._connection.send([os.path.abspath(path) for path in (_ROOT, *sys.path)])
        except OSError as error:
            raise JudgeLostError(f"a judge could not start ({error})") from error

    def ask(
        self,
        question: "partial[T]",
        *,
        limits: Limits,
        load: Callable[[], object] | None = None,
        on_call: Call | None = None,
    ) -> Reply[T]:
        """Have a child of the judge call a function.

        Args:
            question: the function, of a module, with its arguments; untrusted text goes as it is. Its declared return
                type must be one that JSON has, or a tuple of such.
            limits: `judge_s` and `judge_bytes` are the question's.
            load: called in the judge before: imports what would else take the question's time, again and again.
            on_call: runs a function of the answer; the question is then given what calls it, as its last argument.

        Raises:
            UnjudgeableError: it took too much, or failed on what it was given.
            JudgeLostError: the judge was killed; the question can be asked again, of another one.
        """
        try:
            ours, theirs = Pipe()
            with ours:
                with theirs:
                    self._connection.send((load, question, on_call is not None, limits.judge_s, limits.judge_bytes))
                    send_handle(self._connection, theirs.fileno(), self.pid)
                said = self._converse(ours, limits, on_call)
                status, seconds = json.loads(self._connection.recv_bytes(100))
        except (OSError, EOFError) as error:
            self.close()
            raise JudgeLostError(f"a judge ended with status {self._process.returncode} ({error})") from error
        except BaseException:  # it is in the middle of a question
            self.close()
            raise
        if said is None or status:
            raise _why_it_ended(status, limits)
        kind = inspect.signature(question.func).return_annotation
        return Reply(value=_checked(_value(said), kind), seconds=float(seconds))

    def _converse(self, channel: Connection, limits: Limits, on_call: Call | None) -> bytes | None:
        """Make the calls that the child wants made; returns what it says at last, None if it ends before."""
        has_begun, left_s = False, _START_S
        while True:
            asked = time.monotonic()
            readable = wait([channel, self._connection], left_s)
            left_s -= time.monotonic() - asked
            if not readable and not has_begun:
                raise JudgeLostError(f"no sign of life of a judge for {_START_S:.0f} seconds")
            if not readable:
                wall_s = _WALL_FACTOR * limits.judge_s
                raise UnjudgeableError(f"it takes more than {wall_s:.3g} seconds by the wall clock")
            if channel not in readable:
                return None
            try:
                message = channel.recv_bytes(_MAX_MESSAGE_BYTES)
            except EOFError:
                return None
            if not has_begun:  # it says so when all is loaded: from here on the time is the question's
                has_begun, left_s = True, _WALL_FACTOR * limits.judge_s
            elif message[:1] == b"?" and on_call is not None:
                fn_name, arguments = _checked(_value(message[1:]), tuple[str, str])
                outcome, result, seconds = on_call(fn_name, arguments)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended meanwhile
                    channel.send_bytes(json.dumps([outcome, seconds]).encode())
                    channel.send_bytes(result)  # a program's own bytes, which nothing but the call takes
            else:
                return message

    def close(self) -> None:
        """End the judge."""
        self.is_usable = False
        self._connection.close()
        self._process.kill()  # it has no effect on one that has ended by itself
        self._process.wait()


def _why_it_ended(status: int, limits: Limits) -> Exception:
    """Return the error for a child that ended with this wait status without an answer."""
    if not os.WIFSIGNALED(status):
        return UnjudgeableError("it ends its own process")
    number = os.WTERMSIG(status)
    if number == signal.SIGKILL:  # whose sender is not known
        return JudgeLostError("a judge was killed")
    if number in (signal.SIGXCPU, signal.SIGPROF):
        return UnjudgeableError(f"it takes more than {limits.judge_s:.3g} CPU seconds")
    is_stack = number in (signal.SIGSEGV, signal.SIGABRT)
    return UnjudgeableError("it is nested too deeply" if is_stack else "it crashes")


def _value(text: bytes) -> Any:
    """Return the JSON value that a child sent; UnjudgeableError with the reason if it sent `{"error": reason}`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnjudgeableError(f"what reads it says what is no JSON ({type(error).__name__})") from error
    if isinstance(value, dict):
        raise UnjudgeableError(str(value.get("error"))[:300])
    return value


def _checked(value: Any, kind: Any) -> Any:
    """Return `value` if it is of type `kind` (a list becomes a tuple), since a hostile child may send anything."""
    kinds = get_args(kind)
    if get_origin(kind) is tuple and isinstance(value, list) and len(value) == len(kinds):
        return tuple(map(_checked, value, kinds))
    if get_origin(kind) is not tuple and isinstance(value, kind):
        return value
    raise UnjudgeableError("what reads it says what it may not")


def ask(
    question: "partial[T]",
    *,
    limits: Limits,
    load: Callable[[], object] | None = None,
    on_call: Call | None = None,
) -> Reply[T]:
    """Call `Judge.ask` on an idle or a new judge; if the judge is lost, ask another, `limits.infra_attempts` in all."""
    for attempts_left in reversed(range(limits.infra_attempts)):
        try:
            with _borrowed_judge() as judge:
                return judge.ask(question, limits=limits, load=load, on_call=on_call)
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
    """Let a forked child start its own judges; its parent's judges serve only the parent."""
    global _lock, _idle
    _lock, _idle = threading.Lock(), []


_lock = threading.Lock()
_idle: list[Judge] = []
atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_parents_judges)
