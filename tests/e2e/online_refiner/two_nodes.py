"""Take jobs on a Ray cluster of two nodes, both on this machine, with one logical GPU each, until SIGTERM.

``python two_nodes.py FILE`` writes the address for jobs into the file.
"""

import signal
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 8, "num_gpus": 1}
ANY_PORT = {"dashboard_agent_listen_port": 0}
"""Ray's fixed port may be another cluster's; without its agent a node takes no jobs."""


def main(file: Path) -> None:
    """Start the nodes, and end them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before threads start: sigwait takes it
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, **ANY_PORT, "include_dashboard": True})
    try:
        cluster.add_node(**NODE)
        part = file.with_suffix(".part")
        part.write_text(f"http://{cluster.webui_url}")
        part.rename(file)
        signal.sigwait({signal.SIGTERM})
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
