"""verl's V1 trainer with a refine stage between reward and log-probs.

One step (stages of this extension in capitals; the rest is verl's own, untouched)::

    dataloader -> rollout (policy) -> reward -> REFINE (pi_0) -> REWARD of a' -> GATE r(a') > r(a)
                                                                                      |
        update actor <- advantage + PENALTY <- values, ref <- old log-probs, LOG PI_THETA(a')
        (or + eta * CROSS-ENTROPY of a', mode sft)

``_balance_batch`` is the hook: there the rollout engines sleep, rewards are known, and rows are padded and in order
(``PPOTrainer._step_once``, verl/trainer/ppo/v1/trainer_base.py).
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop import AgentLoopManager
from verl.single_controller.ray import ResourcePoolManager
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY, ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.debug import marked_timer

from recipe.online_refiner import metrics as metric_names
from recipe.online_refiner import patches
from recipe.online_refiner.blocks import RefinementConfig
from recipe.online_refiner.checks import max_positions
from recipe.online_refiner.constraint import kl_to_reference
from recipe.online_refiner.constraint_stage import ConstraintStage
from recipe.online_refiner.hosting import Hosting
from recipe.online_refiner.plan import make_plan
from recipe.online_refiner.refine_stage import (
    Refinement,
    Refiner,
    Rollout,
    StageResult,
    reference_log_probs,
    refine_all,
)
from recipe.online_refiner.rows import (
    read_padded,
    read_rollouts,
    read_streamed,
    read_token_pairs,
    rows_of,
    write_kl_log_probs,
    write_refinements,
    write_rewards,
)
from recipe.online_refiner.run_dir import RunDir
from recipe.online_refiner.sample_log import log_samples
from recipe.online_refiner.schema import load
from recipe.online_refiner.scoring import RewardLoopScore, score_all
from recipe.online_refiner.workers import RefinerActorWorker

ACTOR_ROLES = (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)
NUM_RECORDED_PAIRS = 2
"""Accepted pairs of a step whose tokens are recorded with their log-probs."""


class OnlineRefinerTrainer(PPOTrainer):
    """What this extension adds to any of verl's V1 trainers; which, says ``task_runner.py``.

    Args:
        config: The whole config, with the blocks ``refiner`` and ``constraint``.
    """

    def __init__(self, config: DictConfig) -> None:
        """Read the blocks; models are loaded in ``init``."""
        self.blocks: RefinementConfig = load(config)
        self.run_dir = RunDir(config.run_dir)
        self.group: Any = None  # RefinerGroup, or SharedRefiner
        super().__init__(config)

    # ---- set-up

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in ACTOR_ROLES:
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(RefinerActorWorker)
        if self.blocks.hosts_refiner:
            self.plan = make_plan(
                self.config,
                self.blocks,
                tokenizer=self.tokenizer,
                max_positions=max_positions(self.config, self.blocks.refiner.model_path),
            )
            self.hosting = Hosting(self.config, self.blocks, self.plan)
            self.resource_pool_manager: ResourcePoolManager = self.hosting.begin(self.resource_pool_manager)

    def _build_replay_buffer(self) -> ReplayBuffer:
        return patches.look_often(super()._build_replay_buffer())

    def _setup(self) -> None:
        super()._setup()  # ends with the rollout engines asleep: their memory is the refiner's to load into
        self.run_dir.forget_after(self.global_steps)
        self.reward_score = RewardLoopScore(self.reward_loop_manager.reward_loop_workers)
        self.constraint = ConstraintStage(self.config, self.blocks.constraint, self.total_training_steps)
        self.constraint.load(self._checkpoint_folder(resumed=True))
        reward_model = self.config.reward.reward_model
        if reward_model.enable and reward_model.enable_resource_pool and reward_model.rollout.free_cache_engine:
            # On GPUs of its own verl puts it to sleep as well, and never wakes it.
            self.reward_loop_manager.reward_model_manager.wake_up()
        if not self.blocks.hosts_refiner:
            return
        self.group = self.hosting.finish(self.llm_server_manager.get_replicas())
        self.refiner = Refiner(
            config=self.blocks.refiner,
            constraint=self.blocks.constraint,
            client=self.group.client(),
            prompt=self.plan.prompt,
            score=self.reward_score,
            max_model_len=self.plan.max_model_len,
        )

    def fit(self, agent_loop_manager: AgentLoopManager) -> None:
        """Train; a streaming run's workers know the refiner before a trainer that runs ahead sends them prompts."""
        self.agent_loop_manager = agent_loop_manager
        self._hand_out_refiner()
        super().fit(agent_loop_manager)

    # ---- one step

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Do verl's step, and keep hold of its metrics and its start."""
        self.step_metrics, self.step_started_at = metrics, time.monotonic()
        return super().step(metrics, timing_raw)

    def on_step_begin(self) -> None:
        """Give a streaming run's workers the replicas that are alive."""
        super().on_step_begin()
        self._hand_out_refiner()

    def _hand_out_refiner(self) -> None:
        if self.group is not None and self.blocks.streams:
            self.num_restarts = self.group.wake_up()
            self.agent_loop_manager.set_refiner(self.group.client(), self.refiner.max_model_len)

    @contextlib.contextmanager
    def _reward_model_awake(self) -> Iterator[None]:
        """Wake a colocated reward model, which sleeps except where rewards are computed."""
        if self.get_reward_handles() is not None:  # a rule, or a model on GPUs of its own
            yield
            return
        self.reward_loop_manager.reward_model_manager.wake_up()
        yield
        self.reward_loop_manager.reward_model_manager.sleep()

    def _compute_reward_colocate(self, batch: KVBatchMeta, metrics: dict | None = None) -> KVBatchMeta:
        # verl's own sends the reward workers no column of the data set: a custom reward function ends with a KeyError.
        with self._reward_model_awake():
            write_rewards(batch, asyncio.run(score_all(self.reward_score, read_rollouts(batch))))
        return batch

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, **kwargs: Any) -> KVBatchMeta:
        batch = super()._balance_batch(batch, metrics=metrics, **kwargs)
        rollouts = read_rollouts(batch)
        metrics.update(metric_names.zeros())
        is_by_reward = OmegaConf.select(self.config, "algorithm.filter_groups.metric") == "reward"
        filtered = metrics.get(DAPO_FILTERED_REWARD_COUNTS_KEY, {}) if is_by_reward else {}
        metrics.update(metric_names.reward_metrics(rollouts, filtered))
        metrics.update(metric_names.sandbox_metrics(rollouts, self.timing_raw["gen"]))
        metrics["refiner/num_rollouts"] = len(rollouts)
        num_wanted = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        metrics["reward/num_lost"] = max(0, num_wanted - len(rollouts))
        metrics["tokens/rollout"] = sum(len(rollout.response_ids) for rollout in rollouts)
        metrics["tokens/update_actor"] = sum(tag["seq_len"] for tag in batch.tags)
        if self.group is None:
            return batch
        with marked_timer("refine", self.timing_raw):
            metrics["refiner/num_restarts"] = self.num_restarts if self.blocks.streams else self.group.wake_up()
            self.refiner.client = self.group.client()
            metrics["refiner/num_replicas"] = len(self.refiner.client.servers)
            if self.blocks.refines:
                self._refine(batch, rollouts, metrics)
        with marked_timer("kl_ref", self.timing_raw):
            if self.blocks.measures_kl:
                self._score_with_reference(batch, rollouts, metrics)
        with marked_timer("refine", self.timing_raw):
            self.group.sleep()
        if self.blocks.refines:
            metrics["refiner/exposed_s"] += self.timing_raw["refine"]
        return batch

    def _refine(self, batch: KVBatchMeta, rollouts: list[Rollout], metrics: dict) -> None:
        if self.blocks.streams:
            responses = [self.refiner.text(rollout) for rollout in rollouts]
            refinements = [Refinement(**fields) for fields in read_streamed(batch, "refinement")]
            result = StageResult(rollouts=rollouts, refinements=refinements, responses=responses)
            metrics.update(metric_names.streaming_metrics(result.refinements))
        else:
            with self._reward_model_awake():
                result = asyncio.run(refine_all(self.refiner, rollouts, seed=self.global_steps))
        write_refinements(batch, result)
        metrics.update(metric_names.stage_metrics(result))
        if self.blocks.refiner.draft is not None:
            metrics.update(metric_names.draft_metrics(*self.group.new_draft_counts()))
        self.run_dir.append_refinements(self.global_steps, result)
        log_samples(self.logger.logger, self.global_steps, result)

    def _score_with_reference(self, batch: KVBatchMeta, rollouts: list[Rollout], metrics: dict) -> None:
        if self.blocks.streams:
            found = read_streamed(batch, "kl_ref_log_prob")
        else:
            num_chosen = min(len(rollouts), self.blocks.refiner.num_kl_rollouts or len(rollouts))
            chosen = random.Random(self.global_steps).sample(range(len(rollouts)), num_chosen)
            measured = asyncio.run(reference_log_probs(self.refiner.client, [rollouts[index] for index in chosen]))
            by_rollout = dict(zip(chosen, measured, strict=True))
            found = [by_rollout.get(index) for index in range(len(rollouts))]
        write_kl_log_probs(batch, found)
        metrics["tokens/kl_ref"] = sum(len(row) for row in found if row is not None)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics=metrics)
        if self.blocks.refines:
            with marked_timer("refine_log_prob", self.timing_raw):
                self.constraint.score(batch, self.actor_rollout_wg, self.global_steps)
        if self.blocks.measures_kl_by_actor:
            with marked_timer("kl_ref", self.timing_raw):
                super()._compute_ref_log_prob(batch, metrics=metrics)
                # verl leaves this in the batch, and every later call would compute without the adapter as well.
                del batch.extra_info["no_lora_adapter"]
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        is_penalised = False
        if self.blocks.refines:
            penalty, accepted_rows = self.constraint.charge(batch, metrics, self.global_steps)
            is_penalised = self.blocks.constraint.mode == "penalty" and bool(penalty.any())
            self._record_tokens(batch, accepted_rows)
        if is_penalised:
            batch = self.constraint.penalise(batch, metrics, penalty, super()._compute_advantage)
        else:
            batch = super()._compute_advantage(batch, metrics=metrics)
        self._record_kl(batch, metrics)
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self.constraint.add_to_loss(batch)
        return super()._update_actor(batch, metrics=metrics)

    def _record_kl(self, batch: KVBatchMeta, metrics: dict) -> None:
        is_by_verl = self.blocks.has_reference_worker or self.blocks.measures_kl_by_actor
        name = "ref_log_prob" if is_by_verl else "kl_ref_log_prob"
        if not (self.blocks.measures_kl or is_by_verl):
            return
        data = read_padded(batch, "old_log_probs", name, "response_mask")
        known = data["response_mask"] * data[name].isfinite()
        metrics["kl_ref/k3"] = kl_to_reference(
            log_probs=data["old_log_probs"], ref_log_probs=data[name], response_mask=known
        )

    # ---- records

    def _record_tokens(self, batch: KVBatchMeta, accepted_rows: list[int]) -> None:
        chosen = rows_of(batch, accepted_rows[:NUM_RECORDED_PAIRS])
        if chosen.keys:
            self.run_dir.append_tokens(self.global_steps, read_token_pairs(chosen, self.tokenizer))

    def _checkpoint_folder(self, *, resumed: bool = False) -> Path:
        trainer = self.config.trainer
        if resumed and trainer.resume_mode == "resume_path":
            return Path(trainer.resume_from_path)
        return Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def _save_checkpoint(self) -> None:
        # Both before verl names this checkpoint the latest: a run that is killed later on goes on behind it.
        self.constraint.save(self._checkpoint_folder())
        timing_raw = {**self.timing_raw, "step": time.monotonic() - self.step_started_at}
        seconds = {f"timing_s/{stage}": value for stage, value in timing_raw.items()}
        self.run_dir.write_metrics(self.global_steps, {**self.step_metrics, **seconds})
        super()._save_checkpoint()

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, **kwargs: Any) -> None:
        # verl's own timer of the stage that ours stand in counts them as well.
        timing_raw["old_log_prob"] -= timing_raw.get("refine_log_prob", 0.0)
        if self.blocks.measures_kl_by_actor:
            timing_raw["old_log_prob"] -= timing_raw["kl_ref"]
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        self.run_dir.write_metrics(kwargs["global_steps"], metrics)
