"""An update with refinements beside each of verl's losses: verl's own gradient, plus eta times the cross-entropy's.

verl's training worker and engine are real, around a tiny Llama without FSDP; the optimizer keeps the gradients.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import LlamaForCausalLM
from verl.trainer.distillation.losses import distillation_ppo_loss
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric
from verl.workers.config import ActorConfig, DistillationLossConfig, PolicyLossConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

from recipe.online_refiner.method.imitation import ImitationPart
from recipe.online_refiner.method.modes import read_constraint
from recipe.online_refiner.method.pairs import Refinement, Turn, Verdict
from recipe.online_refiner.verl_glue.actor_engine import ActorEngine
from recipe.online_refiner.verl_glue.actor_worker import MiniBatchWorker, evened
from recipe.online_refiner.verl_glue.loss import ONLY_RESPONSES, jagged, outputs_of_logits, refined_loss
from recipe.smoke.letters import tiny_llama, tiny_tokenizer

ETA, TEMPERATURE, TOP_K = 0.5, 0.7, 4
ROWS = [
    ([3, 4], [11, 12, 13, 14, 2], 0),
    ([5], [13, 41, 14, 2], 2),
    ([6, 7, 8], [15, 2], 0),
    ([3, 4], [16, 17, 2], 0),
]
"""Prompt, response, and the index at which the refined turn begins."""
REFINED = [([21, 22, 23, 24, 25, 26, 2], True), ([27, 2], True), ([28, 29, 2], False), ([31, 2], True)]
"""The refinement of each row, one of which is longer than any response, and whether it is used."""


def actor(loss_mode: str = "vanilla", loss_agg_mode: str = "token-mean", **settings: Any) -> ActorConfig:
    loss = PolicyLossConfig(loss_mode=loss_mode)
    given = {"strategy": "fsdp2", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, **settings}
    return ActorConfig(policy_loss=loss, loss_agg_mode=loss_agg_mode, **given)


def distilled(loss_mode: str, **settings: Any) -> partial[Any]:
    """Return the loss of a run with ``distillation.enabled=true``."""
    loss = DistillationLossConfig(loss_mode=loss_mode, topk=TOP_K, **settings)
    config = SimpleNamespace(distillation_loss=loss)
    return partial(distillation_ppo_loss, config=actor(), distillation_config=config)


LOSSES: dict[str, tuple[partial[Any], str]] = {
    "vanilla": (partial(ppo_loss, config=actor()), "token-mean"),
    "sapo": (partial(ppo_loss, config=actor("sapo")), "seq-mean-token-mean"),
    "bypass_mode": (partial(ppo_loss, config=actor("bypass_mode")), "token-mean"),
    "sum over the longest": (partial(ppo_loss, config=actor("dppo_tv", "seq-mean-token-sum-norm")), "longest"),
    "distilled by rewards": (distilled("k1", use_task_rewards=False), "token-mean"),
    "distilled beside rewards": (distilled("k3", use_policy_gradient=False), "token-mean"),
    "distilled by top tokens": (
        distilled("forward_kl_topk", use_task_rewards=False, use_policy_gradient=False),
        "token-mean",
    ),
}
"""verl's losses, and how the cross-entropy is divided beside each."""
DIVISORS = {"token-mean": 5 + 3 + 2 + 3, "longest": 4 * 5}
"""The tokens of all responses; the rows times the tokens of the longest response."""


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let this process be the only rank."""
    address = f"file://{tmp_path_factory.mktemp('meet') / 'ranks'}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return tiny_llama(tiny_tokenizer()).eval()


def log_probs_of(model: LlamaForCausalLM, context: list[int], answer: list[int]) -> torch.Tensor:
    """Return log pi(answer_t), (len answer,), by Hugging Face."""
    logits = model(torch.tensor([context + answer])).logits[0, len(context) - 1 : -1] / TEMPERATURE
    return logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0]


SCALES = [1.0] * len(ROWS)


def weights_of(ids: list[int], scale: float) -> list[float]:
    """Return the column of a used refinement whose first token weighs half as much as the others."""
    part = ImitationPart(
        normaliser="batch", rescue_dead_groups=False, weights=lambda turn: [0.5] + [1.0] * (len(ids) - 1)
    )
    refinement = Refinement(verdict=Verdict.ACCEPTED, token_ids=ids)
    turn = Turn(response_length=1, start=0, ids=[2], refinement=refinement, is_used=True, reward=0.0, scale=scale)
    return list(part.columns(turn)["refine_weights"])


def mini_batch(model: LlamaForCausalLM, loss: partial[Any], eta: float | None, scales: Sequence[float] = SCALES) -> Any:
    """Return the rows as the trainer sends them; eta is None for a trainer of verl's, which sends no refinements."""
    generator = torch.Generator().manual_seed(1)
    distillation = loss.keywords.get("distillation_config")
    uses_top = distillation is not None and distillation.distillation_loss.loss_settings.use_topk
    columns: dict[str, list[torch.Tensor]] = {}

    def add(name: str, value: Any) -> None:
        columns.setdefault(name, []).append(torch.as_tensor(value))

    for (prompt, response, start), (refinement, _), scale in zip(ROWS, REFINED, scales, strict=True):
        size = (len(prompt + response), TOP_K if uses_top else 1)
        with torch.no_grad():
            own = log_probs_of(model, prompt, response)
        add("prompts", prompt)
        add("responses", response)
        add("input_ids", prompt + response)
        add("position_ids", [*range(len(prompt + response))])
        mask = [int(not 0 < t < start) for t in range(len(response))]
        add("loss_mask", mask)
        add("response_mask", mask)
        add("advantages", torch.randn(len(response), generator=generator))
        add("old_log_probs", own + 0.1 * torch.randn(len(response), generator=generator))
        if distillation is not None:
            top = torch.randn(*size[:1], 90, generator=generator).log_softmax(-1).topk(size[1])
            add("teacher_ids", top.indices.int())
            add("teacher_logprobs", top.values)
        if eta is not None:
            add("refine_ids", refinement)
            add("refine_weights", weights_of(refinement, scale))
    tensors = {name: jagged(rows) for name, rows in columns.items()}
    settings: dict[str, Any] = {"temperature": TEMPERATURE, "global_batch_size": len(ROWS)}
    settings |= {"distillation_use_topk": uses_top, "distillation_only": uses_top}
    if eta is not None:
        tensors |= {"refine_used": torch.tensor([int(used) for _, used in REFINED])}
        tensors |= {"refine_start": torch.tensor([start for _, _, start in ROWS])}
        settings |= {ONLY_RESPONSES: True}
        settings |= {"refine_eta": eta, "refine_normaliser": "batch"} if eta else {}
    return tu.get_tensordict(tensors, settings)


