"""A model on a task, whose answers are drawn, rewarded, and refined by several variants of the refiner.

The refiner is that of training (``recipe.online_refiner.refine``), on a vLLM engine in this process.
"""

import asyncio
import copy
import inspect
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from recipe.online_refiner.method.pairs import Refinement, Rollout, feedback_of
from recipe.online_refiner.refine.group import Refiner
from recipe.rewarding.answers import checked
from refiner_worker.client import MAX_REQUESTS_IN_FLIGHT, RunEndedError
from refiner_worker.config import RefinerConfig
from refiner_worker.pictures import pictures_of, with_images
from refiner_worker.text.thoughts import read_thoughts
from refiner_worker.text.tokens import decode
from refiner_worker.text.turn_end import TurnEnd

if TYPE_CHECKING:  # they import openai, and verl
    from recipe.online_refiner.verl_glue.sight import Sight
    from refiner_worker.external import ExternalClient

Reward = Callable[..., Any]
"""verl's reward function, async or not; it returns a number, or a dict with ``score`` among other fields."""
COLUMNS = ("data_source", "reward_model", "extra_info")
GIVEN = "responses"
"""The column with the user's own answers, a list of texts."""


class Engine:
    """A model that takes and returns token ids."""

    max_requests = 64
    """The largest number of requests in flight. On a GPU, which runs larger batches, it is the same as in training."""

    def __init__(self, model: str, max_model_len: int, seed: int, dtype: str | None = None) -> None:
        """Load the model; on a CPU in float32, unless ``dtype`` names another type."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        settings: dict[str, Any] = {"dtype": dtype or "auto"}
        if current_platform.is_cpu():  # where vLLM's own default takes most of the machine
            settings = {"dtype": dtype or "float32", "kv_cache_memory_bytes": 1 << 30}
        else:
            self.max_requests = MAX_REQUESTS_IN_FLIGHT
        self._llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(model=model, max_model_len=max_model_len, enforce_eager=True, seed=seed, **settings)
        )
        self._slots = asyncio.Semaphore(self.max_requests)

    def slot(self) -> asyncio.Semaphore:
        """Return the semaphore that limits the number of requests at the same time."""
        return self._slots

    async def generate(
        self,
        prompt_ids: list[int],
        stop: str | None,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
        num: int = 1,
        *,
        temperature: float,
    ) -> list[list[int]]:
        """Return the token ids of ``num`` texts that the model writes, by one request.

        Raises:
            RunEndedError: If the engine's process has died.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        sampling = SamplingParams(
            n=num,
            max_tokens=max_new_tokens,
            temperature=temperature,
            stop=stop,
            stop_token_ids=list(stop_ids),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        written: list[list[int]] = []
        try:
            async for output in self._llm.generate(asked(prompt_ids), sampling, uuid.uuid4().hex):
                written = [list(one.token_ids) for one in output.outputs]
        except EngineDeadError as error:
            raise RunEndedError(f"the model's engine has died: {error}") from error
        return written

    def close(self) -> None:
        """End the engine's process."""
        self._llm.shutdown()


def asked(prompt_ids: list[int]) -> dict[str, Any]:
    """Return a prompt as vLLM reads it, which expands the token of each image itself."""
    if (pictures := pictures_of(prompt_ids)) is None:
        return {"prompt_token_ids": prompt_ids}
    return {"prompt_token_ids": pictures.collapse(prompt_ids), "multi_modal_data": {"image": list(pictures.images)}}


Problem = tuple[int, list[Rollout], dict[str, list[Refinement]]]
"""The number of a row, its answers, and for each variant of the refiner one refinement per answer."""


def num_answers(row: Mapping[str, Any], most: int) -> int:
    """Return the number of answers to a row: ``most``, or the number of the user's own answers if that is smaller."""
    return min(most, len(row[GIVEN] or [])) if GIVEN in row else most


