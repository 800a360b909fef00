"""Sessions of several turns: what is refined, charged and imitated, and what stands before it as context."""

import pytest
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from recipe.online_refiner.refined_rows import ZEROS, append_refined_rows, jagged
from recipe.online_refiner.rollout import Rollout, last_turn
from recipe.online_refiner.scoring import reward_request
from recipe.online_refiner.workers import charges, refined_sequences

CALL, TOOL, EOS = [31, 2], [41, 42, 43], 2
# Rows: two turns with a tool between; one turn; a rejected refinement of a second turn; padding.
ROWS = {
    "prompts": [[3, 4], [5], [3, 4], [5]],
    "responses": [[*CALL, *TOOL, 11, 12, EOS], [13, 14, EOS], [*CALL, *TOOL, 11, EOS], [13]],
    "response_mask": [[1, 1, 0, 0, 0, 1, 1, 1], [1, 1, 1], [1, 1, 0, 0, 0, 1, 1], [0]],
    "refine_ids": [[11, EOS], [22, 23, 24, EOS], [25, EOS], [0]],
    "refine_mask": [[1, 1], [1, 1, 1, 1], [1, 1], [0]],
    "refine_weights": [[0.5, 1.0], [1.0, 1.0, 1.0, 0.25], [1.0, 1.0], [0.0]],
}
LOG_PROBS = [[-1.0, -2.0], [-0.5, -0.25, -4.0, -8.0], [-3.0, -3.0], [-9.0]]


def rows(**more: list) -> TensorDict:
    columns = {
        name: jagged([torch.tensor(row) for row in column]) for name, column in {**ROWS, "log_probs": LOG_PROBS}.items()
    }
    columns |= {"refine_start": torch.tensor([5, 0, 5, 0]), "refine_used": torch.tensor([1, 1, 0, 0])}
    columns["refine_kept"] = torch.zeros(4, dtype=torch.long)
    return tu.get_tensordict(columns, {"temperature": 0.5, "alignment": "position", **more})


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


def test_only_the_last_turn_is_charged() -> None:
    data = rows()
    found = charges(data, data["log_probs"])
    assert lists(found["refine_charged"]) == [[0, 0, 0, 0, 0, -1, -2, 0], [-0.5, -0.25, -4], [0] * 7, [0]]
    assert found["refine_divergence"].tolist() == [3, 4.75, 0, 0]
    assert found["refine_nll"].tolist() == [3, 12.75, 6, 0]


def test_a_turn_is_aligned_with_its_refinement_and_with_nothing_before_it() -> None:
    data = rows(alignment="diff")
    found = charges(data, data["log_probs"])["refine_charged"]
    assert lists(found)[0] == [0, 0, 0, 0, 0, 0, -2, 0], "12 was taken out, and EOS stands in its place"


def test_only_the_last_turn_is_imitated() -> None:
    data = rows()
    for name in ("loss_mask", "advantages", "old_log_probs"):
        data[name] = jagged([row.float() for row in data["response_mask"].unbind()])
    ids = zip(ROWS["prompts"], ROWS["responses"], strict=True)
    data["input_ids"] = jagged([torch.tensor(prompt + response) for prompt, response in ids])
    data["position_ids"] = jagged([torch.arange(len(row)) for row in data["input_ids"].unbind()])
    longer = append_refined_rows(data, 3)
    assert len(longer) == 7
    assert lists(longer["prompts"])[4:] == [[3, 4, *CALL, *TOOL], [5], [3]]
    assert lists(longer["responses"])[4:] == [[11, EOS], [22, 23, 24, EOS], [3]]
    assert lists(longer["input_ids"])[4] == [3, 4, *CALL, *TOOL, 11, EOS]
    assert lists(longer["position_ids"])[4] == list(range(9))
    assert lists(longer["sft_mask"])[4:] == [[1, 1], [1, 1, 1, 1], [0]]
    assert lists(longer["sft_weights"])[4:] == [[0.5, 1.0], [1.0, 1.0, 1.0, 0.25], [0.0]]
    assert not any(map(any, lists(longer["sft_mask"])[:4])), "rollouts are not imitated"
    assert all(not any(map(any, lists(longer[name])[4:])) for name in ZEROS if name in longer)


def test_a_refined_session_is_scored_as_a_session() -> None:
    request = {"uid": "u", "__num_turns__": 4, "tool_extra_fields": {"tool_rewards": [0.5]}}
    rollout = Rollout(
        **{"key": "u_0_0", "messages": [], "prompt_ids": [3, 4], "response_ids": ROWS["responses"][0]},
        **{"start": 5, "reward": 0.0, "request": request},
    )
    assert rollout.turn_ids == [11, 12, EOS] and rollout.earlier_ids == CALL + TOOL
    data = reward_request(rollout, [*rollout.earlier_ids, 11, EOS])
    assert data.batch["responses"].tolist() == [[*CALL, *TOOL, 11, EOS]]
    assert data.batch["input_ids"].tolist() == [[3, 4, *CALL, *TOOL, 11, EOS]]
    found = {name: column[0] for name, column in data.non_tensor_batch.items()}
    assert found == {**request, "prompt_len": 2, "response_len": 7}