def engine_of(kind: type[FSDPEngineWithLMHead], model: LlamaForCausalLM) -> Any:
    """Return an engine of a class, with a plain model."""
    engine: Any = object.__new__(kind)
    engine.module, engine._autocast_dtype = model, torch.float32
    engine.pad_to_length = engine.use_ulysses_sp = False
    engine.ulysses_sequence_parallel_size = 1
    engine.engine_config = SimpleNamespace(entropy_checkpointing=False, entropy_from_logits_with_chunking=False)
    engine.get_data_parallel_group = lambda: torch.distributed.group.WORLD
    engine.get_data_parallel_size = lambda: 1
    engine.is_mp_src_rank_with_outputs = lambda: True
    engine._gradient_sync_context = lambda **_: contextlib.nullcontext()
    engine.train_mode = lambda **_: contextlib.nullcontext()
    engine.optimizer_zero_grad, engine.optimizer_step = model.zero_grad, lambda: None
    return engine


def update(worker_class: type[TrainingWorker], engine: Any, loss: Any, data: Any, size: int) -> tuple[Any, Any]:
    """Let a worker update on micro-batches of a size; return all gradients in one row, and the metrics."""
    worker: Any = object.__new__(worker_class)
    worker.engine, worker.loss_fn, worker.flops_counter, worker.device_name = engine, loss, None, "cpu"
    worker.model_config = OmegaConf.create({"use_remove_padding": True})
    settings = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": size, "max_token_len_per_gpu": 99}
    worker.engine_config = OmegaConf.create({**settings, "use_fused_kernels": False, "forward_only": False})
    metrics = tu.get(worker.train_batch(data), "metrics")
    gradient = torch.cat([parameter.grad.flatten() for parameter in engine.module.parameters()])
    values = {
        name: of_ranks[0].aggregate() if isinstance(of_ranks[0], Metric) else sum(of_ranks[0]) / len(of_ranks[0])
        for name, of_ranks in metrics.items()
        if isinstance(of_ranks, list)
    }
    return gradient, values


def of_verl(model: LlamaForCausalLM, loss: partial[Any], size: int) -> tuple[Any, Any]:
    """Return gradient and metrics of verl's own worker and engine."""
    engine = engine_of(FSDPEngineWithLMHead, model)
    return update(TrainingWorker, engine, loss, mini_batch(model, loss, None), size)


def ours(
    model: LlamaForCausalLM, loss: partial[Any], eta: float, size: int, scales: Sequence[float] = SCALES
) -> tuple[Any, Any]:
    """Return gradient and metrics of this extension's."""
    engine, wrapped = engine_of(ActorEngine, model), partial(refined_loss, loss)
    return update(MiniBatchWorker, engine, wrapped, mini_batch(model, loss, eta, scales), size)


