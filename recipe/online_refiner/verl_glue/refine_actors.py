"""The refine workers: Ray actors without GPUs that hold the refine stage's bulk data, and the driver's side of them.

The driver hands out rows of the TransferQueue by their metadata, whole groups together. A worker reads the columns that
it needs, refines, gates, aligns and writes a' back; the numbers go into the rows' tags. An agent loop worker of a
streaming run does the same for a group as soon as it is complete (``streaming.py``).
"""

import asyncio
import functools
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any
from uuid import uuid4

import numpy as np
import ray
import torch
import transfer_queue
from omegaconf import DictConfig
from rapidfuzz.distance import Levenshtein
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.utils.dataset.rl_dataset import get_dataset_class
from verl.utils.fs import copy_to_local

from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.method.pairs import Bill, Pair, Refinement, Rollout, Turn, Verdict
from recipe.online_refiner.refine.group import Refiner, Unrefined
from recipe.online_refiner.verl_glue import rows as queue
from recipe.online_refiner.verl_glue.sight import Sight
from recipe.runs import thumbnails
from recipe.runs.files import TOKENS, Records
from recipe.runs.thumbnails import Thumbnails
from refiner_worker.client import DEATHS, RefinerClient, RunEndedError
from refiner_worker.config import ALIKE, RefinerConfig
from refiner_worker.pictures import has_pictures
from refiner_worker.text.thoughts import read_thoughts
from refiner_worker.text.turn_end import read_turn_end

logger = logging.getLogger(__name__)

NUM_EDIT_DISTANCES = 64
"""The approximate number of edit distances per step; one takes 15 ms and more for answers with 16k tokens."""
NOT_MEDIA = {"mm_token_type_ids"}
"""Fields that a processor returns for text as well."""


