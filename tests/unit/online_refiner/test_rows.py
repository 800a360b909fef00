"""What travels of a pair between processes: tags, columns, and the sequences that the actor reads."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from soft import TOP_K
from tensordict import NonTensorData, TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.engine_workers import TrainingWorker

from recipe.online_refiner.method.constraint import row_columns
from recipe.online_refiner.method.modes import read_constraint
from recipe.online_refiner.method.pairs import Pair, Refinement, Rollout, Turn, Verdict, last_turn
from recipe.online_refiner.verl_glue import rows as queue
from recipe.online_refiner.verl_glue.actor_worker import (
    MiniBatchWorker,
    eq6_columns,
    even_micro_batches,
    filled,
    in_place_sequences,
    refined_sequences,
)
from recipe.online_refiner.verl_glue.loss import ZEROS, append_refined_rows, jagged, joined
from recipe.online_refiner.verl_glue.refine_actors import RefineWorker, reward_request

CALL, TOOL, EOS, N = [31, 2], [41, 42, 43], 2, -1
# Rows: two turns with a tool between; one turn; a rejected refinement of a second turn; padding.
ROWS = {
    "prompts": [[3, 4], [5], [3, 4], [5]],
    "responses": [[*CALL, *TOOL, 11, 12, EOS], [13, 14, EOS], [*CALL, *TOOL, 11, EOS], [13]],
    "response_mask": [[1, 1, 0, 0, 0, 1, 1, 1], [1, 1, 1], [1, 1, 0, 0, 0, 1, 1], [0]],
    "refine_ids": [[11, EOS], [22, 23, 24, EOS], [25, EOS], [0]],
    "refine_mask": [[1, 1], [1, 1, 1, 1], [1, 1], [0]],
    "refine_weights": [[0.5, 1.0], [1.0, 1.0, 1.0, 0.25], [1.0, 1.0], [0.0]],
    "refine_counterparts": [[N, N, N, N, N, 0, 1, N], [0, 1, 2], [N] * 7, [N]],
}
LOG_PROBS = [[-1.0, -2.0], [-0.5, -0.25, -4.0, -8.0], [-3.0, -3.0], [-9.0]]


def rows() -> TensorDict:
    columns = {
        name: jagged([torch.tensor(row) for row in column]) for name, column in {**ROWS, "log_probs": LOG_PROBS}.items()
    }
    columns |= {"refine_start": torch.tensor([5, 0, 5, 0]), "refine_used": torch.tensor([1, 1, 0, 0])}
    columns["refine_shown"] = torch.tensor([2, 0, 1, 0])
    ids = zip(ROWS["prompts"], ROWS["responses"], strict=True)
    columns["input_ids"] = jagged([torch.tensor(prompt + response) for prompt, response in ids])
    columns["position_ids"] = jagged([torch.arange(len(row)) for row in columns["input_ids"].unbind()])
    return tu.get_tensordict(columns, {"temperature": 0.5})


def test_values_of_a_data_set_arrive_as_they_are() -> None:
    values = [np.array([{"role": "user"}]), np.int64(3), np.float64(0.5), np.str_("x"), {"a": 1}, "text"]
    for column in (values, [NonTensorData(value) for value in values]):
        assert [*map(type, queue.objects(column))] == [*map(type, values)]


def lists(column: torch.Tensor) -> list[list[float]]:
    return [row.tolist() for row in column.unbind()]


@pytest.mark.parametrize(
    ("mask", "start"),
    [
        ([1, 1, 1], 0),
        ([1, 1, 0, 0, 1], 4),
        ([1, 0, 1, 1, 0, 1, 1], 5),
        ([1, 1, 0], 3),  # the session ends with the output of a tool
        ([0, 0], 2),  # a session that an agent loop takes out of the loss
        ([], 0),
    ],
)
def test_where_the_last_turn_begins(mask: list[int], start: int) -> None:
    assert last_turn(mask) == start


@pytest.mark.parametrize(
    ("request_", "solution"),
    [
        ({}, ""),
        ({"reward_model": {"ground_truth": '{"inputs": []}'}}, ""),  # tests, no answer
        ({"extra_info": {"answer": 42}, "reward_model": {"ground_truth": "no"}}, "42"),
        ({"extra_info": {"solution": "s", "answer": "a"}}, "s"),
        ({"extra_info": None, "reward_model": {"ground_truth": "7"}}, "7"),
        ({"extra_info": {"answer": 0}, "reward_model": {"ground_truth": "7"}}, "0"),  # false, and an answer
        ({"extra_info": {"answer": False}}, "False"),
        ({"extra_info": {"solution": " ", "answer": "{1, 2}"}}, "{1, 2}"),
        ({"reward_model": {"ground_truth": {"inputs": []}}}, ""),
    ],
)
def test_a_rollout_by_its_key_and_its_data(request_: dict[str, Any], solution: str) -> None:
    values = {"messages": [], "prompt_ids": [1], "response_ids": [2], "reward": 0.0}
    one = Rollout(key="a_b_12_3", reward_columns=request_, **values)
    assert (one.group, one.session, one.solution) == ("a_b", (12, 3), solution)


@pytest.mark.parametrize(
    "pair",
    [
        Pair(reward=-0.3),
        Pair(reward=-0.3, verdict=Verdict.TIMEOUT, num_prompt_tokens=9, refined_at=1.5),
        Pair(reward=0.1, verdict=Verdict.ACCEPTED, is_used=True, refined_reward=1.0, edit_distance=3, nll=2.5),
    ],
)
def test_a_pair_travels_in_the_tag(pair: Pair) -> None:
    tag = queue.with_pair({"seq_len": 3}, pair)
    found = queue.pair_of(json.loads(json.dumps(tag)))
    assert found == pair and found.verdict is pair.verdict
    assert queue.pair_of({**tag, "is_padding": True}) is None, "padding copies a row with its tag"
    assert queue.pair_of({"seq_len": 3}) is None


def test_parts_of_a_batch_keep_groups_together_and_leave_padding_out() -> None:
    keys = ["a_0_0", "b_0_0", "a_1_0", "c_0_0", "pad_0_0"]
    tags = [{"seq_len": length} for length in (9, 5, 9, 6)] + [{"seq_len": 6, "is_padding": True}]
    batch = KVBatchMeta(keys=keys, tags=tags, partition_id="train")
    assert queue.real_rows(batch) == [0, 1, 2, 3]
    own = queue.rows_of(batch, [0, 1, 2, 3])
    assert [part.keys for part in queue.shards(own, 2)] == [["a_0_0", "a_1_0"], ["c_0_0", "b_0_0"]]
    assert [part.keys for part in queue.shards(queue.rows_of(batch, [0, 2]), 2)] == [["a_0_0", "a_1_0"]]
    chosen = queue.select(own, [0], num_chunks=2, fields=["x"])
    assert (chosen.keys, chosen.fields) == (["b_0_0", "a_0_0"], ["x"]), "and the shortest of the others"


def test_parts_have_about_equally_many_tokens_not_rows() -> None:
    lengths = {"a_0_0": 30, "b_0_0": 4, "b_1_0": 4, "c_0_0": 4, "c_1_0": 4}
    batch = KVBatchMeta(keys=[*lengths], tags=[{"seq_len": one} for one in lengths.values()], partition_id="train")
    assert [part.keys for part in queue.shards(batch, 2)] == [["a_0_0"], ["b_0_0", "b_1_0", "c_0_0", "c_1_0"]]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what is put into the queue, instead of a queue."""
    found: dict[str, Any] = {}
    monkeypatch.setattr("transfer_queue.kv_batch_put", lambda **arguments: found.update(arguments))
    return found


