"""Modes sft and lagrangian on verl's FSDP engine against plain loops and autograd on a Hugging Face model."""

import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

PROBE = Path(__file__).with_name("actor_worker_probe.py")
LEARNING_RATE, CLIP, DUAL_CLIP, KEPT_WEIGHT = 0.02, 0.2, 3.0, 0.25
EOS, NUM_ROWS = 2, 8
# Lengths of (prompt, a, a'): a' shorter, longer, identical, only EOS, shorter than the prompt's successor, long, equal
# length, padding.
LENGTHS = [(3, 5, 3), (4, 2, 6), (2, 4, 4), (5, 3, 1), (3, 6, 2), (2, 3, 7), (6, 4, 4), (3, 1, 1)]
IDENTICAL, PADDING = 2, 7
TOOL_OUTPUT = {0: (1, 3), 5: (1, 2)}
"""Rows of two turns: where in the response the output of a tool begins, and where the second turn does."""
ACCEPTED = {
    "none": [0] * NUM_ROWS,
    "all": [1] * (NUM_ROWS - 1) + [0],
    "some": [1, 0, 1, 1, 0, 0, 0, 0],  # of two ranks, with every second row each, one has three and the other none
}


def batch(model: Any, accepted: list[int]) -> list[dict[str, Any]]:
    """Draw rows whose old log-probs are near enough to the model's that some ratios are clipped and some are not."""
    generator = torch.Generator().manual_seed(7)
    rows = []
    for index, (num_prompt, num_response, num_refined) in enumerate(LENGTHS):
        prompt, response, refined = (
            torch.randint(5, 90, (n,), generator=generator).tolist() for n in (num_prompt, num_response, num_refined)
        )
        response[-1] = refined[-1] = EOS
        if index == IDENTICAL:
            refined = list(response)
        with torch.no_grad():
            old = torch.stack(log_probs(model, prompt, response))
        old += 0.3 * torch.randn(len(old), generator=generator)
        mask = [int(index != PADDING)] * num_response
        tool, start = TOOL_OUTPUT.get(index, (0, 0))
        mask[tool:start] = [0] * (start - tool)
        rows.append(
            {
                **{"prompts": prompt, "responses": response, "input_ids": prompt + response},
                **{"position_ids": list(range(num_prompt + num_response)), "loss_mask": mask, "response_mask": mask},
                **{"old_log_probs": old.tolist(), "refine_ids": refined, "refine_mask": [1] * num_refined},
                "advantages": torch.randn(num_response, generator=generator).tolist(),
                "edited": torch.randint(0, 2, (num_refined,), generator=generator).tolist(),
                "refine_used": accepted[index],
                "refine_start": start,
            }
        )
    return rows


def log_probs(model: Any, prompt: list[int], answer: list[int]) -> list[torch.Tensor]:
    """Return log pi(answer_t | prompt, answer_<t), one scalar a token."""
    logits = model(torch.tensor([prompt + answer])).logits[0]
    return [logits[len(prompt) + t - 1].log_softmax(-1)[token] for t, token in enumerate(answer)]


def context_of(row: dict[str, Any]) -> list[int]:
    """Return what a refined turn answers."""
    return row["prompts"] + row["responses"][: row["refine_start"]]


def num_charged(row: dict[str, Any]) -> int:
    """Return min(n, m) of the turn that was refined."""
    return min(len(row["responses"]) - row["refine_start"], len(row["refine_ids"]))


def divergence(model: Any, row: dict[str, Any]) -> float:
    """Return D of Eq. 6, in nats."""
    with torch.no_grad():
        found = log_probs(model, context_of(row), row["refine_ids"])
    return -sum(value.item() for value in found[: num_charged(row)]) if row["refine_used"] else 0.0


def known_weights(row: dict[str, Any], token_weights: str) -> list[float]:
    """Return what is known of the tokens of a' before the update."""
    if token_weights == "edited":
        return [1.0 if edited else KEPT_WEIGHT for edited in row["edited"]]
    if token_weights == "charged":
        return [float(t < num_charged(row)) for t in range(len(row["refine_ids"]))]
    return [1.0] * len(row["refine_ids"])


