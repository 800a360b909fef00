"""A step's metrics, worked out by hand; of several mini-batches counts add up, and means are weighted."""

import ast
import math
import random
import re
import time
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from composed_main import composed
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY
from verl.trainer.ppo.v1.utils import MetricsAggregator

from recipe.online_refiner import metric_names, metrics
from recipe.online_refiner.config.checks import load
from recipe.online_refiner.method.pairs import Divergence, Pair, Verdict
from recipe.online_refiner.method.step import StepState
from recipe.online_refiner.verl_glue.rows import with_pair
from recipe.online_refiner.verl_glue.stages import Stages
from recipe.report.findings import advice
from recipe.report.reading import Arm, Run, flat
from recipe.rewarding.answers import as_number


def part(num_rollouts: int, accepted: dict[int, int], **values: float) -> StepState:
    """Return a mini-batch with accepted refinements, by row, of so many tokens."""
    pairs = {
        row: Pair(reward=0.0, verdict=Verdict.ACCEPTED, is_used=True, num_refined_tokens=accepted[row], nll=1.0)
        if row in accepted
        else Pair(reward=0.0, verdict=Verdict.NOT_BETTER, num_refined_tokens=1, nll=1.0)
        for row in range(num_rollouts)
    }
    own = {
        "refiner/num_rollouts": num_rollouts,
        "refiner/num_accepted": len(accepted),
        "refiner/skipped/max_reward": 1,
        "reward/num_responses": num_rollouts,
        "reward/mean": 0.0,
    }
    return StepState(
        pairs=pairs,
        metrics={**metrics.zeros(), **own, **{name.replace("__", "/"): value for name, value in values.items()}},
    )


def test_counts_add_up_and_means_are_weighted() -> None:
    parts = [
        part(6, {0: 3}, reward__mean=1.0, refiner__reward_gain=0.5, constraint__cross_entropy_accepted=2.0),
        part(2, {0: 4, 1: 5}, refiner__reward_gain=2.0, constraint__cross_entropy_accepted=1.0),
    ]
    step = metrics.of_step(parts)
    assert step["refiner/num_accepted"] == 3
    assert step["refiner/skipped/max_reward"] == 2, "verl's aggregator would take the largest: the name has a max in it"
    assert step["reward/mean"] == 6 / 8
    assert step["refiner/reward_gain"] == (0.5 + 2 * 2.0) / 3
    assert step["constraint/cross_entropy_accepted"] == (3 * 2.0 + 9 * 1.0) / 12
    assert not any(name.startswith("timing_s/") for name in step), "seconds are the step's already"
    means = {"reward/mean", "refiner/reward_gain", "constraint/cross_entropy_accepted"}
    assert set(step) == {name for name in metric_names.COUNTS if not name.startswith("timing_s/")} | means


BY_HAND: dict[str, float] = {
    "refiner/budget_kept": 2.5,
    "refiner/num_replicas": 1,
    "constraint/penalty": 400,
    "constraint/eta": 1,
    "constraint/in_place_charge": 90,
    "constraint/in_place_largest": 9,
    "constraint/in_place_agreement": 90,
    "actor/sft_cross_entropy": 1,
    "kl_ref/k3": 77,
}
"""Means that no function of ``metrics.py`` computes from pairs, and how many values each is over in the state below."""


