"""A step of the real trainer without Ray: rows in a real queue, the real worker, and no rollout, refiner or update."""

from types import SimpleNamespace
from typing import Any

from composed_main import composed
from played_actor import Group
from transfer_queue import KVBatchMeta

from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.stages import Stages
from recipe.online_refiner.task_runner import OnlineRefinerSync
from refiner_worker.client import HostedRefiner

PLAIN = (
    *(
        "algorithm.adv_estimator=grpo",
        "algorithm.norm_adv_by_std_in_grpo=false",
        "algorithm.gamma=1",
        "algorithm.lam=1",
    ),
    *("data.train_batch_size=2", "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.rollout.temperature=0.5"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=3", "actor_rollout_ref.rollout.calculate_log_probs=false"),
    *("measure.num_kl_rollouts=0", "measure.cross_entropy_all_every=0", "constraint.eta=0.5"),
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
)
"""Estimators with plain numbers, and a mini-batch of six rows: two more than there are, so that verl pads."""


class Workers:
    """Refine workers who find all rows refined: their columns and tags are there."""

    def __init__(self) -> None:
        """Nothing is recorded yet."""
        self.recorded: list[str] = []

    def refine(self, rows: KVBatchMeta, *_: Any) -> list[Any]:
        """Refine nothing."""
        assert not rows.keys
        return []

    def record(self, step: int, part: int, rows: KVBatchMeta, samples: set[str]) -> None:
        """Keep the keys."""
        self.recorded += rows.keys


class Hosted(HostedRefiner):
    """A refiner that nobody asks."""

    def client(self) -> Any:
        """Return a client without a server."""
        return SimpleNamespace(servers={}, handles=[])


class Trainer(OnlineRefinerSync):
    """The trainer of a run, at its second step."""

    def __init__(self, *overrides: str, num_ranks: int = 1) -> None:
        """Set what verl's set-up and loop would have set."""
        self.config = composed(*PLAIN, *overrides)
        self.blocks = read_blocks(self.config)
        self.workers = Workers()  # type: ignore[assignment]
        self.stages = Stages(self.config, self.blocks, self.workers, 10)
        self.group, self.plan = Hosted(), SimpleNamespace(max_model_len=64)  # type: ignore[assignment]
        self.actor_rollout_wg = Group(num_ranks)
        self.tokenizer = SimpleNamespace(eos_token_id=2)
        self.llm_server_manager = SimpleNamespace(server_handles=[])
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        self.global_steps, self.local_trigger_step, self.parameter_sync_step = 2, 0, 1
        self.use_critic = self.use_reference_policy = self.ref_in_actor = False
        self.num_restarts, self.rollout_gb, self.parts, self.timing_raw = 0, 0.0, [], {}

    def take(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Do what a step does with rewarded rows, up to the advantages, and return its rows."""
        metrics: dict[str, Any] = {}
        self.on_sample_begin()
        batch.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        batch = self._balance_batch(batch, metrics)
        for hook in (self._compute_old_log_prob, self._compute_advantage, self._update_actor):
            batch = hook(batch, metrics=metrics)
        self.rows = batch
        return batch
