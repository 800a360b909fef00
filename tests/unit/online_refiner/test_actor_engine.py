"""Logits of responses alone: the same numbers where a response is, from fewer logits."""

from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from tensordict import TensorDict
from transformers import LlamaForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import entropy_from_logits

from recipe.online_refiner.verl_glue.actor_engine import ActorEngine, takes_positions
from recipe.online_refiner.verl_glue.loss import ONLY_RESPONSES, jagged
from recipe.smoke.letters import tiny_llama, tiny_tokenizer

ASKED = {ONLY_RESPONSES: True}
ROWS = [
    ([3, 4, 5, 6], [7, 8, 9]),
    ([10, 11, 12], [13]),
    ([14], [15]),
    ([16, 17, 18], [19, 20, 21]),
    ([22, 23], [24, 25, 26]),
]
"""Prompt and response."""
LOSSES = [([1, 0, 1], [0, 0, 0]), ([1], [0]), ([0], [0]), ([0, 0, 0], [1, 1, 1]), ([0, 0, 0], [0, 0, 0])]
"""``loss_mask`` and ``refine_loss_mask``: the third row fills a micro-batch, the fourth is a refinement, the last one a
response that its run has masked."""
NUM_ALL = {True: 7 + 4 + 2 + 6 + 5, False: 5 * 7}
NUM_WANTED = {True: 4 + 2 + 0 + 4 + 1, False: 5 * 5}
"""Logits: packed, the response and the token before it; in padded rows all columns from the third token on."""


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return tiny_llama(tiny_tokenizer()).train()


def rows(**settings: Any) -> TensorDict:
    """Return the micro-batch."""
    columns: dict[str, list[list[int]]] = {
        "input_ids": [prompt + response for prompt, response in ROWS],
        "position_ids": [[*range(len(prompt + response))] for prompt, response in ROWS],
        "responses": [response for _, response in ROWS],
        "loss_mask": [mask for mask, _ in LOSSES],
        "refine_loss_mask": [mask for _, mask in LOSSES],
    }
    tensors = {name: jagged([*map(torch.tensor, values)]) for name, values in columns.items()}
    return tu.get_tensordict(tensors, {"temperature": 0.7, **settings})


def engine_of(model: LlamaForCausalLM) -> Any:
    """Return the engine of a model, without FSDP around it."""
    engine: Any = object.__new__(ActorEngine)
    engine.module = model
    engine.pad_to_length = engine.use_ulysses_sp = False
    engine.engine_config = SimpleNamespace(entropy_checkpointing=False, entropy_from_logits_with_chunking=False)
    engine.compute_entropy_from_logits = entropy_from_logits
    engine._autocast_dtype = torch.float32
    engine.get_data_parallel_group = lambda: None
    return engine


def run(model: LlamaForCausalLM, data: TensorDict) -> tuple[int, dict[str, list[list[float]]], torch.Tensor]:
    """Return the number of logits, verl's outputs at the responses' tokens, and a gradient of their sum."""
    engine = engine_of(model)
    inputs, arguments = engine.prepare_model_inputs(data)
    output = model(**inputs, use_cache=False)
    found = engine.prepare_model_outputs(output, arguments, data, None)
    of_responses = {
        name: [
            row[len(prompt) - 1 : -1]
            for row, (prompt, _), masks in zip(values.unbind(), ROWS, LOSSES, strict=True)
            if any(map(any, masks))
        ]
        for name, values in found.items()
    }
    model.zero_grad()
    torch.cat([row for values in of_responses.values() for row in values]).sum().backward()
    gradient = next(weights for weights in model.parameters() if weights.requires_grad).grad
    assert gradient is not None
    numbers = {name: [row.tolist() for row in values] for name, values in of_responses.items()}
    return output.logits[..., 0].numel(), numbers, gradient.clone()


@pytest.mark.parametrize("is_packed", [True, False])
def test_outputs_and_gradients_of_responses_are_those_of_all_logits(model: LlamaForCausalLM, is_packed: bool) -> None:
    settings = {"use_remove_padding": is_packed, "calculate_entropy": True, "calculate_sum_pi_squared": True}
    num_all, expected, gradient = run(model, rows(**settings))
    num_kept, found, same_gradient = run(model, rows(**settings, **ASKED))
    assert (num_all, num_kept) == (NUM_ALL[is_packed], NUM_WANTED[is_packed])
    assert found.keys() == expected.keys() == {"log_probs", "entropy", "sum_pi_squared"}
    for name, values in found.items():
        assert len(values) == 3
        for row, numbers in zip(values, expected[name], strict=True):
            assert row == pytest.approx(numbers, abs=1e-5) and any(row)
    torch.testing.assert_close(same_gradient, gradient, rtol=1e-4, atol=1e-4)


def test_an_adapter_is_in_the_way_of_nothing() -> None:
    adapted: Any = peft.get_peft_model(
        tiny_llama(tiny_tokenizer()), peft.LoraConfig(target_modules=["q_proj"], lora_alpha=4)
    )
    num_kept, found, _ = run(adapted, rows(use_remove_padding=False, **ASKED))
    _, expected, _ = run(adapted, rows(use_remove_padding=False))
    assert num_kept == NUM_WANTED[False]
    assert all(
        row == pytest.approx(same, abs=1e-5)
        for row, same in zip(found["log_probs"], expected["log_probs"], strict=True)
    )


@pytest.mark.parametrize("is_packed", [True, False])
def test_rows_without_a_loss_are_computed_too(model: LlamaForCausalLM, is_packed: bool) -> None:
    data = tu.index_select_tensor_dict(rows(use_remove_padding=is_packed, **ASKED), [2])
    engine = engine_of(model)
    inputs, arguments = engine.prepare_model_inputs(data)
    found = engine.prepare_model_outputs(model(**inputs, use_cache=False), arguments, data, None)
    assert len(found["log_probs"].unbind()[0]) == 2


def test_an_update_runs_the_rows_that_have_a_loss(model: LlamaForCausalLM) -> None:
    seen: list[list[int]] = []

    def loss(model_output: dict[str, Any], data: TensorDict, dp_group: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        seen.append(data["input_ids"].offsets().diff().tolist())
        return model_output["log_probs"].values().sum(), {}

    engine = engine_of(model)
    for numbers, forward_only in (([0, 1, 2, 3], False), ([2, 2], False), ([1, 2], True), ([1, 4], False)):
        engine.forward_step(tu.index_select_tensor_dict(rows(**ASKED), numbers), loss, forward_only)
    assert seen == [[7, 4, 6], [2], [4, 2], [4, 5]], "all where each is asked for, and rows of the run's own"


@pytest.mark.parametrize("setting", ["use_fused_kernels", "distillation_use_topk"])
def test_where_verl_needs_all_logits_the_setting_changes_nothing(model: LlamaForCausalLM, setting: str) -> None:
    engine = engine_of(model)
    data = rows(use_remove_padding=True, **{setting: True}, **ASKED)
    tu.assign_non_tensor(data, temperature=1.0)
    assert "logits_to_keep" not in engine.prepare_model_inputs(data)[0]


def test_a_model_with_another_forward_pass_computes_all(model: LlamaForCausalLM) -> None:
    assert takes_positions(torch.nn.Sequential(model))
    assert not takes_positions(torch.nn.Linear(1, 1))
    other = tiny_llama(tiny_tokenizer())
    other.forward = lambda input_ids, logits_to_keep=0: None
    assert not takes_positions(other), "as Liger's or verl's own, which may take a number alone"
    assert "logits_to_keep" not in engine_of(other).prepare_model_inputs(rows(**ASKED))[0]