def random_part(draw: random.Random, number: int) -> tuple[StepState, dict[str, float], dict[float, int], list[dict]]:
    """Return a mini-batch, its rewards, the groups that were filtered, and what the reward function said."""
    rewards = {
        f"p{number}g{group}_{session}_0": draw.choice([-1.0, 0.0, 0.5])
        for group in range(draw.randint(1, 9))
        for session in range(4)
    }
    verdicts = [Verdict.ACCEPTED, Verdict.NOT_BETTER, Verdict.TRUNCATED, Verdict.MAX_REWARD]
    state = StepState(keys=[*rewards])
    for row, reward in enumerate(rewards.values()):
        verdict = draw.choice(verdicts)
        pair = Pair(reward=reward, verdict=verdict, source=draw.choice("ab"), is_used=verdict is Verdict.ACCEPTED)
        pair.latency_s = None if verdict is Verdict.MAX_REWARD else draw.expovariate(1 + number)
        if verdict.is_scored:
            pair.refined_reward, pair.num_refined_tokens = draw.random(), draw.randint(1, 50)
            pair.nll, pair.divergence, pair.num_compared_tokens = 9 * draw.random(), draw.random(), draw.randint(1, 9)
            pair.is_repeated, pair.edit_distance = draw.random() < 0.3, draw.choice([None, draw.randint(0, 9)])
            pair.num_samples, pair.num_better = 4, draw.randint(0, 4)
        state.pairs[row] = pair
    filtered = {-1.0: draw.randint(0, 80), 1.0: draw.randint(0, 5)}
    said = [{"x": draw.random(), **({"y": 1.0 + draw.random()} if draw.random() < 0.5 else {})} for _ in rewards]
    return state, rewards, filtered, [*said[1:], {"x": 0.0, "y": 5.0, f"only {number}": draw.random()}]


def measured(state: StepState, rewards: dict[str, float], filtered: dict[float, int], said: list[dict]) -> StepState:
    state.counts |= metrics.num_saying(said)
    state.metrics = {
        **metrics.zeros(),
        **metrics.reward_metrics(rewards, filtered),
        **metrics.extra_metrics(said),
        **metrics.refine_metrics(state),
        **metrics.constraint_metrics(state, is_due=True),
        "refiner/num_rollouts": len(state.pairs),
    }
    return state


@pytest.mark.parametrize("seed", range(20))
def test_a_steps_mean_is_over_all_that_its_mini_batches_are_over(seed: int) -> None:
    """What mini-batches give together is what one batch of all their rows gives: whatever they have unequally."""
    draw = random.Random(seed)
    parts = [random_part(draw, number) for number in range(3)]
    pairs = [pair for state, *_ in parts for pair in state.pairs.values()]
    filtered = sum((Counter(one) for _, _, one, _ in parts), Counter[float]())
    rewards = {key: reward for _, own, _, _ in parts for key, reward in own.items()}
    said = [one for *_, own in parts for one in own]
    whole = measured(StepState(pairs=dict(enumerate(pairs))), rewards, dict(filtered), said)
    found = metrics.of_step([measured(*one) for one in parts])
    names = [
        name
        for name in whole.metrics
        if name in {*metrics.MEANS, *metric_names.PERCENTILES}
        or name.startswith((metric_names.EXTRA, *metric_names.OF_SOURCES))
    ]
    for name in names:
        assert found[name] == pytest.approx(whole.metrics[name]), name
    assert {*names} >= metrics.MEANS.keys() - BY_HAND.keys(), "each mean is checked here or in BY_HAND"
    assert {"reward/extra/y", "reward/extra/only 1", "refiner/source_failed_ratio/a", *metric_names.PERCENTILES} <= {
        *names
    }


def test_how_many_values_other_means_are_over() -> None:
    pairs = [Pair(reward=0.0, is_used=True, num_refined_tokens=5), Pair(reward=0.0), Pair(reward=0.0)]
    pairs.append(Pair(reward=0.0, is_used=True, num_refined_tokens=6, num_kept_tokens=2))
    counts = {"tokens/rollout": 400, "refiner/num_rollouts": 5}
    state = StepState(pairs=dict(enumerate(pairs)), counts={"kl_ref/k3": 77, "refiner/budget_kept": 2.5})
    state.metrics = counts | {"constraint/in_place_tokens": 90, "constraint/in_place_responses": 9}
    assert {name: metrics.MEANS[name].weight(state) for name in BY_HAND} == BY_HAND


