"""Answers of a data set refined by the command, into files that others' trainers take as they are."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from played_server import Reply, chat, serving

from recipe.cpu_platform import ENVIRONMENT
from recipe.smoke.letters import compute_score

REPOSITORY = Path(__file__).parents[2]
TRL = REPOSITORY / ".venv" / "chat-templates"
NUM_ROWS, NUM_ANSWERS, NUM_KILLS, REQUEST_S = 120, 2, 20, 0.03
LETTERS = ["--reward", "recipe.smoke.letters:compute_score"]


@pytest.fixture(scope="session")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write rows in verl's layout, with answers of which none is perfect, each another."""
    rows = [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": f"Write {n} letters."}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "responses": [f"{n}-{sample} Abc" for sample in range(NUM_ANSWERS)],
        }
        for n in range(NUM_ROWS)
    ]
    file = tmp_path_factory.mktemp("answered") / "rows.parquet"
    pandas.DataFrame(rows).to_parquet(file)
    return file


def better(message: str, num_before: int) -> Reply:
    """Return an answer that is better for two of three messages, and says which one it refines."""
    (name,) = re.findall(r"(\d+-\d+) Abc", message) or ["0-0"]  # the check before the start
    return chat(f"{name} {'abc' if int(name.partition('-')[0]) % 3 else 'ABC'}")


def command(model: Path, data: Path, output: Path, *more: str) -> list[str]:
    options = ["--model", str(model), "--data", str(data), "--output", str(output), *LETTERS]
    return ["-m", "recipe.commands", "refine", "general", *options, *more]


def by_server(url: str) -> list[str]:
    return ["--refiner", f"url={url}"]


