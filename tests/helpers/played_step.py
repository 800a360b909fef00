"""A step of the real trainer without Ray: rows in a real queue, the real worker, and no rollout, refiner or update."""

import tempfile
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import own_queue
from composed_main import composed
from played_actor import Group, log_probs
from transfer_queue import KVBatchMeta

from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.method.constraint import Constraint
from recipe.online_refiner.method.pairs import Pair, Verdict
from recipe.online_refiner.verl_glue.rows import TAG, pair_of, read_tokens, with_pair, write_log_probs
from recipe.online_refiner.verl_glue.stages import Stages
from recipe.online_refiner.verl_glue.task_runner import OnlineRefinerSync
from recipe.runs.files import RunDir
from refiner_worker.client import HostedRefiner

ETA, EOS, N = 0.5, 2, -1
KEYS = ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
"""Two turns with a tool between, whose a' was begun with a token; a longer than a'; not better; a' longer than a."""
PROMPTS = [[3, 4], [3, 4], [5], [5]]
RESPONSES = [[31, 2, 41, 42, 11, 12, EOS], [13, 14, 15, EOS], [16, 17, EOS], [19, EOS]]
MASKS = [[1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1], [1, 1]]
STARTS = [4, 0, 0, 0]
REFINED = [[11, 9, 8, EOS], [22, EOS], [18, EOS], [6, 7, 8, 9, EOS]]
NUM_KEPT = [1, 0, 0, 0]
COUNTERPARTS = [[N, N, N, N, N, 1, 2], [0, 1, N, N], [N, N, N], [0, 1]]
NUM_COMPARED = [2, 2, 0, 2]
REWARDS = [-0.25, 0.5, 0.75, 0.125]
USED = [True, True, False, True]
"""Whether the refinement is better."""

PLAIN = [
    "algorithm.adv_estimator=grpo",
    "algorithm.norm_adv_by_std_in_grpo=false",
    "algorithm.gamma=1",
    "algorithm.lam=1",
    "data.train_batch_size=2",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.temperature=0.5",
    "actor_rollout_ref.rollout.calculate_log_probs=false",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=3",
    "measure.num_kl_rollouts=0",
    "measure.cross_entropy_all_every=0",
    "constraint.eta=0.5",
]
"""Estimators with plain numbers, and a mini-batch of six rows: two more than there are, so that verl pads."""


class Workers:
    """Refine workers who find rows refined, their columns and tags are there; who has to refine one dies."""

    def __init__(self, constraint: Constraint) -> None:
        """Nothing is done yet."""
        self.constraint = constraint
        self.recorded: dict[str, Pair | None] = {}
        self.reference: dict[str, list[float]] = {}
        """log pi_0 of responses by key, as far as a replica answers."""
        self.scored: list[str] = []
        self.to_record: tuple[Any, ...] = ()
        """Rows whose tokens are to be recorded, and what the driver says of them."""

    def refine(self, rows: KVBatchMeta, *_: Any) -> None:
        """Leave the rows as they are."""

    def numbers(self, rows: KVBatchMeta) -> list[dict[str, float | None]]:
        """Return a number for each row."""
        return [{"solved": float(KEYS.index(key)) if key in KEYS else 0.0} for key in rows.keys]

    def record(self, step: int, part: int, rows: KVBatchMeta, shown: set[str]) -> None:
        """Keep what a worker would read of the pairs."""
        self.recorded |= {key: pair_of(tag) for key, tag in zip(rows.keys, rows.tags, strict=True)}

    def record_tokens(self, step: int, rows: KVBatchMeta, *said: Any) -> None:
        """Keep what is asked for, and the constraint, which a worker has from the config."""
        self.to_record = (rows, *said, self.constraint)

    @property
    def tokens(self) -> dict[str, dict[str, Any]]:
        """What a worker writes of the samples' tokens, by key."""
        rows, *said, constraint = self.to_record
        spelling = SimpleNamespace(batch_decode=lambda tokens: [f"<{ids[0]}>" for ids in tokens])
        return {one["key"]: one for one in read_tokens(rows, spelling, *said, constraint.scale)}

    def score_with_reference(self, rows: KVBatchMeta, _: Any) -> set[str]:
        """Write what is known of the responses."""
        self.scored = rows.keys
        known = rows.select_keys([key for key in rows.keys if key in self.reference])
        write_log_probs(known, [self.reference[key] for key in known.keys])
        return set(known.keys)


class Turns(HostedRefiner):
    """A refiner that nobody asks, or a reward model: it notes when it is awake."""

    def __init__(self) -> None:
        """It sleeps."""
        self.told: list[str] = []

    def client(self) -> Any:
        """Return a client without a server."""
        return SimpleNamespace(addresses={"a", "b"}, handles=[], by_source={})

    def wake_up(self) -> int:
        """Say that one replica had to be started again."""
        self.told.append("wake")
        return 1

    def sleep(self) -> None:
        """Sleep."""
        self.told.append("sleep")