def test_a_mean_over_nothing_is_that_of_the_other_parts() -> None:
    unknown = part(4, {}, kl_ref__k3=math.nan, memory_gb__refine=0)
    known = part(4, {0: 1}, kl_ref__k3=0.25, refiner__reward_gain=3, memory_gb__refine=3)
    known.counts["kl_ref/k3"] = 8
    step = metrics.of_step([unknown, known])
    assert (step["kl_ref/k3"], step["memory_gb/refine"], step["refiner/reward_gain"]) == (0.25, 3, 3)
    assert "constraint/divergence" not in step, "no mini-batch has measured it"
    assert math.isnan(metrics.of_step([unknown, unknown])["kl_ref/k3"])
    fullest = metrics.of_step([part(1, {}, memory_gb__refine=gb) for gb in (3, 5, 4)])
    assert fullest["memory_gb/refine"] == 5, "a device is not fuller for being looked at three times"
    by_verl = [part(4, {}, kl_ref__k3=value) for value in (0.1, 0.3)]
    assert metrics.of_step(by_verl)["kl_ref/k3"] == pytest.approx(0.2), "verl's own worker counts no tokens of ours"


def test_refinements_are_told_of_by_source() -> None:
    """A source weighs by its rollouts in a mini-batch; rows that were lost with a worker are of none."""

    def part_of(**verdicts: list[Verdict]) -> StepState:
        pairs = [
            Pair(reward=0.0, source=source.replace("__", "/"), verdict=verdict)
            for source, several in verdicts.items()
            for verdict in several
        ]
        state = StepState(pairs=dict(enumerate([*pairs, Pair(reward=0.0, verdict=Verdict.WORKER)])))
        state.metrics = {**metrics.refine_metrics(state), "refiner/num_rollouts": len(state.pairs)}
        return state

    good, bad, solved = Verdict.ACCEPTED, Verdict.TIMEOUT, Verdict.MAX_REWARD
    first = part_of(a__b=[good, bad, bad, solved], c=[good])
    assert {name: value for name, value in first.metrics.items() if name.startswith(metric_names.OF_SOURCES)} == {
        "refiner/source_improvement_ratio/a/b": 0.25,
        "refiner/source_failed_ratio/a/b": 0.5,
        "refiner/source_improvement_ratio/c": 1.0,
        "refiner/source_failed_ratio/c": 0.0,
    }
    step = metrics.of_step([first, part_of(a__b=[good, good])])
    assert step["refiner/source_improvement_ratio/a/b"] == 3 / 6 and step["refiner/source_failed_ratio/a/b"] == 2 / 6
    assert step["refiner/source_improvement_ratio/c"] == 1.0


def test_every_tracker_takes_the_names() -> None:
    """MLflow's pattern; and on disk each of its metrics is a file, so that no name may be another one's folder."""
    names = {*metric_names.MEANING, *metrics.OF_CONSTRAINTS}
    names |= {f"{prefix}gsm8k" for prefix in (*metric_names.OF_SOURCES, metric_names.EXTRA)}
    assert all(re.fullmatch(r"[/\w.\- :]+", name) for name in names)
    assert not [name for name in names if any(other.startswith(f"{name}/") for other in names)]


NAME = re.compile("(?:refiner|constraint|tokens|reward|kl_ref|memory_gb|timing_s)/[a-z0-9_/]*[a-z0-9]")
REPOSITORY = Path(__file__).parents[3]


