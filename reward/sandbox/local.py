"""The local backend: zygotes on this machine, a slot for each program that runs at a time."""

import collections
import logging
import os
import threading
import time

from reward.limits import Limits
from reward.sandbox.counts import RunCounts
from reward.sandbox.execution import Execution, Program, Status, last_words
from reward.sandbox.flavours import FLAVOURS, choose
from reward.sandbox.jail.lockdown import REQUIRED_LAYERS
from reward.sandbox.standard_streams import StandardInput
from reward.sandbox.zygote_process import Slot, SlotLostError, SlotRefusedError, Trace, Zygote, pack

_EMPTY_CALL = Program(code="def f(): pass", fn_name="f", leetcode=False)
_NUM_EMPTY_CALLS = 3
_MAX_START_S = 0.02
_STATUS_OF_STOPS: dict[str, Status] = {"time": "time_out", "memory": "memory_limit"}
logger = logging.getLogger(__name__)


class LocalSandbox:
    """Runs programs on this machine.

    Zygotes and slots are started when they are first needed and started again when lost.

    Args:
        num_slots: programs that run at a time; further callers wait.
        allow_unsafe: run even where Landlock or seccomp do not work, as a program could then harm the machine.
    """

    def __init__(self, *, num_slots: int, allow_unsafe: bool = False) -> None:
        """Start the zygote.

        Raises:
            ValueError: no slots, or the isolation is too weak and `allow_unsafe` is not set.
            SlotLostError: the zygote could not start.
        """
        if num_slots < 1:
            raise ValueError(f"num_slots is {num_slots}: set it to at least 1")
        self._allow_unsafe = allow_unsafe
        self._owner = os.getpid()
        self._free = threading.BoundedSemaphore(num_slots)
        self._lock = threading.Lock()
        self._zygotes: dict[str, Zygote] = {}  # by flavour
        self._idle: dict[tuple[str, int], list[Slot]] = collections.defaultdict(list)  # by flavour and room for files
        self._starts_s: dict[str, float] = {}  # by flavour
        self._counts = RunCounts()
        self._zygote("lean")

    def execute(self, program: Program, *, limits: Limits, timeout_s: float) -> Execution:
        """See `Sandbox.execute`."""
        flavour = choose(program.code, program.arguments, leetcode=program.leetcode and program.fn_name is not None)
        job, stdin = pack(program, limits, timeout_s)
        started = time.monotonic()
        with self._free:
            for attempt in range(limits.infra_attempts):
                if attempt:
                    self._counts.add("retries")
                    time.sleep(0.1 * 2**attempt)  # a full process table or memory often clears within moments
                try:
                    # Test code may make many calls: the start and end of a process for each are not the answer's.
                    start_s = self._start_s(flavour, limits) if program.is_tested else 0.0
                    trace = self._run(job, stdin, flavour, limits, timeout_s, program.max_result_bytes(limits))
                    trace.seconds -= min(trace.seconds, start_s) * (1.0 - 1.0 / max(1.0, limits.wall_factor))
                    execution = judge(trace, program, limits, timeout_s)
                except (SlotLostError, OSError) as error:
                    execution = Execution(status="infra_error", detail=str(error))
                if execution.status != "infra_error":
                    break
        self._counts.add_run(execution.status, time.monotonic() - started)
        return execution

    def metrics(self) -> dict[str, float]:
        """See `RunCounts.metrics`."""
        return self._counts.metrics()

    def close(self) -> None:
        """End every process and remove every scratch folder; nothing in a process forked from the one that made it."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            for slots in self._idle.values():
                while slots:
                    slots.pop().close()
            for zygote in self._zygotes.values():
                zygote.close()
            self._zygotes.clear()

    @property
    def layers(self) -> dict[str, str]:
        """By layer of isolation, "" where it works, else why it does not."""
        return self._zygote("lean").layers

    def _run(
        self, job: bytes, stdin: StandardInput, flavour: str, limits: Limits, timeout_s: float, max_result_bytes: int
    ) -> Trace:
        slot = self._take_slot(flavour, limits.scratch_bytes)
        try:
            trace = slot.run(job, stdin, limits, timeout_s=timeout_s, max_result_bytes=max_result_bytes)
        except BaseException:
            slot.close()
            self._counts.add("restarts")
            raise
        if slot.is_spent:
            slot.close()
        else:
            with self._lock:
                self._idle[flavour, limits.scratch_bytes].append(slot)
        return trace

    def _start_s(self, flavour: str, limits: Limits) -> float:
        """The least seconds that calls of nothing took; measured once."""
        if flavour not in self._starts_s:
            job, stdin = pack(_EMPTY_CALL, limits, limits.test_s)
            num_bytes = _EMPTY_CALL.max_result_bytes(limits)
            runs = [self._run(job, stdin, flavour, limits, limits.test_s, num_bytes) for _ in range(_NUM_EMPTY_CALLS)]
            self._starts_s[flavour] = min(_MAX_START_S, *(trace.seconds for trace in runs))
        return self._starts_s[flavour]

    def _take_slot(self, flavour: str, scratch_bytes: int) -> Slot:
        with self._lock:
            if idle := self._idle[flavour, scratch_bytes]:
                return idle.pop()
        zygote = self._zygote(flavour)
        try:
            return zygote.open_slot(scratch_bytes)
        except SlotRefusedError:
            raise
        except SlotLostError:
            self._drop(zygote)
            raise

    def _zygote(self, flavour: str) -> Zygote:
        with self._lock:
            if flavour not in self._zygotes:
                zygote = Zygote(FLAVOURS[flavour])
                try:
                    check_isolation(zygote.layers, allow_unsafe=self._allow_unsafe)
                except ValueError:
                    zygote.close()
                    raise
                self._zygotes[flavour] = zygote
            return self._zygotes[flavour]

    def _drop(self, zygote: Zygote) -> None:
        """Forget a zygote that does not answer; the next request starts another."""
        with self._lock:
            flavours = [flavour for flavour, known in self._zygotes.items() if known is zygote]
            for flavour in flavours:
                del self._zygotes[flavour]
                for (own_flavour, _), slots in self._idle.items():
                    while own_flavour == flavour and slots:
                        slots.pop().close()
                self._counts.add("restarts")
        if flavours:  # else another thread has found it lost, too, and closes it
            zygote.close()


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
            f"{line}: programs could not be watched and ended. Mount /proc and permit pidfd_open (Linux from 5.3), "
            "or set a remote sandbox's url"
        )
    if not missing.keys() & set(REQUIRED_LAYERS):
        (logger.warning if missing else logger.info)(line)
        return
    if not allow_unsafe:
        raise ValueError(
            f"{line}: without landlock and seccomp a program written by a model could harm this machine. "
            "Run on a Linux kernel from 5.13 with Landlock, or set a remote sandbox's url, or, on a machine that may "
            "be lost, set allow_unsafe=true"
        )
    logger.warning("UNSAFE %s", line)


def judge(trace: Trace, program: Program, limits: Limits, timeout_s: float) -> Execution:
    """From what was seen to a status; the order matters: start, compile, output, end, value."""

    def ended(status: Status, detail: str, result: bytes = b"") -> Execution:
        return Execution(status=status, detail=detail, result=result, seconds=trace.seconds)

    said = last_words(trace.stderr)
    signalled = f"killed by signal {-trace.returncode}" if trace.returncode < 0 else ""
    stops = {
        "time": f"no end within {timeout_s:.3g} s",
        "scratch": "too many or too large files",
        "memory": "memory in too many places",
    }
    stopped_for = stops.get(trace.stopped_for, trace.stopped_for)
    ending = stopped_for or signalled
    ready, _, compiled = (trace.control.split(" ", 2) + ["", ""])[:3]  # "ready", when, and what came of compiling
    if ready != "ready":
        why = "no start within the time" if trace.stopped_for == "time" else ending
        return ended("infra_error", f"the child did not get ready: {why or said or trace.returncode}")
    if compiled != "compiled" and trace.stopped_for != "time":
        reported = trace.result.decode(errors="replace")
        return ended("compile_error", reported or ending or said or "the interpreter ended while compiling")
    if len(trace.stdout) > limits.output_bytes or len(trace.result) > program.max_result_bytes(limits):
        return ended("output_limit", f"more than {limits.output_bytes} bytes of output")
    if trace.stopped_for:
        return ended(_STATUS_OF_STOPS.get(trace.stopped_for, "output_limit"), stopped_for)
    if trace.returncode:
        is_memory = said.startswith("MemoryError")
        return ended(
            "memory_limit" if is_memory else "runtime_error",
            signalled or said or f"exit status {trace.returncode}",
            result=trace.result,
        )
    if program.fn_name is None:
        stdout = trace.stdout.decode(errors="replace")
        return Execution(status="ok", stdout=stdout, seconds=trace.seconds)
    if not trace.result:
        return ended("runtime_error", "ended without returning a value")
    return Execution(status="ok", result=trace.result, seconds=trace.seconds)
