"""Which responses of a group are refined."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from recipe.online_refiner.blocks import ConstraintConfig
from recipe.online_refiner.refine import Refiner, choose
from recipe.online_refiner.refine_worker import outcome_of, token_weights
from recipe.online_refiner.rollout import Refinement, Rollout
from refiner_worker.config import TEMPLATES, RefinerConfig
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.turn_end import TurnEnd

VALUES = {"model_path": "m", "response_length": 8, "skip_reward_at_least": 1.0}
REWARDS = [0.5, -1.0, 1.0, -0.3]


def config(**changes: object) -> RefinerConfig:
    return RefinerConfig(**{**VALUES, **changes})


def rollouts(step: int = 1) -> list[Rollout]:
    request = {"global_steps": step}
    return [
        Rollout(key=f"u_{n}_0", messages=[], prompt_ids=[1], response_ids=[2], reward=reward, request=request)
        for n, reward in enumerate(REWARDS)
    ]


@pytest.mark.parametrize(("limit", "expected"), [(None, {0, 1, 3}), (1, {1}), (2, {1, 3}), (9, {0, 1, 3})])
def test_lowest_rewards_first_and_never_a_maximal_one(limit: int | None, expected: set[int]) -> None:
    assert choose(config(max_refinements_per_group=limit), rollouts()) == expected


def test_a_random_choice_changes_with_the_step_and_not_with_the_order() -> None:
    random = config(max_refinements_per_group=2, group_choice="random")
    found = [choose(random, rollouts(step)) for step in range(20)]
    assert found[0] == choose(random, rollouts(0))
    assert len({frozenset(chosen) for chosen in found}) == 3
    for step, chosen in enumerate(found):
        assert len(chosen) == 2 and chosen < {0, 1, 3}
        backwards = list(reversed(rollouts(step)))
        assert {backwards[index].key for index in choose(random, backwards)} == {f"u_{n}_0" for n in chosen}


def test_a_session_without_a_last_turn_takes_no_place() -> None:
    members = rollouts()
    members[1].start = len(members[1].response_ids)
    assert choose(config(max_refinements_per_group=1), members) == {3}


def test_lowest_rewards_are_chosen_in_any_order() -> None:
    equal = [
        Rollout(key=f"u_{n}_0", messages=[], prompt_ids=[1], response_ids=[2], reward=0.5, request={})
        for n in (3, 1, 2)
    ]
    assert choose(config(max_refinements_per_group=1), equal) == {1}


@pytest.mark.parametrize(("rewards", "expected"), [([0.5, -1.0, 0.9], {0, 1, 2}), (REWARDS, set())])
def test_a_group_that_is_solved_needs_no_refiner(rewards: list[float], expected: set[int]) -> None:
    members = [
        Rollout(key=f"u_{n}_0", messages=[], prompt_ids=[1], response_ids=[2], reward=reward, request={})
        for n, reward in enumerate(rewards)
    ]
    assert choose(config(groups="unsolved"), members) == expected


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_llama)


class Asked:
    """A refiner that keeps what it is asked, and answers with the tokens it is given."""

    def __init__(self, answer: list[int]) -> None:
        """Nothing is asked yet."""
        self.answer, self.prompts = answer, []

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for nothing."""
        yield

    async def generate(self, prompt_ids: list[int], stop: str | None, max_new_tokens: int) -> list[int]:
        """Answer."""
        self.prompts.append(prompt_ids)
        return self.answer


async def half(rollout: Rollout, response_ids: list[int]) -> float:
    return 0.5


