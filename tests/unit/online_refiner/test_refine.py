"""Which responses of a group are refined, what the refiner is told, and what becomes of its answers."""

import asyncio
import contextlib
import inspect
import math
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from verl.experimental.agent_loop import AgentLoopOutput
from written_model import WrittenServer, group_refined

from recipe.online_refiner.method.constraint import Constraint
from recipe.online_refiner.method.modes import read_constraint
from recipe.online_refiner.method.pairs import SKIPPED, Bill, Refinement, Rollout, Verdict, best_of
from recipe.online_refiner.refine import assemble
from recipe.online_refiner.refine.account import Account, AskedOnce
from recipe.online_refiner.refine.ask import Replicas, Servers
from recipe.online_refiner.refine.attempt import Attempt, Written
from recipe.online_refiner.refine.group import Refiner, choose
from recipe.online_refiner.refine.language import Language
from recipe.online_refiner.verl_glue.refine_actors import is_drawn, reward_by
from refiner_worker.client import RefinerClient, RefinerRequestError, RunEndedError
from refiner_worker.config import TEMPLATES, RefinerConfig, read_refiner
from refiner_worker.engines import Top
from refiner_worker.external import chat_body
from refiner_worker.prompts import InPlacePrompt
from refiner_worker.text.turn_end import TurnEnd


def config(**changes: object) -> RefinerConfig:
    return read_refiner({"model_path": "m", "response_length": 32, "skip_reward_at_least": 1.0, **changes})


def rollout(session: int, reward: float, ids: list[int] | None = None, **more: Any) -> Rollout:
    values = {"key": f"u_{session}_0", "messages": [], "prompt_ids": [1], "reward_columns": {}, **more}
    return Rollout(response_ids=ids or [2], reward=reward, **values)


@pytest.mark.parametrize(
    ("limit", "rewards", "expected"),
    [
        (None, [0.5, -1.0, 1.0, -0.3], {0, 1, 3}),  # never a maximal one
        (0, [0.5, -1.0], set()),
        (2, [0.5, -1.0, 1.0, -0.3], {1, 3}),  # lowest rewards first
        (9, [0.5, -1.0, 1.0, -0.3], {0, 1, 3}),
        (2, [0.5, 0.5, 0.5], {0, 1}),  # of equal ones the first sessions
    ],
)
def test_who_is_refined(limit: int | None, rewards: list[float], expected: set[int]) -> None:
    members = [rollout(n, reward) for n, reward in enumerate(rewards)]
    assert choose(config(max_refinements_per_group=limit), members) == expected
    chosen = choose(config(max_refinements_per_group=limit), members[::-1])  # in whichever order they came
    assert {members[::-1][n].session[0] for n in chosen} == expected


def test_prompts_that_a_response_solves_are_left_out() -> None:
    settings = config(only_unsolved=True, skip_reward_at_least=0.9, max_refinements_per_group=2)
    solved, unsolved = ([rollout(n, reward) for n, reward in enumerate([0.5, -1.0, last])] for last in (0.9, 0.8))
    assert (
        choose(settings, solved) == choose(settings, [rollout(0, 0.5), rollout(1, float(np.float32(0.9)))]) == set()
    )  # as verl keeps it
    assert choose(settings, unsolved) == {0, 1}
    assert choose(config(skip_reward_at_least=0.9), solved) == {0, 1}


def test_a_session_without_a_last_turn_takes_no_place() -> None:
    members = [rollout(0, -1.0, start=1), rollout(1, -0.3)]
    assert choose(config(max_refinements_per_group=1), members) == {1}


def test_of_equal_best_siblings_one_is_shown_by_lot() -> None:
    """A group's rollouts come in the order in which they were finished: the first one would be the shortest."""
    shown = list[int]()
    for step in range(200):
        members = [rollout(n, float(n > 0), reward_columns={"global_steps": step}) for n in range(5)]
        shown.append(best_of(members[0], members).session[0])
        assert best_of(members[0], members[::-1]).session[0] == shown[-1]
    assert {*shown} == {1, 2, 3, 4} and max(map(shown.count, {*shown})) < 80


def test_a_share_of_the_rollouts_is_measured() -> None:
    members = [rollout(n, 0.0, reward_columns={"global_steps": step}) for n in range(50) for step in range(40)]
    drawn = [is_drawn(one, 0.25) for one in members]
    assert sum(drawn) / len(drawn) == pytest.approx(0.25, abs=0.03)
    assert drawn == [is_drawn(one, 0.25) for one in members]
    assert drawn[:40] != drawn[40:80], "each has its own steps"
    assert [sum(is_drawn(one, share) for one in members) for share in (0.0, 1.5)] == [0, 2000]


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_llama)