def names_in(path: Path) -> list[str]:
    """Return the texts in a file that look like the name of a metric of this extension."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [one.value for one in nodes if isinstance(one, ast.Constant) and NAME.fullmatch(str(one.value))]


def test_the_name_of_a_metric_is_written_once() -> None:
    """What writes a metric and what reads it share one constant: a misspelt name would be another metric."""
    paths = [path for top in ("recipe", "experiments", "examples") for path in (REPOSITORY / top).rglob("*.py")]
    times = Counter(name for path in paths for name in names_in(path))
    ours = metric_names.MEANING.keys() | metrics.OF_CONSTRAINTS.keys()
    assert {name: number for name, number in times.items() if number > 1 and name in ours} == {}
    assert times["constraint/eta"] == times["constraint/in_place_charge"] == times["constraint/soft_share"] == 1


@pytest.fixture
def state() -> StepState:
    """Return a step: one refinement accepted, one cut, one repeated, one rollout that needs none."""
    accepted = {"verdict": Verdict.ACCEPTED, "is_used": True, "refined_reward": 1.0, "num_refined_tokens": 3}
    accepted |= {"num_generated_tokens": 3, "num_prompt_tokens": 9, "edit_distance": 1, "num_compared_tokens": 2}
    accepted |= {"latency_s": 1.0, "num_retries": 2}
    repeated = {"verdict": Verdict.NOT_BETTER, "refined_reward": 0.2, "num_refined_tokens": 4, "is_repeated": True}
    repeated |= {"num_generated_tokens": 4, "num_prompt_tokens": 9, "edit_distance": 0, "num_kept_tokens": 2}
    repeated |= {"latency_s": 3.0, "num_retries": 1}
    cut = {"verdict": Verdict.TRUNCATED, "num_generated_tokens": 16, "num_prompt_tokens": 9}
    pairs = [Pair(reward=-0.3, **accepted), Pair(reward=-0.6, **cut), Pair(reward=0.2, **repeated)]
    solved = Pair(reward=1.0, verdict=Verdict.MAX_REWARD)
    return StepState(step=3, pairs=dict(zip((0, 1, 2, 4), [*pairs, solved], strict=True)))


def test_refine_metrics_by_hand(state: StepState) -> None:
    values = metrics.refine_metrics(state)
    assert {name: value for name, value in values.items() if value} == {
        "refiner/num_attempted": 3,
        "refiner/num_accepted": 1,
        "refiner/improvement_ratio": 0.25,
        "refiner/repeated_ratio": pytest.approx(1 / 3),
        "refiner/reward_gain": pytest.approx(1.3),
        "refiner/edit_distance": 0.5,
        "refiner/skipped/max_reward": 1,
        "refiner/failed/truncated": 1,
        "tokens/refine_prompt": 27,
        "tokens/refine": 23,
        "tokens/refine_kept": 2,
        "refiner/latency_p50_s": 2.0,
        "refiner/latency_p95_s": pytest.approx(2.9),
        "refiner/num_retries": 3,
    }
    assert set(values) <= set(metric_names.MEANING)
    state.pairs[2].is_used = True
    assert metrics.refine_metrics(state) == values, "without the gate the ratio is the same"


def test_what_one_refinement_each_would_have_brought(state: StepState) -> None:
    for row, num_better in ((0, 3), (1, 0), (2, 0)):
        state.pairs[row].num_samples, state.pairs[row].num_better = 4, num_better
    values = metrics.refine_metrics(state)
    assert values["refiner/improvement_ratio_at_1"] == 3 / 4 / 4 < values["refiner/improvement_ratio"] == 1 / 4


def test_constraint_metrics_by_hand(state: StepState) -> None:
    state.pairs[0].nll, state.pairs[0].divergence, state.pairs[2].nll = 6.0, 5.0, 2.0
    common = {
        "constraint/divergence": 1.25,  # 5 nats, four rollouts
        "constraint/divergence_per_token": 0.625,  # 5 nats on two tokens, four rollouts
        "constraint/cross_entropy_accepted": 2.0,
    }
    assert metrics.constraint_metrics(state, is_due=True) == {
        **common,
        "constraint/cross_entropy_all": pytest.approx(8 / 7),
        "tokens/refine_log_prob": 7,
    }
    state.pairs[2].nll = None
    assert metrics.constraint_metrics(state, is_due=False) == {**common, "tokens/refine_log_prob": 3}
    assert metrics.constraint_metrics(StepState(), is_due=True) == {
        "constraint/divergence": 0.0,
        "constraint/divergence_per_token": 0.0,
        "tokens/refine_log_prob": 0,
    }


def test_a_mean_over_nothing_is_absent(state: StepState) -> None:
    """A 0 would be read as a divergence, a gain or a speed of 0."""
    found = metrics.refine_metrics(StepState(pairs={0: state.pairs[4]}))  # nothing is attempted
    ratios = {"refiner/improvement_ratio", "refiner/improvement_ratio_at_1"}
    assert found.keys() & metrics.MEANS.keys() == ratios
    assert found["refiner/improvement_ratio"] == 0.0, "of one rollout none"
    found = metrics.refine_metrics(StepState(pairs={0: state.pairs[1]}))  # one is attempted and cut
    assert found.keys() & metrics.MEANS.keys() == ratios | {"refiner/repeated_ratio"}
    assert metrics.refine_metrics(StepState()).keys() & metrics.MEANS.keys() == set()
    assert {*metrics.zeros()} == {*metric_names.COUNTS}


@pytest.mark.parametrize(
    ("overrides", "step", "measures"),
    [
        (["constraint.mode=sft"], 1, True),
        (["constraint.mode=sft"], 2, False),
        (["constraint.mode=penalty"], 2, True),
        (["constraint.target=in_place", "constraint.mode=sft"], 2, True),
    ],
)
def test_which_means_a_mode_measures(overrides: list[str], step: int, measures: bool) -> None:
    """No refinement is scored here, so that D is 0 where it is measured, and no cross-entropy has a mean."""
    config = composed(*overrides)
    stages = Stages(config, load(config), None)  # type: ignore[arg-type]  # no workers are asked
    state = StepState(step=step, pairs={0: Pair(reward=0.0)}, metrics=metrics.zeros())
    batch = KVBatchMeta(keys=["a_0_0"], tags=[{}], partition_id="train")
    stages.score_with_actor(batch, state, None)
    found = state.metrics.keys() & metrics.MEANS.keys()
    names = {"constraint/divergence", "constraint/divergence_per_token"} if measures else set()
    assert found == {"constraint/eta", *names} and not any(state.metrics[name] for name in names)
    assert stages.charges.charge_rewards(batch, state) is None
    pays = load(config).constraint.penalty is not None
    assert ("constraint/penalty" in state.metrics) is pays and not state.metrics.get("constraint/penalty")


@pytest.mark.parametrize("per_prompt", [{}, {"a": 3}, {"a": 3, "b": 5}])
def test_rollouts_that_are_lost(per_prompt: dict[str, int]) -> None:
    """Prompt c has none left; of the others one is lost each, whatever number of them the data set asks for."""
    config = composed("data.train_batch_size=3", "actor_rollout_ref.rollout.n=4")
    stages = Stages(config, load(config), None)  # type: ignore[arg-type]  # no workers are asked
    stages.num_sessions = per_prompt
    wanted = {"a": 4, "b": 4, **per_prompt}
    keys = [f"{uid}_{session}_0" for uid, number in wanted.items() for session in range(number - 1)]
    batch = KVBatchMeta(keys=keys, tags=[{}] * len(keys), partition_id="train")
    assert stages.num_wanted(batch, StepState()) == sum(wanted.values()) + 4 == len(keys) + 2 + 4


def test_reward_metrics_by_hand() -> None:
    rewards = {"a_0_0": 1.0, "a_1_0": 0.0, "b_0_0": 0.5, "b_1_0": 0.5}
    values = metrics.reward_metrics(rewards, {})
    of_groups = {"reward/group_std": 0.25, "reward/zero_std_groups": 0.5, "reward/num_groups": 2}
    assert values == {"reward/mean": 0.5, "reward/num_responses": 4, **of_groups}

    # Three groups more, of two responses each, were filtered: two all right, one all wrong.
    values = metrics.reward_metrics(rewards, {1.0: 2, -1.0: 1})
    assert values["reward/mean"] == pytest.approx((2 * 0.5 + 2 * 1.0 - 1.0) / 5)
    assert (values["reward/group_std"], values["reward/num_responses"], values["reward/num_groups"]) == (0.25, 10, 2)

    # 64 groups of mean 0.1 are kept, 30 of the same kind are beyond the batch, 100 dead ones are filtered.
    kept = {f"{group}_{session}_0": float(session) / 5 for group in range(64) for session in range(2)}
    values = metrics.reward_metrics(kept, {-0.6: 100}, 30)
    assert values["reward/mean"] == pytest.approx((94 * 0.1 - 100 * 0.6) / 194) == pytest.approx(-0.2608, abs=1e-4)
    assert metrics.reward_metrics(rewards, {}, 7)["reward/mean"] == 0.5


def test_surplus_has_verls_name() -> None:
    rules = MetricsAggregator().aggregation_rules
    assert metric_names.DISCARDED in rules["sum"]


def test_numbers_beside_the_reward_are_averaged() -> None:
    said = [{"num_passed": 1, "outcome": "pass"}, {"num_passed": 2.0, "solved": True, "s": math.nan}, {}]
    assert metrics.extra_metrics(said) == {"reward/extra/num_passed": 1.5, "reward/extra/solved": 1.0}
    for bad in ("7", None, [1.0], math.inf, 10**400, 1j, torch.ones(2), np.array(["7"])):
        assert metrics.extra_metrics([{"x": 1.0, "y": 2}, {"x": bad, "y": 4}]) == {"reward/extra/y": 3.0}, bad
    parts = [part(6, {}, reward__extra__x=1.0), part(2, {}, reward__extra__x=3.0), part(9, {})]
    for state, num_saying in zip(parts[:2], (1, 2), strict=True):
        state.counts |= metrics.num_saying([{"x": 0}] * num_saying + [{}] * 4)
    assert metrics.of_step(parts[:2])["reward/extra/x"] == (1 * 1.0 + 2 * 3.0) / 3, "only some responses have it"
    assert metrics.of_step(parts)["reward/extra/x"] == (1 * 1.0 + 2 * 3.0) / 3, "no response of the last has it"
    parts[2].counts |= metrics.num_saying([{"x": math.nan}])
    assert "reward/extra/x" not in metrics.of_step(parts), "one that a part has left out is not the step's"


def test_verls_own_numbers_on_long_responses_are_averaged() -> None:
    """Verl's reward manager ``dapo`` says 0-dim tensors of long responses, and plain numbers of others."""
    said = [(0, False), (torch.tensor(-0.2), torch.tensor(True)), (np.float32(-1.0), np.bool_(True)), (-0.8, 1), (0, 0)]
    found = metrics.extra_metrics([{"overlong_reward": one, "overlong": is_long} for one, is_long in said])
    assert found["reward/extra/overlong_reward"] == pytest.approx(-0.4)
    assert found["reward/extra/overlong"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((one, 1.0) for one in (1, True, 1.0, np.int8(1), np.bool_(True), np.float32(1), np.array(1), np.array(True))),
        *((one, 1.0) for one in (torch.tensor(1), torch.tensor(True), torch.tensor(1.0, dtype=torch.bfloat16))),
        *((one, 0.5) for one in (Decimal("0.5"), Fraction(1, 2))),
        *((one, None) for one in (None, "1", b"1", [1], {}, {1}, object(), math.nan, -math.inf, 10**400, 1j)),
        *((one, None) for one in (np.array([1.0]), np.str_("1"), np.array("1"), np.float16("inf"), np.complex64(1))),
        *((one, None) for one in (torch.tensor([1.0]), torch.tensor(math.nan), torch.tensor(1j))),
        *((one, None) for one in (Decimal("NaN"), Decimal("sNaN"), Decimal("1e999"), np.datetime64("2020-01-01"))),
    ],
)
def test_what_is_a_number(value: object, expected: float | None) -> None:
    assert as_number(value) == expected


