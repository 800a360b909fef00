"""Each script of examples/verl_recipes passes a dry run with the config of its model, and with prompts."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pandas
import pytest
from hydra import compose, initialize_config_module
from played_server import chat, serving
from transformers import Qwen2Config, Qwen3MoeConfig

from recipe.online_refiner.main import prepare
from recipe.smoke.letters import tiny_tokenizer

FOLDER = Path(__file__).parents[2] / "examples" / "verl_recipes"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.sh"))
SIZES: dict[str, dict[str, int]] = {
    "qwen2_5_0_5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "qwen2_5_3b": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16},
    "qwen2_5_7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
    "qwen2_5_32b": {
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
    },
}
"""The models' sizes, as their config.json has them."""
HEADS = {"qwen2_5_0_5b": 2, "qwen2_5_3b": 2, "qwen2_5_7b": 4, "qwen2_5_32b": 8}
"""Their key and value heads."""
MOE = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "head_dim": 128,
}


def config_of(script: str) -> Any:
    """Return the config of a script's model."""
    common: dict[str, Any] = {"vocab_size": 151936, "max_position_embeddings": 32768, "dtype": "bfloat16"}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if "30b_a3b" in script:
        return Qwen3MoeConfig(**common, **MOE, **tokens, architectures=["Qwen3MoeForCausalLM"])
    name = next(one for one in sorted(SIZES, key=len, reverse=True) if one in script)
    sizes = {**SIZES[name], "num_key_value_heads": HEADS[name]}
    is_tied = name in ("qwen2_5_0_5b", "qwen2_5_3b")
    return Qwen2Config(**common, **sizes, **tokens, tie_word_embeddings=is_tied, architectures=["Qwen2ForCausalLM"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the data files that scripts name, of 2,048 prompts each."""
    folder = tmp_path_factory.mktemp("data")
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "What is 1 + 1?"}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0},
    }
    for name in ("train", "test", "dapo-math-17k", "aime-2024"):
        pandas.DataFrame([row] * 2048).to_parquet(folder / f"{name}.parquet")
    return folder


def arguments_of(script: str, folder: Path, **variables: str) -> list[str]:
    """Return what a script gives to ``online-refiner``, here a program that writes its arguments down."""
    program = folder / "online-refiner"
    program.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(FOLDER / script), "sizing.gpu_memory_gib=80"]
    done = subprocess.run(command, env={**os.environ, **variables, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    train, *arguments = done.stdout.splitlines()
    assert train == "train" and arguments[-1] == command[-1]
    return arguments


def row_of(script: str, num_gpus: int, plan: str) -> str:
    """Return a script's row in the table of the page: its GPUs, and the largest numbers of a plan in GiB."""
    moments = re.findall(r"^  ([a-z][a-z0-9 -]*?)  +([0-9.]+)  ", plan, re.MULTILINE)
    gpu = max(float(number) for name, number in moments if name != "host memory")
    (host,) = (number for name, number in moments if name == "host memory")
    return f"| [{script}]({script}) | {num_gpus} | {gpu:.0f} | {float(host):.0f} |"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_passes_a_dry_run(script: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config_of(script).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    with serving(lambda message, number: chat("2")) as server:  # asked by the script with a refiner by URL alone
        variables = {"MODEL": str(tmp_path / "model"), "DATA": str(data), "REFINER_URL": server.url}
        arguments = arguments_of(script, tmp_path, **variables)
        with initialize_config_module("recipe.online_refiner.config", version_base=None):
            config = compose("online_refiner", overrides=[*arguments, "dry_run=true", f"run_dir={tmp_path / 'run'}"])
        plan = prepare(config)
    num_gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    if config.refiner.placement == "dedicated":
        num_gpus += config.refiner.n_gpus_per_node
    assert row_of(script, num_gpus, plan) in PAGE.splitlines()


def test_the_page_names_each_script() -> None:
    assert re.findall(r"^\| \[(run_[a-z0-9_]+\.sh)\]", PAGE, re.MULTILINE) == SCRIPTS
    assert len(SCRIPTS) == 8