def of_cross_entropy(model: LlamaForCausalLM, divisor: str, factors: Sequence[float] = SCALES) -> torch.Tensor:
    """Return the gradient of the cross-entropy by autograd, each row multiplied by a factor."""
    model.zero_grad()
    for (prompt, response, start), (ids, is_used), factor in zip(ROWS, REFINED, factors, strict=True):
        losses = -log_probs_of(model, prompt + response[:start], ids)
        weighted = factor * (0.5 * losses[0] + losses[1:].sum())
        if is_used:
            (weighted / (len(ROWS) * len(ids) if divisor == "seq-mean-token-mean" else DIVISORS[divisor])).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_verls_and_that_of_the_cross_entropy(model: LlamaForCausalLM, name: str, size: int) -> None:
    """Micro-batches have one, two or all rows; with one row, some hold refinements alone."""
    loss, divisor = LOSSES[name]
    own, _ = of_verl(model, loss, len(ROWS))
    expected = own + ETA * of_cross_entropy(model, divisor)
    found, metrics = ours(model, loss, ETA, size)
    assert metrics["sft_cross_entropy"] > 0
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert (own - expected).norm() > 1e-2 * expected.norm(), "the refinements count"


@pytest.mark.parametrize("size", [1, 8])
def test_each_row_is_weighed_by_the_eta_of_its_data_source(model: LlamaForCausalLM, size: int) -> None:
    constraint = read_constraint({"mode": "sft", "eta": ETA, "by_source": {"x": {"eta": 0.1}, "y": {"eta": 2.5}}})
    etas = {"x": 0.1, "y": 2.5, "z": ETA}
    sources = ["x", "y", "z", "z"]
    loss, divisor = LOSSES["vanilla"]
    own, _ = of_verl(model, loss, len(ROWS))
    expected = own + of_cross_entropy(model, divisor, [etas[source] for source in sources])
    found, _ = ours(model, loss, constraint.first_eta, size, [constraint.scale(source) for source in sources])
    assert (found - expected).norm() < 1e-5 * expected.norm()
    other = own + ETA * of_cross_entropy(model, divisor)
    assert (found - other).norm() > 1e-2 * expected.norm(), "one eta for all is another gradient"


@pytest.mark.parametrize("name", LOSSES)
def test_with_eta_0_all_numbers_are_verls(model: LlamaForCausalLM, name: str) -> None:
    loss, _ = LOSSES[name]
    (gradient, metrics), (same, others) = (of_verl(model, loss, 2), ours(model, loss, 0.0, 2))
    assert torch.equal(gradient, same) and metrics == others and len(metrics) > 1


@pytest.mark.parametrize("name", [name for name, (_, divisor) in LOSSES.items() if divisor != "longest"])
def test_verls_metrics_are_of_the_policys_rows(model: LlamaForCausalLM, name: str) -> None:
    loss, _ = LOSSES[name]
    (_, metrics), (_, others) = (of_verl(model, loss, 1), ours(model, loss, ETA, 1))
    assert others.pop("sft_cross_entropy") > 0
    assert others == pytest.approx(metrics, rel=1e-4, abs=1e-6)


class OwnLoss:
    """The loss of a mode that reads logits."""

    def of_logits(self, config: ActorConfig, data: Any, logits: torch.Tensor, data_format: str) -> dict[str, Any]:
        return {"own": logits[0, :, 0]}


@pytest.mark.parametrize("name", LOSSES)
def test_the_outputs_of_logits_are_those_of_each_loss_that_reads_them(model: LlamaForCausalLM, name: str) -> None:
    """A mode's own loss asks engines for logits, also where verl's distillation reads none."""
    loss, _ = LOSSES[name]
    data = mini_batch(model, loss, None)
    logits = torch.zeros(1, len(data["input_ids"].values()), 96)
    expected = set()
    if name == "distilled by top tokens":
        expected = {*loss(data=data, student_logits=logits)}
        assert "distillation_losses" in expected
    assert outputs_of_logits(loss, data, logits, "thd").keys() == expected
    tu.assign_non_tensor(data, refine_loss=OwnLoss())
    assert outputs_of_logits(loss, data, logits, "thd").keys() == expected | {"own"}


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("sum", [[1.0, 2.0], [4.0]], 3.5),
        ("sum", [[4.0]], 2.0),  # the other rank has refinements alone
        ("mean", [[1.0, 2.0], [4.0]], 2.75),
        ("mean", [[4.0]], 4.0),
        ("min", [[3.0, 2.0], [4.0]], 2.0),
        ("max", [[1.0, 2.0], [4.0]], 4.0),
    ],
)
def test_ranks_with_fewer_micro_batches_of_the_policy_have_metrics(
    kind: str, values: list[list[float]], expected: float
) -> None:
    """A sum is over micro-batches and a mean over ranks, as with as many of them on every rank."""
    of_ranks = [Metric(kind) for _ in values]
    for one, own in zip(of_ranks, values, strict=True):
        one.extend(own)
    found = evened({"a": of_ranks, "list": [[1.0], [2.0, 3.0]], "number": 5.0}, 2)
    assert Metric.aggregate_dp(found["a"]) == expected
    assert (found["list"], found["number"]) == ([[1.0], [2.0, 3.0]], 5.0)