@pytest.mark.parametrize(
    ("values", "weights", "used"),
    [
        ({"mode": "penalty"}, None, [1, 1, 0, 0]),
        ({"mode": "lagrangian"}, [[0, 1, 1], [0, 0], [0, 0], [0]], [1, 1, 0, 0]),
        ({"mode": "lagrangian", "alignment": "diff"}, [[0, 1, 0], [0, 0], [0, 0], [0]], [1, 1, 0, 0]),
        ({"mode": "sft", "reward_gate": False}, [[0, 1, 1], [1, 1], [1, 1], [0]], [1, 1, 1, 0]),
    ],
)
def test_what_a_worker_writes_of_its_rows(
    written: dict[str, Any], values: dict[str, Any], weights: list[list[float]] | None, used: list[int]
) -> None:
    """A begun answer to a second turn; a solved response itself; one that is not better; one that was cut."""
    responses = [[*CALL, 11, 12, EOS], [13, EOS], [14, 15], [16]]
    found = [
        Refinement(verdict=Verdict.ACCEPTED, token_ids=[11, 22, EOS], reward=1.0, num_kept_tokens=1),
        Refinement(verdict=Verdict.OWN, token_ids=[13, EOS], reward=0.5),
        Refinement(verdict=Verdict.NOT_BETTER, token_ids=[14, EOS], reward=-1.0, is_repeated=True),
        Refinement(verdict=Verdict.TRUNCATED, text="x" * 2000),
    ]
    rollouts = [
        Rollout(
            key=f"u_{n}_0",
            messages=[],
            prompt_ids=[1],
            response_ids=ids,
            reward_columns={},
            reward=0.5,
            start=2 * (n == 0),
        )
        for n, ids in enumerate(responses)
    ]
    tags = [{"response_len": len(ids)} for ids in responses]
    batch = KVBatchMeta(keys=[one.key for one in rollouts], tags=tags, partition_id="train")
    worker = object.__new__(RefineWorker)
    worker._sources, worker._differs_by_source = {}, False
    worker._constraint, worker._share_measured = read_constraint(values), 1.0
    worker._write(batch, rollouts, found, 1.0)
    fields, pairs = written["fields"], [*map(queue.pair_of, written["tags"])]
    assert [one.is_used for one in pairs] == fields["refine_used"].tolist() == used
    assert lists(fields["refine_ids"]) == [[11, 22, EOS], [13, EOS], [14, EOS], [0]]
    assert lists(fields["refine_mask"]) == [[1, 1, 1], [1, 1], [1, 1], [0]]
    assert ("refine_weights" in fields) is (weights is not None)
    assert weights is None or lists(fields["refine_weights"]) == weights
    assert fields["refine_start"].tolist() == [2, 0, 0, 0]
    first = [N, N, N, 1, N if values.get("alignment") == "diff" else 2]
    assert lists(fields["refine_counterparts"]) == [first, [N, N], [0, 1] if used[2] else [N, N], [N]]
    assert [one.num_compared_tokens for one in pairs] == [2, 2, 2 * used[2], 0]
    assert [one.edit_distance for one in pairs] == [1, None, 1, None], "nobody has edited the second"
    assert [one.is_repeated for one in pairs] == [False, False, True, False]
    assert queue.objects(fields["refine_detail"]) == ["", "", "", "x" * 1000]
    worker._share_measured = 0.0
    worker._write(batch, rollouts, found, 1.0)
    assert {pair and pair.edit_distance for pair in map(queue.pair_of, written["tags"])} == {None}, "none is drawn"