class RefineWorker:
    """A worker that processes the rows that it is given, with reads and writes in a thread beside its event loop.

    Its name is part of the names of its records' files. The processor is that of a policy that sees, else None.
    """

    def __init__(
        self, config: DictConfig, tokenizer: Any, processor: Any, reward_workers: list[ActorHandle], name: str
    ) -> None:
        transfer_queue.init()
        blocks = read_blocks(config)
        refiner, self._constraint = blocks.refiner, blocks.constraint
        self._differs_by_source = blocks.differs_by_source
        self._tokenizer, self._name = tokenizer, name
        self._sight: Sight | None = None
        if processor is not None:
            dataset_class = get_dataset_class(config.data)
            self._sight = Sight(processor=processor, data=config.data, dataset_class=dataset_class)
            tokenizer.chat_template = processor.chat_template  # with which verl writes the policy's prompts
        rollout, model = config.actor_rollout_ref.rollout, config.reward.reward_model
        self._share_measured = NUM_EDIT_DISTANCES / (config.data.train_batch_size * rollout.n)
        self._is_reward_model_colocated = bool(model.enable and not model.enable_resource_pool)
        chat_settings = config.data.apply_chat_template_kwargs
        thoughts = read_thoughts(tokenizer, chat_settings, refiner.thoughts)
        longest = max(refiner.response_length, rollout.response_length)
        policy = config.actor_rollout_ref.model
        folder = copy_to_local(policy.hf_config_path or policy.path, use_shm=policy.use_shm)  # where verl has put it
        self._score = functools.partial(reward_by, reward_workers)
        alike: dict[str, Any] = {
            "turn_end": read_turn_end(folder, tokenizer, chat_settings),
            "score": self._score,
            "max_response_tokens": rollout.response_length,
            "companion": self._constraint.companion(tokenizer, thoughts, chat_settings, longest),
            "thread": ThreadPoolExecutor(1, "tokenizer"),
        }

        def make(one: RefinerConfig) -> Callable[..., Refiner]:
            prompt = one.prompt(tokenizer, chat_settings, thoughts, rollout.response_length)
            return functools.partial(Refiner, config=one, prompt=prompt, **alike)

        self._refiner = make(refiner)
        self._sources = {source: make(one) for source, one in refiner.sources.items()}
        self._records = Records(config.records.path)
        self._tokens = Records(f"{config.records.path}/{TOKENS}")
        self._thumbnails = Thumbnails(f"{config.records.path}/{thumbnails.FOLDER}")

    async def refine(self, rows: KVBatchMeta, client: RefinerClient, max_model_len: int) -> None:
        """Refine some rewarded rows, whole groups, and write all that later stages read of it (``rows.py``).

        Raises:
            ValueError: If the rows are of an agent loop whose sessions cannot be refined.
        """
        started_at = time.time()
        rollouts = await asyncio.to_thread(queue.read_rollouts, rows)
        is_colocated = self._is_reward_model_colocated
        await asyncio.to_thread(refuse, rows, rollouts, is_reward_model_colocated=is_colocated)
        groups: dict[str, list[Rollout]] = defaultdict(list)
        for rollout in rollouts:
            groups[rollout.group].append(rollout)
        if self._sight is not None:
            await asyncio.gather(*(_look(self._sight, group) for group in groups.values()))
        answers = await asyncio.gather(
            *(self._refiner_of(group[0], client, max_model_len).refine_group(group) for group in groups.values())
        )
        found = {
            rollout.key: refinement
            for group, refinements in zip(groups.values(), answers, strict=True)
            for rollout, refinement in zip(group, refinements, strict=True)
        }
        await asyncio.to_thread(self._write, rows, rollouts, [found[rollout.key] for rollout in rollouts], started_at)

    def _refiner_of(self, rollout: Rollout, client: RefinerClient, max_model_len: int) -> Refiner | Unrefined:
        """Return the refiner of a rollout: the common one, or its data source's."""
        source = self._source_of(rollout)
        if not self._constraint.is_refined(source):
            return Unrefined()
        if not self._sources:
            return self._refiner(client=client, max_model_len=max_model_len)
        if source not in self._sources:
            raise ValueError(f"refiner.by_source does not name the data source {source} of a row; add it ({ALIKE})")
        own = client.by_source[source]
        return self._sources[source](client=own, max_model_len=own.config.max_model_len or max_model_len)

    def _source_of(self, rollout: Rollout) -> str:
        """Return the data source of a rollout if anything differs by it; else an empty name."""
        return str(rollout.reward_columns.get("data_source")) if self._differs_by_source else ""

    def _write(
        self, rows: KVBatchMeta, rollouts: list[Rollout], refinements: list[Refinement], started_at: float
    ) -> None:
        turns = [self._turn(*one) for one in zip(rollouts, refinements, strict=True)]
        pairs = [self._pair(*one, started_at) for one in zip(rollouts, turns, strict=True)]
        queue.write_refinements(rows, turns, pairs, self._constraint)

    def _turn(self, rollout: Rollout, refinement: Refinement) -> Turn:
        return Turn(
            response_length=len(rollout.response_ids),
            start=rollout.start,
            ids=rollout.turn_ids,
            refinement=refinement,
            is_used=self._constraint.is_used(refinement.verdict),
            reward=rollout.reward,
            scale=self._constraint.scale(self._source_of(rollout)),
        )

    def _pair(self, rollout: Rollout, turn: Turn, started_at: float) -> Pair:
        refinement, verdict = turn.refinement, turn.refinement.verdict
        ids, kept = refinement.token_ids, refinement.num_kept_tokens
        is_measured = verdict.is_scored and verdict is not Verdict.OWN and is_drawn(rollout, self._share_measured)
        return Pair(
            reward=rollout.reward,
            verdict=verdict,
            source=self._source_of(rollout),
            is_used=turn.is_used,
            start=rollout.start,
            refined_reward=refinement.reward or 0.0,
            num_refined_tokens=len(ids),
            num_kept_tokens=kept,
            num_better=refinement.num_better,
            num_compared_tokens=min(len(turn.ids), len(ids)) - kept if turn.is_used else 0,
            is_repeated=refinement.is_repeated,
            edit_distance=Levenshtein.distance(turn.ids, ids) if is_measured else None,
            own=self._constraint.numbers(turn),
            started_at=started_at,
            refined_at=time.time(),
            **{one.name: getattr(refinement, one.name) for one in fields(Bill)},
        )

    async def reward(self, rows: KVBatchMeta) -> list[str]:
        """Reward the responses of some rows, for a reward model that sleeps during the rollout.

        Returns:
            The keys of the rows without a reward, because the reward raised an error.
        """
        rollouts = await asyncio.to_thread(queue.read_rollouts, rows)
        found = await asyncio.gather(
            *(self._score(rollout, rollout.response_ids) for rollout in rollouts), return_exceptions=True
        )
        rewards: dict[int, float] = {}
        for row, reward in enumerate(found):
            if isinstance(reward, BaseException):
                logger.error("response %s has no reward: %s", rows.keys[row], reward)
            else:
                rewards[row] = reward
        if rewards:
            await asyncio.to_thread(queue.write_rewards, queue.rows_of(rows, rewards), list(rewards.values()))
        return [key for row, key in enumerate(rows.keys) if row not in rewards]

    async def score_with_reference(self, rows: KVBatchMeta, client: RefinerClient) -> list[str]:
        """Write log pi_0 of the responses in some rows, and return the keys of rows that a replica answered."""
        sequences = await asyncio.to_thread(queue.read_sequences, rows)
        if self._sight is not None:
            chats = await asyncio.to_thread(queue.read_chats, rows)
            seen = zip(chats, sequences, strict=True)
            sequences = [(await self._sight.look(chat, prompt), response) for chat, (prompt, response) in seen]
        answers = await asyncio.gather(*(client.in_time(client.log_probs, *one) for one in sequences))
        found = {index: answer for index, answer in enumerate(answers) if answer is not None}
        known = queue.rows_of(rows, found)
        if known.keys:
            await asyncio.to_thread(queue.write_log_probs, known, list(found.values()))
        return known.keys

    async def record(self, rows: KVBatchMeta, step: int, part: int, shown: set[str]) -> list[dict[str, Any]]:
        """Write the records of some rows of a mini-batch as one part; return the records with a key in ``shown``."""
        records = await asyncio.to_thread(queue.read_records, rows, self._tokenizer, self._thumbnails.keep)
        await asyncio.to_thread(self._records.write, step, f"{self._name}-{part}" if part else self._name, records)
        return [record for record in records if record["key"] in shown]

    async def record_tokens(
        self, rows: KVBatchMeta, step: int, seen: dict[str, list[float]], paying: set[str], eta: float
    ) -> list[dict[str, Any]]:
        """Write the numbers of each token of a step's shown rows, as one part, and return them (``rows.py``)."""
        scale = self._constraint.scale
        records = await asyncio.to_thread(queue.read_tokens, rows, self._tokenizer, seen, paying, eta, scale)
        await asyncio.to_thread(self._tokens.write, step, self._name, records)
        return records


