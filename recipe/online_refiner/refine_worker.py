"""Where the refine stage's bulk data is: Ray actors without GPUs, so that the driver holds none.

The driver hands out rows of the TransferQueue by their metadata, whole groups together. A worker reads the columns that
it needs, refines, and writes the refined responses back; what became of them goes into the rows' tags. An agent loop
worker of a streaming run does the same for a group as soon as it is complete (``streaming.py``).
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import transfer_queue
from omegaconf import DictConfig
from rapidfuzz.distance import Levenshtein
from ray.actor import ActorHandle
from transfer_queue import KVBatchMeta
from verl.utils.fs import copy_to_local

from recipe.online_refiner import queue
from recipe.online_refiner.alignment import known_weights
from recipe.online_refiner.blocks import ConstraintConfig
from recipe.online_refiner.constraint import since
from recipe.online_refiner.credit import CREDITS
from recipe.online_refiner.groups import Member, weights_of_pairs
from recipe.online_refiner.records import Records
from recipe.online_refiner.refine import Refiner, reference_log_probs
from recipe.online_refiner.rollout import USED, Outcome, Refinement, Rollout
from recipe.online_refiner.schema import load
from recipe.online_refiner.scoring import RewardLoopScore
from recipe.online_refiner.sessions import refuse
from refiner_worker.client import RefinerClient
from refiner_worker.config import RefinerConfig
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.turn_end import read_turn_end

MAX_DETAIL = 1000
"""Characters of what a failed attempt wrote, as far as it is kept."""


class RefineWorker:
    """Works on the rows that it is handed. Reads and writes wait on a thread: others run in the same loop meanwhile.

    Its name is that of its parts of the records.
    """

    def __init__(self, config: DictConfig, tokenizer: Any, reward_workers: list[ActorHandle], name: str) -> None:
        """Connect to the TransferQueue."""
        transfer_queue.init()
        self._config = load(config).refiner
        self._tokenizer, self._name = tokenizer, name
        self._max_response_tokens = config.actor_rollout_ref.rollout.response_length
        model = config.reward.reward_model
        self._is_reward_model_colocated = bool(model.enable and not model.enable_resource_pool)
        chat_settings = config.data.apply_chat_template_kwargs
        limits = self._config.limits(self._max_response_tokens)
        self._prompt = RefinerPrompt(self._config.template_path(), tokenizer, chat_settings, limits)
        policy = config.actor_rollout_ref.model
        folder = copy_to_local(policy.hf_config_path or policy.path, use_shm=policy.use_shm)  # where verl has put it
        self._turn_end = read_turn_end(folder, tokenizer, chat_settings)
        self._score = RewardLoopScore(reward_workers)
        self._records = Records(config.records.path)
        self._thread = ThreadPoolExecutor(1, "tokenizer")

    async def refine(
        self, rows: KVBatchMeta, client: RefinerClient, max_model_len: int, constraint: ConstraintConfig
    ) -> list[Outcome]:
        """Refine the rollouts of some groups, write the refined responses and return what became of each.

        Args:
            rows: Rewarded rows, no padding.
            client: Of the replicas that are alive.
            max_model_len: Context length of the refiner, in tokens.
            constraint: What the refinements are for.

        Raises:
            ValueError: If they are of an agent loop whose sessions cannot be refined (``sessions.py``).
        """
        started_at = time.time()
        await asyncio.to_thread(refuse, rows, is_reward_model_colocated=self._is_reward_model_colocated)
        rollouts = await asyncio.to_thread(queue.read_rollouts, rows, log_probs=self._config.needs_log_probs)
        refiner = Refiner(
            config=self._config,
            constraint=constraint,
            client=client,
            prompt=self._prompt,
            turn_end=self._turn_end,
            score=self._score,
            max_model_len=max_model_len,
            max_response_tokens=self._max_response_tokens,
            thread=self._thread,
        )
        groups: dict[str, list[Rollout]] = defaultdict(list)
        for rollout in rollouts:
            groups[rollout.group].append(rollout)
        refined = await asyncio.gather(*map(refiner.refine_group, groups.values()))
        found: dict[str, Refinement] = {}
        for group, answers in zip(groups.values(), refined, strict=True):
            found |= {rollout.key: one for rollout, one in zip(group, answers, strict=True)}
        refinements = [found[rollout.key] for rollout in rollouts]
        outcomes = [
            outcome_of(rollout, refinement, lets_all_through=not constraint.reward_gate)
            for rollout, refinement in zip(rollouts, refinements, strict=True)
        ]
        for outcome in outcomes:
            outcome.started_at, outcome.refined_at = started_at, time.time()
        await asyncio.to_thread(
            queue.write_refinements,
            rows,
            refinements,
            outcomes,
            token_weights(constraint, self._config, rollouts, outcomes, refinements),
        )
        return outcomes

    async def reward(self, rows: KVBatchMeta) -> None:
        """Reward the responses of some rows: what a reward model does that sleeps during the rollout."""
        rollouts = await asyncio.to_thread(queue.read_rollouts, rows)
        rewards = await asyncio.gather(*(self._score(rollout, rollout.response_ids) for rollout in rollouts))
        await asyncio.to_thread(queue.write_rewards, rows, list(rewards))

    async def measure_kl(self, rows: KVBatchMeta, client: RefinerClient) -> list[str]:
        """Write log pi_0 of the responses of some rows and return the keys of those that a replica answered for."""
        rollouts = await asyncio.to_thread(queue.read_rollouts, rows)
        answers = await asyncio.gather(*(reference_log_probs(client, rollout) for rollout in rollouts))
        found = {index: answer for index, answer in enumerate(answers) if answer is not None}
        known = queue.rows_of(rows, found)
        if known.keys:
            await asyncio.to_thread(queue.write_log_probs, known, list(found.values()))
        return known.keys

    async def keep(self, rows: KVBatchMeta, field: str) -> None:
        """Keep a column of some rows: what follows can be done again if a worker dies, and be undone."""
        data = await asyncio.to_thread(queue.read_padded, rows, field)
        await asyncio.to_thread(queue.write_padded, rows, refine_own=data[field])

    async def penalise(
        self, rows: KVBatchMeta, field: str, credit: str, costs: Mapping[str, tuple[float, float]]
    ) -> None:
        """Charge some rows for their divergence, in their token-level rewards or in their advantages.

        Args:
            rows: With the columns that the credit names, and with the field as it was (:meth:`keep`).
            field: ``rm_scores`` or ``advantages``.
            credit: One of CREDITS.
            costs: What the credit says of the rows and the weight of the constraint there, by their keys.
        """
        columns = ("refine_own", "response_mask", "refine_start", "refine_kept", *CREDITS[credit].columns)
        data = await asyncio.to_thread(queue.read_padded, rows, *columns)
        data["turn"] = since(data["refine_start"], data["response_mask"])
        data["block"] = since(data["refine_start"] + data["refine_kept"], data["response_mask"])
        data["cost"], eta = torch.tensor([costs[key] for key in rows.keys]).unbind(-1)
        change = CREDITS[credit].rewards if field == "rm_scores" else CREDITS[credit].advantages
        assert change is not None, "the driver knows where a credit is charged"
        await asyncio.to_thread(queue.write_padded, rows, **{field: change(data["refine_own"], data, eta[:, None])})

    async def silence(self, rows: KVBatchMeta) -> None:
        """Let some rows learn nothing from their rewards: A_t = 0, whatever an estimator made of equal ones."""
        data = await asyncio.to_thread(queue.read_padded, rows, "advantages")
        await asyncio.to_thread(queue.write_padded, rows, advantages=torch.zeros_like(data["advantages"]))

    async def restore_rewards(self, rows: KVBatchMeta) -> None:
        """Take the penalty out of token-level rewards again: metrics and dumps show those of the task."""
        data = await asyncio.to_thread(queue.read_padded, rows, "refine_own")
        await asyncio.to_thread(queue.write_padded, rows, rm_scores=data["refine_own"])

    async def edit_distances(self, rows: KVBatchMeta) -> list[int]:
        """Return the distances from the turns of some refined rows to their refinements, in tokens."""
        return await asyncio.to_thread(self._edit_distances, rows)

    def _edit_distances(self, rows: KVBatchMeta) -> list[int]:
        data = queue.read(rows, "responses", "refine_start", "refine_ids")
        columns = data["responses"].unbind(), data["refine_start"].tolist(), data["refine_ids"].unbind()
        return [Levenshtein.distance(a[start:].tolist(), b.tolist()) for a, start, b in zip(*columns, strict=True)]

    async def records(self, rows: KVBatchMeta) -> list[dict[str, Any]]:
        """Return the records of some rows."""
        return await asyncio.to_thread(queue.read_records, rows, self._tokenizer)

    async def record(self, step: int, part: int, rows: KVBatchMeta) -> None:
        """Write the records of some rows of a step's mini-batch, as one part."""
        self._records.write(step, f"{self._name}-{part}" if part else self._name, await self.records(rows))


