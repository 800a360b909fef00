"""A small task for whole jobs (the tiny model is rewarded for small letters), and stock verl's runs of it."""

import contextlib
import functools
import json
import socket
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from busy_machine import NATIVE_CRASH, RAYS_PATIENCE
from waiting import PATIENCE_S

from recipe.smoke import letters

STOCK_VERL = [
    "-m",
    "recipe.cpu_platform.launch",
    "-m",
    "verl.trainer.main_ppo",
    "hydra.searchpath=[pkg://recipe.cpu_platform.config]",
    "+platform=cpu",
    "trainer.logger=[console,file]",
]
NUM_STEPS = 3

LONGEST = ("test_examples.py", "test_main_job.py", "test_megatron_job.py", "test_placements.py")
"""Files that begin before all others: one that begins last has a core to itself, and the other idles."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test run once more whose job crashed in native code or whose Ray was not patient enough.

    pytest's last line counts these. Long files come first, what waits for ends last.
    """
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=[*NATIVE_CRASH, *RAYS_PATIENCE.values()]))
    items.sort(key=lambda item: (item.get_closest_marker("last") is not None, item.path.name not in LONGEST))


@pytest.fixture(scope="session")
def letters_task(letter_prompts: Path) -> list[str]:
    """Return verl overrides of the task, except for model and optimizer: 4 prompts a step, 4 responses each."""
    return [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={letter_prompts}",
        f"data.val_files={letter_prompts}",
        "data.train_batch_size=4",
        "data.max_prompt_length=64",
        "data.max_response_length=16",
        "data.dataloader_num_workers=0",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.max_model_len=128",
        "actor_rollout_ref.rollout.max_num_batched_tokens=2048",
        # Jobs beside each other, of which one may be of a real model, share the machine's memory.
        f"actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes={64 << 20}",
        f"reward.custom_reward_function.path={letters.__file__}",
        "trainer.project_name=e2e",
        "trainer.experiment_name=letters",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
    ]


@pytest.fixture(scope="session")
def letters_job(tiny_llama: Path, letters_task: list[str]) -> list[str]:
    """Return verl overrides of the task on FSDP."""
    return [
        *letters_task,
        f"actor_rollout_ref.model.path={tiny_llama}",
        # Rows come in another order in each run. Adam would turn that rounding noise into steps of the learning rate.
        "actor_rollout_ref.actor.optim.optimizer=SGD",
        "actor_rollout_ref.actor.optim.lr=2e-2",
        "actor_rollout_ref.actor.optim.override_optimizer_config={momentum:0.9}",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run left."""

    output: str
    steps: list[dict[str, Any]]
    """Its metrics."""
    refinements: list[dict[str, Any]]


@pytest.fixture(scope="session")
def train_letters(start_marked: Callable, letters_job: list[str]) -> Callable[..., Trained]:
    """Return a function that trains so many steps in a folder, and lets something be done to the job meanwhile."""

    def train(
        folder: Path, num_steps: int, *overrides: str, meanwhile: Callable = lambda job: None, **options: Any
    ) -> Trained:
        from recipe.online_refiner.metric_names import COUNTS
        from recipe.runs.files import Records, read_rows

        command = ["-m", "recipe.online_refiner.main", "platform=cpu", f"run_dir={folder}/run", *letters_job]
        command += [f"trainer.total_training_steps={num_steps}", "trainer.total_epochs=99", "trainer.save_freq=-1"]
        job = start_marked([*command, *overrides], cwd=folder, **options)
        meanwhile(job)
        assert job.wait() == 0, job.output()[-6000:]
        assert job.survivors() == []
        steps = list(read_rows(folder / "run" / "metrics.jsonl"))
        assert [step["step"] for step in steps] == list(range(1, num_steps + 1))
        assert all(name in step for step in steps for name in COUNTS)
        refinements = list(map(json.loads, Records(f"{folder}/run/refinements").lines()))
        return Trained(output=job.output(), steps=steps, refinements=refinements)

    return train


@pytest.fixture
def own_ray() -> Iterator[dict[str, str]]:
    """Yield what lets a cluster that is started here be found by nobody else: Ray's folder, with room for sockets."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield {"RAY_TMPDIR": folder}


@pytest.fixture(scope="module")
def serve_chats(start_marked: Callable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable]:
    """Yield a function that serves a model by vLLM's own server, once, to who has its key, and returns its URL."""
    jobs = []

    @functools.cache
    def serve(model: Path, key: str) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = ["--model", str(model), "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
        arguments += ["--enforce-eager", "--max-model-len", "2048", "--generation-config", "vllm"]
        # On a CPU vLLM's engine dies where a request with a seed has its prompt read in parts.
        arguments += ["--max-num-batched-tokens", "65536", "--kv-cache-memory-bytes", str(256 << 20)]
        job = start_marked(
            ["-m", "vllm.entrypoints.openai.api_server", *arguments],
            cwd=tmp_path_factory.mktemp("server"),
            environment={"OMP_NUM_THREADS": "1", **({"VLLM_API_KEY": key} if key else {})},
        )
        jobs.append(job)
        url = f"http://127.0.0.1:{port}/v1"
        job.wait_until(lambda: _answers(f"{url}/models", key))
        return url

    yield serve
    for job in jobs:
        job.kill_all()


def _answers(url: str, key: str) -> bool:
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        return answer.status == 200
    return False


@pytest.fixture(scope="session")
def run_stock(start_marked: Callable) -> Callable[..., list[dict[str, Any]]]:
    """Return a function that runs stock verl in a folder, and returns its metrics."""

    def run(folder: Path, *overrides: str) -> list[dict[str, Any]]:
        job = start_marked(
            [*STOCK_VERL, f"hydra.run.dir={folder}", f"trainer.default_local_dir={folder}/checkpoints", *overrides],
            environment={"VERL_FILE_LOGGER_PATH": f"{folder}/metrics.jsonl"},
            cwd=folder,
        )
        assert job.wait() == 0, job.output()[-6000:]
        assert job.survivors() == []
        return [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()]

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """Stock verl's run of the task."""

    folder: Path
    """The folder of the run, with a checkpoint of every step."""
    steps: list[dict[str, Any]]
    """The run's metrics."""
    job: list[str]
    """Overrides of a run that repeats it: the numbers of workers and steps, and the rollouts that it kept."""


@pytest.fixture(scope="session")
def stock_on(
    run_stock: Callable, letters_job: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Stock]:
    """Return a function that trains with stock verl on some workers, once for each number of them."""

    @functools.cache
    def train(num_workers: int) -> Stock:
        folder = tmp_path_factory.mktemp("stock")
        job = [
            *letters_job,
            f"trainer.n_gpus_per_node={num_workers}",
            "trainer.save_freq=1",
            f"trainer.total_training_steps={NUM_STEPS}",
            "trainer.total_epochs=3",
            "skip.rollout_tq.enable=True",
            f"skip.rollout_tq.dump_dir={folder}/rollouts",
            f"skip.rollout_tq.steps={list(range(1, NUM_STEPS + 1))}",
        ]
        return Stock(folder=folder, steps=run_stock(folder, *job), job=job)

    return train