def is_drawn(rollout: Rollout, share: float) -> bool:
    """Return whether a rollout belongs to the given share of rollouts that are measured, drawn by :func:`luck`."""
    return rollout.luck < share


async def _look(sight: Sight, group: list[Rollout]) -> None:
    """Give the rollouts of a group, which answer one prompt, their pictures."""
    prompt = await sight.look(group[0].messages, group[0].prompt_ids)
    for rollout in group:
        rollout.prompt_ids = prompt


def refuse(rows: KVBatchMeta, rollouts: list[Rollout], *, is_reward_model_colocated: bool) -> None:
    """Refuse rows that would be refined wrongly. A session's row, not the config, tells its agent loop.

    The pixels of a prompt are not read for it: only rows whose prompt has no pictures may have others.

    Raises:
        ValueError: If a row is of an agent loop whose sessions cannot be refined; the message says what to set.
    """
    advice = (
        "set actor_rollout_ref.rollout.agent.default_agent_loop (or the data's column agent_name) to another agent "
        "loop, or constraint.mode=none"
    )
    if any(not key.endswith("_0") for key in rows.keys):
        raise ValueError(f"an agent loop writes several rows for a session, and none is the whole session; {advice}")
    if any(rollout.start and has_pictures(rollout.messages) for rollout in rollouts):
        raise ValueError(f"a session of several turns begins with images, which are refined in one turn only; {advice}")
    texts = [index for index, rollout in enumerate(rollouts) if not has_pictures(rollout.messages)]
    media = queue.read(queue.rows_of(rows, texts), "multi_modal_inputs")["multi_modal_inputs"] if texts else []
    if any(set(one) - NOT_MEDIA for one in queue.objects(media)):
        raise ValueError(f"a tool's images would not reach the refiner; {advice}")
    times = queue.objects(queue.read(rows, "metrics")["metrics"])
    is_by_verl = all(metrics.get("compute_score") for metrics in times)  # seconds
    if not is_by_verl and not is_reward_model_colocated:
        raise ValueError(f"an agent loop rewards its sessions itself, but only verl rewards refinements; {advice}")


