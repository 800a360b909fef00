"""verl's V1 trainer with a refine stage between reward and log-probs.

One step (stages of this extension in capitals; the rest is verl's own, untouched)::

    dataloader -> rollout (policy) -> reward -> REFINE (pi_0) -> REWARD of a' -> GATE r(a') > r(a)
                                                                                      |
        update actor <- advantage + PENALTY <- values, ref <- old log-probs, LOG PI_THETA(a')
        (or + eta * CROSS-ENTROPY of a', mode sft)

``_balance_batch`` is the hook: there the rollout engines sleep, rewards are known, and rows are padded and in order
(``PPOTrainer._step_once``, verl/trainer/ppo/v1/trainer_base.py). Texts stay with the refine workers. The driver reads
only numbers: verl's own columns, and the columns from which a penalty is computed.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop import AgentLoopManager
from verl.single_controller.ray import ResourcePoolManager
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY, ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.debug import marked_timer
from verl.workers.rollout.utils import update_prometheus_config

from recipe.online_refiner import metric_names
from recipe.online_refiner.config.fields import RefinementConfig, read_blocks
from recipe.online_refiner.method.step import StepState
from recipe.online_refiner.plan import Plan
from recipe.online_refiner.verl_glue import patches
from recipe.online_refiner.verl_glue.actor_worker import ActorWorker
from recipe.online_refiner.verl_glue.hosting.memory import most_used_gb
from recipe.online_refiner.verl_glue.hosting.start import Hosting
from recipe.online_refiner.verl_glue.loss import ONLY_RESPONSES
from recipe.online_refiner.verl_glue.model_configs import plan_run
from recipe.online_refiner.verl_glue.refine_actors import RefineWorkers
from recipe.online_refiner.verl_glue.rows import objects, rows_without
from recipe.online_refiner.verl_glue.stages import Stages
from recipe.online_refiner.verl_glue.watch import parts_of, refuse_too_few, watch
from recipe.runs.files import TOKENS, Records, RunDir
from recipe.runs.stop import checkpoint_before, shortened
from recipe.runs.tables import log_records
from refiner_worker.client import DEATHS, CheckpointError, HostedRefiner

ACTOR_ROLES = {Role.Actor, Role.ActorRollout, Role.ActorRolloutRef}


class RefinedLogProbs(PPOTrainer):
    """log pi_theta(a'), under the weights that verl has loaded for log pi_old.

    ``separate_async`` loads the step's first weights around ``PPOTrainer._compute_old_log_prob``. So this class stands
    between that trainer and ``PPOTrainer``, and :class:`OnlineRefinerTrainer` stands before both.
    """

    blocks: RefinementConfig
    stages: Stages
    state: StepState
    run_dir: RunDir

    def _begin(self, stage: str) -> None:
        """Record which stage of the step begins."""
        self.run_dir.write_stage(stage, self.global_steps, self.total_training_steps)

    @contextlib.contextmanager
    def _first_weights(self) -> Iterator[None]:
        """Load the step's first weights where verl has not: with ``bypass_mode`` it computes no log-probs itself."""
        correction = self.config.algorithm.get("rollout_correction") or {}
        if self.parameter_sync_step == 1 or not correction.get("bypass_mode", False):
            yield
            return
        part, actor = self.local_trigger_step, self.actor_rollout_wg
        actor.save_model_to_cpu(part)
        if part:
            actor.restore_model_from_cpu(0)
        yield
        if part:
            actor.restore_model_from_cpu(part)
            actor.clear_cpu_model(part)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self.state.enter("_compute_old_log_prob", batch.keys)
        self._begin("log-probs")
        batch = super()._compute_old_log_prob(batch, metrics=metrics)
        ours: dict[str, float] = {}
        if self.blocks.refines:
            with marked_timer(metric_names.LOG_PROB_TIMER, ours), self._first_weights():
                self.stages.score_with_actor(batch, self.state, self.actor_rollout_wg)
        if self.blocks.measures_kl_by_actor:
            with marked_timer(metric_names.KL_TIMER, ours):
                super()._compute_ref_log_prob(batch, metrics=metrics)
                # verl leaves this in the batch, and every later call would compute without the adapter as well.
                del batch.extra_info["no_lora_adapter"]
        # verl's timer around us adds all.
        add_seconds(self.timing_raw, {**ours, "old_log_prob": -sum(ours.values())})
        return batch


class OnlineRefinerTrainer(PPOTrainer):
    """A mixin that adds the refine stage to any of verl's V1 trainers; ``task_runner.py`` names the results."""

    filtered: Mapping[float, int] = MappingProxyType({})
    """The groups that DAPO's filter took out before the wait for the first mini-batch (``StepState.filtered``)."""

    def __init__(self, config: DictConfig) -> None:
        self.blocks = read_blocks(config)
        self.run_dir = RunDir(config.run_dir)
        self.num_restarts = 0
        # Made in set-up, which verl's constructor does not do.
        self.plan: Plan
        self.hosting: Hosting
        self.group: HostedRefiner
        self.workers: RefineWorkers
        self.stages: Stages
        self.agent_loop_manager: AgentLoopManager | None = None
        self.saved: dict[str, Any] = {}
        """The metrics of the last saved step, which verl validates after saving."""
        # Of the step that is under way.
        self.parts: list[StepState] = []
        self.state = StepState()
        self.step_started_at, self.rollout_gb = 0.0, 0.0
        super().__init__(config)

    # ---- set-up

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping.keys() & ACTOR_ROLES:
            self.role_worker_mapping[role] = ray.remote(ActorWorker)
        if self.blocks.hosts_refiner:
            self.plan = plan_run(self.config, self.blocks, tokenizer=self.tokenizer)
            self.hosting = Hosting(self.config, self.blocks, self.plan)
            self.resource_pool_manager: ResourcePoolManager = self.hosting.begin(self.resource_pool_manager)
        self.run_dir.write_stage("loading the policy")

    def _build_replay_buffer(self) -> ReplayBuffer:
        buffer = patches.poll_often(super()._build_replay_buffer())
        buffer = patches.end_if_most_fail(buffer, self.config.data.train_batch_size)
        return patches.keep_refined(buffer) if self.blocks.constraint.rescues else buffer

    def _setup(self) -> None:
        super()._setup()  # ends with the rollout engines asleep: their memory is the refiner's to load into
        patches.forget_trained_rows()
        self.saved = self.run_dir.forget_after(self.global_steps)
        for place in (self.config.records.path, f"{self.config.records.path}/{TOKENS}"):
            Records(place).forget_after(self.global_steps)
        self.workers = RefineWorkers(
            self.config,
            self.tokenizer,
            self.processor,
            self.reward_loop_manager.reward_loop_workers,
            self.config.actor_rollout_ref.rollout.agent.num_workers,
        )
        self.stages = Stages(self.config, self.blocks, self.workers)
        with reading_checkpoint(self._resumed_folder):
            self.stages.load(self._resumed_folder())
        reward_model = self.config.reward.reward_model
        if reward_model.enable and reward_model.enable_resource_pool and reward_model.rollout.free_cache_engine:
            # On GPUs of its own verl puts it to sleep as well, and never wakes it.
            self.reward_loop_manager.reward_model_manager.wake_up()
        if self.blocks.hosts_refiner:
            self.run_dir.write_stage("starting the refiner's engine")
            self.group = self.hosting.finish(self.llm_server_manager.get_replicas())
            self._tell_prometheus()
        self.run_dir.write_stage("giving the policy's weights to its engine")

    def _wake_refiner(self) -> int:
        """Wake the refiner and return the number of replicas that were restarted."""
        num_restarts = self.group.wake_up()
        if num_restarts:
            self._tell_prometheus()
        return num_restarts

    def _tell_prometheus(self) -> None:
        """Add the refiner's servers to the addresses that Prometheus reads; verl has added the rollout's."""
        rollout = self.config.actor_rollout_ref.rollout
        if rollout.prometheus.enable and self.blocks.refiner.has_replicas:
            managers = [self.llm_server_manager, getattr(self, "standalone_server_manager", None)]
            addresses = [address for manager in managers if manager for address in manager.server_addresses]
            update_prometheus_config(rollout.prometheus, [*addresses, *self.group.client().replicas], rollout.name)

    def fit(self, agent_loop_manager: AgentLoopManager) -> None:
        """Train; a streaming run's workers know the refiner before a trainer that runs ahead sends them prompts.

        Raises:
            RunEndedError: If a process died that a step waits for, or too many rollouts of one failed.
        """
        self.agent_loop_manager = agent_loop_manager
        self._hand_out_refiner()
        self._validate_if_missed()
        parts = parts_of(self, getattr(agent_loop_manager, "agent_loop_workers", []))
        watch(parts, partial(super().fit, agent_loop_manager))

    def _validate_if_missed(self) -> None:
        """Let verl validate before it goes on, if the run was killed between saving a step and its validation."""
        every, step = self.config.trainer.test_freq, self.global_steps
        is_due = every > 0 and (step % every == 0 or step >= self.total_training_steps)
        if self.saved and is_due and not any(name.startswith("val-") for name in self.saved):
            self.config.trainer.val_before_train = True

    # ---- one step, in this order

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        if "__rollout_n__" in batch:
            own = zip(objects(batch["uid"]), objects(batch["__rollout_n__"]), strict=True)
            self.stages.num_sessions |= {uid: int(n) for uid, n in own}
        return super()._submit_batch_to_rollout(batch)

    def on_step_begin(self) -> None:
        """Begin a step; give a streaming run's workers the replicas that are alive."""
        self.step_started_at = time.monotonic()
        self.rollout_gb = most_used_gb(self.llm_server_manager.server_handles)
        super().on_step_begin()
        self._hand_out_refiner()

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Do a step, which is one mini-batch, or in ``separate_async`` several, each with a state of its own."""
        self.parts = []
        batch = super().step(metrics, timing_raw)
        self.stages.adapt_eta(self.parts)
        # verl's aggregator has a reward function's numbers if any mini-batch has them.
        for name in [one for one in metrics if one.startswith(metric_names.EXTRA)]:
            del metrics[name]
        metrics.update(self.stages.of_step(self.parts))
        self.state.metrics = metrics
        return batch

    def prepare_step(self) -> dict:
        """Send a step's prompts; verl waits here while its training GPUs are lent, and filters groups meanwhile."""
        metrics = super().prepare_step()
        self.filtered = metrics.get(DAPO_FILTERED_REWARD_COUNTS_KEY, {})
        return metrics

    def on_sample_begin(self) -> None:
        """Begin a mini-batch's state."""
        part, num_parts = self.local_trigger_step, self.parameter_sync_step
        self.state = StepState(
            step=self.global_steps,
            part=part,
            num_parts=num_parts,
            filtered=self.filtered,
            num_restarts=self.num_restarts,
            hook="on_sample_begin",
        )
        self.num_restarts, self.filtered = 0, {}
        self.parts.append(self.state)
        self._begin("the policy answers")
        super().on_sample_begin()

    def _hand_out_refiner(self) -> None:
        if self.blocks.streams:
            self.num_restarts += self._wake_refiner()
            assert self.agent_loop_manager is not None, "fit has set it"
            self.agent_loop_manager.set_refiner(self.group.client(), self.plan.max_model_len)

    @contextlib.contextmanager
    def _reward_model_awake(self) -> Iterator[None]:
        """Wake a colocated reward model, which sleeps except where rewards are computed."""
        if self.get_reward_handles() is not None:  # a rule, or a model on GPUs of its own
            yield
            return
        self.reward_loop_manager.reward_model_manager.wake_up()
        try:
            yield
        finally:
            self.reward_loop_manager.reward_model_manager.sleep()

    def _compute_reward_colocate(self, batch: KVBatchMeta, metrics: dict | None = None) -> KVBatchMeta:
        # verl's own sends the reward workers no column of the data set: a custom reward function ends with a KeyError.
        with self._reward_model_awake():
            lost = self.workers.reward(batch)
        return rows_without(batch, lost)

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, **kwargs: Any) -> KVBatchMeta:
        self.state.enter("_balance_batch", batch.keys)
        refuse_too_few(len(batch), self.stages.num_wanted(batch, self.state), self.global_steps)
        batch = super()._balance_batch(batch, metrics=metrics, **kwargs)
        self.state.keys = list(batch.keys)
        self.state.metrics = metrics
        self.stages.see_rollouts(batch, self.state)
        asleep_gb = most_used_gb(self.llm_server_manager.server_handles)
        self.state.metrics.update({metric_names.MEMORY_ROLLOUT: self.rollout_gb, metric_names.MEMORY_ASLEEP: asleep_gb})
        if self.blocks.hosts_refiner:
            self._begin("the refiner rewrites")
            self._use_refiner(batch)
        return batch

    def _use_refiner(self, batch: KVBatchMeta) -> None:
        """Do all work of pi_0 in a step, so that it is woken once."""
        state, ours = self.state, dict[str, float]()
        with marked_timer(metric_names.REFINE_TIMER, ours):
            num_restarts = state.num_restarts if self.blocks.streams else self._wake_refiner()
            state.metrics[metric_names.NUM_RESTARTS] = num_restarts
            client = self.group.client()
            state.metrics[metric_names.NUM_REPLICAS] = len(client.addresses)
            for source, one in client.by_source.items():
                state.metrics[metric_names.REPLICAS_OF + source] = len(one.servers)
            if self.blocks.refines:
                with self._reward_model_awake():
                    self.stages.refine(batch, state, client, self.plan.max_model_len)
        with marked_timer(metric_names.KL_TIMER, ours):
            if self.blocks.measures_kl:
                self.stages.score_with_reference(batch, state, client)
        if client.handles:
            state.metrics[metric_names.MEMORY_REFINE] = most_used_gb(client.handles)
        with marked_timer(metric_names.REFINE_TIMER, ours):
            self.group.sleep()
        if client.handles:
            state.metrics[metric_names.MEMORY_REFINED] = most_used_gb(client.handles)
        ours[metric_names.WAIT_TIMER] = state.metrics[metric_names.WAIT_S]
        add_seconds(self.timing_raw, ours)
        if self.blocks.refines:
            state.metrics[metric_names.EXPOSED_S] = ours[metric_names.REFINE_TIMER] + ours[metric_names.WAIT_TIMER]

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self.state.enter("_compute_advantage", batch.keys)
        own_rewards = self.stages.charges.charge_rewards(batch, self.state)
        batch = super()._compute_advantage(batch, metrics=metrics)
        self.stages.charges.restore_rewards(batch, self.state, own_rewards)
        self.stages.charges.charge_advantages(batch, self.state)
        self.stages.measure_kl(batch, self.state)
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self.state.enter("_update_actor", batch.keys)
        self._begin("the policy learns")
        if self.state.eta > 0:  # else the numbers are verl's to the bit
            imitation = self.blocks.constraint.imitation
            settings = {} if imitation is None else imitation.settings(self.state.eta)
            batch.extra_info.update({ONLY_RESPONSES: True, **settings})
        batch = super()._update_actor(batch, metrics=metrics)
        self.stages.record_tokens(batch, self.state, self.actor_rollout_wg)
        return batch

    # ---- records

    def _checkpoint_folder(self) -> Path:
        return Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def _resumed_folder(self) -> Path:
        trainer = self.config.trainer
        return Path(trainer.resume_from_path) if trainer.resume_mode == "resume_path" else self._checkpoint_folder()

    def _load_checkpoint(self) -> None:
        with reading_checkpoint(self._resumed_folder):
            super()._load_checkpoint()

    def _save_checkpoint(self) -> None:
        self._begin("saving")
        # Both before verl names this checkpoint the latest: a run that is killed later on goes on after it.
        self.stages.save(self._checkpoint_folder())
        self._finish_records()
        timing_raw = {**self.timing_raw, "step": time.monotonic() - self.step_started_at}
        seconds = {metric_names.seconds_of(stage): value for stage, value in timing_raw.items()}
        self.saved = {"step": self.global_steps, **self.state.metrics, **seconds}
        self.run_dir.write_metrics(self.global_steps, self.saved)
        super()._save_checkpoint()

    def _validate(self) -> dict[str, float]:
        self._begin("validating")
        metrics: dict[str, float] = super()._validate()
        if self.saved.get("step") == self.global_steps:
            self.run_dir.write_metrics(self.global_steps, {**self.saved, **metrics})
        return metrics

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        self.run_dir.write_metrics(kwargs["global_steps"], metrics)
        self._finish_records()  # before verl clears the rows from the queue

    def _finish_records(self) -> None:
        log_records(self.logger.logger, self.global_steps, *self.workers.finish())


