"""The engine that computes response positions only, against verl's own on the same model and rows."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import verl  # noqa: F401  (loads the CPU platform)
from transformers import LlamaConfig, LlamaForCausalLM
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding, response_from_nested

from recipe.cpu_platform.response_logits import LogProbs, ResponseLogitsEngine, response_positions

LENGTHS = [(3, 5), (9, 1), (1, 4), (6, 6)]
"""Lengths of (prompt, response), two rows to a micro-batch."""
NUM_RESPONSE_TOKENS = [6, 10]
VOCABULARY = 97


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build a process group of one for the tests of this file."""
    rendezvous = tmp_path_factory.mktemp("group") / "rendezvous"
    torch.distributed.init_process_group("cpu:gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Save a random two-layer Llama without and with a tied head."""
    folders = {}
    for tied in (False, True):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.1},
            **{"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": tied},
        )
        folders[tied] = tmp_path_factory.mktemp("model")
        LlamaForCausalLM(config).save_pretrained(folders[tied])
    return folders


def build(
    cls: type, model: Path, *, checkpointing: bool = False, optimizer: dict[str, Any] | None = None, **settings: Any
) -> Any:
    """Build an engine as verl's worker does, with the platform's settings."""
    precision = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    model_config = HFModelConfig(
        path=str(model),
        load_tokenizer=False,
        use_remove_padding=False,
        enable_gradient_checkpointing=checkpointing,
        override_config={"attn_implementation": "sdpa"},
    )
    model_config.model_type = "language_model"
    engine = cls(
        model_config=model_config,
        engine_config=FSDPEngineConfig(
            strategy="fsdp2", use_torch_compile=False, **{"mixed_precision": precision, **settings}
        ),
        optimizer_config=FSDPOptimizerConfig(**{"lr": 0.01, "total_training_steps": 9, **(optimizer or {})}),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def batch(*, num_prompts: int = len(LENGTHS), **settings: Any) -> Any:
    """Draw rows that are the same in each call, as verl's trainer hands them to the engine of an actor."""
    generator = torch.Generator().manual_seed(1)

    def draw(num_tokens: int) -> torch.Tensor:
        return torch.randint(0, VOCABULARY, (num_tokens,), generator=generator)

    prompts, responses = [draw(p) for p, _ in LENGTHS], [draw(r) for _, r in LENGTHS]
    prompts = [prompts[n % num_prompts] for n in range(len(LENGTHS))]
    sequences = [torch.cat(row) for row in zip(prompts, responses, strict=True)]
    tensors = {
        **{"prompts": jagged(prompts), "responses": jagged(responses), "input_ids": jagged(sequences)},
        "position_ids": jagged([torch.arange(len(row)) for row in sequences]),
        **{name: jagged([torch.ones_like(row) for row in responses]) for name in ("loss_mask", "response_mask")},
        "old_log_probs": jagged([torch.full((len(row),), -5.0) for row in responses]),
        "advantages": jagged([torch.randn(len(row), generator=generator) for row in responses]),
    }
    defaults = {
        **{"use_remove_padding": False, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": 2, "temperature": 1.0},
        **{"use_fused_kernels": False, "calculate_entropy": False, "global_batch_size": len(LENGTHS)},
        **{"distillation_use_topk": False, "distillation_only": False},
    }
    settings = {**defaults, **settings}
    tensors |= {name: settings.pop(name) for name in list(settings) if isinstance(settings[name], torch.Tensor)}
    return tu.get_tensordict(tensors, settings)


def infer(engine: Any, data: Any) -> dict[str, torch.Tensor]:
    with engine.eval_mode():
        return engine.infer_batch(data)["model_output"]


def train(engine: Any, data: Any, entropy_coeff: float = 0.0) -> dict[str, Any]:
    sizes = {"ppo_micro_batch_size_per_gpu": 2, "ppo_mini_batch_size": len(LENGTHS), "rollout_n": 1}
    config = FSDPActorConfig(strategy="fsdp2", entropy_coeff=entropy_coeff, **sizes)
    with engine.train_mode():
        return engine.train_batch(data, loss_function=partial(ppo_loss, config))


def head_inputs(engine: Any) -> list[tuple[int, ...]]:
    """Return a list to which the shape of every input of the LM head is added."""
    shapes: list[tuple[int, ...]] = []

    def record(head: Any, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        shapes.append(tuple(arguments[0].shape[:2]))

    engine.module.get_output_embeddings().register_forward_hook(record)
    return shapes


def parameters(engine: Any) -> dict[str, torch.Tensor]:
    return {name: value.full_tensor().detach().clone() for name, value in engine.module.state_dict().items()}


READERS: list[Callable[[torch.Tensor, Any], torch.Tensor]] = [
    no_padding_2_padding,
    lambda value, rows: response_from_nested(value, rows["responses"]).values(),
]
"""How verl takes the numbers of the responses out of the engine's output."""

TEMPERATURES = {"one": 1.0, "cold": 0.7, "by row": torch.tensor([0.5, 1.0, 1.7, 0.9])}


@pytest.mark.parametrize(
    ("tied", "checkpointing", "temperature", "entropy"),
    [
        *((False, False, "one", False), (False, True, "cold", True), (False, False, "by row", False)),
        *((True, True, "one", False), (True, False, "by row", True), (True, False, "one", True)),
    ],
)
def test_numbers_are_those_of_verls_engine(
    models: dict[bool, Path], tied: bool, checkpointing: bool, temperature: str, entropy: bool
) -> None:
    data = partial(batch, temperature=TEMPERATURES[temperature], calculate_entropy=entropy)
    stock, ours = (
        # Adam would make steps of gradients that are rounding errors.
        build(cls, models[tied], checkpointing=checkpointing, optimizer={"optimizer": "SGD", "lr": 0.1})
        for cls in (FSDPEngineWithLMHead, ResponseLogitsEngine)
    )
    shapes = head_inputs(ours)
    for _ in range(2):
        expected, found = infer(stock, data()), infer(ours, data())
        assert found.keys() == expected.keys() == {"log_probs", *(["entropy"] if entropy else [])}
        for name in found:
            for read in READERS:
                values = [read(output[name], data()) for output in (found, expected)]
                torch.testing.assert_close(*values, atol=1e-6, rtol=1e-6)
            assert (found[name].values() != 0).sum() == sum(NUM_RESPONSE_TOKENS)
        expected, found = (train(engine, data(), 0.1)["metrics"] for engine in (stock, ours))
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    assert shapes == [(1, number) for number in NUM_RESPONSE_TOKENS] * 4
    for name, value in parameters(stock).items():
        torch.testing.assert_close(parameters(ours)[name], value, atol=1e-5, rtol=0, msg=name)


def test_responses_to_one_prompt_are_computed_behind_it(models: dict[bool, Path]) -> None:
    optimizer = {"optimizer": "SGD", "lr": 0.1}
    stock, ours = (
        build(cls, models[True], optimizer=optimizer) for cls in (FSDPEngineWithLMHead, ResponseLogitsEngine)
    )
    data = partial(batch, num_prompts=2, micro_batch_size_per_gpu=4, temperature=TEMPERATURES["by row"])
    shapes = []
    ours.module.get_input_embeddings().register_forward_hook(lambda *values: shapes.append(values[2].shape[:2]))
    for _ in range(2):
        values = [no_padding_2_padding(infer(engine, data())["log_probs"], data()) for engine in (stock, ours)]
        torch.testing.assert_close(*values, atol=1e-6, rtol=1e-6)
        expected, found = (train(engine, data())["metrics"] for engine in (stock, ours))
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    assert shapes == [(2, 16)] * 4, "two prompts of 3 and 9 tokens, with responses of 5 and 4, 1 and 6"
    for name, value in parameters(stock).items():
        torch.testing.assert_close(parameters(ours)[name], value, atol=1e-5, rtol=0, msg=name)


def without(name: str) -> Callable[[], Any]:
    return lambda: batch().exclude(name)


UNKNOWN: dict[str, Callable[[], Any]] = {
    "rows of an SFT trainer": without("responses"),
    "padded responses": lambda: batch(responses=batch()["responses"].to_padded_tensor(0)),
    "a response without prompt": lambda: batch(responses=batch()["input_ids"]),
    "squared probabilities": lambda: batch(calculate_sum_pi_squared=True),
    "router replay": lambda: batch(enable_routing_replay=True),
}


@pytest.mark.parametrize("form", UNKNOWN)
def test_other_rows_take_verls_path(models: dict[bool, Path], form: str) -> None:
    stock, ours = (build(cls, models[False]) for cls in (FSDPEngineWithLMHead, ResponseLogitsEngine))
    infer(ours, batch())  # leaves nothing behind
    shapes = head_inputs(ours)
    expected, found = infer(stock, UNKNOWN[form]()), infer(ours, UNKNOWN[form]())
    assert shapes == [(2, 10), (2, 12)]
    assert found.keys() == expected.keys()
    for name in found:
        assert torch.equal(found[name].values(), expected[name].values())


@pytest.mark.parametrize("settings", [{"entropy_checkpointing": True}, {"mixed_precision": {"param_dtype": "bf16"}}])
def test_other_settings_take_verls_path(models: dict[bool, Path], settings: dict[str, Any]) -> None:
    ours = build(ResponseLogitsEngine, models[False], **settings)
    shapes = head_inputs(ours)
    infer(ours, batch(calculate_entropy=True))
    assert shapes == [(2, 10), (2, 12)]


def test_other_heads_take_verls_path(models: dict[bool, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherHead(torch.nn.Module):
        def __init__(self, linear: torch.nn.Linear) -> None:
            super().__init__()
            self.weight = linear.weight

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            assert hidden.shape[0] == 2
            return hidden @ self.weight.T

    init = LlamaForCausalLM.__init__

    def with_other_head(model: Any, config: Any) -> None:
        init(model, config)
        model.lm_head = OtherHead(model.lm_head)

    monkeypatch.setattr(LlamaForCausalLM, "__init__", with_other_head)
    log_probs = infer(build(ResponseLogitsEngine, models[False]), batch())["log_probs"]
    assert (log_probs.values() != 0).all()


def test_micro_batch_without_response_tokens(models: dict[bool, Path]) -> None:
    ours = build(ResponseLogitsEngine, models[False])
    data = batch(responses=torch.nested.nested_tensor_from_jagged(torch.zeros(0).long(), torch.zeros(5).long()))
    shapes = head_inputs(ours)
    with ours.train_mode():
        ours.train_batch(data, loss_function=lambda model_output, **_: (model_output["log_probs"].values().sum(), {}))
    assert shapes == [(1, 0)] * 2


def test_settings_of_the_platform_change_no_number(models: dict[bool, Path]) -> None:
    plain = build(ResponseLogitsEngine, models[True])
    fused = {"override_optimizer_config": {"fused": True}}
    faster = build(ResponseLogitsEngine, models[True], reshard_after_forward=False, optimizer=fused)
    for _ in range(3):  # a log-prob pass leaves full parameters behind, which the next update makes stale
        expected, found = (infer(engine, batch())["log_probs"].values() for engine in (plain, faster))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        expected, found = (train(engine, batch())["metrics"]["grad_norm"] for engine in (plain, faster))
        assert found == pytest.approx(expected, rel=1e-5)
    for name, value in parameters(plain).items():
        torch.testing.assert_close(parameters(faster)[name], value, atol=1e-5, rtol=0, msg=name)


def test_backward_pass_equals_autograds_in_the_memory_of_the_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(11, 7, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 7, (11,), generator=generator)
    weights = torch.randn(11, generator=generator, dtype=torch.float64)
    expected = logits.clone().requires_grad_()
    plain = expected.log_softmax(-1).gather(1, labels[:, None])[:, 0]
    (plain * weights).sum().backward()

    leaf = logits.clone().requires_grad_()
    computed = leaf * 1.0
    found = LogProbs.apply(computed, labels)
    torch.testing.assert_close(found, plain)
    (found * weights).sum().backward(retain_graph=True)
    torch.testing.assert_close(leaf.grad, expected.grad)
    assert torch.equal(computed.detach(), leaf.grad)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()


def test_positions_before_each_token_of_the_responses() -> None:
    rows, places = response_positions(torch.tensor([5, 1, 4]), torch.tensor([3, 0, 1]))
    assert (rows.tolist(), places.tolist()) == ([0, 0, 0, 2], [1, 2, 3, 2])


def test_registry_gives_the_engine_to_language_models_on_this_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is ResponseLogitsEngine
    assert EngineRegistry.get_engine_cls("value_model", "fsdp2") is FSDPEngineWithValueHead
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "nvidia")
    assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is FSDPEngineWithLMHead
