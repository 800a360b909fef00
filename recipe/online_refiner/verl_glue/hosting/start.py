"""The start of the refiner: which replicas a run starts, and when."""

from concurrent.futures import Future, ThreadPoolExecutor

from omegaconf import DictConfig
from verl.single_controller.ray import ResourcePoolManager
from verl.utils.device import get_device_name
from verl.workers.rollout.replica import RolloutReplica

from recipe.online_refiner.config.fields import RefinementConfig
from recipe.online_refiner.plan import Plan
from recipe.online_refiner.verl_glue.hosting.group import RefinerGroup, start
from refiner_worker.client import HostedRefiner
from refiner_worker.config import External

OWN_POOL = "refiner_pool"


class EarlyPools(ResourcePoolManager):
    """verl's resource pools, which may be made before verl asks for them, in the middle of ``PPOTrainer._setup``."""

    def create_resource_pool(self) -> None:
        """Make the pools, once."""
        if not self.resource_pool_dict:
            super().create_resource_pool()


class Hosting:
    """The start of the refiner: beside the policy's workers and engines where they do not need each other's memory."""

    def __init__(self, config: DictConfig, blocks: RefinementConfig, plan: Plan) -> None:
        self._config, self._blocks, self._refiner, self._plan = config, blocks, blocks.refiner, plan
        self._groups: Future[list[RefinerGroup]] | None = None

    def begin(self, pools: ResourcePoolManager) -> ResourcePoolManager:
        """Return the run's pools, with the refiner's own; start its replicas now if they need not wait."""
        refiner = self._refiner
        if refiner.is_dedicated:
            pools.resource_pool_spec[OWN_POOL] = [refiner.n_gpus_per_node] * refiner.nnodes
        # Engines measure a GPU's free memory when they start: nobody else may load onto it meanwhile.
        is_alone = refiner.is_dedicated or self._config.trainer.device == "cpu"
        self._pools = EarlyPools(resource_pool_spec=pools.resource_pool_spec, mapping=pools.mapping)
        if refiner.has_replicas and is_alone:
            self._pools.create_resource_pool()
            # Made when they are first asked for, which this thread and the other one would do at the same time.
            for pool in self._pools.resource_pool_dict.values():
                pool.get_placement_groups(device_name=get_device_name())
            self._groups = ThreadPoolExecutor(1, "refiner-start").submit(self._start)
        return self._pools

    def finish(self, rollout_replicas: list[RolloutReplica]) -> HostedRefiner:
        """Return the refiner when it serves: a :class:`RefinerGroup`, or what stands for it where there is none."""
        groups = self._hosted_groups()
        common = groups[0] if groups else self._without_replicas(rollout_replicas)
        if not (self._blocks.refines and self._refiner.by_source):
            return common
        from refiner_worker.sources import RefinerBySource  # here: it needs openai

        own = zip(self._plan.hosted[1:], groups[1:], strict=False)
        return RefinerBySource(
            common, self._refiner, {source: group for one, group in own for source in one.use.settings}
        )

    def _hosted_groups(self) -> list[RefinerGroup]:
        """Return the replicas of each model of the plan; none if the placement has no replicas."""
        if not self._refiner.has_replicas:
            return []
        return self._groups.result() if self._groups else self._start()

    def _without_replicas(self, rollout_replicas: list[RolloutReplica]) -> HostedRefiner:
        """Return the refiner of a placement without replicas of its own."""
        if self._blocks.is_shared:
            from recipe.online_refiner.verl_glue.hosting.shared import (
                SharedRefiner,  # here: it needs vLLM, which other rollouts do without
            )

            return SharedRefiner(self._refiner, rollout_replicas)
        assert isinstance(self._refiner, External)
        from refiner_worker.external import ExternalRefiner  # here: it needs openai

        return ExternalRefiner(self._refiner)

    def _start(self) -> list[RefinerGroup]:
        name = OWN_POOL if self._refiner.is_dedicated else "global_pool"
        return start(
            self._plan.hosted,
            pool=self._pools.resource_pool_dict[name],
            gpus_per_node=self._refiner.n_gpus_per_node or self._config.trainer.n_gpus_per_node,
        )