@contextlib.contextmanager
def reading_checkpoint(folder: Callable[[], Path]) -> Iterator[None]:
    """Name the checkpoint to resume in the error of a block that cannot read it.

    ``folder`` returns the checkpoint's folder, which the trainer may know only while it reads the checkpoint.

    Raises:
        CheckpointError: If the block raises anything but the death of a process.
    """
    try:
        yield
    except DEATHS:
        raise
    except Exception as error:  # a file that was cut, of another model or world size: torch may raise anything
        raise CheckpointError(_unreadable(folder(), error)) from error


def _unreadable(checkpoint: Path, error: Exception) -> str:
    """Return one line about a checkpoint that cannot be read, with the name of the checkpoint before it."""
    before = checkpoint_before(checkpoint)
    what = (
        f"to go on from the one before it, add trainer.resume_mode=resume_path trainer.resume_from_path={before}"
        if before
        else "there is none before it: add trainer.resume_mode=disable to begin again, or set another run_dir"
    )
    last_line = str(error).strip().rpartition("\n")[2]
    return f"the checkpoint {checkpoint} cannot be read ({shortened(last_line)}); {what}"


def add_seconds(timing_raw: dict[str, float], ours: dict[str, float]) -> None:
    """Add the seconds of this extension's stages to the timers of the step."""
    for stage, seconds in ours.items():
        timing_raw[stage] = timing_raw.get(stage, 0.0) + seconds