def test_kl_by_hand() -> None:
    # d = log 2 and d = -log 2: k3 = 2 - 1 - log 2 and 0.5 - 1 + log 2; their mean is 0.25.
    log_probs = torch.tensor([[-1.0, -1.0, -7.0]])
    reference = log_probs + torch.tensor([[0.6931471806, -0.6931471806, 5.0]])
    mask = torch.tensor([[1, 1, 0]])
    assert metrics.kl_to_reference(log_probs=log_probs, ref_log_probs=reference, response_mask=mask) == pytest.approx(
        0.25, abs=1e-6
    )
    nothing = torch.zeros_like(mask)
    assert math.isnan(metrics.kl_to_reference(log_probs=log_probs, ref_log_probs=reference, response_mask=nothing))


def step(attempted: int, truncated: int, **others: float) -> dict[str, float]:
    names = ("refiner/skipped/max_reward", "refiner/num_own", "reward/zero_std_groups")
    ours = {"refiner/num_attempted": attempted, "refiner/failed/truncated": truncated}
    return {**dict.fromkeys(names, 0.0), **ours, **others}


def told(steps: list[dict[str, float]], *overrides: str) -> list[str]:
    """Return what a run of these metrics says at its end."""
    config = flat(OmegaConf.to_container(composed(*overrides)))
    numbered = [{"step": number, **one} for number, one in enumerate(steps, start=1)]
    return advice(Arm(name="run", runs=[Run(path="run", config=config, steps=numbered)]))


