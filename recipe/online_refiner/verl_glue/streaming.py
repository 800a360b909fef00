"""Refine a group of responses as soon as it is complete, while others are still being written.

verl's agent loop workers run one coroutine for every session. Here the last one of a group goes on, once its row is in
the TransferQueue, and does for the group's rows what a refine worker does for a whole batch. The trainer then finds
finished refinements, and only the refinements of the last groups cost a step time.
"""

import copy
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.verl_glue.refine_actors import RefineWorker
from refiner_worker.client import RefinerClient

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Group:
    """The sessions of one prompt while they are being written."""

    num_sessions: int
    missing: set[int]
    """The numbers of the sessions that are neither in the queue nor lost."""
    outputs: dict[str, AgentLoopOutput] = field(default_factory=dict)
    """The outputs that are in the queue, by key."""

    def is_evicted_by(self, metric: str | None) -> bool:
        """Return whether DAPO's filter will evict this group (``ReplayBuffer._dapo_filtered_keys`` of verl)."""
        if metric is None or len(self.outputs) < max(2, self.num_sessions):  # it keeps what has lost a session
            return False
        values = [
            np.float32(one.reward_score) if metric == "reward" else one.extra_fields["reward_extra_info"][metric]
            for one in self.outputs.values()
        ]
        return float(np.std([float(value) for value in values])) == 0.0

    def rows(self) -> KVBatchMeta:
        """Return the group's rows, with the tags that a refine worker reads."""
        lengths = [(len(one.prompt_ids), len(one.response_ids)) for one in self.outputs.values()]
        tags = [{"seq_len": prompt + response, "response_len": response} for prompt, response in lengths]
        return KVBatchMeta(keys=list(self.outputs), tags=tags, partition_id="train")


class StreamingWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # Ray forbids subclassing the actor class
    """verl's agent loop worker, which also refines."""

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        """Start the worker; :meth:`set_refiner` must be called before the first training batch."""
        super().__init__(config, *args, **kwargs)
        filter_groups = config.algorithm.filter_groups
        self.filter_metric = filter_groups.metric if filter_groups and filter_groups.enable else None
        self.rescues = read_blocks(config).constraint.rescues
        self.groups: dict[str, Group] = {}
        own = copy.deepcopy(self.tokenizer)  # a fast one is changed while it encodes, and verl's threads use it too
        processor = self.model_config.processor
        self.refine_worker = RefineWorker(config, own, processor, self.reward_loop_worker_handles, "")

    def set_refiner(self, client: RefinerClient, max_model_len: int) -> None:
        """Refine with these replicas from now on."""
        self.refiner = (client, max_model_len)

    async def _run_prompt(self, prompt: dict, sampling_params: dict, trajectory: dict, trace: bool = False) -> None:
        num_sessions = int(prompt.get("__rollout_n__", self.rollout_config.n))
        self.groups[prompt["uid"]] = Group(num_sessions=num_sessions, missing=set(range(num_sessions)))
        await super()._run_prompt(prompt, sampling_params, trajectory, trace)
        del self.groups[prompt["uid"]]

    async def _run_agent_loop(self, sampling_params: dict, trajectory: dict, **kwargs: Any) -> Any:
        try:
            return await super()._run_agent_loop(sampling_params, trajectory, **kwargs)
        finally:  # also of a session that failed: the others of its group are refined without it
            group = self.groups[kwargs["uid"]]
            group.missing.discard(kwargs["session_id"])
            if not group.missing and group.outputs and not trajectory["validate"]:
                await self._refine(group)

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | list[AgentLoopOutput], validate: bool, **kwargs: Any
    ) -> None:
        await super()._agent_loop_postprocess(output, validate, **kwargs)
        name, outputs = f"{kwargs['uid']}_{kwargs['session_id']}", output if isinstance(output, list) else [output]
        self.groups[kwargs["uid"]].outputs |= {f"{name}_{index}": one for index, one in enumerate(outputs)}

    async def _refine(self, group: Group) -> None:
        """Refine a complete group; if that fails, its rows are unchanged, and the trainer's own stage refines them."""
        try:
            if self.rescues or not group.is_evicted_by(self.filter_metric):
                await self.refine_worker.refine(group.rows(), *self.refiner)
        except Exception:
            logger.exception("a group could not be refined during the rollout")


class StreamingAgentLoopManager(AgentLoopManagerTQ):
    """verl's agent loop manager with the workers above.

    The task runner sets it as ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(StreamingWorker)

    def set_refiner(self, client: RefinerClient, max_model_len: int) -> None:
        """Give every worker the replicas that are alive."""
        num_used = min(len(self.agent_loop_workers), self.config.data.train_batch_size)
        shared = client.shared(num_used)
        ray.get([worker.set_refiner.remote(shared, max_model_len) for worker in self.agent_loop_workers])
