"""Refinements of responses to prompts with pictures: their columns, and when two of them are one row."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from recipe.online_refiner.verl_glue.actor_worker import in_place_sequences, refined_sequences
from recipe.online_refiner.verl_glue.loss import PICTURES, append_refined_rows, are_equal, continued, jagged, joined

IMAGE, EOS = 90, 2
PROMPTS = [[3, IMAGE, IMAGE, IMAGE, IMAGE, 4], [3, IMAGE, IMAGE, IMAGE, IMAGE, 4], [5, 6]]
RESPONSES = [[11, 12, EOS], [11, EOS], [13, 14, EOS]]
REFINED = [[21, EOS], [21, EOS], [22, 23, EOS]]
OF_PICTURE = [[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]]
"""The positions (time, height, width) of a prompt whose picture has two lines with two tokens each."""


def positions_of(prompt: list[int], num_tokens: int) -> torch.Tensor:
    """Return verl's positions of a prompt with ``num_tokens`` tokens after it, (4, tokens)."""
    counted = list(range(len(prompt) + num_tokens))
    if IMAGE not in prompt:
        return torch.tensor([counted] * 4)
    after = list(range(4, 4 + num_tokens))
    return torch.tensor([counted, *(line + after for line in OF_PICTURE)])


def picture(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.rand(16, 6, generator=generator), "image_grid_thw": torch.tensor([[1, 4, 4]])}


def rows(pictures: list[dict[str, Any]], used: tuple[int, ...] = (1, 1, 1)) -> TensorDict:
    """Return a mini-batch of two prompts with a picture and one without."""
    columns = {"prompts": PROMPTS, "responses": RESPONSES, "refine_ids": REFINED}
    columns["refine_mask"] = [[is_used] * len(ids) for is_used, ids in zip(used, REFINED, strict=True)]
    data: dict[str, Any] = {name: jagged([torch.tensor(row) for row in rows]) for name, rows in columns.items()}
    both = list(zip(PROMPTS, RESPONSES, strict=True))
    data["input_ids"] = jagged([torch.tensor(prompt + response) for prompt, response in both])
    positions = [positions_of(prompt, len(response)) for prompt, response in both]
    data["position_ids"] = tu.nested_tensor_from_tensor_list(positions)
    data["response_mask"] = jagged([torch.ones(len(row), dtype=torch.int64) for row in RESPONSES])
    data["refine_weights"] = jagged([torch.ones(len(row)) for row in REFINED])
    data |= {"refine_start": torch.zeros(3, dtype=torch.int64), "refine_used": torch.tensor(used)}
    return tu.get_tensordict({**data, PICTURES: pictures}, {"temperature": 0.5})


def test_a_refinement_has_the_pictures_of_its_prompt_and_goes_on_after_them() -> None:
    pictures = [picture(0), picture(1), {}]
    longer = append_refined_rows(rows(pictures), 5)
    found = list(longer[PICTURES])
    assert all(are_equal(*both) for both in zip(found[:6], pictures * 2, strict=True))
    assert found[6:] == [{}, {}], "as verl's own padding rows"
    positions = longer["position_ids"].unbind()
    for row, prompt, refined in zip(positions[3:], PROMPTS, REFINED, strict=False):
        assert torch.equal(row, positions_of(prompt, len(refined)))
    assert [row.tolist() for row in positions[6:]] == [[[0, 1]] * 4] * 2


def test_a_second_turn_goes_on_from_the_turn_before() -> None:
    data = rows([picture(0), picture(1), {}])
    data["refine_start"][0] = 2
    longer = append_refined_rows(data, 3)
    assert longer["position_ids"].unbind()[3].tolist() == positions_of(PROMPTS[0], 4).tolist()


@pytest.mark.parametrize(("seeds", "used"), [((0, 0), [1, 0, 1]), ((0, 1), [1, 1, 1])])
def test_equal_ids_are_one_row_only_if_the_pictures_are_equal(seeds: tuple[int, int], used: list[int]) -> None:
    found = joined(rows([*map(picture, seeds), {}]))
    assert found["refine_used"].tolist() == used
    assert [row.tolist() for row in found["refine_weights"].unbind()][0] == [3.0 - sum(used[:2])] * 2


def test_a_picture_and_none_are_not_one_row() -> None:
    assert joined(rows([picture(0), {}, {}]))["refine_used"].tolist() == [1, 1, 1]
    assert joined(rows([{"image_bound": [[1, 4]]}, {"image_bound": [[1, 4]]}, {}]))["refine_used"].tolist() == [1, 1, 1]


def test_the_policy_scores_a_refinement_with_its_pictures() -> None:
    pictures = [picture(0), picture(1), {}]
    batch = refined_sequences(rows(pictures, used=(1, 0, 1)))
    assert list(batch[PICTURES])[0] is pictures[0] and list(batch[PICTURES])[1:] == [{}, {}]
    found = [row.tolist() for row in batch["position_ids"].unbind()]
    assert found == [positions_of(PROMPTS[0], 2).tolist(), [[0, 1, 2]] * 4, positions_of(PROMPTS[2], 3).tolist()]
    batch = tu.index_select_tensor_dict(batch, [2, 0])
    assert list(batch[PICTURES])[1] is pictures[0]


def test_a_prompt_of_the_refiner_is_text() -> None:
    data = rows([picture(0), picture(1), {}])
    data["refine_in_place_prompt"] = jagged([torch.tensor([8, 9])] * 3)
    batch = in_place_sequences(data)
    assert batch["position_ids"].unbind()[0].tolist() == [[0, 1, 2, 3, 4]] * 4
    assert PICTURES not in batch


def test_text_goes_on_by_one() -> None:
    assert continued(torch.arange(9), 4, 3).tolist() == list(range(7))
    assert continued(torch.arange(9), 1, 0).tolist() == [0]
