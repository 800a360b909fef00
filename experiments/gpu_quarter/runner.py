"""The runner of jobs, one after the other within a time limit, with one JSON file for each.

A job is a process of its own with a time limit. A mark in its environment finds all that it has started, whatever
session that is in. Only jobs that measure nothing have a neighbour, one at most and on a large GPU, and each then has
a ``/tmp`` of its own: verl's sockets there have the same names in every run on a GPU.
"""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

MARK = "GPU_QUARTER_JOB"
POLL_S = 0.5
GRACE_S = 15.0
"""The seconds that an ended job has to end its own processes."""
END_S = 35.0
"""The seconds of the time limit that are reserved for ending the last two jobs."""
MIB_OF_TWO = 40 * 1024
"""The memory in MiB of a GPU from which on two jobs that measure nothing fit: each takes at most 20 GiB (estimate)."""
NUM_KILLS = 3
NUM_LINES = 200
"""The number of last lines that are kept of a failed job's log."""
PASSED, FAILED, HUNG, CUT = "passed", "failed", "hung", "cut"
"""The outcomes of a job. A job that was cut off by the time limit is run again by the next call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job for a GPU."""

    name: str
    shows: str
    expects_s: float
    """Seconds from its start to its end."""
    limit_s: float
    measures: bool = True
    """Whether its seconds or its memory count, so that nothing may run beside it."""
    needs: tuple[str, ...] = ()
    """The jobs that must have passed before this one is run."""


@dataclass(slots=True)
class Running:
    """A running job."""

    job: Job
    process: subprocess.Popen[bytes]
    mark: str
    began: float
    log: Path
    peak_mib: float = 0.0
    """The peak GPU memory of all processes in MiB."""


@dataclass(slots=True, kw_only=True)
class Runner:
    """Runs jobs.

    Args:
        output: Folder of the JSON files, the logs and what jobs leave.
        command: Returns the command of a job; it writes its figures as ``NAME.figures.json``, with ``faults`` among
            them.
        facts: Facts about the machine, which every JSON file records.
    """

    output: Path
    command: Callable[[Job], Sequence[str]]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job], seconds: float) -> bool:
        """Run what has not been run; start nothing that does not fit into the time. Tell whether all passed."""
        deadline = time.monotonic() + seconds - END_S
        self.output.mkdir(parents=True, exist_ok=True)
        self._end_leftovers()
        waiting = [job for job in jobs if self.state_of(job.name) in (None, CUT)]
        running: list[Running] = []
        try:
            while waiting or running:
                running = self._watch(running, deadline)
                if waiting and self._has_room(waiting[0], running):
                    job = waiting.pop(0)
                    if missing := [name for name in job.needs if self.state_of(name) != PASSED]:
                        print(f"{job.name}: not run, since {', '.join(missing)} did not pass", flush=True)
                    elif time.monotonic() + job.expects_s > deadline:
                        print(f"{job.name}: not run, {job.expects_s:g} s do not fit any more", flush=True)
                    else:
                        running.append(self._start(job))
                        continue
                time.sleep(POLL_S)
        finally:
            for one in running:
                self._finish(one, CUT)
        return all(self.state_of(job.name) == PASSED for job in jobs)

    def state_of(self, name: str) -> str | None:
        """Return the outcome of a job; None: it has not been run."""
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads((self.output / f"{name}.json").read_text())["state"])
        return None

    def _has_room(self, job: Job, running: Sequence[Running]) -> bool:
        if not running:
            return True
        if any(one.job.name in job.needs for one in running):
            return False
        alone = job.measures or any(one.job.measures for one in running) or len(running) > 1
        is_small = (self.facts.get("gpu_mib") or MIB_OF_TWO) < MIB_OF_TWO
        return not (alone or is_small) and has_private_tmp(self.output)

    def _start(self, job: Job) -> Running:
        mark, log = uuid.uuid4().hex, self.output / f"{job.name}.log"
        (self.output / f"{job.name}.figures.json").unlink(missing_ok=True)
        (self.output / f"{job.name}.running").write_text(mark)
        command = [*(() if job.measures else own_tmp(self.output)), *self.command(job)]
        with log.open("ab") as file:
            streams: dict[str, Any] = {"stdout": file, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            # Engines that change their title would else lose their environment, and the mark.
            environment = {**os.environ, MARK: mark, "SPT_NOENV": "1"}
            process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
        print(f"{job.name}: started ({job.shows})", flush=True)
        return Running(job, process, mark, time.monotonic(), log)

    def _watch(self, running: Sequence[Running], deadline: float) -> list[Running]:
        """Finish the jobs that have ended or must end, and return the others."""
        left, used = [], gpu_mib() if running else 0.0
        for one in running:
            one.peak_mib = max(one.peak_mib, used)
            now = time.monotonic()
            if one.process.poll() is not None:
                self._finish(one, PASSED if one.process.returncode == 0 else FAILED)
            elif now >= deadline:
                self._finish(one, CUT)
            elif now - one.began >= one.job.limit_s:
                self._finish(one, HUNG)
            else:
                left.append(one)
        return left

    def _finish(self, one: Running, state: str) -> None:
        """End all that a job has started, and write its JSON file."""
        seconds = time.monotonic() - one.began
        end(one.mark, one.process)
        figures: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            figures = json.loads((self.output / f"{one.job.name}.figures.json").read_text())
        faults = figures.pop("faults", [])
        if state == PASSED and (faults or not figures):
            state, faults = FAILED, faults or ["it wrote no figures"]
        result = {
            "job": one.job.name,
            "shows": one.job.shows,
            "state": state,
            "faults": faults,
            "seconds": round(seconds, 1),
            "gpu_mib_at_peak": one.peak_mib,
            **self.facts,
            "figures": figures,
        }
        if state != PASSED:
            lines = one.log.read_text(errors="replace").splitlines()[-NUM_LINES:]
            result["log"] = [line[:400] for line in lines]
        write(self.output / f"{one.job.name}.json", result)
        (self.output / f"{one.job.name}.running").unlink(missing_ok=True)
        print(f"{one.job.name}: {state} after {seconds:.0f} s {'; '.join(faults)}", flush=True)

    def _end_leftovers(self) -> None:
        """End the processes that an earlier call left when it was killed."""
        for file in self.output.glob("*.running"):
            end(file.read_text())
            file.unlink()


def write(file: Path, value: Any) -> None:
    """Write JSON, whole or not at all; paths below this folder become relative."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1).replace(str(Path.cwd()), ".") + "\n")
    part.replace(file)


def marked(mark: str, name: str = MARK) -> Iterable[psutil.Process]:
    """Yield the processes with a mark in their environment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name) == mark:
                yield process