def test_truncated_refinements_are_told_of() -> None:
    assert told([step(8, 0), step(0, 0), step(2, 2)]) == told([]) == told([step(0, 0)]) == []
    (line,) = told([step(8, 0), step(0, 0), step(2, 3)])
    assert "Cut refinements: 30%" in line and "refiner.response_length" in line and "refiner.template" in line


FILTER = "+algorithm.filter_groups={enable: true, metric: reward}"
RESCUE = "constraint.rescue_dead_groups=true"
MOST = "refiner.skip_reward_at_least=1.0"


@pytest.mark.parametrize(
    ("overrides", "later", "keys"),
    [
        ([], {}, []),
        ([MOST], {}, [MOST]),
        ([MOST], {"refiner/skipped/max_reward": 1.0}, []),
        ([MOST, "constraint.imitate_solved=true"], {"refiner/num_own": 1.0}, []),
        ([FILTER], {}, ["filter_groups.metric=reward"]),
        ([FILTER], {"training/filter_groups/evicted_samples": 3.0}, []),
        ([FILTER, RESCUE], {}, ["filter_groups.metric=reward"]),
        ([RESCUE], {}, ["rescue_dead_groups"]),
        ([RESCUE], {"reward/zero_std_groups": 0.25}, []),
        (["+algorithm.filter_groups={enable: true, metric: acc}"], {}, []),
        (["+algorithm.filter_groups={enable: false, metric: reward}"], {}, []),
        ([FILTER, RESCUE, MOST], {}, [MOST, "filter_groups.metric=reward"]),
    ],
)
def test_a_shaped_reward_is_told_of(overrides: list[str], later: dict[str, float], keys: list[str]) -> None:
    """No reward reaches the maximum, and no group's rewards are ever equal: what waits for that never acts."""
    lines = told([step(8, 0), step(8, 0, **later)], *overrides)
    assert len(lines) == len(keys) and all(key in line for key, line in zip(keys, lines, strict=True))