def test_padding_is_written_without_a_refinement(written: dict[str, Any]) -> None:
    tag = queue.with_pair({"response_len": 2, "is_padding": True}, Pair(reward=1.0, verdict=Verdict.ACCEPTED))
    batch = KVBatchMeta(keys=["u_0_0"], tags=[tag], partition_id="train")
    queue.write_nothing(batch, [Pair(reward=0.0)], read_constraint({"mode": "sft"}))
    fields = written["fields"]
    assert {name: lists(fields[name]) for name in ("refine_ids", "refine_mask", "refine_weights")} == {
        "refine_ids": [[0]],
        "refine_mask": [[0]],
        "refine_weights": [[0.0]],
    }
    assert lists(fields["refine_counterparts"]) == [[N, N]]
    assert (fields["refine_used"].tolist(), fields["refine_start"].tolist()) == ([0], [0])
    assert queue.pair_of(written["tags"][0]) is None


def test_what_is_not_known_of_a_distribution_has_no_probability(written: dict[str, Any]) -> None:
    batch = KVBatchMeta(keys=["u_0_0", "u_1_0"], tags=[{"response_len": 2}] * 2, partition_id="train")
    top = np.array([[7, 8], [9, 6]], dtype=np.int32), np.array([[-0.5, -1.5], [-0.1, -3.0]], dtype=np.float32)
    refinements = [
        Refinement(verdict=Verdict.ACCEPTED, token_ids=[7, 9, EOS], own={"top": top}),
        Refinement(verdict=Verdict.NOT_BETTER),
    ]
    pairs = [Pair(reward=0.0, verdict=one.verdict, is_used=bool(one.token_ids)) for one in refinements]
    turns = [
        Turn(response_length=2, start=0, ids=[7, 9], refinement=one, is_used=bool(one.token_ids), reward=0.0)
        for one in refinements
    ]
    queue.write_refinements(batch, turns, pairs, read_constraint({"mode": "soft:Soft"}))
    ids, log_probs = (written["fields"][name].unbind() for name in ("refine_top_ids", "refine_top_log_probs"))
    assert [tuple(row.shape) for row in ids] == [tuple(row.shape) for row in log_probs] == [(3, TOP_K), (1, TOP_K)]
    assert ids[0][:, :2].tolist() == [[7, 8], [9, 6], [0, 0]]
    chances = [[round(value, 4) for value in place] for place in log_probs[0].exp()[:, :2].tolist()]
    assert chances == [[0.6065, 0.2231], [0.9048, 0.0498], [0.0, 0.0]]
    assert log_probs[0][:, 2:].exp().sum() == log_probs[1].exp().sum() == 0