def lines(output: Path) -> list[dict[str, Any]]:
    file = output / "journal.jsonl"
    return [json.loads(line) for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


@pytest.mark.e2e
@pytest.mark.slow
def test_twenty_kills_lose_and_double_no_row(
    start_marked: Callable, tiny_llama: Path, answered: Path, tmp_path: Path
) -> None:
    output, turn, again = tmp_path / "out", threading.Lock(), list[str]()

    def slowly(message: str, num_before: int) -> Reply:
        finished = {line["row"] for line in lines(output) if "refined" in line} if output.exists() else set()
        again.extend(name for name in re.findall(r"(\d+)-\d+ Abc", message) if int(name) in finished)
        with turn:
            time.sleep(REQUEST_S)
        return better(message, num_before)

    script, journal = str(REPOSITORY / "tests" / "helpers" / "killed_often.py"), str(output / "journal.jsonl")
    with serving(slowly) as server:
        arguments = command(tiny_llama, answered, output, *by_server(server.url))
        job = start_marked([script, journal, str(NUM_KILLS), *arguments[2:]], cwd=tmp_path)
        assert job.wait() == 0, job.output()[-3000:]
    assert job.survivors() == [] and again == [], "what is finished is not asked again"
    left = json.loads(job.output().splitlines()[-1])
    assert len(left) == NUM_KILLS and len(set(left)) > NUM_KILLS / 2, "killed while it worked"
    assert left[-1] < 1 + NUM_ROWS * (NUM_ANSWERS + 1), "before its end"
    answers = Counter((line["row"], line["sample"]) for line in lines(output)[1:] if "answer" in line)
    assert answers == dict.fromkeys(((n, m) for n in range(NUM_ROWS) for m in range(NUM_ANSWERS)), 1)
    assert Counter(line["row"] for line in lines(output)[1:] if "refined" in line) == dict.fromkeys(range(NUM_ROWS), 1)
    found = pandas.read_parquet(output / "all.parquet")
    assert [*zip(found["row"], found["sample"], strict=True)] == sorted(answers)
    assert all(row.response == f"{row.row}-{row.sample} Abc" for row in found.itertuples())
    assert all(row.refined[: len(row.response) - 3] == row.response[:-3] for row in found.itertuples())
    assert len(pandas.read_parquet(output / "sft.parquet")) == NUM_ROWS * NUM_ANSWERS * 2 // 3
    assert f"{NUM_ROWS * NUM_ANSWERS} of {NUM_ROWS * NUM_ANSWERS} answers" in job.output()


@pytest.fixture(scope="module")
def written(start_marked: Callable, tiny_llama: Path, answered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files of all formats, parquet and JSON lines; the second time nobody is asked."""
    folder = tmp_path_factory.mktemp("written")
    with serving(better) as server:
        for more in ([], ["--jsonl", "--license", "cc-by-4.0"]):
            job = start_marked(command(tiny_llama, answered, folder / "out", *by_server(server.url), *more), cwd=folder)
            assert job.wait() == 0, job.output()[-3000:]
        assert server.num_asked == 1 + NUM_ROWS * NUM_ANSWERS
    return folder / "out"


@pytest.mark.e2e
@pytest.mark.slow
def test_both_kinds_of_file_have_the_same_rows_and_the_card_passes_the_licence_on(written: Path) -> None:
    for name in ("sft", "preference", "all"):
        rows = pandas.read_parquet(written / f"{name}.parquet")
        other = [json.loads(line) for line in (written / f"{name}.jsonl").read_text().splitlines()]
        assert json.loads(rows.to_json(orient="records")) == json.loads(
            pandas.DataFrame(other).to_json(orient="records")
        )
        assert len(rows) == NUM_ROWS * NUM_ANSWERS * (3 if name == "all" else 2) // 3
    all_rows = pandas.read_parquet(written / "all.parquet")
    assert all(one.reward == pytest.approx(compute_score("", one.response, "")) for one in all_rows.itertuples())
    assert all(one.refined_reward == pytest.approx(compute_score("", one.refined, "")) for one in all_rows.itertuples())
    assert set(all_rows["verdict"]) == {"accepted", "not_better"}
    card = (written / "card.md").read_text()
    assert card.startswith("---\nlicense: cc-by-4.0\n---\n") and f"`all.jsonl`: {NUM_ROWS * NUM_ANSWERS} rows" in card


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(not TRL.is_dir(), reason="TRL is not there; scripts/test.sh fetches it")
@pytest.mark.parametrize("file", ["sft.parquet", "preference.parquet", "sft.jsonl", "preference.jsonl"])
def test_trls_trainers_take_two_steps(written: Path, tiny_llama: Path, tmp_path: Path, file: str) -> None:
    name = {"sft": "SFT", "preference": "DPO"}[file.partition(".")[0]]
    script = REPOSITORY / "tests" / "helpers" / "trl_steps.py"
    done = subprocess.run(
        [sys.executable, str(script), name, str(tiny_llama), str(written / file), str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(TRL), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["losses"]) == 2 and found["losses"][1] < found["losses"][0]
    ends = r"\d+-\d (abc|Abc)<\|im_end\|>\n" if name == "DPO" else r"\d+-\d abc<\|im_end\|>\n"
    assert all(re.fullmatch(ends, text) for text in found["texts"]), "replies alone"


@pytest.mark.e2e
@pytest.mark.slow
def test_verls_sft_trainer_takes_two_steps(
    start_marked: Callable, written: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    script = REPOSITORY / "tests" / "helpers" / "sft_on_cpu.py"
    job = start_marked(
        [
            "-m",
            "recipe.cpu_platform.launch",
            str(script),
            f"data.train_files={written / 'sft.parquet'}",
            "data.train_batch_size=4",
            "data.micro_batch_size_per_gpu=4",
            "data.num_workers=0",
            f"model.path={tiny_llama}",
            "+model.override_config.attn_implementation=sdpa",
            "engine.strategy=fsdp2",
            "engine.use_torch_compile=false",
            "optim.lr=1e-2",
            "trainer.device=cpu",
            "trainer.total_training_steps=2",
            "trainer.save_freq=-1",
            "trainer.test_freq=-1",
            "trainer.n_gpus_per_node=1",
            "trainer.logger=[console,file]",
            f"trainer.default_local_dir={tmp_path}/out",
            "hydra.searchpath=[pkg://verl.trainer.config]",
        ],
        cwd=tmp_path,
        environment={**ENVIRONMENT, **ranks, "VERL_FILE_LOGGER_PATH": f"{tmp_path}/metrics.jsonl"},
    )
    assert job.wait() == 0, job.output()[-3000:]
    steps = [json.loads(line)["data"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [step["train/loss"] for step in steps if "train/loss" in step]
    assert len(losses) == 2 and losses[1] < losses[0]
