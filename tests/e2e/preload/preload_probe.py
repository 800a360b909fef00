"""A Ray job without verl, to look at its processes: ``python preload_probe.py OUT (facts|deaths|wait)``."""

import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import psutil
import ray
from ray.exceptions import RayActorError

from recipe.preload import INTERPRETER_VARIABLE, SOCKET_VARIABLE
from recipe.preload.launch import HOOK_VARIABLE

OWN_VARIABLES = {SOCKET_VARIABLE, INTERPRETER_VARIABLE, HOOK_VARIABLE, "TORCHINDUCTOR_CACHE_DIR"}
"""What the launcher sets, and the import of vLLM."""


class Worker:
    """Answers questions about its process."""

    def facts(self) -> dict[str, Any]:
        """What a worker may rely on, forked or not."""
        import torch

        return {
            "pid": os.getpid(),
            "has_imported_vllm": "vllm" in sys.modules,
            "random": [
                *(random.random(), float(numpy.random.random()), torch.rand(1).item()),
                ray.WorkerID.from_random().hex(),  # of Ray's core, as the ids of calls are
            ],
            "alike": {
                "arguments": [sys.argv[0], *sorted(argument.split("=")[0] for argument in sys.argv[1:])],
                "title": Path("/proc/self/comm").read_text(),
                "path": [path for path in sys.path if "setuptools" not in path],  # its import adds to it
                "main": sys.modules["__main__"].__file__,
                "directory": os.getcwd(),
                "variable": os.environ.get("PROBE"),
                "variables": sorted(set(os.environ) - OWN_VARIABLES),
                "niceness": os.getpriority(os.PRIO_PROCESS, 0),
                "oom_score_adj": Path("/proc/self/oom_score_adj").read_text(),
                "blocked_signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
                "interrupt": str(signal.getsignal(signal.SIGINT)),
                "limits": [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
                "umask": os.umask(0o022),
                "torch_threads": torch.get_num_threads(),
            },
        }

    def exit_codes_of_children(self) -> list[int | None]:
        """Exit codes of processes that multiprocessing spawns; the last is terminated from here."""
        spawn = multiprocessing.get_context("spawn")
        children = [spawn.Process(target=sys.exit, args=(code,)) for code in (0, 7)]
        children += [spawn.Process(target=os.abort), spawn.Process(target=time.sleep, args=(600,))]
        for child in children:
            child.start()
        for child in children[:-1]:
            child.join(60)
        children[-1].terminate()
        children[-1].join(60)
        return [child.exitcode for child in children]

    def end(self) -> None:
        """End at once."""
        os._exit(3)


def has_died(worker: Any) -> bool:
    """Ask a worker until it is dead, for at most 20 s."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            ray.get(worker.facts.remote())
        except RayActorError:
            return True
    return False


def deaths(worker_class: Any) -> dict[str, Any]:
    """What becomes of workers when a process that they depend on is killed."""
    found: dict[str, Any] = {}
    by_exit, by_stand_in, orphan = (worker_class.remote() for _ in range(3))
    pids = [ray.get(worker.facts.remote())["pid"] for worker in (by_exit, by_stand_in, orphan)]
    server = psutil.Process(pids[0]).parent()
    by_exit.end.remote()
    found["exit"] = has_died(by_exit)
    ray.kill(by_stand_in)
    found["ray_kill"] = has_died(by_stand_in)
    server.kill()
    server.wait(20)
    found["goes_on_without_server"] = ray.get(orphan.facts.remote())["pid"] == pids[2]
    found["after_server"] = ray.get(worker_class.remote().facts.remote())
    deadline = time.monotonic() + 60  # a process that was killed gives back its memory first
    while any(psutil.pid_exists(pid) for pid in pids[:2]) and time.monotonic() < deadline:
        time.sleep(0.1)
    found["is_over"] = not any(psutil.pid_exists(pid) for pid in pids[:2])
    return found


def main() -> None:
    """Run one part."""
    out, part = Path(sys.argv[1]), sys.argv[2]
    variables = {"env_vars": {"PROBE": "1"}}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env=variables, _temp_dir=os.environ.get("PROBE_TEMP"))
    worker_class = ray.remote(Worker)
    workers = [worker_class.remote() for _ in range(2)]
    found: dict[str, Any] = {"facts": [ray.get(worker.facts.remote()) for worker in workers]}
    found["children"] = ray.get(workers[0].exit_codes_of_children.remote())
    if part == "deaths":
        found |= deaths(worker_class)
    out.write_text(json.dumps(found))
    if part == "wait":
        time.sleep(600)


if __name__ == "__main__":
    main()