@pytest.mark.parametrize(("eta", "expected"), [(0.1, {"b"}), (0.0, set())])
def test_dead_groups_with_a_better_refinement_are_rescued(eta: float, expected: set[str]) -> None:
    """Group a has two rewards, b has one and a better refinement, c none of those, d is alone."""
    config = composed("constraint.rescue_dead_groups=true", "actor_rollout_ref.rollout.n=2")
    rows = {"a_0_0": -1.0, "a_1_0": 0.0, "b_0_0": -1.0, "b_1_0": -1.0, "c_0_0": 0.5, "c_1_0": 0.5, "d_0_0": -1.0}
    verdict = {key: Verdict.ACCEPTED if key in ("a_0_0", "b_1_0", "d_0_0") else Verdict.NOT_BETTER for key in rows}
    pairs = {row: Pair(reward=reward, verdict=verdict[key]) for row, (key, reward) in enumerate(rows.items())}
    assert StepState(pairs=pairs, eta=eta, keys=[*rows]).rescued(load(config).constraint) == expected


def test_a_response_in_place_pays_also_where_its_charges_cancel() -> None:
    config = composed("constraint.target=in_place")
    pairs = {row: Pair(reward=0.0, own={"is_scored": row == 1}) for row in range(2)}
    penalty = load(config).constraint.penalty
    assert penalty is not None and [penalty.is_charged(pair) for pair in pairs.values()] == [False, True]
    state = StepState(pairs=pairs, charged={1: Divergence(0.0, 3)}, eta=0.1, keys=["a_0_0", "a_1_0"])
    assert state.paying(load(config).constraint, "advantages") == [1]
    assert state.paying(load(config).constraint, None) == [], "a mode without a penalty"
    state.eta = 0.0
    assert state.paying(load(config).constraint, "advantages") == [], "0 times a charge that is infinite is no number"


