"""The sandbox that runs programs on this machine, one slot per program that runs at the same time."""

import atexit
import collections
import functools
import logging
import os
import threading
import time

from reward.limits import Limits
from reward.sandbox.execution import Execution, Program, Status, last_words
from reward.sandbox.jail.lockdown import REQUIRED_LAYERS
from reward.sandbox.slot_process import Slot, SlotLostError, Trace, flavour_of

# A call of test code counts as at least so many seconds: each starts a process, and calls without end must end.
_MIN_CALL_S = 0.001
_STOPS: dict[str, tuple[Status, str]] = {
    "time": ("time_out", "no end within {timeout_s:.3g} s"),
    "memory": ("memory_limit", "memory in too many places"),
    "scratch": ("output_limit", "too many or too large files"),
    "output": ("output_limit", "more than {output_bytes} bytes of output"),
}
logger = logging.getLogger(__name__)


class Sandbox:
    """A sandbox on this machine; its methods may be called from several threads.

    Slots are started when they are first needed and started again when lost.
    """

    def __init__(self, *, num_slots: int, allow_unsafe: bool = False) -> None:
        """Start the first slot.

        Args:
            num_slots: number of programs of this process that run at the same time; further callers wait.
            allow_unsafe: run even if Landlock or seccomp do not work; a program could then harm the machine.

        Raises:
            ValueError: the isolation is too weak and `allow_unsafe` is not set.
            SlotLostError: the slot could not start.
        """
        if num_slots < 1:
            raise ValueError(f"sandbox num_slots (--workers) is {num_slots}: set it to at least 1")
        self._owner = os.getpid()
        self._free = threading.BoundedSemaphore(num_slots)
        self._lock = threading.Lock()
        self._slots: set[Slot] = set()
        self._idle: dict[str, list[Slot]] = collections.defaultdict(list)  # by flavour
        self._is_closed = False
        slot = self._take_slot("standard")
        self._idle["standard"].append(slot)
        self.layers = slot.layers
        try:
            check_isolation(self.layers, allow_unsafe=allow_unsafe)
        except ValueError:
            self.close()
            raise

    def execute(self, program: Program, *, limits: Limits, timeout_s: float) -> Execution:
        """Run a program once for at most `timeout_s` seconds, charged as in `Limits.test_s`.

        The status is `infra_error` after `limits.infra_attempts` lost slots.
        """
        with self._free:
            for attempt in range(limits.infra_attempts):
                if attempt:
                    time.sleep(0.1 * 2**attempt)  # a full process table or memory often clears within moments
                try:
                    trace = self._run(program, limits, timeout_s)
                    execution = execution_of(trace, program, limits, timeout_s)
                except (SlotLostError, OSError) as error:
                    execution = Execution(status="infra_error", detail=str(error))
                if execution.status != "infra_error":
                    break
        if program.is_tested:
            execution.seconds = max(execution.seconds, _MIN_CALL_S)
        return execution

    def close(self) -> None:
        """End every process and remove every scratch folder; in a forked copy of the owner, do nothing."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._is_closed = True
            slots, idle = list(self._slots), [slot for slots in self._idle.values() for slot in slots]
            self._idle.clear()
        for slot in slots:
            slot.end()  # which one that runs in another thread notices, and is closed there
        for slot in idle:
            self._drop(slot)

    def _run(self, program: Program, limits: Limits, timeout_s: float) -> Trace:
        flavour = flavour_of(program.code)
        slot = self._take_slot(flavour)
        try:
            trace = slot.run(program, limits, timeout_s=timeout_s)
        except BaseException:
            self._drop(slot)
            raise
        with self._lock:
            if not self._is_closed:
                self._idle[flavour].append(slot)
                return trace
        self._drop(slot)
        return trace

    def _take_slot(self, flavour: str) -> Slot:
        with self._lock:
            if idle := self._idle[flavour]:
                return idle.pop()
        slot = Slot(flavour)
        with self._lock:
            self._slots.add(slot)
            is_closed = self._is_closed
        if is_closed:
            self._drop(slot)
            raise SlotLostError("the sandbox is closed")
        return slot

    def _drop(self, slot: Slot) -> None:
        with self._lock:
            self._slots.discard(slot)
        slot.close()


def check_isolation(layers: dict[str, str], *, allow_unsafe: bool) -> None:
    """Log the level of isolation in one line, as a warning if any layer is missing.

    Raises:
        ValueError: programs could not be ended, or another required layer does not work and `allow_unsafe` is not set.
    """
    working = [name for name, reason in layers.items() if not reason]
    missing = {name: reason for name, reason in layers.items() if reason}
    absent = "".join(f"; no {name} ({reason})" for name, reason in missing.items())
    line = f"sandbox: own process, limits, {', '.join(working) or 'nothing else'}{absent}"
    if "supervision" in missing:
        raise ValueError(
            f"{line}: programs could not be watched and ended. Mount /proc and permit pidfd_open (Linux from 5.3)"
        )
    is_unsafe = not missing.keys().isdisjoint(REQUIRED_LAYERS)
    if is_unsafe and not allow_unsafe:
        raise ValueError(
            f"{line}: a program written by a model could harm this machine. Run on Linux from 5.13 with Landlock "
            "or, on a machine that may be lost, set allow_unsafe=true"
        )
    logger.log(logging.WARNING if missing else logging.INFO, "%s%s", "UNSAFE " if is_unsafe else "", line)


def execution_of(trace: Trace, program: Program, limits: Limits, timeout_s: float) -> Execution:
    """Return a run's status, from checks in this order: start, compilation, output, end, value."""

    def ended(status: Status, detail: str, result: bytes = b"") -> Execution:
        return Execution(status=status, detail=detail, result=result, seconds=trace.seconds)

    said = last_words(trace.stderr)
    signalled = f"killed by signal {-trace.returncode}" if trace.returncode < 0 else ""
    stop_status, stop_detail = _STOPS.get(trace.stopped_for, ("ok", ""))
    stop_detail = stop_detail.format(timeout_s=timeout_s, output_bytes=limits.output_bytes)
    words = trace.control.split(" ", 3)  # "ready", when, CPU seconds then, and what came of compiling
    if words[0] != "ready":
        why = "no start within the time" if trace.stopped_for == "time" else stop_detail or signalled
        return ended("infra_error", f"the child did not get ready: {why or said or trace.returncode}")
    if words[-1] != "compiled" and trace.stopped_for != "time":
        reported = trace.result.decode(errors="replace") or stop_detail or signalled or said
        return ended("compile_error", reported or "the interpreter ended while compiling")
    if len(trace.stdout) > limits.output_bytes or len(trace.result) > program.max_result_bytes(limits):
        return ended("output_limit", f"more than {limits.output_bytes} bytes of output")
    if trace.stopped_for:
        return ended(stop_status, stop_detail)
    if trace.returncode:
        status: Status = "memory_limit" if said.startswith("MemoryError") else "runtime_error"
        return ended(status, signalled or said or f"exit status {trace.returncode}", result=trace.result)
    if program.fn_name is None:
        return Execution(status="ok", stdout=trace.stdout.decode(errors="replace"), seconds=trace.seconds)
    if not trace.result:
        return ended("runtime_error", "ended without returning a value")
    return Execution(status="ok", result=trace.result, seconds=trace.seconds)


def shared_sandbox(*, num_slots: int = os.cpu_count() or 1, allow_unsafe: bool = False) -> Sandbox:
    """Return this process's sandbox with these settings, started at the first call and ended with the process."""
    with _lock:  # or threads that come first together would start one each
        return _start(num_slots, allow_unsafe)


@functools.lru_cache
def _start(num_slots: int, allow_unsafe: bool) -> Sandbox:
    sandbox = Sandbox(num_slots=num_slots, allow_unsafe=allow_unsafe)
    atexit.register(sandbox.close)
    return sandbox


def _forget_parents_sandboxes() -> None:
    """Let a forked child start its own slots; its parent's slots serve only the parent."""
    global _lock
    _lock = threading.Lock()
    _start.cache_clear()


_lock = threading.Lock()
os.register_at_fork(after_in_child=_forget_parents_sandboxes)
