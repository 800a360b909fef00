"""One update of the map's small world against the real trainer's on the same rollouts, refinements and rewards.

The trainer is `OnlineRefinerSync` on verl's own queue, without Ray: its hooks from `_balance_batch` to `_update_actor`,
stages, charges, columns and tags. The actor behind both is the product's worker with the map's engine, which
`tests/e2e/experiments/test_map_engine.py` compares with verl's FSDP engine.
"""

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import own_queue
import pytest
import torch
from played_actor import Group
from played_step import Trainer, Workers
from verl.trainer.ppo import core_algos

from experiments.map import arms, bases
from experiments.map.model import Model
from experiments.map.step import Learner, Row
from experiments.map.tasks import LONGEST, VOCABULARY, questions
from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.verl_glue.rows import with_pair
from recipe.online_refiner.verl_glue.stages import Stages

NAMES = ("none", "kl_in_loss", "kl_in_reward", "own_solved", "sft", "sft_no_gate", "lagrangian", "penalty", "in_place")
"""The arms whose updates are of different kinds: ``resample``, ``oracle`` and ``double`` are ``sft`` and ``none``."""
RATE = 1e-3


@pytest.fixture(scope="module", autouse=True)
def queue() -> Iterator[None]:
    with own_queue.serving():
        yield


def begun(name: str) -> tuple[Learner, list[Row]]:
    """Return a run of an arm and a step's rows, with answers and refinements of all kinds."""
    arm, rng = arms.ARMS[name], np.random.default_rng(3)
    torch.manual_seed(0)
    weights = Model(VOCABULARY, LONGEST).state_dict()
    run = Learner(config=arms.config_of(arm.overrides(0.1), RATE), weights=weights, seed=1, num_steps=1)
    with torch.no_grad():
        for weight in run.policy.parameters():
            weight += 0.02 * torch.randn(weight.shape)  # pi_theta is not pi_0
    asked = questions("policy", 8, rng)
    sessions = [(group, session) for group in range(8) for session in range(8)]
    rows = run.rewarded(asked, sessions, [bases.attempt(asked[group], rng) for group, _ in sessions])

    def refined(chosen: list[Row]) -> list[list[int]]:
        kind = bases.Kind(0.4, 0.6, 0.3)
        given = [(row.question, row.rollout.turn_ids) for row in chosen]
        return [bases.refinement(one, kind, ids, one.grade(ids), rng) for one, ids in given]

    run.answers = refined  # type: ignore[method-assign]
    run.refine(rows)
    return run, rows


class Actors(Group):
    """A group of the map's actor alone, which learns."""

    def __init__(self, actor: Any) -> None:
        super().__init__()
        actor.query_collect_info = lambda mesh_name: True
        self.worker = actor  # type: ignore[assignment]

    def compute_ref_log_prob(self, rows: Any) -> Any:
        return self._call("compute_ref_log_prob", rows)

    def update_actor(self, rows: Any) -> Any:
        self.worker.update_actor(rows)
        return {"metrics": {"mfu": [0.0]}}


class Refined(Workers):
    """Refine workers who find these rows refined."""

    def numbers(self, rows: Any) -> list[dict[str, float]]:
        return [{} for _ in rows.keys]


class MapTrainer(Trainer):
    """The trainer of a run of the map."""

    def __init__(self, run: Learner) -> None:
        super().__init__()
        self.config, self.blocks = run.config, read_blocks(run.config)
        self.workers = Refined(self.blocks.constraint)  # type: ignore[assignment]
        self.stages = Stages(self.config, self.blocks, self.workers)
        self.actor_rollout_wg = self.ref_policy_wg = Actors(run.actor)
        self.use_reference_policy = self.blocks.has_reference_worker
        self.run_dir = SimpleNamespace(write_stage=lambda *said: None)  # type: ignore[assignment]
        self.total_training_steps = 1
        self.kl_ctrl_in_reward = core_algos.get_kl_controller(self.config.algorithm.kl_ctrl)

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        if self.use_reference_policy:
            batch = self._compute_ref_log_prob(batch, metrics=metrics)
        return super()._compute_advantage(batch, metrics=metrics)


def queued(run: Learner, rows: list[Row]) -> Any:
    """Put a step's rows into the queue, as agent loop and refine workers would have."""
    prompts = [row.rollout.prompt_ids for row in rows]
    responses = [row.turn.ids for row in rows]
    sequences = [prompt + ids for prompt, ids in zip(prompts, responses, strict=True)]
    sizes = [
        {"prompt_len": len(p), "response_len": len(r), "seq_len": len(p) + len(r)}
        for p, r in zip(prompts, responses, strict=True)
    ]
    tags = [with_pair(size, row.pair) for size, row in zip(sizes, rows, strict=True)]
    columns: dict[str, list[Any]] = {
        "uid": [row.rollout.group for row in rows],
        "session_id": [row.rollout.session[0] for row in rows],
        "prompts": prompts,
        "responses": responses,
        "input_ids": sequences,
        "position_ids": [[*range(len(ids))] for ids in sequences],
        "loss_mask": [[1] * len(ids) for ids in responses],
        "response_mask": [[1] * len(ids) for ids in responses],
        "rm_scores": [[0.0] * (len(row.turn.ids) - 1) + [row.rollout.reward] for row in rows],
        "extra_fields": [{} for _ in rows],
    }
    if run.constraint.refines:
        columns |= {name: [one.tolist() for one in found.unbind()] for name, found in run.refined_columns(rows).items()}
    return own_queue.put([row.rollout.key for row in rows], tags, columns)


@functools.cache
def updated(name: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return an arm's weights before and after the map's update."""
    run, rows = begun(name)
    before = [weight.detach().clone() for weight in run.policy.parameters()]
    run.update(rows)
    return before, [weight.detach().clone() for weight in run.policy.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_an_update_is_the_trainers(name: str) -> None:
    before, ours = updated(name)
    other, rows = begun(name)
    MapTrainer(other).take(queued(other, rows))
    trainers = list(other.policy.parameters())
    changes = [(one - start).abs().max().item() for one, start in zip(ours, before, strict=True)]
    assert min(changes) > 1e-4, "every weight has learnt"
    differences = [(one - two).abs().max().item() for one, two in zip(ours, trainers, strict=True)]
    assert max(differences) < 1e-5


def test_arms_differ() -> None:
    """No arm above is another one by mistake."""
    ends = {name: torch.cat([weight.flatten() for weight in updated(name)[1]]) for name in NAMES}
    for name, weights in ends.items():
        nearest = min((weights - others).abs().max().item() for other, others in ends.items() if other != name)
        assert nearest > 1e-4, name