def token_weights(
    constraint: ConstraintConfig,
    config: RefinerConfig,
    rollouts: list[Rollout],
    outcomes: list[Outcome],
    refinements: list[Refinement],
) -> list[list[float]]:
    """Return the weight of each token of each used refinement in the cross-entropy, as far as it is known by now."""
    members = [
        Member(rollout.group, rollout.reward, None, 0, outcome.refined_reward if outcome.is_used else None)
        for rollout, outcome in zip(rollouts, outcomes, strict=True)
    ]
    weights = weights_of_pairs(constraint.pair_weights, members, config.is_maximal)
    return [
        [weight * known for known in known_weights(constraint, rollout.turn_ids, one.token_ids, one.num_kept_tokens)]
        if outcome.is_used
        else []
        for rollout, outcome, one, weight in zip(rollouts, outcomes, refinements, weights, strict=True)
    ]


def outcome_of(rollout: Rollout, refinement: Refinement, *, lets_all_through: bool) -> Outcome:
    """Return what the driver hears of a refinement."""
    is_scored = refinement.is_scored
    return Outcome(
        verdict=refinement.verdict,
        start=rollout.start,
        is_used=refinement.verdict in USED or (is_scored and lets_all_through),
        refined_reward=refinement.reward or 0.0,
        num_refined_tokens=len(refinement.token_ids),
        is_verbatim=is_scored and refinement.token_ids == rollout.turn_ids,
        num_kept_tokens=refinement.num_kept_tokens,
        num_prompt_tokens=refinement.num_prompt_tokens,
        num_generated_tokens=refinement.num_generated_tokens,
        num_copied_tokens=refinement.num_copied_tokens,
        detail="" if is_scored else refinement.text[:MAX_DETAIL],
    )
