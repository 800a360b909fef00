r"""One import instead of fourteen: a job's workers are forks of one process that has imported torch, verl and vLLM.

A job is a dozen processes, and each of them needs 10 to 20 CPU seconds to import the same packages, while the others
wait for it. Here one process imports them, once, and forks for each::

    driver (launch.py) ── fork ─▶ fork server (server.py) ── fork ─▶ worker ─┐
       │                                ▲ arguments, environment,            │ pid, then exit status
       ▼                                │ descriptors                        ▼
    Ray's raylet, or multiprocessing ─▶ stand-in (the file `python` and client.py), which lives as long as the worker

Ray starts its workers, and multiprocessing its spawned children (vLLM's engines), by running a Python executable:
``runtime_env.py_executable`` and ``multiprocessing.set_executable`` are their supported ways to name another. What
they run here passes its own arguments, environment and descriptors on, forwards signals, and ends as the worker ends.

The fork server serves one job on one node, because Ray reads that job's variables when it is imported, and ends with
the driver. A fork can use CUDA as long as its parent has not begun to: an import asks NVML for GPUs
(:data:`ENVIRONMENT`), and the server serves nobody when an import has begun CUDA all the same. Whatever it cannot serve
is started as a plain Python, with a line that says so. Ray's own ``worker_process_setup_hook``, prestarted workers and
``--worker-preload-modules`` import in each process again; the standard library's forkserver starts children of one
program only.
"""

from pathlib import Path
from typing import Any

ENVIRONMENT: dict[str, str] = {  # must be in `os.environ` before the driver starts, unless the user has set it
    # torch.cuda.is_available() asks NVML, which a fork may ask again, and not the CUDA driver.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Ray otherwise starts idle workers of an environment that no process of a job has.
    "RAY_prestart_worker_first_driver": "false",
    # Titles of processes otherwise overwrite what /proc shows of their environment.
    "SPT_NOENV": "1",
}
SOCKET_VARIABLE = "VERL_FORK_SERVER"  # names the abstract socket of the job's fork server
INTERPRETER_VARIABLE = "VERL_FORK_INTERPRETER"  # the real Python, for the stand-in
STAND_IN = Path(__file__).with_name("python")

is_tried = False  # whether the launcher has run in this process, whatever came of it
serves = False  # whether this process is the driver of a job whose workers are forks
is_fork = False  # whether this process is a fork of the fork server
interrupt_handler: Any = None  # in the fork server and its forks: what the driver does about SIGINT


def use_stand_in(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Let Ray start workers by the stand-in: what ``RAY_RUNTIME_ENV_HOOK`` names, called by ``ray.init``."""
    if not serves:
        return runtime_env or {}
    from ray._private import ray_constants

    ray_constants.SETUP_WORKER_FILENAME = str(STAND_IN.with_name("client.py"))  # Ray joins it to its own folder
    return {**(runtime_env or {}), "py_executable": str(STAND_IN)}