@dataclass(slots=True, kw_only=True)
class Bench:
    """A model on a task."""

    engine: Engine | None
    """The engine of the model; None: the user gives all answers, and other servers refine them."""
    tokenizer: Any
    turn_end: TurnEnd
    reward: Reward
    max_response_tokens: int
    max_model_len: int
    sight: "Sight | None" = None
    """What reads the images of prompts; None: no row has any."""
    failed: list[str] = field(default_factory=list)
    """The reasons of answers that could not be drawn or rewarded."""
    on_progress: Callable[[int], object] = lambda num: None
    """A function called with the number of newly finished answers or refinements, failed and skipped ones included."""
    on_answer: Callable[[Rollout], object] = lambda rollout: None
    """A function called with each rewarded answer."""

    async def problems(
        self,
        rows: Sequence[Mapping[str, Any]],
        chosen: Sequence[int],
        refiners: Mapping[str, Refiner],
        max_answers: int,
        known: Callable[[int], Mapping[int, Mapping[str, Any]]] = lambda row: {},
    ) -> AsyncIterator[Problem]:
        """Yield each of the chosen rows as soon as every refiner has refined its answers.

        Args:
            rows: A data set in verl's schema.
            chosen: The numbers of the rows.
            refiners: The variants of the refiner, by name.
            max_answers: The largest number of answers to each row.
            known: A function that returns the rewarded answers to a row by number, as fields of their rollouts.
        """
        most = (self.engine or Engine).max_requests
        places = asyncio.Semaphore(max(1, 2 * most // max_answers))  # of problems: no engine is idle

        async def one(index: int) -> Problem:
            async with places:
                group = await self.answer(rows[index], index, max_answers, known(index))
                refined = {}
                for way, refiner in refiners.items():
                    refined[way] = await refiner.refine_group(group)
                    self.on_progress(num_answers(rows[index], max_answers))
                return index, group, refined

        tasks = [asyncio.create_task(one(index)) for index in chosen]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            for pending in tasks:
                pending.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def answer(
        self, row: Mapping[str, Any], group: int, max_answers: int, known: Mapping[int, Mapping[str, Any]]
    ) -> list[Rollout]:
        """Draw the answers to a row in verl's schema, or take the user's own, and reward them."""
        given, answers = row.get(GIVEN), range(num_answers(row, max_answers))
        try:
            messages, prompt_ids = await self._asked(row)
        except Exception as error:  # such as of a template that knows no system prompt
            self.failed += [f"row {group}: {type(error).__name__}: {error}"] * len(answers)
            self.on_progress(len(answers))
            return []
        columns = {"extra_info": {}, **{name: row[name] for name in COLUMNS if row.get(name) is not None}}
        common: dict[str, Any] = {"messages": messages, "prompt_ids": prompt_ids, "reward_columns": columns}

        async def one(number: int) -> Rollout | None:
            key = f"{group}_{number}_0"
            if number in known:
                return Rollout(key=key, **common, **known[number])
            try:
                if given is not None:
                    ids = [*self.tokenizer.encode(given[number], add_special_tokens=False), self.turn_end.of([])]
                elif len(prompt_ids) < self.max_model_len:
                    ids = await self._write(prompt_ids)
                else:
                    too_long = f"the prompt of row {group} has {len(prompt_ids)} tokens"
                    raise ValueError(f"{too_long}; raise --max-model-len (now {self.max_model_len})")
                rollout = Rollout(key=key, **common, response_ids=ids, reward=0.0)
                said = await self._reward(rollout, ids)
            except RunEndedError:
                raise
            except Exception as error:  # of a user's reward function; training leaves such a rollout out as well
                self.failed.append(f"{type(error).__name__}: {error}")
                return None
            rollout.reward, rollout.feedback = said["score"], feedback_of(said)
            self.on_answer(rollout)
            return rollout

        async def counted(number: int) -> Rollout | None:
            rollout = await one(number)
            self.on_progress(1)
            return rollout

        return [one for one in await asyncio.gather(*map(counted, answers)) if one is not None]

    async def _asked(self, row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[int]]:
        """Return the messages of a row with its images, and its prompt as the policy reads it."""
        messages = with_images(row["prompt"], row.get("images") or ())
        if self.sight is not None:
            return messages, await self.sight.encode(messages)
        chat = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return messages, self.tokenizer.encode(chat, add_special_tokens=False)

    async def _write(self, prompt_ids: list[int]) -> list[int]:
        assert self.engine is not None, "all answers are given"
        async with self.engine.slot():
            (ids,) = await self.engine.generate(prompt_ids, None, self.max_response_tokens, temperature=1.0)
        return ids

    def refiner(self, config: RefinerConfig, client: "ExternalClient | None" = None) -> Refiner:
        """Return a refiner that uses the bench's engine, or the external servers of ``client``.

        The refiner works in a thread and has its own tokenizer: two threads cannot share one (``Already borrowed``).
        """

        async def score(rollout: Rollout, ids: list[int]) -> float:
            return (await self._reward(rollout, ids))["score"]

        asked: Any = client  # else the engine, as a RefinerClient is asked
        if client is None:
            assert self.engine is not None, "somebody refines"
            generate = partial(self.engine.generate, temperature=config.temperature)
            asked = SimpleNamespace(slot=self.engine.slot, generate=generate)
        return Refiner(
            config=config,
            client=asked,
            prompt=config.prompt(
                copy.deepcopy(self.tokenizer),
                {},
                read_thoughts(self.tokenizer, None, config.thoughts),
                self.max_response_tokens,
            ),
            turn_end=self.turn_end,
            score=score,
            max_model_len=sys.maxsize if client else self.max_model_len,  # of a server's nobody knows
            max_response_tokens=self.max_response_tokens,
            scores_leaks=True,
        )

    async def _reward(self, rollout: Rollout, ids: list[int]) -> dict[str, Any]:
        columns = rollout.reward_columns
        arguments = {
            "data_source": columns["data_source"],
            "solution_str": decode(self.tokenizer, ids),
            "ground_truth": columns["reward_model"]["ground_truth"],
            "extra_info": columns["extra_info"],
        }
        reward, is_async = checked(self.reward), inspect.iscoroutinefunction(self.reward)
        said = await (reward(**arguments) if is_async else asyncio.to_thread(reward, **arguments))
        return said if isinstance(said, dict) else {"score": said}