def test_the_policy_scores_a_refinement_in_its_whole_context() -> None:
    batch = refined_sequences(rows())
    assert lists(batch["input_ids"]) == [
        [3, 4, *CALL, *TOOL, 11, EOS],
        [5, 22, 23, 24, EOS],
        [3, 4, *CALL, *TOOL, 25, EOS],
        [0, 0],
    ]
    assert lists(batch["position_ids"])[0] == list(range(9))
    assert lists(batch["loss_mask"]) == [[0] * 7 + [1, 1], [0, 1, 1, 1, 1], [0] * 7 + [1, 1], [0, 0]]
    assert lists(batch["responses"]) == ROWS["refine_ids"]
    assert tu.get(batch, "temperature") == 0.5


def sequences_of(lengths: list[int]) -> TensorDict:
    ids = jagged([torch.arange(length) for length in lengths])
    settings = {"use_dynamic_bsz": False, "temperature": 0.5}
    return tu.get_tensordict({"input_ids": ids, "names": [f"row {n}" for n in range(len(lengths))]}, settings)


@pytest.mark.parametrize(("num_ranks", "size"), product((1, 2, 4), (1, 3, 8, 16)))
def test_any_number_of_rows_fills_the_micro_batches_of_every_rank(num_ranks: int, size: int) -> None:
    num_rows = 40
    tags = [{"seq_len": 2 + 7 * row % 11} for row in range(num_rows)]
    batch = KVBatchMeta(keys=[f"a_{row}_0" for row in range(num_rows)], tags=tags, partition_id="train")
    for num_wanted in range(1, num_rows + 1):
        chosen = queue.select(batch, [*range(num_wanted)], num_chunks=num_ranks, fields=["x"])
        assert {*batch.keys[:num_wanted]} <= {*chosen.keys} and len({*chosen.keys}) == len(chosen) <= num_rows
        share, rest = divmod(len(chosen), num_ranks)
        assert rest == 0 and len(chosen) < num_wanted + num_ranks
        lengths = [tag["seq_len"] for tag in chosen.tags]
        data = filled(sequences_of(lengths[:share]), partial(even_micro_batches, size=size))
        micro_batches, _ = prepare_micro_batches(data)
        assert len(micro_batches) == -(-share // size), "as many as are needed, and the same on every rank"
        assert len({*map(len, micro_batches)}) == 1 and len(micro_batches[0]) <= size, "alike, and none too long"
        assert len(data) - share < len(micro_batches), "no micro-batch has two rows of padding"


def test_rows_that_fill_a_micro_batch_repeat_the_shortest() -> None:
    data = sequences_of([3, 2, 4])
    for size in (1, 3, 5):
        assert filled(data, partial(even_micro_batches, size=size)) is data
    longer = filled(data, partial(even_micro_batches, size=2))
    assert lists(longer["input_ids"]) == [[0, 1, 2], [0, 1], [0, 1, 2, 3], [0, 1]]
    assert queue.objects(longer["names"]) == ["row 0", "row 1", "row 2", "row 1"]
    assert tu.get(longer, "temperature") == 0.5


PIPELINE = {"virtual_pipeline_model_parallel_size": 2, "pipeline_model_parallel_size": 3}


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, {1: (1, 1), 4: (1, 4), 5: (2, 3), 13: (4, 4)}),
        ({"use_dynamic_bsz": True}, {1: (1, 1), 4: (4, 1), 5: (5, 1)}),
        (PIPELINE, {1: (3, 1), 4: (3, 2), 5: (3, 2), 13: (6, 3)}),
        ({**PIPELINE, "use_dynamic_bsz": True}, {1: (3, 1), 4: (6, 1)}),
    ],
)
def test_an_engine_never_sees_half_a_micro_batch(
    settings: dict[str, Any], sizes: dict[int, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it computes of the rows that fill one up is dropped."""
    seen = []

    def infer(self: TrainingWorker, data: TensorDict) -> TensorDict:
        seen.append((len(data), tu.get(data, "micro_batch_size_per_gpu")))
        return tu.get_tensordict({"log_probs": data["input_ids"]}, {"metrics": {"x": 1}})

    monkeypatch.setattr(TrainingWorker, "infer_batch", infer)
    worker = object.__new__(MiniBatchWorker)
    values = {"use_dynamic_bsz": False, "infer_micro_batch_size_per_gpu": 4, "override_transformer_config": {}}
    worker.engine_config = OmegaConf.create({**values, **settings})
    for num_rows, (count, size) in sizes.items():
        lengths = range(2, 2 + num_rows)
        output = worker.infer_batch(sequences_of([*lengths]))
        assert output is not None and lists(output["log_probs"]) == [[*range(length)] for length in lengths]
        assert seen.pop() == (count * size, size) and tu.get(output, "metrics") == {"x": 1}


def test_the_actor_scores_the_last_turn_behind_another_prompt() -> None:
    data = rows()
    data["refine_start"][2] = len(ROWS["responses"][2])  # it does not end with a turn
    data["refine_in_place_prompt"] = jagged([torch.tensor(one) for one in ([8, 9], [8], [0], [0])])
    batch = in_place_sequences(data)
    assert lists(batch["input_ids"]) == [[8, 9, 11, 12, EOS], [8, 13, 14, EOS], [0, *ROWS["responses"][2]], [0, 13]]
    assert lists(batch["loss_mask"]) == [[0, 0, 1, 1, 1], [0, 1, 1, 1], [0] + [1] * 7, [0, 1]]
    assert lists(batch["responses"])[:2] == [[11, 12, EOS], [13, 14, EOS]]


def test_only_the_last_turn_is_charged() -> None:
    data = rows()
    found = eq6_columns(data, data["log_probs"])
    assert lists(found["refine_charged"]) == [[0, 0, 0, 0, 0, -1, -2, 0], [-0.5, -0.25, -4], [0] * 7, [0]]
    assert found["refine_divergence"].tolist() == [3, 4.75, 0, 0]
    assert found["refine_nll"].tolist() == [3, 12.75, 6, 0]


def test_only_the_last_turn_is_imitated() -> None:
    data = rows()
    for name in ("loss_mask", "advantages", "old_log_probs"):
        data[name] = jagged([row.float() for row in data["response_mask"].unbind()])
    longer = append_refined_rows(data, 3)
    assert len(longer) == 7
    assert lists(longer["prompts"])[4:] == [[3, 4, *CALL, *TOOL], [5], [3]]
    assert lists(longer["responses"])[4:] == [[11, EOS], [22, 23, 24, EOS], [3]]
    assert lists(longer["input_ids"])[4] == [3, 4, *CALL, *TOOL, 11, EOS]
    assert lists(longer["position_ids"])[4] == list(range(9))
    assert lists(longer["refine_loss_mask"])[4:] == [[1, 1], [1, 1, 1, 1], [0]]
    assert lists(longer["refine_weights"])[4:] == [[0.5, 1.0], [1.0, 1.0, 1.0, 0.25], [0.0]]
    assert not any(map(any, lists(longer["refine_loss_mask"])[:4])), "rollouts are not imitated"
    assert lists(longer["refine_shown"]) == [[0], [0], [0], [0], [2], [0], [0]]
    assert all(not any(map(any, lists(longer[name])[4:])) for name in ZEROS if name in longer)


def test_models_with_several_positions_a_token_learn_from_text() -> None:
    """Verl gives M-RoPE models (4, length) a row, of text as well."""
    data = rows()
    data["position_ids"] = jagged([torch.arange(len(row)).expand(4, -1) for row in data["input_ids"].unbind()])
    longer = append_refined_rows(data, 3)
    assert lists(longer["position_ids"])[4] == [list(range(9))] * 4


def test_a_refined_session_is_scored_as_a_session() -> None:
    request = {"uid": "u", "__num_turns__": 4, "tool_extra_fields": {"tool_rewards": [0.5]}}
    rollout = Rollout(
        key="u_0_0",
        messages=[],
        prompt_ids=[3, 4],
        response_ids=ROWS["responses"][0],
        start=5,
        reward=0.0,
        reward_columns=request,
    )
    assert rollout.turn_ids == [11, 12, EOS] and rollout.earlier_ids == CALL + TOOL
    data = reward_request(rollout, [*rollout.earlier_ids, 11, EOS])
    assert data.batch["responses"].tolist() == [[*CALL, *TOOL, 11, EOS]]
    assert data.batch["input_ids"].tolist() == [[3, 4, *CALL, *TOOL, 11, EOS]]
    found = {name: column[0] for name, column in data.non_tensor_batch.items()}
    assert found == {**request, "prompt_len": 2, "response_len": 7}


def test_what_a_model_says_of_a_turn_in_place_stands_at_the_turns_places() -> None:
    found = Refinement(verdict=Verdict.ACCEPTED, token_ids=[9, EOS], in_place=[-1.0, -2.0, -3.0])
    turn = Turn(response_length=5, start=2, ids=[11, 12, EOS], refinement=found, is_used=True, reward=0.0)
    columns = row_columns(read_constraint({"mode": "penalty", "target": "in_place"}), turn)
    assert columns["refine_in_place"] == [0.0, 0.0, -1.0, -2.0, -3.0]


@pytest.mark.parametrize(("own", "expected"), [(None, 64), (128, 128)])
def test_a_data_source_has_the_context_of_its_own_servers(own: int | None, expected: int) -> None:
    worker: Any = object.__new__(RefineWorker)
    worker._sources, worker._differs_by_source = {"x": dict}, True
    worker._constraint = read_constraint({"mode": "sft"})
    of_source = SimpleNamespace(config=SimpleNamespace(max_model_len=own))
    client: Any = SimpleNamespace(by_source={"x": of_source})
    one = Rollout(
        key="u_0_0", messages=[], prompt_ids=[1], response_ids=[2], reward=0.0, reward_columns={"data_source": "x"}
    )
    assert worker._refiner_of(one, client, 64) == {"client": of_source, "max_model_len": expected}


def test_a_data_source_whose_weight_is_0_asks_for_nothing() -> None:
    worker: Any = object.__new__(RefineWorker)
    worker._sources, worker._differs_by_source = {}, True
    worker._constraint = read_constraint({"mode": "sft", "by_source": {"x": {"eta": 0}, "y": {"eta": 0.06}}})
    worker._refiner = dict
    rollouts = [
        Rollout(
            key=f"u_{n}_0",
            messages=[],
            prompt_ids=[1],
            response_ids=[2],
            reward=float(n),
            reward_columns={"data_source": "x"},
        )
        for n in range(2)
    ]
    found = asyncio.run(worker._refiner_of(rollouts[0], None, 64).refine_group(rollouts))
    assert [one.verdict for one in found] == [Verdict.NOT_ASKED] * 2 and not any(one.token_ids for one in found)
    assert worker._turn(rollouts[0], found[0]).scale == 0.0
    other = replace(rollouts[0], reward_columns={"data_source": "y"})
    assert worker._refiner_of(other, "client", 64) == {"client": "client", "max_model_len": 64}
    assert worker._turn(other, found[0]).scale == 2.0


def test_refinements_are_joined_only_where_they_begin_at_the_same_place() -> None:
    columns: dict[str, list[list[int]]] = {
        "prompts": [[3], [3, 4], [3, 4]],
        "responses": [[9], [9], [8]],
        "refine_ids": [[4, 5, EOS], [5, EOS], [5, EOS]],
    }
    data = {name: jagged([torch.tensor(row) for row in rows]) for name, rows in columns.items()}
    data["refine_weights"] = jagged([torch.ones(len(row)) for row in columns["refine_ids"]])
    data |= {"refine_start": torch.zeros(3, dtype=torch.int64), "refine_used": torch.ones(3, dtype=torch.int64)}
    assert joined(tu.get_tensordict(data, {}))["refine_used"].tolist() == [1, 1, 0]