class Asked:
    """A refiner that keeps what it is asked, and answers with the tokens it is given."""

    def __init__(
        self, answer: list[int] | list[list[int]] | Exception, config: RefinerConfig, log_probs: tuple[float, ...] = ()
    ) -> None:
        """Nothing is asked yet."""
        self.answer, self.config, self.scores = answer, config, log_probs
        self.prompts: list[list[int]] = []
        self.limits: list[int] = []
        self.scored: list[list[int]] = []
        self.is_lost = False

    in_time = RefinerClient.in_time

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for nothing."""
        yield

    async def generate(
        self, prompt_ids: list[int], stop: str | None, max_new_tokens: int, stop_ids: Any = (), num: int = 1
    ) -> list[list[int]]:
        """Answer."""
        self.prompts.append(prompt_ids)
        self.limits.append(max_new_tokens)
        if isinstance(self.answer, Exception):
            raise self.answer
        answers: Any = self.answer if num > 1 else [self.answer]
        assert len(answers) == num
        return answers

    async def log_probs(self, prompt_ids: list[int], response_ids: list[int]) -> list[float]:
        """Score."""
        if self.is_lost:
            raise RefinerRequestError("lost")
        self.scored.append(prompt_ids)
        return [*self.scores, *[-9.0] * len(response_ids)][: len(response_ids)]

    async def top_log_probs(self, prompt_ids: list[int], response_ids: list[int], k: int, num_ids: int) -> Top:
        """Score in another way."""
        await self.log_probs(prompt_ids, response_ids)
        return np.array([[token, 99] for token in response_ids]), np.array([[-1.0, -2.0] for _ in response_ids])


def refined(tokenizer: Any, members: list[Rollout], client: Asked, **changes: Any) -> list[Refinement]:
    """Refine a group as ``refiner_of`` does."""
    return asyncio.run(refiner_of(tokenizer, client, **changes).refine_group(members))


def refiner_of(tokenizer: Any, client: Any, *, reward: Any = 0.5, **changes: Any) -> Refiner:
    """Return a refiner around a client; every answer gets the reward, or what a function says of its text."""

    async def score(rollout: Rollout, response_ids: list[int]) -> Any:
        if isinstance(reward, Exception):
            raise reward
        said = reward(tokenizer.decode(response_ids, skip_special_tokens=True)) if callable(reward) else reward
        return await said if inspect.isawaitable(said) else said

    end = tokenizer.eos_token_id
    constraint = changes.pop("constraint", read_constraint({"mode": "sft"}))
    sizes = {"max_model_len": 2048, "max_response_tokens": 32, **changes}
    return Refiner(
        config=client.config,
        client=client,
        prompt=replace(client.config, template="dialogue").prompt(tokenizer, {}, None, 32),
        turn_end=TurnEnd(stops=frozenset({end, tokenizer.pad_token_id}), written=end),
        score=score,
        companion=constraint.companion(tokenizer, None, {}, 32),
        **sizes,
    )


def test_what_a_refiner_is_told_and_what_it_copies(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    texts = {0: ("aa", 0.25), 1: ("the best of them", 0.75), 2: ("b", 0.5), 3: ("other tools", 0.9)}
    request = {"extra_info": {"answer": 42}, "reward_model": {"ground_truth": "no"}}
    members = [
        rollout(
            n,
            reward,
            [*[4] * (n == 3), *tokenizer.encode(text), end],
            start=int(n == 3),
            feedback=f"fault {n}",
            reward_columns=request,
        )
        for n, (text, reward) in texts.items()
    ]
    client = Asked([*tokenizer.encode("the best of all"), end], config(context=["feedback", "sibling", "solution"]))
    refined(tokenizer, members, client)
    shown = [next(p for p in map(tokenizer.decode, client.prompts) if f"fault {n})" in p) for n in texts]
    sibling = "Another reply, with a higher score:\nthe best of them\n"
    assert [sibling in text for text in shown] == [True, False, True, False], "nor of another session so far"
    assert all("A good reply:\n42\n" in text for text in shown)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Verdict.ACCEPTED),
        ({"reward": -0.3}, Verdict.NOT_BETTER),
        ({"reward": KeyError("x")}, Verdict.REWARD),
        *(({"reward": one}, Verdict.REWARD) for one in (None, math.nan, math.inf, "0.7", [0.7])),
        ({"answer": RefinerRequestError("lost")}, Verdict.REQUEST),
        ({"answer": "cut"}, Verdict.TRUNCATED),
        ({"answer": "end"}, Verdict.EMPTY),
        ({"max_response_tokens": 3}, Verdict.TRUNCATED),  # longer than what is left of the session
        ({"max_response_tokens": 4}, Verdict.TRUNCATED),  # by one token
        ({"max_response_tokens": 5}, Verdict.ACCEPTED),
        ({"max_response_tokens": 2, "start": 0}, Verdict.ACCEPTED),  # a response of one turn may become longer
        ({"max_model_len": 40}, Verdict.TOO_LONG),
        ({"own_reward": 1.0}, Verdict.MAX_REWARD),
        ({"start": 2}, Verdict.NO_TURN),
        ({"limit": 0}, Verdict.NOT_CHOSEN),
        ({"is_wanted": False}, Verdict.OVER_BUDGET),
    ],
)
def test_what_becomes_of_a_rollout(tokenizer: Any, changes: dict[str, Any], expected: Verdict) -> None:
    end, text = tokenizer.eos_token_id, tokenizer.encode("yes")
    answer = {"cut": text, "end": [end], None: [*text, end]}
    changes = dict(changes)
    wanted = changes.pop("answer", None)
    start = changes.pop("start", int("max_response_tokens" in changes))
    one = rollout(0, changes.pop("own_reward", -0.3), tokenizer.encode("n")[-1:] + [end], start=start)
    one.is_wanted = changes.pop("is_wanted", True)
    client = Asked(answer.get(wanted, wanted), config(max_refinements_per_group=changes.pop("limit", None)))
    (found,) = refined(tokenizer, [one], client, **changes)
    assert found.verdict is expected
    assert found.token_ids == ([*text, end] if expected.is_scored else [])
    assert (found.reward is not None) is expected.is_scored
    assert bool(client.prompts) is (expected not in SKIPPED)


def test_an_error_with_a_row_costs_that_row_and_is_logged(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    end = tokenizer.eos_token_id
    texts = ["half a character: \ud83d", "whole"]
    members = [rollout(n, 0.0, messages=[{"role": "user", "content": text}]) for n, text in enumerate(texts)]
    failed, other = refined(tokenizer, members, Asked([*tokenizer.encode("yes"), end], config()))
    assert (failed.verdict, other.verdict) == (Verdict.FAULT, Verdict.ACCEPTED)
    assert failed.text.startswith("TypeError: ")
    (record,) = caplog.records
    assert record.getMessage() == "response u_0_0 is not refined" and record.exc_info
    with pytest.raises(RunEndedError):
        refined(tokenizer, members[1:], Asked(RunEndedError("the engine has died"), config()))


@pytest.mark.parametrize("is_retokenised", [False, True])
@pytest.mark.parametrize("reward_gate", [True, False])
def test_a_repeated_response_is_not_rewarded_again(tokenizer: Any, is_retokenised: bool, reward_gate: bool) -> None:
    """Whatever a second reward would say: it is noise. Without the gate it acts, as all that has a reward does.

    A control token within a response is no text, and what rewards it does not see it.
    """
    said, begin = [*tokenizer.encode("aaab"), tokenizer.eos_token_id], tokenizer.convert_tokens_to_ids("<|im_start|>")
    own = [*said[:3], begin, *said[3:]] if is_retokenised else said
    client = Asked(said, config())
    constraint = read_constraint({"mode": "sft", "reward_gate": reward_gate})
    (found,) = refined(tokenizer, [rollout(0, -0.3, own)], client, reward=KeyError("asked"), constraint=constraint)
    assert (found.verdict, found.reward, found.is_repeated) == (Verdict.NOT_BETTER, -0.3, True)
    assert found.token_ids == said and constraint.is_used(found.verdict) is not reward_gate


def test_another_answer_is_rewarded(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    client = Asked([*tokenizer.encode("ab"), end], config())
    (found,) = refined(tokenizer, [rollout(0, -0.3, [*tokenizer.encode("abc"), end])], client)
    assert (found.verdict, found.reward, found.is_repeated) == (Verdict.ACCEPTED, 0.5, False)


@pytest.mark.parametrize(
    ("drawn", "best", "verdict", "num_better"),
    [
        (["aa", "abbb", "abb", "bbb"], "abbb", Verdict.ACCEPTED, 3),  # the only one with three b
        (["xbby", "abbd", "bbcd", "a"], "abbd", Verdict.ACCEPTED, 3),  # of equal ones the nearest, drawn second
        (["abcd", "b", "", "abcd"], "abcd", Verdict.NOT_BETTER, 0),  # the response itself, as near as can be
        (["", "b", "", ""], "b", Verdict.NOT_BETTER, 0),
        (["", "bbx", "", "bb"], "bbx", Verdict.ACCEPTED, 2),  # equally near: the first
        (["", "", "", ""], "", Verdict.EMPTY, 0),
    ],
)
def test_the_best_of_several_counts(
    tokenizer: Any, drawn: list[str], best: str, verdict: Verdict, num_better: int
) -> None:
    """The reward is the number of b, and the response has one."""
    end, asked = tokenizer.eos_token_id, list[str]()
    written = [[*tokenizer.encode(text), end] for text in drawn]
    client = Asked(written, config(samples=4, temperature=1.0, skip_reward_at_least=None))
    own = [*tokenizer.encode("abcd"), end]
    (found,) = refined(
        tokenizer, [rollout(0, 1.0, own)], client, reward=lambda text: asked.append(text) or float(text.count("b"))
    )
    assert (found.verdict, found.text) == (verdict, best)
    assert found.token_ids == ([*tokenizer.encode(best), end] if verdict.is_scored else [])
    assert (found.num_samples, found.num_better) == (4, num_better)
    assert sorted(asked) == sorted({text for text in drawn if text not in ("", "abcd")}), "each text once"
    assert len(client.prompts) == 1 and found.num_prompt_tokens == len(client.prompts[0]), "one request"
    assert found.num_generated_tokens == sum(map(len, written))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_group_would_ask_again_is_asked_once(tokenizer: Any, temperature: float) -> None:
    """Greedily pi_0 answers one prompt in one way; draws differ. The reward of one text is that of all."""
    end, rewarded = tokenizer.eos_token_id, list[str]()
    client = Asked([*tokenizer.encode("ab"), end], config(temperature=temperature, skip_reward_at_least=None))
    members = [rollout(n, 0.0, [*tokenizer.encode(text), end]) for n, text in enumerate(["cc", "d", "cc"])]
    found = refined(tokenizer, members, client, reward=lambda text: rewarded.append(text) or 0.5)
    assert [(one.verdict, one.text, one.reward) for one in found] == [(Verdict.ACCEPTED, "ab", 0.5)] * 3
    asked = [members[0], members[1]] if temperature == 0 else members
    assert len(client.prompts) == len(asked) and rewarded == ["ab"]
    assert sum(one.num_prompt_tokens for one in found) == sum(map(len, client.prompts))
    assert sum(one.num_generated_tokens for one in found) == 3 * len(asked)


class Asking:
    """A request that ends when it is told to, and says whether it was cancelled."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self.num_asked, self.num_cancelled, self.may_end = 0, 0, asyncio.Event()

    async def __call__(self) -> int:
        """Answer."""
        self.num_asked += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return 7