def test_what_a_refiner_is_told_and_what_it_copies(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    texts = {0: ("aa", 0.25), 1: ("the best of them", 0.75), 2: ("b", 0.5), 3: ("other tools", 0.9)}
    members = [
        Rollout(
            key=f"u_{n}_0",
            messages=[],
            prompt_ids=[1],
            response_ids=[*[4] * (n == 3), *tokenizer.encode(text), end],
            start=int(n == 3),
            reward=reward,
            feedback=f"fault {n}",
            request={"extra_info": {"answer": 42}, "reward_model": {"ground_truth": "no"}},
        )
        for n, (text, reward) in texts.items()
    ]
    wanted = config(context=["feedback", "sibling", "solution"], response_length=32)
    client = Asked([*tokenizer.encode("the best of all"), end])
    refiner = Refiner(
        config=wanted,
        constraint=ConstraintConfig(),
        client=client,
        prompt=RefinerPrompt(TEMPLATES / "dialogue.jinja", tokenizer, {}, wanted.limits(32)),
        turn_end=TurnEnd(stops=frozenset({end}), written=end),
        score=half,
        max_model_len=2048,
        max_response_tokens=32,
    )
    found = asyncio.run(refiner.refine_group(members))
    shown = [next(p for p in map(tokenizer.decode, client.prompts) if f"fault {n})" in p) for n in texts]
    sibling = "Another reply, with a higher score:\nthe best of them\n"
    assert [sibling in text for text in shown] == [True, False, True, False], "nor of another session so far"
    assert all("A good reply:\n42\n" in text for text in shown)
    copied = len("the best of ")
    assert [one.num_copied_tokens for one in found] == [copied, 0, copied, 0], "one has that text itself"


def refined(tokenizer: Any, members: list[Rollout], *other_ends: int, **changes: object) -> list[Any]:
    """Refine a group without a refiner: whatever would be sent fails."""
    end = tokenizer.eos_token_id
    refiner = Refiner(
        config=config(**({"use_solved_sibling": True, "groups": "unsolved"} | changes)),
        constraint=ConstraintConfig(margin=0.25),
        client=None,
        prompt=RefinerPrompt(TEMPLATES / "dialogue.jinja", tokenizer),
        turn_end=TurnEnd(stops=frozenset({end, *other_ends}), written=end),
        score=None,
        max_model_len=512,
        max_response_tokens=8,
    )
    return asyncio.run(refiner.refine_group(members))


def test_solved_siblings_are_the_refinements_of_the_others(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    said = {0: ([7, end], 0.5), 1: ([8, end], 1.0), 2: ([9, end], 0.9), 3: ([10], 1.0), 4: ([11, 12, end], 1.0)}
    members = [
        Rollout(key=f"u_{n}_0", messages=[], prompt_ids=[1], response_ids=ids, reward=reward, request={})
        for n, (ids, reward) in reversed(said.items())  # in whatever order they came
    ]
    found = dict(zip((4, 3, 2, 1, 0), refined(tokenizer, members), strict=True))
    assert {n: one.verdict for n, one in found.items()} == {
        **{0: "accepted", 2: "not_better"},  # 1.0 is not above 0.9 by the margin
        **{1: "max_reward", 3: "max_reward", 4: "max_reward"},
    }
    assert found[0].token_ids == [8, end] and found[0].reward == 1.0  # session 0 of the two that were not cut
    assert found[0].num_generated_tokens == 0


def test_a_turn_may_end_in_any_token_that_engines_stop_at(tokenizer: Any) -> None:
    other = tokenizer.pad_token_id
    members = [
        Rollout(key=f"u_{n}_0", messages=[], prompt_ids=[1], response_ids=ids, reward=reward, request={})
        for n, (ids, reward) in enumerate([([7, other], 0.5), ([8, other], 1.0)])
    ]
    assert refined(tokenizer, members, other)[0].token_ids == [8, other]
    assert refined(tokenizer, members, other, imitate_solved=True)[1].verdict == "own"


def test_a_sibling_that_has_used_its_tools_otherwise_is_none(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    rows = [([5, 6, end], 2, 1.0), ([4, 6, 7, end], 2, 0.0)]  # the last turn begins at 2, behind another context
    members = [
        Rollout(key=f"u_{n}_0", messages=[], prompt_ids=[1], response_ids=ids, start=start, reward=reward, request={})
        for n, (ids, start, reward) in enumerate(rows)
    ]
    assert [one.verdict for one in refined(tokenizer, members)] == ["max_reward", "not_chosen"]


def test_what_the_policy_solved_may_be_imitated_itself(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    said = [([7, end], 0.5), ([8, end], 1.0), ([9], 1.0)]  # wrong, right, right but cut
    members = [
        Rollout(key=f"u_{n}_0", messages=[], prompt_ids=[1], response_ids=ids, reward=reward, request={})
        for n, (ids, reward) in enumerate(said)
    ]
    only_own = {"imitate_solved": True, "max_refinements_per_group": 0, "use_solved_sibling": False, "groups": "all"}
    found = refined(tokenizer, members, **only_own)
    assert [one.verdict for one in found] == ["not_chosen", "own", "max_reward"]
    outcomes = [outcome_of(member, one, lets_all_through=False) for member, one in zip(members, found, strict=True)]
    assert [one.is_used for one in outcomes] == [False, True, False]
    assert found[1].token_ids == [8, end] and found[1].reward == 1.0


def test_weights_of_pairs_reach_the_tokens() -> None:
    """-1 and -1, one of them refined to 0.5: half of the responses of ``v`` fail, and 0.5 is 1.155 deviations up."""
    rewards = {"u_0_0": -1.0, "u_1_0": -1.0, "v_0_0": 0.5, "v_1_0": 1.0}
    members = [
        Rollout(key=key, messages=[], prompt_ids=[1], response_ids=[5, 6, 2], reward=reward, request={})
        for key, reward in rewards.items()
    ]
    refinements = [
        Refinement(verdict="accepted", token_ids=[5, 7, 2], reward=0.5),
        *(Refinement(verdict="not_chosen"), Refinement(verdict="accepted", token_ids=[4, 2], reward=1.0)),
        Refinement(verdict="max_reward"),
    ]
    outcomes = [outcome_of(*pair, lets_all_through=False) for pair in zip(members, refinements, strict=True)]

    def weights(**changes: object) -> list[list[float]]:
        constraint = ConstraintConfig(**{"mode": "sft", **changes})
        return token_weights(constraint, config(), members, outcomes, refinements)

    assert weights() == [[1, 1, 1], [], [1, 1], []]
    assert weights(pair_weights="failure_rate") == [[1, 1, 1], [], [0.5, 0.5], []]
    edited = weights(pair_weights="failure_rate", token_weights="edited")
    assert edited == [[pytest.approx(0.1), 1, pytest.approx(0.1)], [], [0.5, pytest.approx(0.05)], []]
    assert weights(pair_weights="advantage")[0] == pytest.approx([1.155] * 3, abs=1e-3)
