"""Run one test of an answer's code in a child interpreter of its own, and say what happened.

The child (child.py) gets the code and this test's input only, an empty environment, a session, a scratch directory
and resource limits of its own; it is killed with its process group at the wall-clock deadline.

Not covered: this separates the program from the expected outputs and bounds its time, memory and output; it is no
barrier against a hostile program, which runs as the same user, can use the network, and can start a process
in another session that outlives the test. Run it where that is acceptable (a container without secrets).
"""

import contextlib
import json
import marshal
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from reward.limits import Limits

_CHILD = Path(__file__).with_name("child.py")
_POLL_S = 0.02  # how soon an exit is noticed when a grandchild keeps a pipe open; otherwise end-of-file wakes us
_STDERR_TAIL_BYTES = 4096

Status = Literal["ok", "compile_error", "runtime_error", "infra_error"]


@dataclass(slots=True, kw_only=True)
class Execution:
    """What one test run did."""

    status: Status  # ok: it ran to the end with exit status 0 (and, if call-based, returned)
    stdout: str = ""  # standard output, of a stdin problem with status ok
    value: Any = None  # returned JSON value, of a call-based problem with status ok and is_json
    is_json: bool = True  # False: the call returned something that JSON cannot express, a wrong answer
    detail: str = ""  # one line for people: what went wrong
    seconds: float = 0.0  # wall seconds from ready to the end


@dataclass(slots=True, kw_only=True)
class _Trace:
    """Everything the parent saw of one child."""

    output: dict[str, bytearray] = field(default_factory=dict)  # by stream: stdout, stderr, control, result
    stopped_for: str = ""  # why the parent killed it; empty: it ended by itself
    returncode: int = 0  # exit status, negative: signal
    seconds: float = 0.0  # wall seconds from ready to the end


def execute(
    code: str,
    *,
    limits: Limits,
    timeout_s: float,
    stdin: str = "",
    fn_name: str | None = None,
    arguments: list[Any] | None = None,
) -> Execution:
    """Run `code` once: as a program on `stdin`, or, if `fn_name` is given, calling it with `arguments`.

    Args:
        code: Python source.
        limits: memory, output and start-up limits.
        timeout_s: wall seconds from the moment the child is ready.
        stdin: text on file descriptor 0 (call-based: empty).
        fn_name: function, or method of class Solution, to call.
        arguments: positional arguments, JSON values.

    Returns:
        The last attempt's Execution; `infra_error` if the child did not get ready in `limits.infra_attempts` attempts.
    """
    child_limits = {
        "timeout_s": timeout_s,
        "memory_bytes": limits.memory_bytes,
        "file_bytes": limits.file_bytes,
        "open_files": limits.open_files,
    }
    # Marshal is safe in this direction only: what comes back from the child is JSON.
    job = marshal.dumps((code, fn_name, arguments, child_limits))
    for attempt in range(limits.infra_attempts):
        if attempt:
            time.sleep(0.1 * 2**attempt)  # a full process table or memory often clears within moments
        try:
            trace = _run_child(job, stdin.encode("utf-8", errors="replace"), limits, timeout_s)
        except OSError as error:  # no process, file descriptor, memory or disk for a child: not the answer's fault
            execution = Execution(status="infra_error", detail=f"could not start a child: {error}")
        else:
            execution = _judge(trace, is_call=fn_name is not None)
        if execution.status != "infra_error":
            break
    return execution


def _run_child(job: bytes, stdin: bytes, limits: Limits, timeout_s: float) -> _Trace:
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="reward-", ignore_cleanup_errors=True))
        # Unlinked files, not pipes: the child may leave its input unread without blocking us.
        job_file = stack.enter_context(_rewound_file(job))
        stdin_file = stack.enter_context(_rewound_file(stdin))
        readers: dict[str, int] = {}
        writers: dict[str, int] = {}
        for name in ("control", "result", "stdout", "stderr"):
            readers[name], writers[name] = os.pipe()
            stack.callback(os.close, readers[name])
        with contextlib.ExitStack() as child_ends:
            for fd in writers.values():
                child_ends.callback(os.close, fd)
            inherited = (job_file.fileno(), writers["control"], writers["result"])
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", str(_CHILD), *map(str, inherited)],
                stdin=stdin_file,
                stdout=writers["stdout"],
                stderr=writers["stderr"],
                pass_fds=inherited,
                env={},
                cwd=scratch,
                start_new_session=True,
            )
        try:
            trace = _supervise(process.pid, readers, limits, timeout_s)
        finally:
            _kill_group(process.pid)  # before the reaping wait: the group's id cannot be reused until then
            returncode = process.wait()
        _drain(readers, trace.output, limits)
        trace.returncode = returncode
        return trace


