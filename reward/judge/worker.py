"""The judge process: `python -I -S worker.py CONNECTION_FD`, started with an empty environment.

It answers one question after the other until the trusted process closes the connection or ends. Test code is run by a
confined fork of it, as it may change modules that other test code uses, or crash, and so are the libraries that read
answers. The modules that they import are loaded before the fork: the time is not the answer's.
"""

import contextlib
import gc
import json
import math
import os
import resource
import signal
import site
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

_CHECK_PARENT_S = 1.0
_MAX_DETAIL = 300  # characters
_UNREADABLE = b'{"value": ["unreadable", 0.0, "it takes too much time, or crashes what reads it"]}'


def main() -> None:
    """Answer questions until the connection closes."""
    connection = Connection(int(sys.argv[1]))
    trusted = os.getppid()
    secret, sys.path[:] = connection.recv()
    from reward.judge.tasks import GRADES, LOADERS, tasks  # found on the trusted process's path

    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # the limit here is time
    for set_names in (site.setquit, site.setcopyright, site.sethelper):  # `exit` is no name of the answer's
        set_names()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _warm_up(tasks(lambda *_: ("ok", b'["value", 1]', 0.0)))
    gc.collect()
    gc.freeze()
    _continue_in_child(trusted)
    from reward.judge.protocol import READY, read_question, reply_message

    limits = _Limits()
    while True:
        number, task, arguments, cpu_s, num_bytes = read_question(secret, connection.recv_bytes())
        if task in LOADERS and LOADERS[task](*arguments):
            gc.freeze()
            limits = _Limits()
        connection.send_bytes(READY)
        limits.give(cpu_s, num_bytes)
        started = time.process_time()
        calls = _Calls(connection, secret, number)
        function = tasks(calls.call)[task]
        if task in LOADERS:
            body, seconds = _answer_of_fork(function, arguments, calls, cpu_s, is_grade=task in GRADES)
        else:
            body, seconds = _answer(function, arguments), 0.0
        del arguments  # they may be large
        seconds += time.process_time() - started
        limits.lift()  # messages must not be read or written in part, nor at another question's cost
        connection.send_bytes(reply_message(number, seconds, body))


def _warm_up(functions: dict[str, Callable[..., Any]]) -> None:
    """Set up here what every fork would have to set up anew."""
    from reward.judge.confine import readable_folders, system_calls

    readable_folders()
    with contextlib.suppress(OSError):
        system_calls()
    _answer(functions["run_test_code"], ("assert f(1) == 1", "f"))


def _continue_in_child(trusted: int) -> None:
    """Return in a child, which this process watches and ends with: by the same signal, or after the trusted process.

    Another process may hold a copy of the connection's other end, so that it does not close with the trusted process;
    and nothing that a judge does, such as a long call with the interpreter's lock, keeps its parent from looking.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = _fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return
    while os.getppid() == trusted:
        signal.sigtimedwait({signal.SIGCHLD}, _CHECK_PARENT_S)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _end_as(status)
    os._exit(0)


def _fork() -> int:
    """Fork a child that is killed when this process ends."""
    from reward.sandbox.jail import kernel

    parent = os.getpid()
    pid = kernel.fork()
    if pid == 0:
        kernel.prctl("PDEATHSIG", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    return pid


def _end_as(status: int) -> NoReturn:
    """End this process as the child of this wait status ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no other action
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


class _Calls:
    """The calls of the answer's functions that one question makes."""

    def __init__(self, connection: Connection, secret: bytes, number: int) -> None:
        self._connection, self._secret, self._number = connection, secret, number
        self._num_calls = 0
        self.is_open = False  # a call has begun and not ended

    def call(self, fn_name: str, arguments: str) -> tuple[str, bytes, float]:
        from reward.judge.protocol import (
            BROKEN_STATUS,
            ENDED_STATUS,
            MAX_BODY_BYTES,
            MAX_MESSAGE_BYTES,
            MEMORY_STATUS,
            BrokenProtocolError,
            call_message,
            read_result,
        )

        if len(arguments) > MAX_BODY_BYTES:
            raise MemoryError
        message = call_message(self._number, fn_name, arguments)
        self._num_calls += 1
        self.is_open = True
        try:
            self._connection.send_bytes(message)
            message = self._connection.recv_bytes(MAX_MESSAGE_BYTES)
            result = read_result(self._secret, self._number, self._num_calls, message)
        except MemoryError:  # no more for a message than for the rest
            os._exit(MEMORY_STATUS)
        except BrokenProtocolError:
            os._exit(BROKEN_STATUS)
        except BaseException:  # whatever broke it off, it left part of a message: nothing more may be said here
            os._exit(ENDED_STATUS)
        self.is_open = False
        return result


