"""Restarts a replica whose node has left the cluster (two raylets on this machine); writes what came of it, as JSON.

``python lost_node_probe.py MODEL OUT``. The replica never ran: what counts is that verl waits for its GPUs.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import ray
from hydra import compose, initialize_config_module
from ray.cluster_utils import Cluster
from verl.single_controller.ray import ResourcePoolManager
from verl.single_controller.ray.base import split_resource_pool

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.config.replicas import model_config, rollout_config
from recipe.online_refiner.verl_glue.hosting import group as refiner_group
from recipe.online_refiner.verl_glue.hosting.group import RefinerGroup


def main(model: str, out: Path) -> None:
    """Lose the node, then restart."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    node = cluster.add_node(num_cpus=4, num_gpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    with initialize_config_module("recipe.online_refiner.config", version_base=None):
        overrides = ["platform=cpu", f"actor_rollout_ref.model.path={model}"]
        overrides += ["refiner.placement=dedicated", "refiner.n_gpus_per_node=1"]
        config = compose("online_refiner", overrides=overrides)
    refiner = load(config).refiner
    pools = ResourcePoolManager(resource_pool_spec={"refiner_pool": [1]}, mapping={})
    pools.create_resource_pool()
    group = object.__new__(RefinerGroup)
    group._refiner, group._num_deaths = refiner, Counter()
    group._model, group._rollout = model_config(config, refiner), rollout_config(config, refiner, 128)
    group._slices = split_resource_pool(pools.resource_pool_dict["refiner_pool"], split_size=1)
    group._gpus_per_node, group._num_launches, group._replicas = 1, 1, {}

    cluster.remove_node(node)
    refiner_group.RESTART_TIMEOUT_S = 5.0
    why, left = group._restart(0), list(group._replicas)
    out.write_text(json.dumps({"why": why, "left": left}))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