def end(mark: str, leader: subprocess.Popen[bytes] | None = None) -> None:
    """End all processes with a mark: politely, so that Ray ends its own, then by force."""
    for process in marked(mark):
        with contextlib.suppress(psutil.Error):
            process.terminate()
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until and any(True for _ in marked(mark)):
        if leader is not None:
            leader.poll()
        time.sleep(POLL_S)
    kill(mark)
    if leader is not None:
        leader.wait()


def kill(mark: str, name: str = MARK) -> None:
    """End all processes with a mark by force, as a machine does that goes down."""
    for _ in range(NUM_KILLS):  # one that waits for its driver may outlive them
        left = list(marked(mark, name))
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=GRACE_S)


def gpu_mib() -> float:
    """Return the memory in use on the first GPU in MiB; 0 where there is none."""
    if shutil.which("nvidia-smi") is None:
        return 0.0
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with contextlib.suppress(subprocess.SubprocessError, ValueError, IndexError):
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10)
        return float(answer.stdout.splitlines()[0])
    return 0.0


def own_tmp(output: Path) -> list[str]:
    """Return what stands before a command so that it has a ``/tmp`` of its own; nothing where that cannot be."""
    if not has_private_tmp(output):
        return []
    folder = tempfile.mkdtemp(prefix="tmp-", dir=output)
    return ["unshare", "--mount", "sh", "-c", f'mount --bind "{folder}" /tmp && exec "$@"', "sh"]


@functools.cache
def has_private_tmp(output: Path) -> bool:
    """Return whether a process can have a ``/tmp`` of its own: as root, and where nothing that it needs is there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home())
    needed = [output, Path.cwd(), cache, Path(sys.prefix), *map(Path, filter(None, sys.path))]
    if (
        os.geteuid()
        or shutil.which("unshare") is None
        or any(Path("/tmp") in [path.resolve(), *path.resolve().parents] for path in needed)
    ):
        return False
    tries = ["unshare", "--mount", "mount", "--bind", str(output), "/tmp"]
    return subprocess.run(tries, capture_output=True).returncode == 0