def _answer(function: Callable[..., Any], arguments: tuple) -> bytes:
    from reward.judge.protocol import MAX_BODY_BYTES

    try:
        text = json.dumps({"value": function(*arguments)}, ensure_ascii=False)
        body = text.encode(errors="surrogatepass")
        if len(body) <= MAX_BODY_BYTES:
            return body
        error = "what is found in it is too long"
    except MemoryError:
        error = "it takes more than its memory"
    except RecursionError:
        error = "it is nested too deeply"
    except Exception as other:  # on untrusted text, or of a judge that users bring: never a verdict
        error = f"{type(other).__name__}: {other}"[:_MAX_DETAIL]
    return json.dumps({"error": error}).encode()


def _answer_of_fork(
    function: Callable[..., Any], arguments: tuple, calls: _Calls, cpu_s: float, *, is_grade: bool
) -> tuple[bytes, float]:
    """What a fork of this process answers, and its CPU seconds; where it ends without, so does this process.

    But an answer that ends what reads it has its grade.
    """
    from reward.judge.protocol import BROKEN_STATUS, ENDED_STATUS, MEMORY_STATUS

    file = os.memfd_create("answer")
    try:
        pid = _fork()
        if pid == 0:
            _answer_and_end(function, arguments, calls, cpu_s, file)
        _, status, usage = os.wait4(pid, 0)
        body = os.pread(file, os.fstat(file).st_size, 0)
        if is_grade and os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:  # whose sender is not known
            return _UNREADABLE, usage.ru_utime + usage.ru_stime
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) in (BROKEN_STATUS, MEMORY_STATUS):
            _end_as(status)
        if status or not body:
            os._exit(ENDED_STATUS)
        return body, usage.ru_utime + usage.ru_stime
    finally:
        os.close(file)


def _answer_and_end(function: Callable[..., Any], arguments: tuple, calls: _Calls, cpu_s: float, file: int) -> NoReturn:
    from reward.judge.confine import confine_self

    status = 1
    try:
        os.dup2(1, 2)  # nothing: what test code writes may hold any text of the answer's
        confine_self()
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        body = _answer(function, arguments)
        with open(file, "wb", closefd=False) as answer:
            answer.write(body)
        status = int(calls.is_open)  # its result would be taken for a question
    finally:
        os._exit(status)


class _Limits:
    """The limits of this process."""

    def __init__(self) -> None:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            self._own_bytes = int(file.read().split()[0]) * resource.getpagesize()

    def give(self, cpu_s: float, num_bytes: int) -> None:
        """Give the next question these CPU seconds, and at most one more, and this memory."""
        _limit_time(cpu_s)
        _set_limit(resource.RLIMIT_AS, self._own_bytes + num_bytes)

    def lift(self) -> None:
        """Let this process be without limits until the next question has come."""
        for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS):
            _set_limit(kind, resource.RLIM_INFINITY)


def _limit_time(cpu_s: float) -> None:
    """Let this process end after so many more CPU seconds, or one more."""
    _set_limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + cpu_s))


def _set_limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    known = [limit for limit in (value, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(known, default=resource.RLIM_INFINITY), hard))


if __name__ == "__main__":
    try:
        main()
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the trusted process has gone
        os._exit(0)
    except Exception as error:
        from reward.judge.protocol import BROKEN_STATUS, BrokenProtocolError

        if isinstance(error, BrokenProtocolError):
            os._exit(BROKEN_STATUS)
        raise
