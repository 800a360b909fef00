"""verl's V1 trainer with a refine stage between reward and log-probs.

One step (stages of this extension in capitals; the rest is verl's own, untouched)::

    dataloader -> rollout (policy) -> reward -> REFINE (pi_0) -> REWARD of a' -> GATE r(a') > r(a)
                                                                                      |
        update actor <- advantage + PENALTY <- values, ref <- old log-probs, LOG PI_THETA(a')

``_balance_batch`` is the hook: there the rollout engines sleep, rewards are known, and rows are padded and in order
(``PPOTrainer._step_once``, verl/trainer/ppo/v1/trainer_base.py).
"""

import asyncio
import random
from typing import Any

import ray
import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer

from recipe.online_refiner import metrics as metric_names
from recipe.online_refiner.checks import max_positions
from recipe.online_refiner.constraint import cross_entropy, kl_to_reference, penalised_advantages, token_penalty
from recipe.online_refiner.plan import make_plan
from recipe.online_refiner.refine_stage import Refiner, Rollout, reference_log_probs, refine_all
from recipe.online_refiner.rows import read_padded, read_rollouts, write_kl_log_probs, write_padded, write_refinements
from recipe.online_refiner.run_dir import RunDir
from recipe.online_refiner.schema import RefinementConfig, load
from recipe.online_refiner.scoring import RewardLoopScore
from recipe.online_refiner.workers import RefinerActorWorker
from refiner_worker.group import RefinerGroup

ACTOR_ROLES = (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)