def reference_loss(model: Any, case: dict[str, Any], costs: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return PPO's clipped loss (mean over all tokens) and the cross-entropy of accepted refinements.

    Mode lagrangian: ``costs`` are taken from the advantages of the turn that was refined, and there is one N.
    """
    policy, crossed, num_tokens, num_refined = torch.zeros(()), torch.zeros(()), 0, 0
    for row, cost in zip(case["rows"], costs, strict=True):
        found = log_probs(model, row["prompts"], row["responses"])
        for t, log_prob in enumerate(found):
            if row["response_mask"][t]:
                ratio = (log_prob - row["old_log_probs"][t]).exp()
                advantage = row["advantages"][t] - (cost if t >= row["refine_start"] else 0)
                gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
                if advantage < 0:  # dual clip, arXiv 1912.09729
                    gain = torch.max(gain, torch.tensor(DUAL_CLIP * advantage))
                policy = policy - gain
                num_tokens += 1
        if row["refine_used"]:
            for t, log_prob in enumerate(log_probs(model, context_of(row), row["refine_ids"])):
                p = log_prob.detach().exp().item()
                known = known_weights(row, case["token_weights"])[t]
                by_policy = {"chord": p * (1 - p), "dft": p, "shaped": 0.1 * p / (p + 0.1) ** 2}
                weight = by_policy.get(case["token_weights"], known)
                crossed = crossed - weight * log_prob
                num_refined += 1
    return policy / num_tokens, crossed / (num_tokens if case["normaliser"] == "batch" else max(1, num_refined))


def reference_training(model: Any, case: dict[str, Any]) -> float:
    """Take plain gradient steps on the model, and return the cross-entropy's mean over the epochs."""
    values = []
    costs = [case["eta"] * divergence(model, row) if case["credit"] else 0.0 for row in case["rows"]]
    for _ in range(case["epochs"]):
        policy, crossed = reference_loss(model, case, costs)
        model.zero_grad()
        (policy + case["eta"] * crossed).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LEARNING_RATE * parameter.grad
        values.append(crossed.item())
    return sum(values) / len(values)


def cases(model: Any) -> Iterator[dict[str, Any]]:
    sizes = [(1, None), (2, None), (4, None), (None, 16)]  # micro-batches of fixed and of dynamic size
    for name, epochs, (size, tokens) in itertools.product(ACCEPTED, (1, 3), sizes):
        yield make_case(model, name, epochs=epochs, micro_batch_size=size, max_tokens=tokens)
    for weights in ("edited", "chord", "dft", "shaped"):
        yield make_case(model, "some", token_weights=weights)
    yield make_case(model, "all", eta=0.0)
    yield make_case(model, "some", normaliser="batch")
    lagrangian = {"token_weights": "charged", "normaliser": "batch", "credit": "whole", "eta": 0.1}
    for name, (size, tokens) in itertools.product(ACCEPTED, sizes[1:]):
        yield make_case(model, name, **lagrangian, epochs=2, micro_batch_size=size, max_tokens=tokens)


def make_case(model: Any, name: str, **settings: Any) -> dict[str, Any]:
    defaults = {"epochs": 1, "micro_batch_size": 2, "max_tokens": None, "eta": 0.7, "token_weights": "uniform"}
    case = {"name": name, **defaults, "normaliser": "accepted", "credit": None, **settings}
    rows = batch(model, ACCEPTED[name])
    for row in rows:
        row["refine_weights"] = known_weights(row, case["token_weights"])
    return {**case, "rows": rows}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.e2e
@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_sft_loss_and_gradients(num_ranks: int, start_marked: Callable, tiny_llama: Path, tmp_path: Path) -> None:
    load = {"pretrained_model_name_or_path": tiny_llama, "dtype": torch.float32}
    all_cases = list(cases(AutoModelForCausalLM.from_pretrained(**load)))
    torch.save(all_cases, tmp_path / "cases.pt")
    environment = {"WORLD_SIZE": str(num_ranks), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    arguments = [str(PROBE), str(tiny_llama), str(tmp_path / "cases.pt"), str(tmp_path / "out.pt")]
    job = start_marked(arguments, cwd=tmp_path, environment=environment)
    assert job.wait(300) == 0, job.output()[-6000:]
    results = torch.load(tmp_path / "out.pt", weights_only=False)
    assert len(results) == len(all_cases) == 39

    for case, result in zip(all_cases, results, strict=True):
        label = {key: value for key, value in case.items() if key != "rows"}
        model = AutoModelForCausalLM.from_pretrained(**load)
        for row, found in zip(case["rows"][::num_ranks], result["refine_log_probs"], strict=True):
            with torch.no_grad():
                expected = [value.item() for value in log_probs(model, context_of(row), row["refine_ids"])]
            assert found == pytest.approx(expected, abs=2e-6, rel=1e-6), label
        cross_entropy = reference_training(model, case)
        metric = result["metrics"].get("sft_cross_entropy")
        if case["name"] == "none":
            assert metric is None and cross_entropy == 0
        else:
            assert sum(metric) / len(metric) == pytest.approx(cross_entropy, abs=1e-6, rel=1e-6), label
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(
                result["parameters"][name], parameter.detach(), atol=1e-6, rtol=1e-6, msg=f"{name}: {label}"
            )