def test_sleeping_shared_servers_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not refined during the rollout stays so: the worker, here None, would wait for a server that sleeps."""
    config = composed("constraint.mode=penalty", "refiner.placement=shared", "actor_rollout_ref.model.lora_rank=8")
    written: dict[str, dict] = {}
    monkeypatch.setattr("transfer_queue.kv_batch_put", lambda keys, tags, **_: written.update({keys[0]: tags[0]}))
    monkeypatch.setattr("transfer_queue.kv_list", lambda _: {"train": written})
    refined = with_pair({}, Pair(reward=0.0, verdict=Verdict.ACCEPTED, started_at=time.time() + 60))
    batch = KVBatchMeta(keys=["a_0_0", "a_1_0"], tags=[refined, {"response_len": 2}], partition_id="train")
    state = StepState(pairs={row: Pair(reward=-1.0) for row in range(2)}, metrics=metrics.zeros())
    recorded = SimpleNamespace(record=lambda *_: None)
    Stages(config, load(config), recorded).refine(batch, state, None, 64)  # type: ignore[arg-type]
    assert [*written] == ["a_1_0"]
    assert {row: pair.verdict for row, pair in state.pairs.items()} == {0: Verdict.ACCEPTED, 1: Verdict.WORKER}
    assert state.pairs[1].reward == -1.0


def test_a_stage_counts_a_wait_from_its_begin() -> None:
    placed = ("constraint.mode=penalty", "refiner.placement=dedicated", "refiner.n_gpus_per_node=1")
    config, began_at = composed(*placed), time.time()
    pair = Pair(reward=0.0, verdict=Verdict.ACCEPTED, started_at=began_at + 60, refined_at=began_at + 64)
    batch = KVBatchMeta(keys=["a_0_0"], tags=[with_pair({}, pair)], partition_id="train")
    idle = SimpleNamespace(record=lambda *_: None, refine=lambda *_: [])
    stages = Stages(config, load(config), idle)  # type: ignore[arg-type]
    stages._began_at = began_at
    for starts, waited_s in ((0, 4.0), (61, 3.0), (200, 0.0)):
        state = StepState(pairs={0: Pair(reward=0.0)}, metrics=metrics.zeros(), started_at=began_at + starts)
        stages.refine(batch, state, None, 64)  # type: ignore[arg-type]  # all are refined
        assert state.metrics["timing_s/wait_refiner"] == pytest.approx(waited_s)


def test_a_stage_counts_groups_beyond_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group of mean 0.5 is kept and three more are thrown away; four dead ones of -1 are filtered."""
    config = composed(FILTER, "actor_rollout_ref.rollout.n=2", "data.train_batch_size=1")
    monkeypatch.setattr("recipe.online_refiner.verl_glue.rows.read_rewards", lambda _: [0.0, 1.0])
    tags = [{"seq_len": 4, "response_len": 2}] * 2
    batch = KVBatchMeta(keys=["a_0_0", "a_1_0"], tags=tags, partition_id="train")
    state = StepState(
        metrics={DAPO_FILTERED_REWARD_COUNTS_KEY: {-1.0: 1}, metric_names.DISCARDED: 3}, filtered={-1.0: 3}
    )
    workers = SimpleNamespace(numbers=lambda _: [{"x": 1}, {"x": 2}])
    Stages(config, load(config), workers).see_rollouts(batch, state)  # type: ignore[arg-type]
    assert state.metrics["reward/mean"] == pytest.approx((4 * 0.5 - 4 * 1.0) / 8)
    assert (state.metrics["reward/num_responses"], state.counts) == (2 * 8, {"reward/extra/x": 2})
    assert (state.metrics["reward/num_lost"], state.metrics["reward/extra/x"]) == (0, 1.5)
    assert state.metrics.keys() & metrics.MEANS.keys() == {name for name in metrics.MEANS if name[:7] == "reward/"}
