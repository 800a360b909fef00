"""Each process that a run needs is killed in a step: the run goes on, or ends with a line that names it."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from recipe.runs.files import read_rows
from recipe.runs.stop import TRACKER

REFINER = re.compile(r"refiner replica 0: server process (\d+)")
ENDS = {
    "rollout server": "rollout server 0",
    "rollout engine": "the engine of rollout server 0",
    "agent loop": "agent loop worker",
    "reward": "reward worker",
    "actor": "worker 0 of the actor",
}
GOES_ON = ("refine worker", "refiner engine")
NUM_STEPS = 4
TRAINERS = {
    "sync": ["ray_kwargs.ray_init.num_gpus=1"],
    "colocate_async": ["trainer.v1.trainer_mode=colocate_async", "ray_kwargs.ray_init.num_gpus=1"],
    "separate_async": [
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=sockets",
        "actor_rollout_ref.hybrid_engine=False",
        "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=True",
        "refiner.placement=dedicated",
        "refiner.n_gpus_per_node=1",
        "ray_kwargs.ray_init.num_gpus=3",
    ],
}


def pipes(process: psutil.Process) -> set[str]:
    """Return the pipes that it has open."""
    folder = Path(f"/proc/{process.pid}/fd")
    return {link for link in (os.readlink(one) for one in folder.iterdir() if one.is_symlink()) if link[:4] == "pipe"}


def find(victim: str, processes: list[psutil.Process], output: str) -> psutil.Process:
    """Return the process of that name among a job's."""
    refiner = int(REFINER.findall(output)[-1])
    servers = [one for one in processes if "HttpServer" in one.name()]
    engines = [one for one in processes if "EngineCore" in one.name()]
    # An engine is no child of its server, but of what forks for it; the server waits for its end at a pipe.
    own = {one.pid: pipes(one).difference(*(pipes(other) for other in servers if other != one)) for one in servers}
    of_refiner = [one for one in engines if own[refiner] & pipes(one)]
    found = {
        "rollout server": [one for one in servers if one.pid != refiner],
        "rollout engine": [one for one in engines if one not in of_refiner],
        "refiner engine": of_refiner,
        "agent loop": [one for one in processes if re.search("AgentLoopWorker|StreamingWorker", one.name())],
        "reward": [one for one in processes if "RewardLoopWorker" in one.name()],
        "refine worker": [one for one in processes if "RefineWorker" in one.name()],
        "actor": [one for one in processes if "WorkerDict" in one.name()],
    }
    return found[victim][0]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("victim", [*ENDS, *GOES_ON])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_death_is_told_or_mended(
    trainer: str, victim: str, start_marked: Callable, letters_job: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    job = start_marked(
        [
            "-m",
            "recipe.online_refiner.main",
            "platform=cpu",
            f"run_dir={run_dir}",
            *letters_job,
            "refiner.template=dialogue",
            "constraint.mode=penalty",
            *TRAINERS[trainer],
            f"trainer.total_training_steps={NUM_STEPS}",
            "trainer.total_epochs=9",
            "trainer.save_freq=1",
        ],
        cwd=tmp_path,
    )
    metrics = run_dir / "metrics.jsonl"
    job.wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 0)
    find(victim, job.descendants(), job.output()).kill()
    status = job.wait()
    assert job.survivors() == []
    if victim in GOES_ON:
        assert status == 0, job.output()[-6000:]
        assert [step["step"] for step in read_rows(metrics)] == list(range(1, NUM_STEPS + 1))
        return
    assert status == 1, job.output()[-6000:]
    (told,) = (line for line in job.output().splitlines() if line.startswith("error: "))
    is_saved = (run_dir / "checkpoints" / TRACKER).exists()
    assert f"has died: {ENDS[victim]}" in told and ("goes on with step" in told) is is_saved
