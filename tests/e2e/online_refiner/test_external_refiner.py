"""A refiner by URL in whole jobs: one whose server dies and is back, and real ones against a real server of vLLM."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from played_server import Reply, Server, chat

from recipe.runs.files import read_rows

KEY = "sk-proj-Tq8vZ0xW4yLr2Nn6"
NUM_ROLLOUTS, NUM_STEPS = 16, 6
DIES_AT, IS_BACK_BEHIND = 2, 3
NUM_PROBES_BEFORE = 2
"""Before the first step: by the checks, and when the workers get the refiner."""


def files_with_the_key(*folders: Path) -> list[Path]:
    found = [file for folder in folders for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    assert len(found) > 20
    return [file for file in found if KEY.encode() in file.read_bytes()]


@pytest.mark.e2e
@pytest.mark.slow
def test_a_server_dies_and_is_back(train_letters: Callable, own_ray: dict[str, str], tmp_path: Path) -> None:
    """It costs refinements, and no step; its key stands nowhere."""
    metrics, is_dying, servers = tmp_path / "run" / "metrics.jsonl", threading.Lock(), list[Server]()

    def answer(message: str, num_before: int) -> Reply:
        if server.num_probes >= NUM_PROBES_BEFORE + DIES_AT:
            if is_dying.acquire(blocking=False):
                server.end()
            return Reply(hangs=True)
        return chat("abcdz")

    server = Server(answer)

    def bring_back(job: Any) -> None:
        job.wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= IS_BACK_BEHIND)
        servers.append(Server(lambda message, num_before: chat("abcdz"), port=server.server_address[1]))

    trained = train_letters(
        tmp_path,
        NUM_STEPS,
        "refiner.placement=external",
        f"refiner.url={server.url}",
        "refiner.api_key_env=PLAYED_KEY",
        "refiner.request_timeout_s=3",
        "constraint.mode=penalty",
        "constraint.eta=0.1",
        "actor_rollout_ref.actor.optim.lr=5e-4",  # at the task's own rate nothing is left to refine
        meanwhile=bring_back,
        environment={**own_ray, "PLAYED_KEY": KEY},
    )
    steps, again = trained.steps, servers.pop()
    again.end()
    before, dying, dead, last = steps[0], steps[DIES_AT - 1], steps[IS_BACK_BEHIND - 1], steps[-1]
    for step in (before, last):
        assert step["refiner/num_replicas"] == 1
        assert step["refiner/num_accepted"] > 0 and step["constraint/penalty"] < 0
        num_asked, rest = divmod(step["tokens/refine_prompt"], 11)  # equal responses of a group ask once
        assert rest == 0 < num_asked <= NUM_ROLLOUTS and step["tokens/refine"] == 7 * num_asked
        assert 0 < step["refiner/latency_p50_s"] <= step["refiner/latency_p95_s"]
    for step in (dying, dead):
        assert step["refiner/num_attempted"] == NUM_ROLLOUTS and step["refiner/num_accepted"] == 0
        assert step["refiner/failed/request"] + step["refiner/failed/timeout"] == NUM_ROLLOUTS
        assert step["reward/num_lost"] == 0 and step["actor/grad_norm"] > 0
        assert "refiner/latency_p95_s" not in step and step["tokens/refine_prompt"] == 0
    assert dying["refiner/num_replicas"] == 1 and dying["refiner/num_retries"] > 0
    assert dead["refiner/num_replicas"] == dead["refiner/num_retries"] == 0
    assert {row["refined"] for row in trained.refinements} == {"abcdz", None}
    assert server.keys == again.keys == {f"Bearer {KEY}"}
    assert KEY not in trained.output and files_with_the_key(tmp_path, Path(own_ray["RAY_TMPDIR"])) == []


ROLLOUT = "actor_rollout_ref.rollout"
TRAINERS: dict[str, list[str]] = {
    "sync": ["trainer.total_training_steps=2"],
    "separate_async": [
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.hybrid_engine=False",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8",
        f"{ROLLOUT}.nnodes=1",
        f"{ROLLOUT}.n_gpus_per_node=1",
        f"{ROLLOUT}.checkpoint_engine.backend=sockets",
        "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=True",
        "ray_kwargs.ray_init.num_gpus=2",
        "algorithm.rollout_correction.bypass_mode=false",
        "trainer.total_training_steps=1",  # of two updates
    ],
}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["penalty", "sft"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_quickstart_with_a_server_of_vllms(
    start_marked: Callable,
    serve_chats: Callable[[Path, str], str],
    smollm2: Path,
    own_ray: dict[str, str],
    tmp_path: Path,
    trainer: str,
    mode: str,
) -> None:
    run_dir = tmp_path / "run"
    job = start_marked(
        [
            "-m",
            "recipe.online_refiner.main",
            "experiment=quickstart",
            f"actor_rollout_ref.model.path={smollm2}",
            "refiner.placement=external",
            f"refiner.url={serve_chats(smollm2, KEY)}",
            "refiner.api_key_env=OWN_KEY",
            f"run_dir={run_dir}",
            f"constraint.mode={mode}",
            "console=log",
            *TRAINERS[trainer],
            "trainer.save_freq=-1",
            "measure.num_kl_rollouts=0",
        ],
        cwd=tmp_path,
        environment={**own_ray, "OWN_KEY": KEY},
    )
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    steps = list(read_rows(run_dir / "metrics.jsonl"))
    assert len(steps) == (2 if trainer == "sync" else 1)
    for step in steps:
        assert step["refiner/num_attempted"] > 0 and step["refiner/hidden_s"] > 0
        assert step["refiner/failed/request"] == step["refiner/failed/timeout"] == 0
        assert step["tokens/refine"] > 0 and step["refiner/latency_p50_s"] > 0
    assert sum(step["refiner/num_accepted"] for step in steps) > 0
    name, sign = ("constraint/penalty", -1) if mode == "penalty" else ("actor/sft_cross_entropy", 1)
    assert any(step.get(name, 0) * sign > 0 for step in steps)
    assert KEY not in job.output() and files_with_the_key(tmp_path, Path(own_ray["RAY_TMPDIR"])) == []
