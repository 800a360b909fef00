"""Rows in a real queue: how a worker reads them, and the parts that workers get."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import own_queue
import pytest
import torch
import transfer_queue as tq
from PIL import Image
from played_step import KEYS, PROMPTS, RESPONSES, REWARDS, STARTS, refined_rows
from tensordict import TensorDict
from tiny_vision import vision_tokenizer
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.utils.transferqueue_utils import tqbridge

from recipe.online_refiner.method.pairs import Rollout
from recipe.online_refiner.verl_glue import rows as queue
from recipe.online_refiner.verl_glue.actor_worker import filled
from recipe.online_refiner.verl_glue.loss import PICTURES, pictures_of
from recipe.online_refiner.verl_glue.patches import RewardLoopWorker, split_positions
from recipe.online_refiner.verl_glue.refine_actors import RefineWorker, refuse


@pytest.fixture(scope="module", autouse=True)
def served() -> Iterator[None]:
    with own_queue.serving():
        yield


def test_what_a_worker_reads_of_a_rollout() -> None:
    said = {"reward_extra_info": {"feedback": "a lone \ud83d", "solved": 1}, "tool_rewards": [0.5]}
    of_data = {"raw_prompt": [[{"role": "user"}]] * 4, "ability": ["code"] * 4, "num_turns": [2] * 4}
    pictures = [{"pixel_values": torch.zeros(4, 6)}] * 4
    batch = refined_rows(extra_fields=[said] * 4, kl_ref_log_prob=RESPONSES, multi_modal_inputs=pictures, **of_data)
    found = queue.read_rollouts(batch)
    assert [one.key for one in found] == KEYS
    assert [(one.prompt_ids, one.response_ids, one.start) for one in found] == [
        *zip(PROMPTS, RESPONSES, STARTS, strict=True)
    ]
    assert [one.reward for one in found] == REWARDS
    assert found[0].feedback == "a lone ?"
    assert found[1].reward_columns == {
        "uid": "a",
        "session_id": 1,
        "raw_prompt": [{"role": "user"}],
        "ability": "code",
        "__num_turns__": 2,
        "tool_extra_fields": {"tool_rewards": [0.5]},
    }, "neither the agent loop's columns with the pixels, nor ours, nor the reward's own answer"


def test_a_reward_is_on_the_last_token_and_read_from_all() -> None:
    batch = refined_rows()
    queue.write_rewards(batch, [1.0, 2.0, 3.0, 4.0])
    assert own_queue.column(batch, "rm_scores") == [[0.0] * (len(ids) - 1) + [n + 1] for n, ids in enumerate(RESPONSES)]
    batch = refined_rows(rm_scores=[[0.25] * len(ids) for ids in RESPONSES])  # a loop that rewards its tools, too
    assert queue.read_rewards(batch) == [0.25 * len(ids) for ids in RESPONSES]


def test_a_reward_that_fails_costs_its_own_row() -> None:
    """Where refine workers reward the responses: a reward model sleeps during the rollout."""
    batch = refined_rows(extra_fields=[{}] * 4, raw_prompt=[[{"role": "user"}]] * 4, num_turns=[2] * 4)
    batch.extra_info["temperature"] = 0.5
    errors = {KEYS[1]: ValueError("no number"), KEYS[3]: RuntimeError("it failed")}

    async def score(rollout: Rollout, response_ids: list[int]) -> float:
        if rollout.key in errors:
            raise errors[rollout.key]
        return 7.0

    worker = object.__new__(RefineWorker)
    worker._score = score
    lost = asyncio.run(worker.reward(batch))
    assert lost == [KEYS[1], KEYS[3]]
    left = queue.rows_without(batch, lost)
    assert left.keys == [KEYS[0], KEYS[2]] and left.extra_info == {"temperature": 0.5}
    assert queue.read_rewards(left) == [7.0, 7.0]
    assert not {*lost} & {*tq.kv_list(batch.partition_id)[batch.partition_id]}, "nothing stays in the queue"
    assert queue.rows_without(left, []) is left


def test_a_data_source_is_a_text_or_unknown() -> None:
    assert queue.read_sources(refined_rows(data_source=["x", "x", "7", "7"])) == ["x", "x", "7", "7"]
    assert queue.read_sources(refined_rows()) == [None] * 4


def test_a_reward_worker_tells_numbers_alone() -> None:
    said = {"reward_extra_info": {"feedback": "a text", "solved": True, "share": 0.5}}
    batch = refined_rows(extra_fields=[said, {}, said, said])
    worker = object.__new__(RewardLoopWorker)
    found = asyncio.run(worker.numbers(batch))
    assert found == [{"feedback": None, "solved": 1.0, "share": 0.5}, {}, found[0], found[0]]


def test_a_column_that_a_row_lacks_is_named() -> None:
    batch = refined_rows()
    queue.write_log_probs(batch.select_keys(KEYS[:2]), [[0.0] * len(ids) for ids in RESPONSES[:2]])
    with pytest.raises(RuntimeError, match="kl_ref_log_prob"):
        queue.read(batch, "kl_ref_log_prob")


def test_ranks_get_rows_of_about_equal_length() -> None:
    lengths = [9, 1, 8, 2, 7, 3, 6, 4]
    keys = [f"u_{n}_0" for n in range(8)]
    batch = KVBatchMeta(keys=keys, tags=[{"seq_len": n} for n in lengths], partition_id="train")
    chosen = queue.select(batch, [*range(8)], num_chunks=2, fields=["x"])
    totals = [sum(tag["seq_len"] for tag in part.tags) for part in chosen.chunk(2)]
    assert max(totals) - min(totals) <= 4, "in order of length one rank would have 10 tokens and the other 30"
    assert chosen.fields == ["x"] and sorted(chosen.keys) == keys


def with_picture() -> list[dict[str, Any]]:
    """Return a chat with a picture and a question."""
    parts = [{"type": "image", "image": Image.new("RGB", (8, 8))}, {"type": "text", "text": "What is it?"}]
    return [{"role": "user", "content": parts}]


def session_rows(chat: list[dict[str, Any]], **columns: Any) -> tuple[KVBatchMeta, list[Rollout]]:
    """Return rows that verl has rewarded, and what a worker reads of them."""
    common = {"extra_fields": [{}] * 4, "num_turns": [2] * 4, "metrics": [{"compute_score": 0.1}] * 4}
    batch = refined_rows(raw_prompt=[chat] * 4, **common, **columns)
    return batch, queue.read_rollouts(batch)


def test_pixels_are_not_read_to_refine_prompts_with_pictures() -> None:
    """The rows lack the column: to read it would raise an error."""
    batch, rollouts = session_rows(with_picture())
    one_turn = [row for row, rollout in enumerate(rollouts) if not rollout.start]
    assert one_turn
    refuse(queue.rows_of(batch, one_turn), [rollouts[row] for row in one_turn], is_reward_model_colocated=False)


def test_pictures_in_a_session_of_several_turns_are_refused() -> None:
    batch, rollouts = session_rows(with_picture())
    assert any(rollout.start for rollout in rollouts)
    with pytest.raises(ValueError, match="several turns begins with images.*agent_name"):
        refuse(batch, rollouts, is_reward_model_colocated=False)


def test_pictures_of_a_tool_are_refused() -> None:
    chat = [{"role": "user", "content": "Look it up."}]
    text: dict[str, Any] = {"mm_token_type_ids": 0}
    batch, rollouts = session_rows(chat, multi_modal_inputs=[text] * 4)
    refuse(batch, rollouts, is_reward_model_colocated=False)
    batch, rollouts = session_rows(chat, multi_modal_inputs=[{"pixel_values": 1}] * 4)
    with pytest.raises(ValueError, match="a tool's images would not reach the refiner"):
        refuse(batch, rollouts, is_reward_model_colocated=False)


def test_a_record_has_a_placeholder_for_a_picture() -> None:
    columns = {"extra_fields": [{}] * 4, "raw_prompt": [with_picture()] * 4, "refine_detail": [""] * 4}
    batch = refined_rows(**columns)
    records = queue.read_records(batch.select_keys(KEYS[1:2]), vision_tokenizer(), lambda image: f"{image.size}")
    assert records[0]["images"] == ["(8, 8)"]
    assert records[0]["prompt"] == [{"role": "user", "content": "<image>What is it?"}]
    json.dumps(records)


def read_as_the_actor(batch: KVBatchMeta) -> TensorDict:
    """Return rows as verl hands them to a worker of the policy."""
    found: list[TensorDict] = []
    tqbridge()(found.append)(batch)
    return found[0]


@pytest.mark.parametrize("has_pictures", [False, True])
@pytest.mark.parametrize("lengths", [(7, 7, 7), (7,), (7, 3, 5), (4, 4), (4,), (1, 3)])
def test_rows_have_their_own_positions_whatever_their_lengths(lengths: tuple[int, ...], has_pictures: bool) -> None:
    positions = [torch.stack([torch.arange(length) + 10 * line for line in range(4)]) for length in lengths]
    keys, partition = [f"u_{n}_0" for n in range(len(lengths))], f"of a test {lengths} {has_pictures}"
    for key, own in zip(keys, positions, strict=True):  # as verl's agent loop does
        row = {
            "input_ids": own[0],
            "position_ids": own,
            PICTURES: {"pixel_values": own.float()} if has_pictures else {},
        }
        tq.kv_batch_put(keys=[key], partition_id=partition, fields=tu.list_of_dict_to_tensordict([row]), tags=[{}])
    batch = KVBatchMeta(keys=keys, tags=[{} for _ in keys], partition_id=partition)
    batch.fields = ["input_ids", "position_ids", PICTURES]
    data = read_as_the_actor(batch)
    split_positions(data)
    data = filled(data, lambda num_rows: (num_rows + 1, 1))
    expected = [*positions, positions[lengths.index(min(lengths))]]
    assert [row.tolist() for row in data["position_ids"].unbind()] == [row.tolist() for row in expected]
    found = [{name: value.tolist() for name, value in one.items()} for one in pictures_of(data)]
    assert found == [{"pixel_values": row.tolist()} if has_pictures else {} for row in expected]
