"""Every mode with every kind of estimator on two workers, and the advantages against plain Python."""

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rapidfuzz.distance import Levenshtein
from transformers import AutoModelForCausalLM

from recipe.cpu_platform import ENVIRONMENT
from recipe.online_refiner.metrics import MEANING
from recipe.online_refiner.run_dir import read_rows

PROBE = Path(__file__).with_name("mode_cycle_probe.py")
ETA, GAMMA, LAMBDA, NUM_SETTINGS = 0.05, 0.99, 0.9, 5
JOBS = {
    # Both in one job: starting it takes longer than its steps. The critic then learns from grpo's steps as well.
    "gae,grpo": [
        *("algorithm.adv_estimator=gae", f"algorithm.gamma={GAMMA}", f"algorithm.lam={LAMBDA}"),
        *("critic.ppo_mini_batch_size=4", "critic.ppo_micro_batch_size_per_gpu=4", "critic.optim.lr=1e-3"),
    ],
    # DAPO: groups of equal rewards are replaced, clip-higher; here with dynamic micro-batches and two epochs.
    "grpo": [
        *("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=reward"),
        *("algorithm.filter_groups.max_inflight_gen_batches=2", "actor_rollout_ref.actor.clip_ratio_high=0.28"),
        *("actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=160"),
        "actor_rollout_ref.actor.ppo_epochs=2",
    ],
}


@pytest.mark.e2e
@pytest.mark.parametrize("estimators", ["gae,grpo", pytest.param("grpo", marks=pytest.mark.slow)])
def test_every_mode_trains(
    estimators: str, start_marked: Callable, letters_job: list[str], tiny_llama: Path, tmp_path: Path
) -> None:
    num_steps = NUM_SETTINGS * len(estimators.split(","))
    overrides = [
        *("platform=cpu", f"run_dir={tmp_path}/run", *letters_job, *JOBS[estimators]),
        *(f"constraint.eta={ETA}", "constraint.cross_entropy_all_every=2", "refiner.template=dialogue"),
        *("trainer.n_gpus_per_node=2", f"trainer.total_training_steps={num_steps}", "trainer.total_epochs=9"),
        *("trainer.save_freq=-1", "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32"),
        "actor_rollout_ref.actor.optim.lr=1e-3",  # it learns the task in three steps otherwise
    ]
    job = start_marked(
        [str(PROBE), str(tmp_path), estimators, *overrides],
        cwd=tmp_path,
        environment={**ENVIRONMENT, "OMP_NUM_THREADS": "1"},
    )
    assert job.wait(500) == 0, job.output()[-6000:]
    assert job.survivors() == []

    metrics = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    records = [torch.load(tmp_path / f"{step}.pt", weights_only=False) for step in range(1, num_steps + 1)]
    assert [row["step"] for row in metrics] == list(range(1, num_steps + 1))
    for row, record in zip(metrics, records, strict=True):
        for name in (*MEANING, "actor/pg_loss", "actor/grad_norm"):
            assert math.isfinite(row[name]), (row["step"], name)
        assert row["actor/grad_norm"] > 0
        check_step(row, record, num_epochs=1 if "gae" in estimators else 2)
    if "gae" not in estimators:
        assert all(len(set(rewards)) > 1 for record in records for rewards in groups_of(record).values())
    assert sum(row["refiner/num_accepted"] > 0 for row in metrics) >= 3, "too few accepted pairs to show anything"
    assert {record["estimator"] for record in records} == set(estimators.split(","))
    check_log_probs(records[0], tiny_llama)


def check_step(row: dict[str, Any], record: dict[str, Any], num_epochs: int) -> None:
    settings = record["settings"]
    pairs = {index: pair for index, pair in record["refined"].items() if pair["accepted"]}
    assert len(pairs) == row["refiner/num_accepted"]
    if settings["mode"] == "none":
        assert not record["refined"]
    penalties = [[0.0] * len(ids) for ids in record["responses"]]
    if settings["mode"] == "penalty":
        for index, pair in pairs.items():
            penalties[index] = penalty(record["responses"][index], pair, settings["alignment"])
    expected = (gae if record["estimator"] == "gae" else group_relative)(record, penalties)
    for found, wanted in zip(record["advantages"], expected, strict=True):
        assert found == pytest.approx(wanted, abs=2e-6, rel=1e-6), row["step"]
    assert row["critic/score/mean"] == pytest.approx(statistics.mean(map(sum, record["rm_scores"])), abs=1e-6)
    if settings["mode"] == "sft" and pairs:
        assert row["actor/sft_cross_entropy"] > 0
        if settings["token_weights"] == "uniform" and num_epochs == 1:  # then its policy is the one that was measured
            assert row["actor/sft_cross_entropy"] == pytest.approx(row["constraint/cross_entropy_accepted"], abs=1e-5)
    else:
        assert row["actor/sft_cross_entropy"] == 0
    if row["step"] % 2 == 0:
        assert row["constraint/cross_entropy_all"] == 0
        assert len(record["refined"]) == len(pairs)


def penalty(response: list[int], pair: dict[str, Any], alignment: str) -> list[float]:
    """Return eta * log pi(a'_c(t)) of every token of a response."""
    ids, log_probs = pair["ids"], pair["log_probs"]
    if alignment == "position":
        return [ETA * log_probs[t] if t < len(ids) else 0.0 for t in range(len(response))]
    charged = [0.0] * len(response)
    for tag, start, end, other, _ in Levenshtein.opcodes(response, ids):
        for t in range(start, end):
            if tag == "replace":
                charged[t] = ETA * log_probs[other + t - start]
            elif tag == "delete":
                charged[t] = ETA * log_probs[min(other, len(ids) - 1)]
    return charged


def groups_of(record: dict[str, Any]) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for group, scores in zip(record["group"], record["rm_scores"], strict=True):
        groups.setdefault(group, []).append(sum(scores))
    return groups


def group_relative(record: dict[str, Any], penalties: list[list[float]]) -> list[list[float]]:
    """Return (r - mean) / std of the group, plus the penalties from here to the end."""
    groups, advantages = groups_of(record), []
    for group, scores, charged in zip(record["group"], record["rm_scores"], penalties, strict=True):
        outcome = (sum(scores) - statistics.mean(groups[group])) / (statistics.stdev(groups[group]) + 1e-6)
        advantages.append([outcome + sum(charged[t:]) for t in range(len(charged))])
    return advantages


def gae(record: dict[str, Any], penalties: list[list[float]]) -> list[list[float]]:
    """Return generalised advantages of reward + penalty, whitened over the batch."""
    advantages = []
    for scores, values, charged in zip(record["rm_scores"], record["values"], penalties, strict=True):
        row, following, carried = [], 0.0, 0.0
        for score, value, p in reversed(list(zip(scores, values, charged, strict=True))):
            carried = score + p + GAMMA * following - value + GAMMA * LAMBDA * carried
            following = value
            row.insert(0, carried)
        advantages.append(row)
    flat = [value for row in advantages for value in row]
    mean, std = statistics.mean(flat), math.sqrt(statistics.variance(flat) + 1e-8)
    return [[(value - mean) / std for value in row] for row in advantages]


def check_log_probs(record: dict[str, Any], folder: Path) -> None:
    """Compare log pi(a') of the first step with a Hugging Face model's."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert record["refined"]
    for index, pair in record["refined"].items():
        prompt, ids = record["prompts"][index], pair["ids"]
        with torch.no_grad():
            table = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
        expected = [table[len(prompt) + t - 1, token].item() for t, token in enumerate(ids)]
        assert pair["log_probs"] == pytest.approx(expected, abs=2e-6, rel=1e-6)
