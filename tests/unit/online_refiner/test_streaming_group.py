import asyncio

from recipe.online_refiner.metrics import streaming_metrics
from recipe.online_refiner.refine_stage import Refinement, Rollout
from recipe.online_refiner.streaming import Group


def rollout(reward: float, **extra: float) -> Rollout:
    fields = {"key": "", "group": "g", "messages": [], "prompt_ids": [1], "response_ids": [2], "sample": {}}
    return Rollout(**fields, reward=reward, reward_extra_info=extra)


def test_a_group_is_complete_when_every_session_is_rewarded_or_lost() -> None:
    async def wait() -> list[bool]:
        group = Group(missing={0, 1, 2})
        waiting = asyncio.create_task(group.complete.wait())
        found = []
        settled = [(0, [rollout(1.0)]), (0, []), (1, []), (2, [rollout(0.0), rollout(0.0)])]
        for session, rollouts in settled:  # the first is rewarded and then lost, the last has two outputs
            group.settle(session, *rollouts)
            await asyncio.sleep(0)
            found.append(waiting.done())
        assert [one.reward for one in group.rollouts] == [1.0, 0.0, 0.0]
        return found

    assert asyncio.run(wait()) == [False, False, False, True]


def test_groups_that_dapo_evicts() -> None:
    def group(*rollouts: Rollout) -> Group:
        return Group(missing=set(), rollouts=list(rollouts))

    same, different = group(rollout(0.5), rollout(0.5)), group(rollout(0.5), rollout(0.25))
    assert same.is_evicted_by("reward") and not different.is_evicted_by("reward")
    assert not same.is_evicted_by(None)
    assert not group(rollout(0.5)).is_evicted_by("reward"), "verl keeps groups of one"
    assert group(rollout(0.5, acc=1.0), rollout(0.25, acc=1.0)).is_evicted_by("acc")


def test_exposed_and_hidden_seconds() -> None:
    def refined(rewarded_at: float, started_at: float, refined_at: float, verdict: str = "accepted") -> Refinement:
        return Refinement(verdict=verdict, rewarded_at=rewarded_at, started_at=started_at, refined_at=refined_at)

    solved = refined(16.0, 16.0, 16.0, "max_reward")
    overlapping = [refined(10.0, 11.0, 14.0), refined(12.0, 12.0, 13.0), refined(15.0, 15.0, 18.5), solved]
    assert streaming_metrics(overlapping) == {"refiner/exposed_s": 2.5, "refiner/hidden_s": 5.0}
    assert streaming_metrics([refined(10.0, 12.0, 13.0), solved]) == {"refiner/exposed_s": 0.0, "refiner/hidden_s": 4.0}
    assert streaming_metrics([solved]) == {}
