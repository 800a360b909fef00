"""What a sandboxed child does once it is locked down: compile the code, run it, and write a call's value.

A job is marshalled by the trusted process: (source, fn_name or None, arguments as text, leetcode, is_tested,
iterators_end). A program without fn_name runs as `__main__` on the real file descriptors 0 and 1. Nothing here knows an
expected output.
"""

import _sitebuiltins
import builtins
import contextlib
import gc
import os
import sys
from marshal import loads
from os import SEEK_END, _exit, close, lseek, pread, write
from types import CodeType, ModuleType

from reward.sandbox.jail import semlock
from reward.sandbox.jail.call import outcome_of_call
from reward.sandbox.jail.ending import end
from reward.sandbox.jail.leetcode import allow_depth, find_function, ready_names

_FILE = "solution.py"
_FURTHER_FRAMES = 4  # between `run` and the program


def run(job_fd: int, control_fd: int, result_fd: int) -> None:
    """Run the job; the process ends here, with the exit status that an interpreter of its own would give."""
    job = pread(job_fd, lseek(job_fd, 0, SEEK_END), 0)
    source, fn_name, arguments, leetcode, is_tested, iterators_end = loads(job)
    close(job_fd)
    try:
        code = compile(source, _FILE, "exec", dont_inherit=True)
    except Exception as error:  # untrusted source: SyntaxError, ValueError, MemoryError, RecursionError, ...
        write(result_fd, f"{type(error).__name__}: {error}".encode(errors="replace")[:1000])
        write(control_fd, b"compile_error")
        _exit(0)
    write(control_fd, b"compiled")
    close(control_fd)  # from here on the program cannot forge what was reported
    status = 0
    sys.setrecursionlimit(sys.getrecursionlimit() + _num_frames() + _FURTHER_FRAMES)
    gc.enable()
    try:
        if "random" in source:
            _seed()
        if fn_name is None:
            close(result_fd)
            _run_main(code)
        else:
            function_of = (code, source if leetcode else None, fn_name)
            _call(*function_of, arguments, result_fd, is_tested=is_tested, iterators_end=iterators_end)
    except BaseException:  # untrusted: whatever ends a program, shown as an interpreter shows it
        status = _show_error() or int(is_tested)  # which sees an exit, but not as a value
    end(status)


def prepare_interpreter(environment: dict[str, str]) -> None:
    """Give programs, in the zygote, what a fresh interpreter with `site` has, without the limit of int's digits.

    Their standard streams are those of the zygote, whose descriptors are others by then: new ones would take longer.
    """
    os.environ.clear()
    os.environ.update(environment)
    semlock.install()
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    builtins.help = _sitebuiltins._Helper()
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    sys.argv = [_FILE]


def _num_frames() -> int:
    """Frames in use that an interpreter of its own would not have."""
    frame, count = sys._getframe(), 0
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        count += 1
    return count


def _seed() -> None:
    """Let this program draw other random numbers than those that the zygote forks before and after it."""
    sys.modules["random"].seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))  # without a seed it takes 20 times as long


def _run_main(code: CodeType) -> None:
    module = ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __file__=_FILE)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _call(
    code: CodeType,
    leetcode_source: str | None,
    fn_name: str,
    arguments: str,
    result_fd: int,
    *,
    is_tested: bool,
    iterators_end: tuple[float, float, int],
) -> None:
    module = ModuleType("solution")
    sys.modules["solution"] = module
    namespace = module.__dict__
    namespace["__file__"] = _FILE
    if leetcode_source is not None:
        namespace.update(ready_names(leetcode_source, fn_name))
        allow_depth()
    exec(code, namespace)
    function = find_function(namespace, fn_name, has_class=leetcode_source is not None)
    text, error = outcome_of_call(function, arguments, is_tested=is_tested, iterators_end=iterators_end)
    with open(result_fd, "wb") as file:
        file.write(text.encode())
    if error is not None:
        raise error


def _show_error() -> int:
    """Handle the exception that ended the program as the interpreter does; returns the exit status."""
    kind, error, trace = sys.exc_info()
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF if -(1 << 63) <= error.code < 1 << 63 else 255  # what is no C long
        with contextlib.suppress(BaseException):  # untrusted: its text
            print(error.code, file=sys.stderr)
        return 1
    with contextlib.suppress(BaseException):  # untrusted: the program's own hook
        sys.excepthook(kind, error, trace)  # type: ignore[arg-type]
    return 1