async def reward_by(workers: list[ActorHandle], rollout: Rollout, response_ids: list[int]) -> float:
    """Return the reward of a response that replaces the rollout's own, by one of verl's reward workers.

    Errors of the reward function are raised, and a TypeError or ValueError if torch does not accept its result as a
    number.
    """
    result = await random.choice(workers).compute_score.remote(reward_request(rollout, response_ids))
    # verl keeps a rollout's reward in float32; at another precision equal rewards would differ and pass the gate.
    kept = torch.zeros(())
    kept[...] = result["reward_score"]
    return kept.item()


def reward_request(rollout: Rollout, response_ids: list[int]) -> DataProto:
    """Return what ``AgentLoopWorker._compute_score`` (``verl/experimental/agent_loop/agent_loop.py``) would send."""
    prompts, responses = torch.tensor([rollout.prompt_ids]), torch.tensor([response_ids])
    input_ids = torch.cat([prompts, responses], dim=1)
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "position_ids": torch.arange(input_ids.shape[1])[None],
    }
    lengths = {"prompt_len": len(rollout.prompt_ids), "response_len": len(response_ids)}
    columns = {
        name: np.array([value], dtype=object if name == "tool_extra_fields" else None)  # the types that verl's have
        for name, value in {**rollout.reward_columns, **lengths}.items()
    }
    return DataProto(batch=TensorDict(tensors, batch_size=1), non_tensor_batch=columns)


