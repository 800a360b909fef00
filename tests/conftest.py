"""Shared fixtures: a tiny random Llama, prompts, and subprocesses whose descendants are all accounted for."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from hypothesis import settings

from recipe.cpu_platform import ENVIRONMENT

# verl chooses its platform once, when it is first imported, whichever test does that.
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

yaml.SafeLoader = yaml.CSafeLoader  # the same loader in C: composing the config is much of what unit tests do
settings.register_profile("any machine", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("any machine")

REPOSITORY = Path(__file__).parents[1]
MARKER = "ONLINE_REFINER_TEST_RUN"


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
        """Return the processes that carry the mark."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARKER) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:  # ended between listing and reading, or owned by someone else
                continue
        return found

    def wait(self, timeout_s: float) -> int:
        """Wait for the end and return the exit code; a job that does not end fails the test."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill_all()  # the tests that follow need the machine
            pytest.fail(f"no end within {timeout_s} s; the last output was:\n{self.output()[-6000:]}")

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the job has done something; one that ends or hangs before fails the test."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill_all()
                pytest.fail(f"the job ended or hangs; the last output was:\n{self.output()[-6000:]}")
            time.sleep(0.1)

    def survivors(self, timeout_s: float = 20) -> list[str]:
        """Return the descendants that are alive some seconds after the end, in words."""
        psutil.wait_procs(self.descendants(), timeout=timeout_s)
        return [str(process) for process in self.descendants()]

    def kill_all(self) -> None:
        """End the job and every descendant at once, as a power cut would."""
        while processes := self.descendants():
            for process in processes:
                process.kill()
            psutil.wait_procs(processes, timeout=5)
        self.process.wait(20)


@pytest.fixture(scope="session")
def start_marked() -> Iterator[Callable[..., Job]]:
    """Return a function that starts Python with arguments in a folder; what is left of it at the end is killed."""
    jobs: list[Job] = []

    def start(arguments: list[str], *, cwd: Path, environment: dict[str, str] | None = None) -> Job:
        mark = uuid.uuid4().hex
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        log = cwd / f"output-{mark[:8]}.log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, **(environment or {}), MARKER: mark, "PYTHONPATH": path},
                cwd=cwd,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        jobs.append(Job(process=process, mark=mark, log=log))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill_all()


@pytest.fixture(scope="session")
def letter_prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 16 prompts in verl's parquet layout, and return the file."""
    import pandas

    rows = [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": f"Write {n} letters."}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": n},
        }
        for n in range(16)
    ]
    file = tmp_path_factory.mktemp("data") / "train.parquet"
    pandas.DataFrame(rows).to_parquet(file)
    return file


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, converted on the first call."""
    command = [sys.executable, str(REPOSITORY / "scripts" / "get_smollm2.py")]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def write_bigrams(model: Any, tokenizer: Any) -> None:
    """Make a Llama write a, b, c, d, z and stop, some letters in capitals: a response has an end and a reward.

    Embeddings of the letters are orthogonal unit vectors, so a row of the LM head holds the logits of its token after
    each letter (times 8, the final RMSNorm's factor for 64 dimensions).
    """
    import torch

    letters = [tokenizer.convert_tokens_to_ids(token) for token in ("Ċ", *"abcdz", *"ABCDZ")]
    start, lower, upper = letters[0], letters[1:6], letters[6:]
    with torch.no_grad():
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedding[:, : len(letters)] = 0
        embedding /= embedding.norm(dim=1, keepdim=True).clamp(min=1e-6)  # the padding token has none
        embedding[letters] = torch.eye(embedding.shape[1])[: len(letters)]
        head *= 0.01
        for layer in model.model.layers:
            for part in (layer.self_attn.v_proj, layer.self_attn.o_proj, layer.mlp.up_proj, layer.mlp.down_proj):
                part.weight *= 1e-2  # small outputs and small gradients: what is learned stays in the LM head
        following = {start: 0, **{letter: rank % 5 + 1 for rank, letter in enumerate(letters[1:])}}
        for column, letter in enumerate(letters):
            if letter in (lower[4], upper[4]):
                head[tokenizer.eos_token_id, column] = 12 / 8
            else:
                head[lower[following[letter]], column] = 10 / 8
                head[upper[following[letter]], column] = 9.6 / 8
                head[lower[4], column] += 8 / 8 if following[letter] < 4 else 0


def save_letters_llama(folder: Path, **sizes: int) -> Path:
    """Save a Llama that writes letters, with a byte-level tokenizer and a chat template, and return the folder."""
    from recipe.backend_check.tiny_model import tiny_llama, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    model = tiny_llama(tokenizer, **sizes)
    write_bigrams(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a two-layer Llama."""
    return save_letters_llama(tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def two_part_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one whose heads and vocabulary two tensor-parallel ranks can share."""
    return save_letters_llama(tmp_path_factory.mktemp("two_part_llama"), num_key_value_heads=2, vocab_size=260)
