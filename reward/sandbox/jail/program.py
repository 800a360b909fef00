"""The work of a sandboxed child after it is locked down: compile the code, run it, and write a call's value.

A job is marshalled by the trusted process: (source, fn_name or None, arguments as text, is_tested, num_characters).
A program without fn_name runs as `__main__` on the real file descriptors 0 and 1, and ends as an
interpreter does, by CPython's own finalization. Nothing here knows an expected output.
"""

import builtins
import contextlib
import ctypes
import gc
import os
import sys
from marshal import loads
from types import ModuleType

from reward.sandbox.jail.leetcode import allow_depth, find_function, ready_names
from reward.sandbox.jail.values import outcome_of_call

_FILE = "solution.py"
_FURTHER_FRAMES = 3  # between `run` and the program
_end_interpreter = ctypes.pythonapi.Py_Exit


def run(job_fd: int, control_fd: int, result_fd: int) -> None:
    """Run the job, then end the process with the exit status that a separate interpreter would give."""
    job = loads(os.pread(job_fd, os.lseek(job_fd, 0, os.SEEK_END), 0))
    source, fn_name, arguments, is_tested, num_characters = job
    os.close(job_fd)
    try:
        code = compile(source, _FILE, "exec", dont_inherit=True)
    except Exception as error:  # untrusted source: SyntaxError, ValueError, MemoryError, RecursionError, ...
        os.write(result_fd, f"{type(error).__name__}: {error}".encode(errors="replace")[:1000])
        os.write(control_fd, b"compile_error")
        os._exit(0)
    os.write(control_fd, b"compiled")
    os.close(control_fd)  # from here on the program cannot forge what was reported
    _prepare_interpreter()
    status = 0
    try:
        if fn_name is None:
            os.close(result_fd)
            exec(code, _namespace("__main__"))
        else:
            namespace = _namespace("solution")
            namespace.update(ready_names(source, fn_name))
            allow_depth()
            exec(code, namespace)
            function = find_function(namespace, fn_name)
            text, raised = outcome_of_call(function, arguments, is_tested=is_tested, num_characters=num_characters)
            with open(result_fd, "wb") as file:
                file.write(text.encode())
            if raised is not None:
                raise raised
    except BaseException:  # untrusted: whatever ends a program, shown as an interpreter shows it
        status = _show_error() or int(is_tested)  # which sees an exit, but not as a value
    if fn_name is None:
        _end_interpreter(status)
    os._exit(status)  # the value of a call is written: what its module leaves is of no use


def _prepare_interpreter() -> None:
    """Make this fork look like a fresh interpreter to the program."""
    gc.enable()
    sys.argv = [_FILE]
    sys.set_int_max_str_digits(0)
    frame, depth = sys._getframe(), _FURTHER_FRAMES
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        depth += 1
    sys.setrecursionlimit(sys.getrecursionlimit() + depth)
    if "numpy" in sys.modules:  # `random` has been seeded again by the fork
        sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4), "little"))


def _namespace(name: str) -> dict[str, object]:
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(__builtins__=builtins, __file__=_FILE)
    return module.__dict__


def _show_error() -> int:
    """Handle the exception that ended the program as the interpreter does; return the exit status."""
    kind, error, trace = sys.exc_info()
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 255  # what is no C long
    with contextlib.suppress(BaseException):  # untrusted: its text, and the program's own hook
        if isinstance(error, SystemExit):
            print(error.code, file=sys.stderr)
        else:
            sys.excepthook(kind, error, trace)  # type: ignore[arg-type]
    return 1
