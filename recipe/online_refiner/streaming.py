"""Refine each response as soon as it is rewarded, while others are still being written.

verl's agent loop workers run one coroutine for every response; here it goes on with the refinement before its row is
written. The trainer then finds finished refinements in the batch, and only those of the last responses cost a step
time. The core is :class:`~recipe.online_refiner.refine_stage.Refiner`, the same as in the trainer's own stage.
"""

import asyncio
import random
import time
import zlib
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import ray
from omegaconf import DictConfig
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from recipe.online_refiner.refine_stage import Refinement, Refiner, Rollout, choose, reference_log_probs
from recipe.online_refiner.schema import load
from recipe.online_refiner.scoring import RewardLoopScore
from refiner_worker.client import RefinerClient
from refiner_worker.prompts import RefinerPrompt


@dataclass(slots=True, kw_only=True)
class Group:
    """The responses to one prompt while they are being written."""

    missing: set[int]
    """Sessions that are neither rewarded nor lost."""
    rollouts: list[Rollout] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def settle(self, session: int, *rollouts: Rollout) -> None:
        """Count a session as rewarded, or, without rollouts, as lost; once it has settled this changes nothing."""
        if session in self.missing:
            self.missing.remove(session)
            self.rollouts += rollouts
        if not self.missing:
            self.complete.set()

    def is_evicted_by(self, metric: str | None) -> bool:
        """Tell whether DAPO's filter will evict this group (``ReplayBuffer._dapo_filtered_keys`` of verl)."""
        if metric is None or len(self.rollouts) < 2:
            return False
        values = [one.reward if metric == "reward" else one.reward_extra_info.get(metric) for one in self.rollouts]
        return len(set(values)) == 1


class StreamingWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # Ray forbids subclassing the actor class
    """verl's agent loop worker, whose sessions end with a refinement."""

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        """Read the blocks; :meth:`set_refiner` comes before the first training batch."""
        super().__init__(config, *args, **kwargs)
        self.blocks = load(config)
        filter_groups = config.algorithm.filter_groups
        self.filter_metric = filter_groups.metric if filter_groups and filter_groups.enable else None
        self.waits_for_group = self.filter_metric is not None or bool(self.blocks.refiner.max_refinements_per_group)
        self.groups: dict[str, Group] = {}
        self.refiner: Refiner

    def set_refiner(self, client: RefinerClient, max_model_len: int) -> None:
        """Refine with these replicas from now on."""
        self.refiner = Refiner(
            config=self.blocks.refiner,
            constraint=self.blocks.constraint,
            client=client,
            prompt=RefinerPrompt(self.blocks.refiner.template_path(), self.tokenizer),
            score=RewardLoopScore(self.reward_loop_worker_handles),
            max_model_len=max_model_len,
        )

    async def _run_prompt(self, prompt: dict, sampling_params: dict, trajectory: dict, trace: bool = False) -> None:
        num_sessions = prompt.get("__rollout_n__", self.rollout_config.n)
        self.groups[prompt["uid"]] = Group(missing=set(range(int(num_sessions))))
        await super()._run_prompt(prompt, sampling_params, trajectory, trace)
        del self.groups[prompt["uid"]]

    async def _run_agent_loop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super()._run_agent_loop(*args, **kwargs)
        except BaseException:
            self.groups[kwargs["uid"]].settle(kwargs["session_id"])  # others of its group must not wait for it
            raise

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | list[AgentLoopOutput], validate: bool, **kwargs: Any
    ) -> None:
        outputs = output if isinstance(output, list) else [output]
        if outputs and not validate:
            await self._compute_score(outputs, kwargs=kwargs)
            rollouts = [rollout_of(one, outputs[-1], kwargs) for one in outputs]
            self.groups[kwargs["uid"]].settle(kwargs["session_id"], *rollouts)
            kl = asyncio.gather(*map(self._reference_log_probs, rollouts))
            if self.blocks.refines:
                refined = await asyncio.gather(*map(self._refine, rollouts))
                for one, refinement in zip(outputs, refined, strict=True):
                    one.extra_fields["refinement"] = asdict(refinement)
            for one, log_probs in zip(outputs, await kl, strict=True):
                one.extra_fields["kl_ref_log_prob"] = log_probs
        await super()._agent_loop_postprocess(output, validate, **kwargs)

    async def _reference_log_probs(self, rollout: Rollout) -> list[float] | None:
        """Return log pi_0 of a response if the KL is measured on it: about ``num_kl_rollouts`` a step, at random."""
        if not self.blocks.measures_kl:
            return None
        num_wanted = self.blocks.refiner.num_kl_rollouts
        num_rollouts = self.config.data.train_batch_size * self.rollout_config.n
        if num_wanted is not None and random.random() >= num_wanted / num_rollouts:
            return None
        return (await reference_log_probs(self.refiner.client, [rollout]))[0]

    async def _refine(self, rollout: Rollout) -> Refinement:
        rewarded_at = time.time()
        group = self.groups[rollout.group]
        if self.waits_for_group:
            await group.complete.wait()
        started_at = time.time()
        if group.is_evicted_by(self.filter_metric) or not self._is_chosen(rollout, group):
            refinement = Refinement(verdict="not_chosen")
        else:
            refinement = await self.refiner.refine(rollout)
        refinement.rewarded_at, refinement.started_at, refinement.refined_at = rewarded_at, started_at, time.time()
        return refinement

    def _is_chosen(self, rollout: Rollout, group: Group) -> bool:
        config = self.blocks.refiner
        if config.max_refinements_per_group is None or config.is_maximal(rollout.reward):
            return True
        chosen = choose(config, group.rollouts, seed=zlib.crc32(rollout.group.encode()))
        return any(group.rollouts[index] is rollout for index in chosen)


class StreamingAgentLoopManager(AgentLoopManagerTQ):
    """verl's agent loop manager with the workers above.

    The task runner sets it as ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Choose the workers."""
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(StreamingWorker)

    def set_refiner(self, client: RefinerClient, max_model_len: int) -> None:
        """Give every worker the replicas that are alive."""
        num_used = min(len(self.agent_loop_workers), self.config.data.train_batch_size)
        shared = replace(client, num_processes=num_used)
        ray.get([worker.set_refiner.remote(shared, max_model_len) for worker in self.agent_loop_workers])


def rollout_of(output: AgentLoopOutput, final: AgentLoopOutput, columns: dict[str, Any]) -> Rollout:
    """Return an agent loop's output as a rollout; the final one of a session has its reward."""
    return Rollout(
        key="",  # the queue's; nothing here needs it
        group=columns["uid"],
        messages=list(columns["raw_prompt"]),
        prompt_ids=list(output.prompt_ids),
        response_ids=list(output.response_ids),
        reward=float(np.float32(final.reward_score)),  # as the queue keeps it
        sample=columns,
        reward_extra_info=final.extra_fields["reward_extra_info"],
    )
