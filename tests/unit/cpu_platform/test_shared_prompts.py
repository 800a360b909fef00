"""Responses behind one copy of their prompt have the numbers that they have alone."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from recipe.cpu_platform.shared_prompts import FULL_ATTENTION, pack, understands

SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "attn_implementation": "sdpa"}
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def rows_of(*groups: tuple[list[int], list[list[int]]]) -> tuple[list[torch.Tensor], list[int]]:
    rows = [torch.tensor(prompt + response) for prompt, responses in groups for response in responses]
    return rows, [len(response) for _, responses in groups for response in responses]


def test_a_group_is_its_prompt_and_its_responses() -> None:
    packed = pack(*rows_of(([7, 8], [[1], [2, 3], []]), ([9], [[4, 5]])), hidden_size=64)
    assert packed is not None
    assert packed.input_ids.tolist() == [[7, 8, 1, 2, 3], [9, 4, 5, 0, 0]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 2, 3], [0, 1, 2, 0, 0]]
    assert [one.tolist() for one in packed.positions] == [[0, 0, 0, 1, 1], [1, 1, 3, 0, 1]]
    assert packed.attention_mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    assert packed.attention_mask.any(-1).all(), "a token that sees nothing is no number"
    assert not packed.attention_mask[1, 0, :3, 3:].any()


@pytest.mark.parametrize("model_type", CONFIGS)
def test_hidden_states_and_gradients_are_those_of_separate_rows(model_type: str) -> None:
    torch.manual_seed(0)
    config = CONFIGS[model_type](**SIZES, **HEADS)
    assert understands(config)
    model = AutoModelForCausalLM.from_config(config)
    draw = torch.Generator().manual_seed(1)
    lists = [torch.randint(0, 40, (n,), generator=draw).tolist() for n in (9, 3, 5, 1, 4, 6)]
    rows, numbers = rows_of((lists[0], [lists[1], lists[2], lists[3]]), (lists[4], [lists[5], lists[1]]))
    packed = pack(rows, numbers, config.hidden_size)
    assert packed is not None

    def gradients(hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
        return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}

    alone = [
        model.model(row[None]).last_hidden_state[0, len(row) - number - 1 : -1]
        for row, number in zip(rows, numbers, strict=True)
    ]
    together = model.model(
        input_ids=packed.input_ids, attention_mask=packed.attention_mask, position_ids=packed.position_ids
    ).last_hidden_state[packed.positions]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=1e-5)
    expected, found = gradients(torch.cat(alone)), gradients(together)
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ([([1, 2], [[3]]), ([4, 5], [[6]])], "no prompt is shared"),
        ([([1], [[2] * 400, [3] * 400, [4] * 400])], "attention among long responses costs more than a token"),
    ],
)
def test_a_row_for_each_where_that_is_less_work(groups: Any, why: str) -> None:
    assert pack(*rows_of(*groups), hidden_size=16) is None, why


def test_models_in_which_tokens_meet_otherwise_are_left_alone() -> None:
    assert understands(MistralConfig(**SIZES, **HEADS, sliding_window=None)) and "mistral" in FULL_ATTENTION
    assert not understands(MistralConfig(**SIZES, **HEADS, sliding_window=8))
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    assert not understands(Qwen2Config(**SIZES, **HEADS, **windows))
    assert not understands(LlamaConfig(**SIZES, **{**HEADS, "attn_implementation": "eager"}))
    assert not understands(SimpleNamespace(model_type="mamba", _attn_implementation="sdpa"))
