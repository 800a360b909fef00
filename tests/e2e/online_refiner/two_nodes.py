"""Runs the main job on a Ray cluster of two nodes, both on this machine, with one logical GPU each.

Arguments: overrides of the main job.
"""

import subprocess
import sys

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 8, "num_gpus": 1}


def main() -> int:
    """Start the nodes, run the job on them, end them."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    overrides = [
        f"+ray_kwargs.ray_init.address={cluster.address}",
        *("ray_kwargs.ray_init.num_gpus=null", "ray_kwargs.ray_init.num_cpus=null"),
        "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=recipe.cpu_platform.activate",
    ]
    command = [sys.executable, "-m", "recipe.online_refiner.main", "platform=cpu", *sys.argv[1:], *overrides]
    try:
        return subprocess.run(command).returncode
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