def test_who_gives_up_waiting_leaves_the_answer_to_others() -> None:
    async def run() -> None:
        asked, ask = AskedOnce(), Asking()
        first, second = (asyncio.create_task(asked.once("q", ask)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        ask.may_end.set()
        assert await second == (7, True) and first.cancelled(), "who gets the answer first is billed for it"
        assert await asked.once("q", ask) == (7, False)
        assert (ask.num_asked, ask.num_cancelled) == (1, 0)

    asyncio.run(run())


def test_a_request_that_nobody_waits_for_is_cancelled_at_once() -> None:
    """It would hold a sequence of the engine until its whole group is refined."""

    async def run() -> None:
        asked, ask = AskedOnce(), Asking()
        waiting = [asyncio.create_task(asked.once("q", ask)) for _ in range(3)]
        await asyncio.sleep(0)
        for one in waiting:
            assert ask.num_cancelled == 0
            one.cancel()
        await asyncio.wait(waiting)
        await asyncio.sleep(0)
        assert (ask.num_asked, ask.num_cancelled) == (1, 1)
        ask.may_end.set()
        assert await asked.once("q", ask) == (7, True), "who asks later asks anew"

    asyncio.run(run())


class Slow(Asked):
    """A refiner that answers when it is told to."""

    def __init__(self, answer: list[int], config: RefinerConfig) -> None:
        super().__init__(answer, config)
        self.may_end = asyncio.Event()

    async def generate(self, *asked: Any, **more: Any) -> list[list[int]]:
        """Answer, late."""
        found = await super().generate(*asked, **more)
        await self.may_end.wait()
        return found

    async def write(self, content: str, stop: Any, is_part: bool, limit: int, bill: Bill) -> list[Any]:
        """Answer as a server does that counts its tokens."""
        await self.may_end.wait()
        bill.num_prompt_tokens, bill.num_generated_tokens = 40, 3
        return [("", "ab", True)]


@pytest.mark.parametrize(("is_by_url", "num_prompt_tokens"), [(False, (2, 0)), (True, (0, 40))])
def test_what_is_written_is_billed_though_who_asked_first_gives_up(
    tokenizer: Any, is_by_url: bool, num_prompt_tokens: tuple[int, int]
) -> None:
    async def run() -> None:
        client: Any = Slow([7, 8, 9], config())
        language = Language(
            tokenizer=tokenizer,
            thoughts=None,
            turn_end=TurnEnd(stops=frozenset({2}), written=2),
            may_think=True,
            thread=ThreadPoolExecutor(1),
        )
        replicas = Replicas(client=client, language=language, num_samples=1)
        asker: Any = Servers(client=client, language=language, config=client.config) if is_by_url else replicas
        parts, asked = language.split(rollout(0, 0.0), [2]), AskedOnce()
        shape = assemble.shape_of(parts, stop=None, rewrites_thought=False)
        shared = {"parts": parts, "shape": shape, "told": {}, "words": "", "prompt": [5, 6]}
        attempts = [Attempt(rollout=rollout(n, 0.0), num_left=8, longest_thought=8, **shared) for n in range(3)]
        accounts = [Account(bill=Bill(), asked=asked, is_greedy=True) for _ in attempts]
        first, *others = [asyncio.create_task(asker.begin(*one)) for one in zip(attempts, accounts, strict=True)]
        while asked._num_waiting.total() < 3:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        given_up = replace(accounts[0].bill)
        client.may_end.set()
        await asyncio.gather(*others)
        bills = [given_up, *(one.bill for one in accounts[1:])]
        assert [one.num_generated_tokens for one in bills] == [0, 3, 0]
        assert [one.num_prompt_tokens for one in bills] == [*num_prompt_tokens, 0]

    asyncio.run(run())


class OneSlot(Asked):
    """A refiner with one place, whose first request hangs."""

    def __init__(self, answer: list[int], config: RefinerConfig) -> None:
        super().__init__(answer, config)
        self.places, self.is_cancelled, self.seen = asyncio.Semaphore(1), False, list[bool]()

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for the place."""
        async with self.places:
            yield

    async def generate(self, *asked: Any, **more: Any) -> list[list[int]]:
        """Hang, or answer and keep whether the first request is cancelled by then."""
        if not self.prompts:
            self.prompts.append(asked[0])
            try:
                await asyncio.Event().wait()
            finally:
                self.is_cancelled = True
        self.seen.append(self.is_cancelled)
        return await super().generate(*asked, **more)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_is_late_gives_its_place_in_the_engine_back(tokenizer: Any, temperature: float) -> None:
    end = tokenizer.eos_token_id
    settings = config(request_timeout_s=0.5, skip_reward_at_least=None, temperature=temperature)
    members = [rollout(n, 0.0, [*tokenizer.encode("c" * (n + 1)), end]) for n in range(4)]
    client = OneSlot([*tokenizer.encode("ab"), end], settings)
    late, *others = refined(tokenizer, members, client)
    assert late.verdict is Verdict.TIMEOUT and {one.verdict for one in others} == {Verdict.ACCEPTED}
    assert client.seen == [True] * 3, "not only when all of the group are done"


def test_a_shared_request_that_fails_is_billed_once(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    client = Asked(RefinerRequestError("lost"), config(skip_reward_at_least=None))
    members = [rollout(n, 0.0, [*tokenizer.encode("cc"), end]) for n in range(4)]
    found = refined(tokenizer, members, client)
    assert [one.verdict for one in found] == [Verdict.REQUEST] * 4
    assert len(client.prompts) == 1
    assert sum(one.num_prompt_tokens for one in found) == len(client.prompts[0])


def test_an_error_with_one_sample_costs_that_sample(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end = tokenizer.eos_token_id
    written = [[*tokenizer.encode(text), end] for text in ("bad", "yes", "bad", "no")]

    def plain(language: Language, attempt: Attempt, sample: Written) -> Any:
        if sample.answer in (written[0], written[2]):
            raise ZeroDivisionError("a mistake of ours")
        return own(language, attempt, sample)

    own = assemble.plain
    monkeypatch.setattr(assemble, "plain", plain)
    client = Asked(written, config(samples=4, temperature=1.0))
    (found,) = refined(tokenizer, [rollout(0, 0.0)], client, reward=lambda text: float(text == "yes"))
    assert (found.verdict, found.text, found.reward) == (Verdict.ACCEPTED, "yes", 1.0)
    assert (found.num_samples, found.num_better) == (4, 1)
    assert [record.getMessage() for record in caplog.records] == ["response u_0_0 is not refined"] * 2
    client = Asked([written[0]] * 4, config(samples=4, temperature=1.0))
    (found,) = refined(tokenizer, [rollout(0, 0.0)], client)
    assert (found.verdict, found.text) == (Verdict.FAULT, "ZeroDivisionError: a mistake of ours")


def test_half_a_character_in_a_servers_sample_costs_that_sample(tokenizer: Any) -> None:
    server = WrittenServer(tokenizer, "", "", samples=3, temperature=1.0)

    async def write(*_: Any) -> list[tuple[str, str, bool]]:
        return [("", "half \ud83d", True), ("half \ud83d", "better", True), ("", "better still", True)]

    server.write = write  # type: ignore[method-assign]
    (found,) = group_refined(tokenizer, ["old"], server)
    assert (found.verdict, found.text, found.num_better) == (Verdict.ACCEPTED, "better", 2)


@pytest.mark.parametrize(
    ("temperature", "extra_body", "is_greedy"),
    [
        (0.0, None, True),
        (0.0, {"top_k": 5}, True),
        (0.0, {"temperature": 0.7}, False),
        (0.0, {"temperature": None}, False),
        (0.7, {"temperature": 0}, True),
        (0.7, {"temperature": 0.0, "seed": 1}, True),
        (0.7, {}, False),
    ],
)
def test_who_shares_an_answer_is_told_by_what_is_sent(
    temperature: float, extra_body: dict[str, Any] | None, is_greedy: bool
) -> None:
    keys: dict[str, Any] = {"placement": "external", "url": "http://host/v1", "extra_body": extra_body}
    settings = config(temperature=temperature, **keys)
    body = chat_body(settings, "m", "x", 8)["extra_body"]  # type: ignore[arg-type]
    assert settings.is_greedy is is_greedy is (body.get("temperature") == 0)
    if is_greedy:
        with pytest.raises(ValueError, match="all are the same; set refiner"):
            config(temperature=temperature, samples=2, **keys)
    else:
        assert config(temperature=temperature, samples=2, **keys).samples == 2


@pytest.mark.parametrize("extra_body", [{"temperature": 0.7}, {"temperature": None}, None])
def test_equal_responses_share_an_answer_only_if_it_is_greedy(
    tokenizer: Any, extra_body: dict[str, Any] | None
) -> None:
    server = WrittenServer(tokenizer, "", "better", extra_body=extra_body)
    asked, write = list[str](), server.write

    async def counted(content: str, *more: Any) -> Any:
        asked.append(content)
        return await write(content, *more)

    server.write = counted  # type: ignore[method-assign]
    group_refined(tokenizer, ["old", "old", "older"], server)
    assert len(asked) == (2 if extra_body is None else 3)


def test_a_reward_of_nan_is_never_maximal(tokenizer: Any) -> None:
    settings = config(skip_reward_at_least=1.0)
    for nan in (math.nan, float("nan"), np.float32("nan")):
        assert not settings.is_maximal(nan)
    assert settings.is_maximal(1.0) and settings.is_maximal(math.inf) and not settings.is_maximal(None)
    members = [rollout(0, math.nan), rollout(1, 0.5), rollout(2, -1.0), rollout(3, 0.7)]
    assert choose(config(max_refinements_per_group=2), members) == {1, 2}
    assert choose(config(only_unsolved=True), members) == {0, 1, 2, 3}
    assert {best_of(one, members).session[0] for one in members} == {3}
    own = read_constraint({"mode": "sft", "imitate_solved": True})
    client = Asked([*tokenizer.encode("ab"), tokenizer.eos_token_id], config())
    (found,) = refined(tokenizer, members[:1], client, constraint=own)
    assert found.verdict is Verdict.NOT_BETTER


def test_a_sample_that_is_late_costs_itself_only(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    written = [[*tokenizer.encode(text), end] for text in ("late", "yes")]
    client = Asked(written, config(samples=2, temperature=1.0, request_timeout_s=2.0))

    (found,) = refined(
        tokenizer, [rollout(0, 0.0)], client, reward=lambda text: asyncio.sleep(3600) if text == "late" else 0.5
    )
    assert (found.verdict, found.text, found.num_samples, found.num_better) == (Verdict.ACCEPTED, "yes", 2, 1)
    client = Asked(written[0], config(request_timeout_s=2.0))
    (found,) = refined(tokenizer, [rollout(0, 0.0)], client, reward=lambda text: asyncio.sleep(3600))
    assert (found.verdict, found.text) == (Verdict.TIMEOUT, "late"), "what was written is recorded"


def test_an_answer_that_the_engine_lacks_costs_itself_only(tokenizer: Any) -> None:
    client = Asked([], config(samples=3, temperature=1.0))

    async def generate(*_: Any) -> list[list[int]]:
        return [[*tokenizer.encode("yes"), tokenizer.eos_token_id]]

    client.generate = generate  # type: ignore[method-assign]
    (found,) = refined(tokenizer, [rollout(0, 0.0)], client)
    assert (found.verdict, found.text, found.num_samples, found.num_better) == (Verdict.ACCEPTED, "yes", 3, 1)


@pytest.mark.parametrize("reward", [KeyError("x"), math.nan])
def test_a_leak_whose_reward_fails_is_a_leak(tokenizer: Any, reward: Any) -> None:
    text = "It got -0.30 points: better"
    client = Asked([*tokenizer.encode(text), tokenizer.eos_token_id], config())
    (found,) = refined(tokenizer, [rollout(0, -0.3)], client, reward=reward, scores_leaks=True)
    assert (found.verdict, found.text, found.reward) == (Verdict.LEAK, text, None)


@pytest.mark.parametrize(
    ("said", "kept"),
    [(True, 1.0), (0.1, float(np.float32(0.1))), (torch.tensor(0.5), 0.5), (None, None), ("0.7", None), ([0.7], None)],
)
def test_a_reward_is_what_verl_takes_for_one(said: Any, kept: float | None) -> None:
    """Rewards are kept as verl keeps a rollout's, in float32: ``rm_scores[-1]`` in ``AgentLoopOutput.as_dict``."""

    async def compute_score(data: Any) -> dict[str, Any]:
        return {"reward_score": said}

    workers: Any = [SimpleNamespace(compute_score=SimpleNamespace(remote=compute_score))]
    as_verl = AgentLoopOutput(prompt_ids=[1], response_ids=[2], response_mask=[1], metrics={}, num_turns=2)
    as_verl.reward_score = said
    if kept is None:
        with pytest.raises(TypeError):
            asyncio.run(reward_by(workers, rollout(0, 0.0), [2]))
    else:
        assert asyncio.run(reward_by(workers, rollout(0, 0.0), [2])) == kept == as_verl.as_dict()["rm_scores"].item()


def test_what_the_policy_solved_may_be_imitated_itself(tokenizer: Any) -> None:
    end, other = tokenizer.eos_token_id, tokenizer.pad_token_id
    said = [([7, end], 0.5), ([8, end], 1.0), ([9], 1.0), ([8, other], 1.0)]  # wrong, right, right but cut, right
    members = [rollout(n, reward, ids) for n, (ids, reward) in enumerate(said)]
    client = Asked([], config(max_refinements_per_group=0))
    own = read_constraint({"mode": "sft", "imitate_solved": True})
    found = refined(tokenizer, members, client, constraint=own)
    assert [one.verdict for one in found] == ["not_chosen", "own", "max_reward", "own"]
    assert [one.token_ids for one in found] == [[], [8, end], [], [8, other]]
    assert found[1].reward == 1.0


ANSWER = TEMPLATES / "in_place" / "answer.jinja"
TASK = [{"role": "user", "content": "Say yes."}]


def in_place(**values: Any) -> Constraint:
    return read_constraint({"mode": "penalty", "target": "in_place", **values})


@pytest.mark.parametrize(
    ("constraint", "scored", "asked"),
    [
        (in_place(), [True, False, False], 2),  # the refined one, by its a'
        (in_place(reward_gate=False), [True, True, False], 2),
        (in_place(reward_gate="failed"), [True, True, False], 0),  # by the solved sibling
        (in_place(mode="sft"), [True, False, False], 2),
        (read_constraint({"mode": "penalty"}), [False, False, False], 2),
    ],
)
def test_which_turns_are_scored_in_place(
    tokenizer: Any, constraint: Constraint, scored: list[bool], asked: int
) -> None:
    end = tokenizer.eos_token_id
    members = [
        rollout(n, reward, [*tokenizer.encode(text), end], messages=TASK, feedback=f"about {text}")
        for n, (text, reward) in enumerate([("bad", -0.3), ("fair", 0.9), ("good", 1.0)])
    ]
    client = Asked([*tokenizer.encode("yes"), end], config())
    found = refined(tokenizer, members, client, constraint=constraint)
    assert [one.in_place and len(one.in_place) for one in found] == [
        len(member.turn_ids) if is_scored else None for member, is_scored in zip(members, scored, strict=True)
    ]
    assert len(client.prompts) == asked
    shown = [tokenizer.decode(prompt) for prompt in client.scored]
    assert bool(shown) is any(scored)
    better = "good" if asked == 0 else "yes"
    assert all(f"Say yes.\n\nA correct answer is:\n{better}\n\nNow write" in text for text in shown)
    assert not any(word in text for text in shown for word in ("bad", "fair", "about")), "it would be copied"


def test_a_turn_that_nobody_scores_or_that_does_not_fit_is_not_charged(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    members = [rollout(0, -0.3, [*tokenizer.encode("bad"), end], messages=TASK)]
    for changes, is_lost in (({"max_model_len": 240}, False), ({}, True), ({}, False)):
        client = Asked([*tokenizer.encode("yes"), end], config())
        client.is_lost = is_lost
        (found,) = refined(tokenizer, members, client, constraint=in_place(), **changes)
        length = len(found.in_place) if found.in_place is not None else "there is no a'"
        assert length == ("there is no a'" if changes else 0 if is_lost else 4)


def test_without_the_gate_a_response_that_is_repeated_is_not_shown(tokenizer: Any) -> None:
    said = [*tokenizer.encode("fair"), tokenizer.eos_token_id]
    client = Asked(said, config())
    (found,) = refined(
        tokenizer, [rollout(0, 0.5, said, messages=TASK)], client, constraint=in_place(reward_gate=False)
    )
    assert found.verdict is Verdict.NOT_BETTER and found.in_place == [] and not client.scored


def test_the_prompt_in_place_has_the_whole_chat(tokenizer: Any) -> None:
    chat = [{"role": "system", "content": "Be brief."}, *TASK, {"role": "tool", "content": "5"}]
    ids = InPlacePrompt(ANSWER, tokenizer, {}, 32).encode(chat, {"refined": "yes"})
    assert ids is not None
    assert "system: Be brief.\nuser: Say yes.\ntool: 5\n\nA correct answer is:\nyes\n\nNow" in tokenizer.decode(ids)


@pytest.mark.parametrize("reward_gate", [True, False])
def test_whose_distributions_are_asked_for(tokenizer: Any, reward_gate: bool) -> None:
    end = tokenizer.eos_token_id
    members = [rollout(n, reward, messages=TASK) for n, reward in enumerate((-0.3, 0.9, 1.0))]  # better, worse, maximal
    soft = read_constraint({"mode": "soft:Soft", "reward_gate": reward_gate})
    client = Asked([*tokenizer.encode("yes"), end], config())
    found = refined(tokenizer, members, client, constraint=soft)
    known = [[token, 99] for token in found[0].token_ids[:-1]]
    ids = [one.own["top"][0].tolist() if one.own else None for one in found]
    assert known and ids == [known, None if reward_gate else known, None]
    expected = client.prompts[:1] if reward_gate else client.prompts
    assert sorted(client.scored) == sorted(expected), "behind what it had read"
    client.is_lost = True
    assert refined(tokenizer, members, client, constraint=soft)[0].own == {}, "the written tokens are left"
    assert refined(tokenizer, members, client)[0].own == {}


def test_a_later_turn_is_rewarded_behind_the_turns_before_it(tokenizer: Any) -> None:
    end, rewarded = tokenizer.eos_token_id, list[str]()
    earlier = tokenizer.encode("call ")
    one = rollout(0, -0.3, [*earlier, *tokenizer.encode("no"), end], start=len(earlier))
    client = Asked([*tokenizer.encode("yes"), end], config())
    (found,) = refined(tokenizer, [one], client, reward=lambda text: rewarded.append(text) or 0.5)
    assert found.verdict is Verdict.ACCEPTED and rewarded == ["call yes"]


@pytest.mark.parametrize(("extras", "num_rewarded"), [(("a", "a"), 1), (("a", "b"), 2)])
def test_equal_refinements_share_a_reward_if_their_tools_said_the_same(
    tokenizer: Any, extras: tuple[str, str], num_rewarded: int
) -> None:
    end, rewarded = tokenizer.eos_token_id, list[str]()
    members = [rollout(n, -0.3, reward_columns={"tool_extra_fields": {"said": one}}) for n, one in enumerate(extras)]
    client = Asked([*tokenizer.encode("yes"), end], config())
    refined(tokenizer, members, client, reward=lambda text: rewarded.append(text) or 0.5)
    assert rewarded == ["yes"] * num_rewarded


@pytest.mark.parametrize(
    ("context", "verdict"),
    [(["sibling"], Verdict.ACCEPTED), (["solution"], Verdict.ACCEPTED), (["feedback"], Verdict.LEAK)],
)
def test_words_of_a_better_answer_that_is_shown_are_no_leak(
    tokenizer: Any, context: list[str], verdict: Verdict
) -> None:
    end, words = tokenizer.eos_token_id, "my first answer was wrong"
    texts, columns = [("bb", -0.3), (f"{words}: cc", 0.4)], {"extra_info": {"answer": f"{words}: c"}}
    members = [
        rollout(n, reward, [*tokenizer.encode(text), end], reward_columns=columns)
        for n, (text, reward) in enumerate(texts)
    ]
    client = Asked([*tokenizer.encode(f"{words}: d"), end], config(context=context))
    assert refined(tokenizer, members, client)[0].verdict is verdict


def test_a_sibling_of_the_same_reward_is_not_shown(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    members = [rollout(n, 0.25, [*tokenizer.encode(text), end]) for n, text in enumerate(("aa", "bb"))]
    client = Asked([*tokenizer.encode("yes"), end], config(context=["sibling"]))
    refined(tokenizer, members, client)
    assert len(client.prompts) == 2
    assert not [ids for ids in client.prompts if "Another reply" in tokenizer.decode(ids)]


def test_in_place_without_a_gate_a_teacher_that_sees_no_refinement_scores_every_response(
    tokenizer: Any, tmp_path: Path
) -> None:
    end, template = tokenizer.eos_token_id, tmp_path / "sibling.jinja"
    template.write_text("{{ question }} {{ sibling }}")
    members = [
        rollout(n, reward, [*tokenizer.encode("ab"), end], messages=TASK) for n, reward in enumerate((0.25, 0.75))
    ]
    client = Asked([*tokenizer.encode("yes"), end], config())
    constraint = in_place(reward_gate=False, in_place_template=str(template))
    found = refined(tokenizer, members, client, constraint=constraint)
    assert client.prompts == [] and found[0].in_place and len(found[0].in_place) == len(members[0].response_ids)


class Ending(Asked):
    """A refiner whose first request hangs, and whose second one ends the run."""

    async def generate(self, *asked: Any, **more: Any) -> list[list[int]]:
        """Hang, or end the run."""
        self.prompts.append(asked[0])
        if len(self.prompts) == 2:
            raise RunEndedError("the engine has died")
        try:
            await asyncio.Event().wait()
        finally:
            self.is_lost = True
        return []


def test_no_request_outlives_the_run_that_it_is_of(tokenizer: Any) -> None:
    async def run() -> None:
        client = Ending([], config())
        members = [rollout(n, 0.0, [*tokenizer.encode("ab"[n]), tokenizer.eos_token_id]) for n in range(2)]
        with pytest.raises(RunEndedError):
            await refiner_of(tokenizer, client).refine_group(members)
        for _ in range(9):  # time enough for what is cancelled
            await asyncio.sleep(0)
        assert client.is_lost

    asyncio.run(run())
