"""Measurements in one process, without Ray."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

NUM_ROUNDS = 3


def compare_log_probs(num_tokens: int, vocabulary: int) -> dict[str, Any]:
    """Compute log-probs and gradients of packed logits by verl's loop and by ``without_flash_attn.py``."""
    import torch
    from verl.utils import torch_functional

    loop = torch_functional.logprobs_from_logits_v2
    from recipe.online_refiner.verl_glue.without_flash_attn import log_probs_of_labels

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    logits = torch.randn(num_tokens, vocabulary, device=device, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(vocabulary, (num_tokens,), device=device)
    ways: dict[str, Callable[..., Any]] = {"verl": loop, "ours": log_probs_of_labels}
    with torch.no_grad():
        exact = torch.cat(
            [
                torch.log_softmax(rows.double(), -1).gather(-1, ids[:, None])[:, 0]
                for rows, ids in zip(logits.split(256), labels.split(256), strict=True)
            ]
        )
    found: dict[str, Any] = {"tokens": num_tokens, "vocabulary": vocabulary}
    for name, way in ways.items():
        times = []
        for _ in range(NUM_ROUNDS):
            logits.grad = None
            _wait()
            began = time.monotonic()
            values = way(logits, labels)
            _wait()
            forward = time.monotonic()
            values.float().sum().backward()
            _wait()
            times.append((forward - began, time.monotonic() - forward))
        found[name] = {
            "forward_s": sorted(one for one, _ in times)[NUM_ROUNDS // 2],
            "backward_s": sorted(one for _, one in times)[NUM_ROUNDS // 2],
            "largest_error": float((values.double() - exact).abs().max()),
        }
    # bfloat16 has 8 bits: at |log p| of about 12 its step is 1/16.
    found["faults"] = [f"{name} is off by more than 0.1" for name in ways if found[name]["largest_error"] > 0.1]
    return found


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def sleep_and_wake(model: Path, num_cycles: int, *, sleeps: bool) -> dict[str, Any]:
    """Let an engine sleep and wake again and again; note GPU and host memory, and whether greedy answers change."""
    from recipe.cpu_platform import prepare_vllm

    prepare_vllm()
    from vllm import LLM, SamplingParams

    from experiments.gpu_quarter.runner import gpu_mib

    engine = LLM(
        model=str(model),
        dtype="float32" if not sleeps else "bfloat16",
        enforce_eager=not sleeps,
        max_model_len=256,
        gpu_memory_utilization=0.3,  # so much must be free, whatever the cache takes
        kv_cache_memory_bytes=(4 << 30) if sleeps else (64 << 20),
        **({"enable_sleep_mode": True} if sleeps else {}),
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=16)
    prompts: Any = [{"prompt_token_ids": list(range(10 + one, 20 + one))} for one in range(8)]

    def answers() -> list[list[int]]:
        return [list(one.outputs[0].token_ids) for one in engine.generate(prompts, greedy, use_tqdm=False)]

    def host_gib() -> float:
        own = psutil.Process()
        return sum(one.memory_info().rss for one in [own, *own.children(recursive=True)]) / (1 << 30)

    first, cycles = answers(), []
    for _ in range(num_cycles):
        began = time.monotonic()
        if sleeps:
            engine.sleep(level=1)
        slept = time.monotonic()
        asleep_mib, asleep_host = gpu_mib(), host_gib()
        woke = time.monotonic()
        if sleeps:
            engine.wake_up()
        cycles.append(
            {
                "sleep_s": slept - began,
                "wake_s": time.monotonic() - woke,
                "asleep_mib": asleep_mib,
                "awake_mib": gpu_mib(),
                "host_gib": asleep_host,
                "num_changed": sum(one != other for one, other in zip(answers(), first, strict=True)),
            }
        )
    # Logits of random weights lie close together, and batches differ: one answer may.
    changed = max(one["num_changed"] for one in cycles)
    faults = [f"{changed} of {len(first)} greedy answers changed"] if changed > 1 else []
    later = cycles[num_cycles // 5 :]
    growth = {name: later[-1][name] - later[0][name] for name in ("asleep_mib", "awake_mib", "host_gib")}
    if growth["asleep_mib"] > 64 or growth["awake_mib"] > 64 or growth["host_gib"] > 1:
        faults.append(f"memory grew: {growth}")
    return {"cycles": cycles, "growth": growth, "faults": faults}