class Trainer(OnlineRefinerSync):
    """The trainer of a run, at its second step."""

    def __init__(self, *overrides: str, num_ranks: int = 1) -> None:
        """Set what verl's set-up and loop would have set."""
        self.config = composed(*PLAIN, *overrides)
        self.blocks = read_blocks(self.config)
        self.workers = Workers(self.blocks.constraint)  # type: ignore[assignment]
        self.stages = Stages(self.config, self.blocks, self.workers)
        self.group, self.plan = Turns(), SimpleNamespace(max_model_len=64)  # type: ignore[assignment]
        self.actor_rollout_wg = Group(num_ranks)
        self.tokenizer = SimpleNamespace(eos_token_id=2)
        self.llm_server_manager = SimpleNamespace(server_handles=[])
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        self.global_steps, self.local_trigger_step, self.parameter_sync_step = 2, 0, 1
        self.run_dir, self.total_training_steps = RunDir(tempfile.mkdtemp()), 9
        self.use_critic = self.use_reference_policy = self.ref_in_actor = False
        self.run_dir = SimpleNamespace(write_stage=lambda *said: None)  # type: ignore[assignment]
        self.total_training_steps = 9
        self.num_restarts, self.rollout_gb, self.parts, self.timing_raw = 0, 0.0, [], {}
        self.said: list[dict[str, Any]] = []
        """What each hook's batch tells the workers of the next one, beside its rows."""

    def take(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Do what a step does with rewarded rows, up to the advantages, and return its rows."""
        metrics: dict[str, Any] = {}
        self.on_sample_begin()
        batch.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        batch = self._balance_batch(batch, metrics)
        for hook in (self._compute_old_log_prob, self._compute_advantage, self._update_actor):
            batch = hook(batch, metrics=metrics)
            self.said.append(dict(batch.extra_info))
        self.rows = batch
        return batch


def pairs(rewards: list[float], **more: list[Any]) -> list[Pair]:
    """Return what is known of the pairs; ``more`` has values of other fields."""
    return [
        Pair(
            reward=reward,
            verdict=Verdict.ACCEPTED if USED[row] else Verdict.NOT_BETTER,
            is_used=USED[row],
            start=STARTS[row],
            refined_reward=1.0,
            num_refined_tokens=len(REFINED[row]),
            num_compared_tokens=NUM_COMPARED[row],
            num_kept_tokens=NUM_KEPT[row],
            **{name: values[row] for name, values in more.items()},
        )
        for row, reward in enumerate(rewards)
    ]


def refined_rows(
    rewards: list[float] = REWARDS,
    of_pairs: dict[str, list[Any]] | None = None,
    lost: int | None = None,
    **own: list[Any],
) -> KVBatchMeta:
    """Put the rows above into the queue, as a step finds them in a streaming run: rewarded and refined.

    Args:
        rewards: Of the responses.
        of_pairs: Values of the pairs' fields.
        lost: The row that nobody has refined, if there is one.
        own: More columns.
    """
    sequences = [prompt + ids for prompt, ids in zip(PROMPTS, RESPONSES, strict=True)]
    tags = [
        with_pair({"prompt_len": len(prompt), "response_len": len(ids), "seq_len": len(prompt) + len(ids)}, pair)
        for prompt, ids, pair in zip(PROMPTS, RESPONSES, pairs(rewards, **(of_pairs or {})), strict=True)
    ]
    if lost is not None:
        del tags[lost][TAG]
    columns: dict[str, list[Any]] = {
        "uid": [key[0] for key in KEYS],
        "session_id": [int(key[2]) for key in KEYS],
        "prompts": PROMPTS,
        "responses": RESPONSES,
        "input_ids": sequences,
        "position_ids": [[*range(len(ids))] for ids in sequences],
        "loss_mask": MASKS,
        "response_mask": MASKS,
        "rm_scores": [[0.0] * (len(ids) - 1) + [reward] for ids, reward in zip(RESPONSES, rewards, strict=True)],
        "extra_fields": [{"reward_extra_info": {"solved": row}} for row in range(4)],
        "refine_ids": REFINED,
        "refine_mask": [[1] * len(ids) for ids in REFINED],
        "refine_weights": [[float(used)] * len(ids) for ids, used in zip(REFINED, USED, strict=True)],
        "refine_counterparts": COUNTERPARTS,
        "refine_used": [int(used) for used in USED],
        "refine_start": STARTS,
    }
    return own_queue.put(KEYS, tags, {**columns, **own})


def step(*overrides: str, num_ranks: int = 1, **own: Any) -> tuple[Trainer, Callable[[str], dict[str, list[float]]]]:
    """Do a step on these rows, and return the trainer and a function that reads a column by key."""
    trainer = Trainer(*overrides, num_ranks=num_ranks)
    return trainer, columns_of(trainer.take(refined_rows(**own)))


def columns_of(batch: KVBatchMeta) -> Callable[[str], dict[str, list[float]]]:
    """Return a function that reads a column of a step's rows by key."""
    assert len(batch) == 6, "verl has padded it"
    return lambda name: dict(zip(batch.keys, own_queue.column(batch, name), strict=True))


def charged(row: int) -> list[float]:
    """Return log pi(a'_c(t)) of each charged token of a response."""
    scores = at_temperature(log_probs(PROMPTS[row] + RESPONSES[row][: STARTS[row]], REFINED[row]))
    return [0.0 if c == N else scores[c] for c in COUNTERPARTS[row]]


def at_temperature(scores: list[float], temperature: float = 0.5) -> list[float]:
    """Return log-probs at the rollout's temperature."""
    return [one / temperature for one in scores]
