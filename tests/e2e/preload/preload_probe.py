"""A Ray job without verl, to look at its processes: ``python preload_probe.py OUT (facts|death|wait)``."""

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
                random.random(),
                float(numpy.random.random()),
                torch.rand(1).item(),
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
            child.join()
        children[-1].terminate()
        children[-1].join()
        return [child.exitcode for child in children]


def without_server(worker_class: Any) -> dict[str, Any]:
    """What becomes of workers, old and new, when the fork server is killed."""
    worker = worker_class.remote()
    pid = ray.get(worker.facts.remote())["pid"]
    server = psutil.Process(pid).parent()
    server.kill()
    server.wait()
    goes_on = ray.get(worker.facts.remote())["pid"] == pid
    return {"goes_on_without_server": goes_on, "after_server": ray.get(worker_class.remote().facts.remote())}


def main() -> None:
    """Run one part."""
    out, part = Path(sys.argv[1]), sys.argv[2]
    variables = {"env_vars": {"PROBE": "1"}}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env=variables, _temp_dir=os.environ.get("PROBE_TEMP"))
    worker_class = ray.remote(Worker)
    workers = [worker_class.remote() for _ in range(2)]
    found: dict[str, Any] = {"facts": [ray.get(worker.facts.remote()) for worker in workers]}
    found["children"] = ray.get(workers[0].exit_codes_of_children.remote())
    if part == "death":
        found |= without_server(worker_class)
    out.write_text(json.dumps(found))
    if part == "wait":
        time.sleep(600)


if __name__ == "__main__":
    main()
