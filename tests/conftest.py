"""Shared fixtures: a tiny random Llama, prompts, and subprocesses whose descendants are all accounted for."""

import functools
import gc
import io
import logging
import os
import pickle
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import omegaconf.base
import psutil
import pytest
import yaml
from hypothesis import settings
from omegaconf import OmegaConf
from waiting import PATIENCE_S, comes_true

from recipe.cpu_platform import ENVIRONMENT
from recipe.smoke.letters import save_llama, save_prompts

gc.disable()  # until all test files are imported, which leaves nothing to collect

# verl chooses its platform once, when it is first imported, whichever test does that.
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

# A shell's job in the background ignores Ctrl-C, and so do all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Reading configs is much of what unit tests do: the same loader in C, and each file's text and each interpolation is
# parsed only once.
yaml.SafeLoader = yaml.CSafeLoader
omegaconf.base.parse = functools.cache(omegaconf.base.parse)  # type: ignore[attr-defined]
_load = OmegaConf.load


@functools.cache
def _parsed(text: str) -> bytes:
    return pickle.dumps(_load(io.StringIO(text)))


def load_config(file: Any) -> Any:
    """Return the config in a file, as ``OmegaConf.load`` does."""
    return pickle.loads(_parsed(file.read() if hasattr(file, "read") else Path(file).read_text()))


OmegaConf.load = load_config  # type: ignore[method-assign]
settings.register_profile("any machine", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("any machine")

REPOSITORY = Path(__file__).parents[1]
MARKER = "ONLINE_REFINER_TEST_RUN"
JOB_S, SURVIVAL_S = 900.0, 120.0
"""Bounds in seconds: on a job's whole run, and on what it leaves behind, such as Ray's agents, which see after a minute
that their node is gone."""
RAYS_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Processes of Ray's own that outlive a killed driver by a minute."""


def pytest_collection_finish() -> None:
    """Collect garbage again, but seldom, as a config has many objects, and without what the imports have left."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@dataclass(slots=True, kw_only=True)
class Job:
    """A subprocess and all its descendants, found by a mark in their environment, whatever session they are in."""

    process: subprocess.Popen[bytes]
    mark: str
    log: Path

    def output(self) -> str:
        """Return stdout and stderr so far."""
        return self.log.read_text(errors="replace")

    def descendants(self) -> list[psutil.Process]:
        """Return the processes that carry the mark, each with its ``info``."""
        return [
            process
            for process in psutil.process_iter(["pid", "ppid", "name", "status", "cmdline", "environ"])
            if (process.info.pop("environ") or {}).get(MARKER) == self.mark
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ]

    def wait(self, timeout_s: float = JOB_S) -> int:
        """Wait for the end and return the exit code; a job that does not end fails the test."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill_all()  # the tests that follow need the machine
            pytest.fail(f"no end within {timeout_s} s; the last output was:\n{self.output()[-6000:]}")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the job has done something; one that ends or hangs before fails the test."""
        comes_true(lambda: condition() or self.process.poll() is not None, JOB_S)
        if not condition():
            self.kill_all()
            pytest.fail(f"the job ended or hangs; the last output was:\n{self.output()[-6000:]}")

    def survivors(self, *, agents: bool = True) -> list[str]:
        """Return the descendants that outlive the job for long, in words, with or without Ray's agents."""

        def found() -> list[str]:
            infos = [process.info for process in self.descendants()]
            infos = [info for info in infos if agents or info["name"] not in RAYS_AGENTS]
            return ["{pid} of {ppid}, {name}, {status}: {cmdline}".format(**info) for info in infos]

        comes_true(lambda: not found(), SURVIVAL_S)
        return found()

    def kill_all(self) -> None:
        """End the job and every descendant at once, as a power cut would."""
        while processes := self.descendants():
            for process in processes:
                process.kill()
            psutil.wait_procs(processes, timeout=5)
        self.process.wait(PATIENCE_S)


@pytest.fixture(scope="session")
def started_jobs() -> Iterator[list[Job]]:
    """Yield a list of all that was started; what is left of it at the end is killed."""
    jobs: list[Job] = []
    yield jobs
    for job in jobs:
        job.kill_all()


@pytest.fixture(autouse=True)
def no_job_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kill what a test has started in its own folder and left, as one that fails does: others need the memory."""
    if not {"start_marked", "tmp_path"} <= set(request.fixturenames):
        yield
        return
    folder, jobs = request.getfixturevalue("tmp_path"), request.getfixturevalue("started_jobs")
    yield
    for job in jobs:
        if job.log.is_relative_to(folder):
            job.kill_all()


@pytest.fixture(scope="session")
def start_marked(started_jobs: list[Job]) -> Callable[..., Job]:
    """Return a function that starts Python with arguments in a folder."""

    def start(arguments: list[str], *, cwd: Path, environment: dict[str, str] | None = None) -> Job:
        mark = uuid.uuid4().hex
        given = {**os.environ, **(environment or {})}.get("PYTHONPATH")
        path = os.pathsep.join(filter(None, [str(REPOSITORY), given]))
        log = cwd / f"output-{mark[:8]}.log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **(environment or {}), MARKER: mark, "PYTHONPATH": path},
                cwd=cwd,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        started_jobs.append(Job(process=process, mark=mark, log=log))
        return started_jobs[-1]

    return start


@pytest.fixture(scope="session")
def letter_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 16 prompts in verl's parquet layout, and return the file."""
    return save_prompts(tmp_path_factory.mktemp("data") / "train.parquet")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, converted on the first call."""
    command = [sys.executable, str(REPOSITORY / "scripts" / "get_smollm2.py")]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a two-layer Llama."""
    return save_llama(tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def two_part_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one whose heads and vocabulary two tensor-parallel ranks can share."""
    return save_llama(tmp_path_factory.mktemp("two_part_llama"), num_key_value_heads=2, vocab_size=260)


@pytest.fixture(autouse=True, scope="module")
def no_process_group_is_left() -> Iterator[None]:
    """End torch's process group, if a module has begun one: processes that others fork would be in it."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def logging_is_on(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Undo what a test before left of logging: Hydra and other packages turn it down for the whole process.

    pytest has one handler for all tests, which counts as one of the root logger's to whoever changes those.
    """
    logging.disable(logging.NOTSET)
    logging.root.disabled = False
    logging.root.setLevel(logging.WARNING)
    caplog.handler.setLevel(logging.NOTSET)
    caplog.handler.filters.clear()
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.startswith(("reward.", "recipe.", "refiner_worker.")):
            logger.disabled = False
    handlers = [*logging.root.handlers]
    yield
    # Hydra's handler writes to the test's stdout. After the test each record would be an error with two stacks instead.
    logging.root.handlers[:] = handlers
