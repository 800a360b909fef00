"""What a step's rows hold in the end: the driver's stages, verl's own hooks between them, and the actor's worker.

Rewards, advantages and charges are compared with plain Python. The queue is verl's, in this process.
"""

from collections.abc import Callable, Iterator, Mapping

import own_queue
import pytest
from played_actor import log_probs
from played_step import (
    ETA,
    KEYS,
    MASKS,
    NUM_COMPARED,
    NUM_KEPT,
    PROMPTS,
    REFINED,
    RESPONSES,
    REWARDS,
    STARTS,
    USED,
    at_temperature,
    charged,
    step,
)
from torch import Tensor

from recipe.online_refiner.method.modes import Penalty
from recipe.online_refiner.method.pairs import Pair
from recipe.online_refiner.method.penalty import PenaltyPart
from refiner_worker.client import RunEndedError


@pytest.fixture(scope="module", autouse=True)
def queue() -> Iterator[None]:
    with own_queue.serving():
        yield


def own_advantage(row: int, rewards: list[float]) -> float:
    """Return a reward less its group's mean."""
    return rewards[row] - sum(rewards[row // 2 * 2 :][:2]) / 2


def same(found: dict[str, list[float]], expected: list[list[float]]) -> None:
    """Compare a column with what is expected of the rows, where the policy wrote."""
    for key, mask, numbers in zip(KEYS, MASKS, expected, strict=True):
        own, theirs = ([n for n, m in zip(row, mask, strict=True) if m] for row in (found[key], numbers))
        assert own == pytest.approx(theirs, abs=1e-6), key


def rewards_are_the_tasks(column: Callable[[str], dict[str, list[float]]], rewards: list[float] = REWARDS) -> None:
    """Look whether the penalty is out of the rewards again."""
    same(column("rm_scores"), [[0.0] * (len(ids) - 1) + [r] for ids, r in zip(RESPONSES, rewards, strict=True)])


ROWS = range(4)


def test_a_response_pays_for_what_is_rewritten() -> None:
    trainer, column = step("constraint.mode=penalty")
    expected = [
        [own_advantage(row, REWARDS) + ETA * sum(charged(row)[t:]) * (t >= STARTS[row] + NUM_KEPT[row]) for t in places]
        for row, places in ((row, range(len(RESPONSES[row]))) for row in ROWS)
    ]
    same(column("advantages"), expected)
    rewards_are_the_tasks(column)
    costs = [-sum(charged(row)) for row in ROWS]
    found = trainer.state.metrics
    assert found["constraint/divergence"] == pytest.approx(sum(costs) / 4)
    per_token = sum(cost / max(1, n) for cost, n in zip(costs, NUM_COMPARED, strict=True)) / 4
    assert found["constraint/divergence_per_token"] == pytest.approx(per_token)
    assert found["constraint/penalty"] == pytest.approx(-ETA * sum(costs) / 16)
    assert (found["tokens/rollout"], found["refiner/num_rollouts"], found["constraint/eta"]) == (16, 4, ETA)
    assert found["tokens/refine_log_prob"] == sum(map(len, REFINED)) - len(REFINED[2]), "of used refinements"
    assert found["reward/extra/solved"] == 1.5, "padding has said nothing"
    assert sorted(trainer.workers.recorded) == KEYS
    assert not {"refine_eta", "refine_normaliser"} & set(trainer.actor_rollout_wg.settings)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_cost_per_token_is_in_the_reward_only_while_advantages_are_made(num_ranks: int) -> None:
    _, column = step("constraint.mode=penalty", "constraint.credit=in_reward", num_ranks=num_ranks)
    paid = [REWARDS[row] + ETA * sum(charged(row)) / max(1, NUM_COMPARED[row]) for row in ROWS]
    same(column("advantages"), [[own_advantage(row, paid)] * len(RESPONSES[row]) for row in ROWS])
    rewards_are_the_tasks(column)


def test_the_whole_turn_answers_for_all_of_it() -> None:
    trainer, column = step("constraint.mode=lagrangian", "constraint.sft_normaliser=batch")
    expected = [
        [own_advantage(row, REWARDS) + ETA * sum(charged(row)) * (t >= STARTS[row]) for t in range(len(RESPONSES[row]))]
        for row in ROWS
    ]
    same(column("advantages"), expected)
    settings = trainer.actor_rollout_wg.settings
    assert (settings["refine_eta"], settings["refine_normaliser"]) == (ETA, "batch")


@pytest.mark.parametrize(("mode", "is_at_end"), [("penalty", False), ("lagrangian", True)])
def test_a_critic_sees_the_penalty_in_the_rewards(mode: str, is_at_end: bool) -> None:
    """Without discount, and with values of 0, the returns are sums of the remaining rewards."""
    values = [[0.0] * len(ids) for ids in RESPONSES]
    _, column = step(f"constraint.mode={mode}", "algorithm.adv_estimator=gae", values=values)
    expected = []
    for row in ROWS:
        costs = charged(row)
        paid = [*costs[:-1], costs[-1]] if not is_at_end else [0.0] * (len(costs) - 1) + [sum(costs)]
        expected.append([REWARDS[row] + ETA * sum(paid[t:]) for t in range(len(paid))])
    same(column("returns"), expected)
    rewards_are_the_tasks(column)


def test_where_eta_is_0_rewards_and_advantages_are_verls() -> None:
    for credit in ("return_to_go", "in_reward"):
        trainer, column = step("constraint.mode=penalty", f"constraint.credit={credit}", "constraint.eta=0")
        same(column("advantages"), [[own_advantage(row, REWARDS)] * len(RESPONSES[row]) for row in ROWS])
        assert trainer.state.metrics["constraint/divergence"] > 0, "it is measured"


def test_the_loss_is_told_what_to_add() -> None:
    trainer, column = step("constraint.mode=sft", "constraint.sft_normaliser=accepted")
    settings = trainer.actor_rollout_wg.settings
    assert (settings["refine_eta"], settings["refine_normaliser"]) == (ETA, "accepted")
    assert settings["only_responses"], "of prompts nobody asks"
    assert "compute_refine_log_prob" not in trainer.actor_rollout_wg.asked, "the update computes it itself"
    same(column("advantages"), [[own_advantage(row, REWARDS)] * len(RESPONSES[row]) for row in ROWS])
    own = step("constraint.mode=sft", "constraint.eta=0")[0].actor_rollout_wg.settings
    assert not {"refine_eta", "only_responses"} & set(own)


def test_log_probs_of_refinements_that_are_not_better_are_measured_where_they_are_due() -> None:
    for every, num_tokens in ((1, 13), (2, 0), (0, 0)):
        trainer, _ = step("constraint.mode=sft", f"measure.cross_entropy_all_every={every}")
        found = trainer.state.metrics
        assert found["tokens/refine_log_prob"] == num_tokens
        if num_tokens:
            nll = [
                -sum(at_temperature(log_probs(PROMPTS[row] + RESPONSES[row][: STARTS[row]], REFINED[row])))
                for row in ROWS
            ]
            assert found["constraint/cross_entropy_all"] == pytest.approx(sum(nll) / 13)
            accepted = sum(one for one, used in zip(nll, USED, strict=True) if used)
            assert found["constraint/cross_entropy_accepted"] == pytest.approx(accepted / 11)


IN_PLACE_PROMPT = [8, 9]
REFERENCE = [[at * -0.125 for at in range(len(ids))] for ids in RESPONSES]
"""log pi_0 of the turns given the better answer."""


@pytest.mark.parametrize("is_shared", [False, True])
def test_in_place_the_last_turn_pays_for_its_own_tokens(is_shared: bool) -> None:
    """The charge uses log-probs of the refiner, or with placement ``shared`` of the actor without its adapter."""
    shared = ["refiner.placement=shared", "actor_rollout_ref.model.lora_rank=8"] if is_shared else []
    trainer, column = step(
        "constraint.mode=penalty",
        "constraint.target=in_place",
        "actor_rollout_ref.rollout.temperature=1",
        *shared,
        refine_in_place=[[0.0] * len(ids) for ids in RESPONSES] if is_shared else REFERENCE,
        refine_in_place_prompt=[IN_PLACE_PROMPT] * 4,
        of_pairs={"own": [{"is_scored": is_used} for is_used in USED]},
    )
    expected, costs, per_token = [], [], []
    for row, (prompt, start, ids) in enumerate(zip(PROMPTS, STARTS, RESPONSES, strict=True)):
        theirs, ours = REFERENCE[row][start:], log_probs(prompt + ids[:start], ids[start:])
        if is_shared:
            theirs = log_probs(IN_PLACE_PROMPT, ids[start:], is_reference=True)
        differences = [there - here for there, here in zip(theirs, ours, strict=True)]
        charges = [0.0] * start + [one * USED[row] for one in differences]
        costs.append(-sum(charges))
        per_token.append(costs[-1] / len(ids[start:]))
        expected.append([own_advantage(row, REWARDS) + ETA * one for one in charges])
    same(column("advantages"), expected)
    assert trainer.state.metrics["constraint/divergence"] == pytest.approx(sum(costs) / 4)
    assert trainer.state.metrics["constraint/divergence_per_token"] == pytest.approx(sum(per_token) / 4)
    assert trainer.state.metrics["constraint/in_place_responses"] == 3


@pytest.mark.parametrize("placement", ["colocated", "shared"])
def test_a_charge_of_ones_own_asks_the_reference_for_nothing(monkeypatch: pytest.MonkeyPatch, placement: str) -> None:
    """It may use the policy's log-probs of a and a', which are padded with 0, as the pass over a' is before it."""

    class Own(PenaltyPart):
        needs_log_probs = True
        reads = ("old_log_probs", "refine_log_probs", "refine_mask")

        def is_charged(self, pair: Pair) -> bool:
            return pair.is_used

        def charge(self, data: Mapping[str, Tensor], turn: Tensor) -> Tensor:
            assert data["refine_log_probs"].shape == data["refine_mask"].shape
            return data["old_log_probs"] * turn + data["refine_log_probs"].sum(-1, keepdim=True) * turn

    monkeypatch.setattr(Penalty, "penalty", Own())
    shared = ["refiner.placement=shared", "actor_rollout_ref.model.lora_rank=8"] if placement == "shared" else []
    trainer, _ = step("constraint.mode=penalty", "actor_rollout_ref.rollout.temperature=1", *shared)
    assert "compute_in_place_log_prob" not in trainer.actor_rollout_wg.asked
    costs = [0.0] * 4
    for row in filter(USED.__getitem__, ROWS):
        context, ids = PROMPTS[row] + RESPONSES[row][: STARTS[row]], RESPONSES[row][STARTS[row] :]
        whole = sum(log_probs(context, REFINED[row]))
        costs[row] = -sum(one + whole for one in log_probs(context, ids))
    assert trainer.state.metrics["constraint/divergence"] == pytest.approx(sum(costs) / 4)
    by_eq6 = [-sum(charged(row)) * 0.5 for row in ROWS]  # at temperature 1
    assert [pair.divergence for pair in trainer.state.pairs.values()] == pytest.approx(by_eq6), "it stays D of Eq. 6"


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        ((), "Own.charge reads a column that is not in .*Own.reads=.*old_log_probs"),
        (("refine_mine",), "rows of the TransferQueue lack the fields .'refine_mine'.; .* columns has to return them"),
    ],
)
def test_a_column_that_is_not_asked_for_or_not_written(
    reads: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(PenaltyPart):
        def is_charged(self, pair: Pair) -> bool:
            return pair.is_used

        def charge(self, data: Mapping[str, Tensor], turn_mask: Tensor) -> Tensor:
            return data["old_log_probs"] * turn_mask

    monkeypatch.setattr(Own, "reads", reads)
    monkeypatch.setattr(Penalty, "penalty", Own())
    with pytest.raises(RunEndedError, match=said):
        step("constraint.mode=penalty")


def test_a_key_that_is_no_columns_stays_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(PenaltyPart):
        def is_charged(self, pair: Pair) -> bool:
            return pair.is_used

        def charge(self, data: Mapping[str, Tensor], turn_mask: Tensor) -> Tensor:
            return turn_mask * {"a": 1}["b"]

    monkeypatch.setattr(Penalty, "penalty", Own())
    with pytest.raises(KeyError, match="b"):
        step("constraint.mode=penalty")


def test_a_rescued_group_has_no_advantages_and_pays_nothing() -> None:
    """Whatever an estimator made of equal rewards: it may divide what is left of them by nearly 0."""
    rewards = [-0.25, -0.25, 0.75, 0.125]
    trainer, column = step("constraint.mode=lagrangian", "constraint.rescue_dead_groups=true", rewards=rewards)
    assert trainer.state.metrics["constraint/num_rescued_groups"] == 1
    assert trainer.state.metrics["constraint/penalty"] == pytest.approx(ETA * sum(charged(3)) / 16)
    others = [[own_advantage(row, rewards) + ETA * sum(charged(row))] * len(RESPONSES[row]) for row in (2, 3)]
    nothing = [[0.0] * len(ids) for ids in RESPONSES[:2]]
    same(column("advantages"), [*nothing, *others])
    own_queue.write(trainer.rows, "advantages", 0.25)
    trainer.stages.charges.charge_advantages(trainer.rows, trainer.state)
    same(column("advantages"), [*nothing, *([0.25 + ETA * sum(charged(row))] * len(RESPONSES[row]) for row in (2, 3))])


SOURCES = ["x", "x", "7", "7"]
REFINED_BY_SOURCE = {"data_source": SOURCES, "of_pairs": {"source": SOURCES}}
BY_SOURCE = "constraint.by_source={x: {eta: 0.2}, 7: {eta: 1.25}}"
ETAS = [0.2, 0.2, 1.25, 1.25]
OTHERS = ["constraint.by_source={x: {eta: 0}}", "constraint.by_source={unknown: {eta: 2}}"]


@pytest.mark.parametrize("mode", ["penalty", "lagrangian"])
@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_a_row_pays_by_the_eta_of_its_data_source(mode: str, estimator: str) -> None:
    values = [[0.0] * len(ids) for ids in RESPONSES]
    own = REFINED_BY_SOURCE | ({"values": values} if estimator == "gae" else {})
    trainer, column = step(f"constraint.mode={mode}", BY_SOURCE, f"algorithm.adv_estimator={estimator}", **own)
    is_whole, expected = mode == "lagrangian", []
    for row, costs in enumerate(map(charged, ROWS)):
        places, last = range(len(costs)), [0.0] * (len(costs) - 1) + [sum(costs)]
        paid = last if is_whole else costs
        if estimator == "gae":
            expected.append([REWARDS[row] + ETAS[row] * sum(paid[t:]) for t in places])
            continue
        begin = STARTS[row] + (0 if is_whole else NUM_KEPT[row])
        since = [sum(costs) if is_whole else sum(costs[t:]) for t in places]
        expected.append([own_advantage(row, REWARDS) + ETAS[row] * since[t] * (t >= begin) for t in places])
    same(column("advantages" if estimator == "grpo" else "returns"), expected)
    rewards_are_the_tasks(column)
    found = trainer.state.metrics
    assert found["constraint/penalty"] == pytest.approx(sum(ETAS[row] * sum(charged(row)) for row in ROWS) / 16)
    assert (found["constraint/eta"], found["constraint/source_eta/x"]) == (ETA, pytest.approx(0.2))
    assert found["constraint/source_eta/7"] == pytest.approx(1.25)
    costs = [-sum(charged(row)) for row in ROWS]
    assert found["constraint/divergence"] == pytest.approx(sum(costs) / 4), "D has no weight"
    told = trainer.workers.tokens
    assert {key: one["eta"] for key, one in told.items()} == pytest.approx(dict(zip(KEYS, ETAS, strict=True)))


def test_a_cost_in_the_reward_is_weighed_by_the_data_source_and_others_have_the_common_eta() -> None:
    """The rows come from the checkpoint of a run without weights by source, so that their tags name none."""
    for own, etas in ((BY_SOURCE, ETAS), (OTHERS[0], [0.0, 0.0, ETA, ETA]), (OTHERS[1], [ETA] * 4)):
        given = ("constraint.mode=penalty", "constraint.credit=in_reward", own)
        _, column = step(*given, data_source=SOURCES)
        paid = [REWARDS[row] + etas[row] * sum(charged(row)) / max(1, NUM_COMPARED[row]) for row in ROWS]
        same(column("advantages"), [[own_advantage(row, paid)] * len(RESPONSES[row]) for row in ROWS])


def test_weights_of_imitated_tokens_are_recorded_beside_the_eta_of_their_source() -> None:
    """The queue has multiples of the common eta."""
    weights = [[float(used) * eta / ETA] * len(ids) for ids, used, eta in zip(REFINED, USED, ETAS, strict=True)]
    trainer, _ = step("constraint.mode=sft", BY_SOURCE, **REFINED_BY_SOURCE, refine_weights=weights)
    for key, one in trainer.workers.tokens.items():
        row = KEYS.index(key)
        assert one["eta"] == pytest.approx(ETAS[row])
        assert one["refined"]["weights"] == (pytest.approx([1.0] * len(REFINED[row])) if USED[row] else None)


def test_every_rank_scores_as_many_rows() -> None:
    """Three refinements on two ranks: two rows each, whatever fills their micro-batches."""
    trainer, _ = step("constraint.mode=penalty", num_ranks=2)
    parts = trainer.actor_rollout_wg.asked["compute_refine_log_prob"]
    assert [len(part) for part in parts] == [2, 2]
    assert {KEYS[row] for row in ROWS if USED[row]} <= {key for part in parts for key in part}
    costs = [-sum(charged(row)) for row in ROWS]
    assert trainer.state.metrics["constraint/divergence"] == pytest.approx(sum(costs) / 4)
