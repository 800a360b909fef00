"""Every mode and credit on two workers: advantages against plain Python, a frozen pi_0, the death of a replica."""

import json
import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from plain_advantages import ETA, GAMMA, LAMBDA, divergence, expected_advantages, groups_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM

from recipe.online_refiner.metric_names import COUNTS, MEANING
from recipe.runs.files import Records, read_rows

PROBE = Path(__file__).with_name("mode_cycle_probe.py")
NUM_STEPS = {"gae": 8, "grpo": 4, "dapo": 5}
"""Settings in each of the probe's cycles."""
NUM_BEFORE_DEATH = 2
"""Steps; in the next one no refinement is asked for, so that none is missing in a step that refines."""
# Both estimators in one job: starting it takes longer than its steps. The critic then learns from grpo's steps as well.
# Every step has the first one's rollouts, and the one replica of the refiner writes greedily: what it writes may only
# change if it does.
GAE_AND_GRPO = [
    "algorithm.adv_estimator=gae",
    f"algorithm.gamma={GAMMA}",
    f"algorithm.lam={LAMBDA}",
    "critic.ppo_mini_batch_size=4",
    "critic.ppo_micro_batch_size_per_gpu=4",
    "critic.optim.lr=1e-3",
    "refiner.temperature=0",
    "refiner.num_replicas=1",
    "actor_rollout_ref.actor.optim.lr=5e-3",
    "skip.rollout_tq.enable=True",
    "skip.rollout_tq.action=repeat",
    f"skip.rollout_tq.steps={list(range(1, NUM_STEPS['gae'] + NUM_STEPS['grpo'] + 1))}",
]
# Groups of equal rewards are replaced, clip-higher; here with dynamic micro-batches and two epochs.
DAPO = [
    "algorithm.filter_groups.enable=true",
    "algorithm.filter_groups.metric=reward",
    "algorithm.filter_groups.max_inflight_gen_batches=2",
    "actor_rollout_ref.actor.clip_ratio_high=0.28",
    "actor_rollout_ref.actor.use_dynamic_bsz=true",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=160",
    # It learns the task in three steps otherwise.
    "actor_rollout_ref.actor.ppo_epochs=2",
    "actor_rollout_ref.actor.optim.lr=1e-3",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a job in changing modes left."""

    output: str
    events: Path
    """TensorBoard's folder."""
    metrics: list[dict[str, Any]]
    records: list[dict[str, Any]]
    """What went into the advantages of each step and what came out."""
    refinements: list[dict[str, Any]]


@pytest.fixture(scope="module")
def train(start_marked: Callable, letters_job: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """Return a function that runs a job through some of the probe's cycles (joined by commas)."""

    def run(cycles: str, *overrides: str, kills_a_replica: bool = False) -> Trained:
        num_steps, folder = sum(NUM_STEPS[cycle] for cycle in cycles.split(",")), tmp_path_factory.mktemp("modes")
        metrics = folder / "run" / "metrics.jsonl"
        settings = [
            "platform=cpu",
            f"run_dir={folder}/run",
            *letters_job,
            *overrides,
            f"constraint.eta={ETA}",
            "measure.cross_entropy_all_every=2",
            "refiner.template=dialogue",
            "trainer.n_gpus_per_node=2",
            "trainer.logger=[console,tensorboard]",
            f"trainer.total_training_steps={num_steps}",
            "trainer.total_epochs=99",
            "trainer.save_freq=-1",
            "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
            f"skip.rollout_tq.dump_dir={folder}/rollouts",
        ]
        job = start_marked(
            ["-m", "recipe.cpu_platform.launch", str(PROBE), str(folder), cycles, *settings],
            cwd=folder,
            environment={"OMP_NUM_THREADS": "1", "TENSORBOARD_DIR": f"{folder}/tensorboard"},
        )
        if kills_a_replica:
            job.wait_until(lambda: metrics.exists() and len(list(read_rows(metrics))) >= NUM_BEFORE_DEATH)
            (pid,) = re.findall(r"refiner replica 0: server process (\d+)", job.output())
            server = psutil.Process(int(pid))
            preloaded = server.parent()
            server.kill()
            # Its successor is a fork as well; then the process that they are forks of dies, which costs nothing.
            job.wait_until(lambda: len(list(read_rows(metrics))) >= NUM_BEFORE_DEATH + 2)
            preloaded.kill()
        assert job.wait() == 0, job.output()[-6000:]
        assert job.survivors() == []
        steps = range(1, num_steps + 1)
        return Trained(
            output=job.output(),
            events=folder / "tensorboard",
            metrics=list(read_rows(metrics)),
            records=[torch.load(folder / f"{step}.pt", weights_only=False) for step in steps],
            refinements=list(map(json.loads, Records(f"{folder}/run/refinements").lines())),
        )

    return run


@pytest.fixture(scope="module")
def gae_and_grpo(train: Callable) -> Trained:
    return train("gae,grpo", *GAE_AND_GRPO, kills_a_replica=True)


def check_training(trained: Trained, tiny_llama: Path, *, num_epochs: int) -> None:
    """Check every step's numbers; a step in which the refiner died may lack the KL to it."""
    assert [row["step"] for row in trained.metrics] == list(range(1, len(trained.records) + 1))
    for row, record in zip(trained.metrics, trained.records, strict=True):
        unknown = {"kl_ref/k3"} if row["tokens/kl_ref"] == 0 and row["refiner/num_restarts"] else set()
        for name in {*COUNTS, *(row.keys() & MEANING), "actor/pg_loss", "actor/grad_norm"} - unknown:
            assert isinstance(row[name], float) and math.isfinite(row[name]), (row["step"], name)
        assert row["actor/grad_norm"] > 0
        check_step(row, record, num_epochs)
    assert sum(row["refiner/num_accepted"] > 0 for row in trained.metrics) >= 3, "too few pairs to show anything"
    check_log_probs(trained.records[0], tiny_llama)
    for refinement in trained.refinements:
        if refinement["refined_reward"] is not None:
            is_better = refinement["refined_reward"] > refinement["reward"]
            assert (refinement["verdict"] == "accepted") == is_better


@pytest.mark.e2e
def test_every_mode_trains_with_gae_and_every_credit_with_grpo(gae_and_grpo: Trained, tiny_llama: Path) -> None:
    check_training(gae_and_grpo, tiny_llama, num_epochs=1)
    assert [record["estimator"] for record in gae_and_grpo.records] == ["gae"] * 8 + ["grpo"] * 4


@pytest.mark.e2e
def test_the_refiner_stays_frozen_while_the_policy_moves(gae_and_grpo: Trained) -> None:
    steps = gae_and_grpo.metrics
    written = [refinements_of(gae_and_grpo, row["step"]) for row in steps if not row["refiner/failed/request"]]
    written = [refinements for refinements in written if refinements]  # mode none asks for none
    assert len(written) >= 7
    assert all(refinements == written[0] for refinements in written), "pi_0 must not change"
    # What the same refinements cost the policy is another number in every step.
    crossed = [row["constraint/cross_entropy_all"] for row in steps if "constraint/cross_entropy_all" in row]
    assert len(crossed) >= 3 and len(set(crossed)) == len(crossed)
    assert steps[0]["constraint/penalty"] < 0
    assert steps[0]["kl_ref/k3"] < 1e-3 < steps[-1]["kl_ref/k3"]


@pytest.mark.e2e
def test_a_replica_that_dies_is_started_again(gae_and_grpo: Trained) -> None:
    restarts = [row["refiner/num_restarts"] for row in gae_and_grpo.metrics]
    assert sum(restarts) == 1 and sum(restarts[:NUM_BEFORE_DEATH]) == 0
    assert gae_and_grpo.metrics[-1]["refiner/num_accepted"] > 0
    assert "import their packages themselves" in gae_and_grpo.output, "it lives without its fork server"


@pytest.mark.e2e
def test_trackers_get_every_number_of_every_step(gae_and_grpo: Trained) -> None:
    events = EventAccumulator(str(gae_and_grpo.events), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    steps = {row["step"]: row for row in gae_and_grpo.metrics}
    for name in MEANING:
        having = {step for step, row in steps.items() if name in row}
        tracked = {event.step: event.value for event in events.Scalars(name)} if having else {}
        assert tracked.keys() == having, name
        for step, value in tracked.items():
            assert value == pytest.approx(steps[step][name], rel=1e-6) or steps[step][name] is None, (name, step)
    assert "refiner/samples/text_summary" in events.Tags()["tensors"]


@pytest.mark.e2e
@pytest.mark.slow
def test_every_mode_trains_with_dapo(train: Callable, tiny_llama: Path) -> None:
    """Two replicas, and new rollouts in every step."""
    trained = train("dapo", *DAPO)
    check_training(trained, tiny_llama, num_epochs=2)
    assert {record["estimator"] for record in trained.records} == {"grpo"}
    assert all(len(set(rewards)) > 1 for record in trained.records for rewards in groups_of(record).values())


def refinements_of(trained: Trained, step: int) -> list[tuple[str, str, str]]:
    rows = [row for row in trained.refinements if row["step"] == step]
    return sorted((row["response"], row["refined"] or "", row["verdict"]) for row in rows)


def check_step(row: dict[str, Any], record: dict[str, Any], num_epochs: int) -> None:
    settings = record["settings"]
    pairs = {index: pair for index, pair in record["refined"].items() if pair["accepted"]}
    assert len(pairs) == row["refiner/num_accepted"]
    if settings["mode"] == "none":
        assert not record["refined"]
    for found, wanted in zip(record["advantages"], expected_advantages(record, pairs), strict=True):
        # Rewards are float32, and what their rounding leaves is divided by a group's deviation, of some hundredths.
        assert found == pytest.approx(wanted, abs=1e-5, rel=1e-5), row["step"]
    if settings["target"] == "in_place":
        assert record["in_place"].keys() == pairs.keys() and pairs, "the gate"
        own, charged = record["old_log_probs"], record["in_place"]
        differences = [a - b for index in pairs for a, b in zip(charged[index], own[index], strict=True)]
        assert row["constraint/in_place_charge"] == pytest.approx(statistics.mean(differences), abs=1e-5)
        assert row["constraint/divergence"] == pytest.approx(-sum(differences) / len(own), abs=1e-4)
    assert row["critic/score/mean"] == pytest.approx(statistics.mean(map(sum, record["rm_scores"])), abs=1e-6)
    num_tokens = sum(map(len, record["responses"]))
    if settings["mode"] == "sft" and pairs:
        assert row["actor/sft_cross_entropy"] > 0
        if num_epochs == 1 and "constraint/cross_entropy_all" in row:  # measured, and of the same policy
            num_refined = sum(len(pair["ids"]) for pair in pairs.values())
            share = 1.0 if settings["sft_normaliser"] == "accepted" else num_refined / num_tokens
            wanted = row["constraint/cross_entropy_accepted"] * share
            assert row["actor/sft_cross_entropy"] == pytest.approx(wanted, abs=1e-5)
    elif settings["mode"] == "lagrangian" and pairs:  # one mini-batch, so of the same policy
        total = sum(divergence(record["responses"][index], pair) for index, pair in pairs.items())
        assert row["actor/sft_cross_entropy"] == pytest.approx(total / num_tokens, abs=1e-5)
        if settings["credit"] != "in_reward":
            assert row["constraint/penalty"] == pytest.approx(-ETA * total / num_tokens, abs=1e-6)
    else:
        assert "actor/sft_cross_entropy" not in row
    if row["step"] % 2 == 0:
        assert "constraint/cross_entropy_all" not in row
        assert len(record["refined"]) == len(pairs)


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
