"""A Ray cluster of two nodes, both on this machine, with one logical GPU each.

``python two_nodes.py OVERRIDE...`` runs the main job on it; ``python two_nodes.py serve FILE`` writes the address for
jobs into a file and waits for SIGTERM.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 8, "num_gpus": 1}
ANY_PORT = {"dashboard_agent_listen_port": 0}
"""Ray's fixed port may be another cluster's; without its agent a node takes no jobs."""


@contextlib.contextmanager
def two_nodes(*, takes_jobs: bool) -> Iterator[Cluster]:
    """Start the nodes, and end them."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, **ANY_PORT, "include_dashboard": takes_jobs})
    try:
        cluster.add_node(**NODE)
        yield cluster
    finally:
        cluster.shutdown()


def run(overrides: list[str]) -> int:
    """Run the main job, and return its exit code."""
    with two_nodes(takes_jobs=False) as cluster:
        overrides += [
            f"+ray_kwargs.ray_init.address={cluster.address}",
            *("ray_kwargs.ray_init.num_gpus=null", "ray_kwargs.ray_init.num_cpus=null"),
            "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=recipe.cpu_platform.activate",
        ]
        command = [sys.executable, "-m", "recipe.online_refiner.main", "platform=cpu", *overrides]
        return subprocess.run(command).returncode


def serve(file: Path) -> int:
    """Take jobs until the end is asked for."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before threads start: sigwait takes it
    with two_nodes(takes_jobs=True) as cluster:
        part = file.with_suffix(".part")
        part.write_text(f"http://{cluster.webui_url}")
        part.rename(file)
        signal.sigwait({signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[2])) if sys.argv[1] == "serve" else run(sys.argv[1:]))