class RefineWorkers:
    """The driver's side: refine workers spread over the nodes, as verl spreads its agent loop workers.

    They are started with the first rows.
    """

    def __init__(
        self,
        config: DictConfig,
        tokenizer: Any,
        processor: Any,
        reward_workers: list[ActorHandle],
        num_workers: int,
    ) -> None:
        self._arguments = (config, tokenizer, processor, reward_workers)
        self._num_workers, self._num_started = num_workers, 0
        self._workers: list[ActorHandle] = []
        self._recording: list[tuple[ActorHandle, str, Any]] = []

    def start(self) -> list[ActorHandle]:
        """Start the workers, once, and return them."""
        if not self._workers:
            self._workers = [self._start() for _ in range(self._num_workers)]
        return self._workers

    def refine(self, rows: KVBatchMeta, client: RefinerClient, max_model_len: int) -> None:
        """Let some rows be refined; the rows of a worker that dies stay as they are."""
        self._ask("refine", rows, client, max_model_len)

    def score_with_reference(self, rows: KVBatchMeta, client: RefinerClient) -> set[str]:
        """Let log pi_0 of some responses be written, and return the keys of the responses for which it is known."""
        return {key for keys in self._ask("score_with_reference", rows, client) for key in keys or []}

    def reward(self, rows: KVBatchMeta, attempts: int = 2) -> list[str]:
        """Let the rewards of all rows be written, and return the keys of those whose reward raised an error.

        A part whose worker dies is tried ``attempts`` times.
        """
        parts = queue.shards(rows, self._num_workers)
        answers = self._answers([w.reward.remote(part) for w, part in zip(self.start(), parts, strict=False)])
        lost = [key for answer in answers if answer is not None for key in answer]
        for part in [part for part, answer in zip(parts, answers, strict=True) if answer is None]:
            if attempts == 1:
                raise RunEndedError(
                    "refine workers died while they rewarded a step's responses, twice; see the log above"
                )
            lost += self.reward(part, attempts - 1)
        return lost

    def numbers(self, rows: KVBatchMeta) -> list[dict[str, float | None]]:
        """Return the reward function's other numbers for each row; reward workers read the texts."""
        *_, workers = self._arguments
        parts = [queue.rows_of(rows, range(n, len(rows), len(workers))) for n in range(min(len(workers), len(rows)))]
        answers = ray.get([worker.numbers.remote(part) for worker, part in zip(workers, parts, strict=False)])
        return [of_row for answer in answers for of_row in answer]

    def record(self, step: int, part: int, rows: KVBatchMeta, shown: set[str]) -> None:
        """Let the records of some rows of a step's mini-batch be written, and do not wait; :meth:`finish` does."""
        for worker, shard in zip(self.start(), queue.shards(rows, self._num_workers), strict=False):
            self._recording.append((worker, "shown", worker.record.remote(shard, step, part, shown)))

    def record_tokens(
        self, step: int, rows: KVBatchMeta, seen: dict[str, list[float]], paying: set[str], eta: float
    ) -> None:
        """Let a worker record the tokens of some rows with their numbers; ``read_tokens`` describes the arguments."""
        worker = self.start()[0]
        self._recording.append((worker, "tokens", worker.record_tokens.remote(rows, step, seen, paying, eta)))

    def finish(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Wait until all records are written, and return the records of the shown rows and of their tokens.

        The records of a dead worker are lost.
        """
        recording, self._recording = self._recording, []
        found: dict[str, list[dict[str, Any]]] = {"shown": [], "tokens": []}
        for worker, kind, call in recording:
            try:
                found[kind] += ray.get(call)
            except DEATHS as error:
                if worker in self._workers:  # else another one has its place already
                    self._replace(self._workers.index(worker), error)
            except RayTaskError as error:  # the run reads no records: a full disk must not cost a checkpoint
                logger.error("records of rollouts could not be written and are lost: %s", _last_line(error))
        return found["shown"], found["tokens"]

    def _ask(self, method: str, rows: KVBatchMeta, client: RefinerClient, *more: Any) -> list[Any]:
        """Call a method of each worker for its part of the rows, whole groups together, and return the answers.

        Each has a client with its share of the requests in flight.
        """
        parts = queue.shards(rows, self._num_workers)
        clients = [client.shared(len(parts), caller=uuid4().hex) for _ in parts]
        called = zip(self.start(), parts, clients, strict=False)
        return self._answers(
            [getattr(worker, method).remote(part, own, *more) for worker, part, own in called], clients
        )

    def _answers(self, calls: list[Any], clients: Sequence[RefinerClient] = ()) -> list[Any]:
        """Return the answer of each worker's call; None if the worker died, which another one then replaces."""
        answers = []
        for index, call in enumerate(calls):
            try:
                answers.append(ray.get(call))
            except DEATHS as error:
                self._replace(index, error)
                answers.append(None)
                if clients:
                    clients[index].abort_requests()
        return answers

    def _replace(self, index: int, error: RayError) -> None:
        if getattr(error, "actor_init_failed", False):  # the next one would not start either
            raise RunEndedError(f"no refine worker can be made: {_last_line(error)}") from error
        logger.warning("refine worker %d died, another one takes its place: %s", index, str(error).splitlines()[0])
        ray.kill(self._workers[index])  # one that is only out of reach must not write later on
        self._workers[index] = self._start()

    def _start(self) -> ActorHandle:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        number, self._num_started = self._num_started, self._num_started + 1
        place = NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=True)
        return ray.remote(RefineWorker).options(scheduling_strategy=place).remote(*self._arguments, f"w{number}")


def _last_line(error: RayError) -> str:
    """Return the last line of another process's error."""
    return str(error).strip().splitlines()[-1]