class OnlineRefinerSync(PPOTrainerSync):
    """The synchronous trainer (``trainer.v1.trainer_mode=sync``): rollout, refiner and actor take turns on the GPUs.

    Args:
        config: The whole config, with the blocks ``refiner`` and ``constraint``.
    """

    def __init__(self, config: DictConfig) -> None:
        """Read the blocks; models are loaded in ``init``."""
        self.blocks: RefinementConfig = load(config)
        self.run_dir = RunDir(config.run_dir)
        self.group: RefinerGroup | None = None
        super().__init__(config)

    # ---- set-up

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in ACTOR_ROLES:
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(RefinerActorWorker)

    def _setup(self) -> None:
        super()._setup()  # ends with the rollout engines asleep: their memory is the refiner's to load into
        self.run_dir.forget_after(self.global_steps)
        if not self.blocks.hosts_refiner:
            return
        plan = make_plan(
            self.config,
            self.blocks,
            tokenizer=self.tokenizer,
            max_positions=max_positions(self.blocks.refiner.model_path),
        )
        self.group = RefinerGroup(
            refiner=self.blocks.refiner,
            rollout=plan.refiner_rollout,
            pool=self.resource_pool_manager.resource_pool_dict["global_pool"],
            gpus_per_node=self.config.trainer.n_gpus_per_node,
        )
        self.refiner = Refiner(
            config=self.blocks.refiner,
            constraint=self.blocks.constraint,
            client=self.group.client(),
            prompt=plan.prompt,
            score=RewardLoopScore(self.get_reward_handles()),
            max_model_len=plan.max_model_len,
        )

    # ---- one step

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, **kwargs: Any) -> KVBatchMeta:
        batch = super()._balance_batch(batch, metrics=metrics, **kwargs)
        rollouts, groups = read_rollouts(batch)
        metrics.update(metric_names.zeros())
        metrics.update(metric_names.reward_metrics([rollout.reward for rollout in rollouts], groups))
        metrics["refiner/num_rollouts"] = len(rollouts)
        metrics["tokens/rollout"] = sum(len(rollout.response_ids) for rollout in rollouts)
        metrics["tokens/update_actor"] = sum(tag["seq_len"] for tag in batch.tags)
        if self.group is None:
            return batch
        with marked_timer("refine", self.timing_raw):
            metrics["refiner/num_restarts"] = self.group.wake_up()
            self.refiner.client = self.group.client()
            if self.blocks.refines:
                self._refine(batch, rollouts, metrics)
        with marked_timer("kl_ref", self.timing_raw):
            if self.blocks.measures_kl:
                self._score_with_reference(batch, rollouts, metrics)
        with marked_timer("refine", self.timing_raw):
            self.group.sleep()
        return batch

    def _refine(self, batch: KVBatchMeta, rollouts: list[Rollout], metrics: dict) -> None:
        result = asyncio.run(refine_all(self.refiner, rollouts))
        write_refinements(batch, result.refinements)
        metrics.update(metric_names.stage_metrics(result))
        self.run_dir.append_refinements(self.global_steps, result)

    def _score_with_reference(self, batch: KVBatchMeta, rollouts: list[Rollout], metrics: dict) -> None:
        num_chosen = min(len(rollouts), self.blocks.refiner.num_kl_rollouts or len(rollouts))
        chosen = random.Random(self.global_steps).sample(range(len(rollouts)), num_chosen)
        found = asyncio.run(reference_log_probs(self.refiner.client, [rollouts[index] for index in chosen]))
        by_rollout = dict(zip(chosen, found, strict=True))
        write_kl_log_probs(batch, [by_rollout.get(index) for index in range(len(rollouts))])
        metrics["tokens/kl_ref"] = sum(len(row) for row in found if row is not None)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics=metrics)
        if not self.blocks.refines:
            return batch
        with marked_timer("refine_log_prob", self.timing_raw):
            scoring = KVBatchMeta(
                keys=batch.keys,
                tags=batch.tags,
                partition_id=batch.partition_id,
                fields=["prompts", "refine_ids", "refine_mask"],
                extra_info={
                    "calculate_entropy": False,
                    "compute_loss": False,
                    "temperature": self.config.actor_rollout_ref.rollout.temperature,
                },
            )
            self.actor_rollout_wg.compute_refine_log_prob(scoring)
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics=metrics)
        self._record_kl(batch, metrics)
        if not self.blocks.refines:
            return batch
        data = read_padded(batch, "refine_log_probs", "refine_mask", "refine_accepted", "response_mask", "advantages")
        refined = {"refine_log_probs": data["refine_log_probs"].float(), "refine_mask": data["refine_mask"]}
        eta = self.blocks.constraint.eta
        accepted, response_mask = data["refine_accepted"].bool(), data["response_mask"]
        penalty = token_penalty(**refined, accepted=accepted, response_mask=response_mask, eta=eta)
        metrics.update(
            {
                "constraint/eta": eta,
                "constraint/cross_entropy_all": cross_entropy(**refined, rows=torch.ones_like(accepted)),
                "constraint/cross_entropy_accepted": cross_entropy(**refined, rows=accepted),
                "constraint/penalty": (penalty.sum() / response_mask.sum().clamp(min=1)).item(),
                "tokens/refine_log_prob": data["refine_mask"].sum().item(),
            }
        )
        if penalty.any():
            advantages = penalised_advantages(
                advantages=data["advantages"], penalty=penalty, response_mask=response_mask
            )
            write_padded(batch, advantages=advantages)
        return batch

    def _record_kl(self, batch: KVBatchMeta, metrics: dict) -> None:
        name = "ref_log_prob" if self.blocks.has_reference_worker else "kl_ref_log_prob"
        if not (self.blocks.measures_kl or self.blocks.has_reference_worker):
            return
        data = read_padded(batch, "old_log_probs", name, "response_mask")
        known = data["response_mask"] * data[name].isfinite()
        metrics["kl_ref/k3"] = kl_to_reference(
            log_probs=data["old_log_probs"], ref_log_probs=data[name], response_mask=known
        )

    # ---- records

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, **kwargs: Any) -> None:
        # verl's own timer of the stage that ours stands in counts it as well.
        timing_raw["old_log_prob"] -= timing_raw.get("refine_log_prob", 0.0)
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        self.run_dir.append_metrics(kwargs["global_steps"], metrics)