def _rewound_file(content: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    file.write(content)
    file.seek(0)
    return file


def _supervise(pid: int, readers: dict[str, int], limits: Limits, timeout_s: float) -> _Trace:
    """Read the child's streams until it exits, reaches its deadline, or writes too much."""
    trace = _Trace(output={name: bytearray() for name in readers})
    ready_at: float | None = None
    deadline = time.monotonic() + limits.startup_s
    with selectors.DefaultSelector() as selector:
        for name, fd in readers.items():
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ, name)
        while not _has_exited(pid):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                allowed_s = limits.startup_s if ready_at is None else timeout_s
                trace.stopped_for = f"no end within {allowed_s:.3g} s"
                break
            pause_s = _POLL_S if selector.get_map() else 0.001
            for key, _ in selector.select(min(remaining_s, pause_s)):
                if not _read_some(key.fd, trace.output[key.data], keep_tail=key.data == "stderr"):
                    selector.unregister(key.fd)
            if ready_at is None and trace.output["control"].startswith(b"ready\n"):
                ready_at = time.monotonic()
                deadline = ready_at + timeout_s
            if any(len(trace.output[name]) > limits.output_bytes for name in ("stdout", "result")):
                trace.stopped_for = f"more than {limits.output_bytes} bytes of output"
                break
    if ready_at is not None:
        trace.seconds = time.monotonic() - ready_at
    return trace


def _has_exited(pid: int) -> bool:
    """Whether the child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _read_some(fd: int, output: bytearray, *, keep_tail: bool) -> bool:
    """Append what is there to read; False at the end of the stream, or when nothing is there."""
    try:
        chunk = os.read(fd, 1 << 16)
    except BlockingIOError:
        return False
    output += chunk
    if keep_tail:
        del output[:-_STDERR_TAIL_BYTES]
    return bool(chunk)


def _drain(readers: dict[str, int], output: dict[str, bytearray], limits: Limits) -> None:
    """Read what the ended child left in its pipes, up to the limit."""
    for name, fd in readers.items():
        while len(output[name]) <= limits.output_bytes and _read_some(fd, output[name], keep_tail=name == "stderr"):
            pass


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all of the group may be gone
        os.killpg(pid, signal.SIGKILL)


def _judge(trace: _Trace, *, is_call: bool) -> Execution:
    """From what was seen to a status; the order matters: start, compile, end, value."""
    control = trace.output["control"].decode(errors="replace").splitlines()
    stderr = trace.output["stderr"].decode(errors="replace").strip().splitlines()
    last_words = stderr[-1][:300] if stderr else ""
    ending = trace.stopped_for or (f"killed by signal {-trace.returncode}" if trace.returncode < 0 else "")
    if not control:
        detail = f"the child did not get ready: {ending or last_words or f'exit status {trace.returncode}'}"
        return Execution(status="infra_error", detail=detail)
    if "compiled" not in control[1:]:
        reported = [line.removeprefix("compile_error ") for line in control[1:]]
        detail = (reported or [ending or last_words or "the interpreter ended while compiling"])[0]
        return Execution(status="compile_error", detail=detail, seconds=trace.seconds)
    if ending or trace.returncode:
        detail = ending or last_words or f"exit status {trace.returncode}"
        return Execution(status="runtime_error", detail=detail, seconds=trace.seconds)
    if not is_call:
        stdout = trace.output["stdout"].decode(errors="replace")
        return Execution(status="ok", stdout=stdout, seconds=trace.seconds)
    if not trace.output["result"]:
        return Execution(status="runtime_error", detail="ended without returning a value", seconds=trace.seconds)
    try:
        result = json.loads(trace.output["result"])
        is_json, value = "value" in result, result.get("value")
    except (ValueError, AttributeError, TypeError, RecursionError):  # untrusted: the program may write there itself
        is_json, value = False, None
    detail = "" if is_json else "the returned value is not plain JSON"
    return Execution(status="ok", value=value, is_json=is_json, detail=detail, seconds=trace.seconds)
