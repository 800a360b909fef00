"""The operations of a step on CPUs, counted by hand, and the words for a time."""

import pytest

from recipe.sizing import shapes, times

DENSE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "intermediate_size": 16,
    "tie_word_embeddings": True,
}
EXPERTS = {**DENSE, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 1}


def test_a_token_passes_all_of_a_dense_model_and_some_experts_of_another() -> None:
    dense, sparse = shapes.read(DENSE), shapes.read(EXPERTS)
    assert dense is not None and sparse is not None
    attention = 4 * 8 * 8 + 2 * 8  # four matrices and two norms
    assert dense.num_active == dense.num_parameters == 100 * 8 + 8 + 2 * (attention + 3 * 8 * 16)
    assert sparse.num_active == dense.num_active < sparse.num_parameters


def test_a_steps_operations_are_those_of_its_passes() -> None:
    shape = shapes.read(DENSE)
    assert shape is not None
    # 3 responses of 5 tokens to prompts of 7: three passes forward and one backward; the refiner reads and writes
    assert times.num_operations(shape, 3, 7, 5) == 3 * 12 * shape.num_active * (2 + 2 + 2 + 4)
    assert times.num_operations_of_refining(shape, 3, 7, 5) == 3 * (12 + 5) * shape.num_active * 2


def test_a_core_is_measured_as_what_it_is() -> None:
    rate, num_cores = times.operations_per_second()
    assert num_cores >= 1 and 1e8 < rate / num_cores < 1e13


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(17.6, "18 s"), (119.0, "119 s"), (150.0, "2 minutes"), (7100.0, "118 minutes"), (9e4, "25 hours")],
)
def test_a_time_in_words(seconds: float, words: str) -> None:
    assert times.shown(seconds) == words
