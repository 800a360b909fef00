"""What is recorded of a sample's tokens: the policy's log-probs, what is charged, and what is imitated."""

from collections.abc import Iterator

import own_queue
import pytest
from played_actor import log_probs
from played_step import (
    COUNTERPARTS,
    ETA,
    KEYS,
    PROMPTS,
    REFINED,
    RESPONSES,
    STARTS,
    USED,
    Trainer,
    at_temperature,
    charged,
    refined_rows,
)


@pytest.fixture(scope="module", autouse=True)
def queue() -> Iterator[None]:
    with own_queue.serving():
        yield


def of_refinement(row: int) -> list[float]:
    return at_temperature(log_probs(PROMPTS[row] + RESPONSES[row][: STARTS[row]], REFINED[row]))


def test_the_tokens_of_a_penalised_turn() -> None:
    trainer = Trainer("constraint.mode=penalty")
    trainer.take(refined_rows())
    for row, key in enumerate(KEYS):
        found, start = trainer.workers.tokens[key], STARTS[row]
        response, refined = found["response"], found["refined"]
        assert response["tokens"] == [f"<{token}>" for token in RESPONSES[row][start:]]
        assert response["log_probs"] == pytest.approx(at_temperature(log_probs(PROMPTS[row], RESPONSES[row]))[start:])
        assert refined["tokens"] == [f"<{token}>" for token in REFINED[row]]
        if USED[row]:
            assert refined["log_probs"] == pytest.approx(of_refinement(row))
            assert response["charged"] == pytest.approx(charged(row)[start:])
            assert response["counterparts"] == COUNTERPARTS[row][start:]
        else:
            assert refined["log_probs"] is response["charged"] is response["counterparts"] is None, "not measured"
        assert found["eta"] == ETA
    kept = trainer.workers.tokens[KEYS[0]]
    assert (kept["response"]["kept"], kept["refined"]["kept"]) == ([1, 0, 1], [1, 0, 0, 1])


def test_the_tokens_of_an_imitated_refinement_come_from_the_update() -> None:
    trainer = Trainer("constraint.mode=sft")
    batch = refined_rows()
    numbers = trainer.actor_rollout_wg.seen = {n: [-0.5 * n] * 3 for n in (1, 2, 3, 4)}
    rows = trainer.take(batch)
    column = dict(zip(rows.keys, own_queue.column(rows, "refine_shown"), strict=True))
    assert sorted(column[key] for key in KEYS) == [1, 2, 3, 4] and sum(column.values()) == 10, "padding has no number"
    for row, key in enumerate(KEYS):
        found = trainer.workers.tokens[key]
        assert found["refined"]["log_probs"] == numbers[column[key]]
        assert found["response"]["charged"] is None
        assert (found["refined"]["weights"] is not None) == USED[row]


def test_what_is_measured_and_not_charged_is_not_recorded_as_charged() -> None:
    trainer = Trainer("constraint.mode=sft", "measure.cross_entropy_all_every=1")
    trainer.take(refined_rows())
    assert all(one["response"]["charged"] is None for one in trainer.workers.tokens.values())
    assert trainer.workers.tokens[KEYS[2]]["refined"]["log_probs"] == pytest.approx(of_refinement(2))
