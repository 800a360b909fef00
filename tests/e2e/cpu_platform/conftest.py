"""Fixtures: a tiny random Llama and a subprocess whose descendants are all accounted for."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).parents[3]
MARKER = "CPU_PLATFORM_TEST_RUN"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a subprocess left behind."""

    returncode: int
    output: str  # stdout and stderr together
    survivors: list[str]  # command lines of descendants that were alive 20 s after the end


def marked_processes(mark: str) -> list[psutil.Process]:
    """Return the processes whose environment holds the mark: descendants keep it in whatever session they are."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # ended between listing and reading, or owned by someone else
            continue
    return found


@pytest.fixture(scope="session")
def run_marked() -> Iterator[Callable[..., Finished]]:
    """Return a function that runs Python in a folder until it ends, and then looks for survivors."""
    marks: list[str] = []

    def run(arguments: list[str], *, environment: dict[str, str], cwd: Path, timeout_s: float) -> Finished:
        mark = uuid.uuid4().hex
        marks.append(mark)
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        log = cwd / "output.log"
        try:
            with log.open("w") as stream:
                process = subprocess.run(
                    [sys.executable, *arguments],
                    env={**os.environ, **environment, MARKER: mark, "PYTHONPATH": path},
                    cwd=cwd,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    timeout=timeout_s,
                )
        except subprocess.TimeoutExpired:
            pytest.fail(f"no end within {timeout_s} s; the last output was:\n{log.read_text(errors='replace')[-6000:]}")
        _, alive = psutil.wait_procs(marked_processes(mark), timeout=20)
        survivors = [" ".join(survivor.cmdline()) for survivor in alive if survivor.is_running()]
        return Finished(returncode=process.returncode, output=log.read_text(errors="replace"), survivors=survivors)

    yield run
    for mark in marks:
        for process in marked_processes(mark):
            process.kill()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a random two-layer Llama with a byte-level tokenizer and a chat template, and return its folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(special + alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=special
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=512,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    folder = tmp_path_factory.mktemp("tiny_llama")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
