"""Mistakes in a run's files are one clear line before Ray starts."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from checked_run import checked, error_of
from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer

from recipe.online_refiner import schema
from recipe.online_refiner.main import command
from recipe.online_refiner.plan import make_plan
from recipe.online_refiner.rules import check
from recipe.online_refiner.rules.run import Run
from refiner_worker.prompts import RefinerPrompt

GOOD = {"inputs": ["1\n"], "outputs": ["2\n"]}


def test_a_good_config_passes_and_its_plan_names_the_sizes(config: DictConfig) -> None:
    run = checked(config)
    blocks, plan = run.blocks, run.plan
    limits = blocks.refiner.limits(16)
    needed = RefinerPrompt(blocks.refiner.template_path(), run.files.tokenizer, {}, limits).max_tokens(64, 16) + 16
    assert plan.max_model_len == needed <= 2048
    assert plan.refiner_rollout.load_format == "auto" and plan.refiner_rollout.max_model_len == needed
    text = plan.describe(config, blocks, run.files.num_prompts)
    assert "colocated" in text and f"context {needed} tokens" in text
    assert "4 prompts, 2 a step" in text
    config.data.train_max_samples = 3
    assert checked(config).files.num_prompts == 3


def test_a_dataset_class_of_the_users_reads_its_files_itself(config: DictConfig, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch.utils.data import Dataset\n"
        "class Lines(Dataset):\n"
        "    def __init__(self, data_files, tokenizer, processor, config, max_samples):\n"
        "        self.rows = open(data_files).read().split()\n"
        "    def __len__(self):\n"
        "        return len(self.rows)\n"
    )
    (tmp_path / "prompts.txt").write_text("a b c d e")
    config.data.train_files = config.data.val_files = f"{tmp_path}/prompts.txt"
    assert "prompts.txt is empty or cannot be read" in error_of(config)
    OmegaConf.update(config, "data.custom_cls", {"path": f"{tmp_path}/own.py", "name": "Lines"})
    assert checked(config).files.num_prompts == 5


def test_a_missing_model_folder(config: DictConfig, tmp_path: Path) -> None:
    config.actor_rollout_ref.model.path = str(tmp_path / "nowhere")
    assert "actor_rollout_ref.model.path" in error_of(config) and "no model folder" in error_of(config)


@pytest.mark.parametrize(
    ("key", "overrides"),
    [
        ("critic.model.path", {"algorithm.adv_estimator": "gae"}),
        ("reward.reward_model.model_path", {"reward.reward_model": {"enable": True}, "trainer.device": "cpu"}),
    ],
)
def test_a_missing_folder_of_another_model(config: DictConfig, tmp_path: Path, key: str, overrides: dict) -> None:
    for name, value in {**overrides, key: f"{tmp_path}/nowhere"}.items():
        OmegaConf.update(config, name, value)
    assert error_of(config) == f"{key}={tmp_path}/nowhere: no model folder there (config.json is missing)"


def test_a_refiner_with_another_tokenizer(config: DictConfig, tiny_llama: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_llama, other)
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(other)
    config.refiner.model_path = str(other)
    assert "refiner.model_path: its tokenizer differs from the actor's" in error_of(config)


def test_a_tokenizer_without_chat_template(config: DictConfig, tiny_llama: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_llama, base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = None
    (base / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(base)
    config.actor_rollout_ref.model.path = str(base)
    assert "has no chat template" in error_of(config)


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        ([], "bad.parquet is empty or cannot be read: BatchSize must be"),
        (
            [GOOD],
            "data.train_files has 1 rows, less than one batch; lower data.train_batch_size=2",
        ),
        ([GOOD, {"inputs": [], "outputs": []}], "problem p1: no tests"),
        ([GOOD, {"inputs": ["1", "2"], "outputs": ["1"]}], "problem p1: 2 inputs but 1 outputs"),
    ],
)
def test_bad_data(config: DictConfig, write: Callable, tmp_path: Path, problems: list[Any], message: str) -> None:
    config.data.train_files = str(write(tmp_path / "bad.parquet", problems))
    assert message in error_of(config)


def test_a_missing_data_file(config: DictConfig) -> None:
    config.data.val_files = "nowhere.parquet"
    assert "data.val_files: nowhere.parquet is empty or cannot be read: Unable to find" in error_of(config)
    config.data.val_files = None
    assert error_of(config) == "data.val_files: the data set is empty: None"


@pytest.mark.parametrize("value", ["~/train.parquet", ["a.parquet", "~/train.parquet"]])
def test_a_home_folder_that_no_shell_wrote_out(
    config: DictConfig, value: str | list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.data.train_files = value
    whole = "~/train.parquet begins with ~, which nothing reads there; write $HOME or the whole path"
    assert error_of(config) == f"data.train_files: {whole}"
    monkeypatch.setattr("sys.argv", ["main", "data.train_files=~/train.parquet"])  # Hydra has no words for it
    with pytest.raises(SystemExit, match="2"):
        command()
    line = "error: data.train_files: no shell reads the ~ of ~/train.parquet behind =; write $HOME\n"
    assert capsys.readouterr().err == line


def test_more_workers_than_the_machine_has(config: DictConfig) -> None:
    config.trainer.n_gpus_per_node = 1000
    assert "trainer.n_gpus_per_node=1000 workers, but this machine has" in error_of(config)


@pytest.mark.parametrize(
    "overrides",
    [
        {"refiner.placement": "dedicated", "refiner.n_gpus_per_node": 2},
        {"reward.reward_model": {"enable": True, "enable_resource_pool": True, "nnodes": 1, "n_gpus_per_node": 2}},
    ],
)
def test_more_pools_than_the_machine_has_gpus(
    config: DictConfig, overrides: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("recipe.online_refiner.files.read_ray_address", lambda _: None)
    for name, value in overrides.items():
        OmegaConf.update(config, name, value)
    message = error_of(config)
    assert message.startswith("the run needs 3 GPUs (1 for training, 2 for the re")
    key = "ray_kwargs.ray_init.num_gpus"
    assert message.endswith(f"this machine has 1 logical GPUs ({key}); lower them, or set {key}=3")


def test_images_that_the_refiner_would_not_see(config: DictConfig, tmp_path: Path) -> None:
    path = Path(config.data.train_files)
    pandas.read_parquet(path).assign(images="a.png").to_parquet(tmp_path / "seen.parquet")
    config.data.train_files = str(tmp_path / "seen.parquet")
    assert "data.train_files: its images would not reach the refiner" in error_of(config)
    config.constraint.mode, config.measure.num_kl_rollouts = "none", 0
    checked(config)


@pytest.mark.parametrize(
    ("reward", "answers", "message"),
    [
        ("pkg://reward.math", ["72", "\\frac{1}{2}"], None),
        ("pkg://reward.math", ["72", " "], "data.train_files: problem of numina_olympiads: the expected answer is ' '"),
        (None, ["72"], "data.train_files: verl's grader of numina_olympiads runs what the model writes as code; set"),
    ],
)
def test_final_answers(
    config: DictConfig, tmp_path: Path, reward: str | None, answers: list[str], message: str | None
) -> None:
    rows = [{"data_source": "numina_olympiads", "reward_model": {"ground_truth": answer}} for answer in answers * 2]
    pandas.DataFrame(rows).to_parquet(tmp_path / "math.parquet")
    config.data.train_files = config.data.val_files = f"{tmp_path}/math.parquet"
    config.reward.custom_reward_function.path = reward
    if message is None:
        checked(config)
    else:
        assert message in error_of(config)


def test_replicas_that_would_lie_across_nodes(config: DictConfig) -> None:
    config.refiner.placement, config.refiner.n_gpus_per_node, config.refiner.nnodes = "dedicated", 2, 3
    config.refiner.rollout = {"tensor_model_parallel_size": 3}
    run = Run(config=config, blocks=schema.load(config))
    run.plan = make_plan(config, run.blocks, tokenizer=AutoTokenizer.from_pretrained(run.blocks.refiner.model_path))
    with pytest.raises(ValueError, match="refiner replicas of 3 GPUs do not align with 6 GPUs on nodes of 2"):
        check(run, "sizes")


@pytest.mark.parametrize("length", [80, 100_000])
def test_a_context_that_cannot_be(config: DictConfig, length: int) -> None:
    config.refiner.max_model_len = length
    assert f"refiner.max_model_len={length} must be between 81" in error_of(config)


def test_more_replicas_than_fit(config: DictConfig) -> None:
    config.refiner.num_replicas = 2
    assert "do not fit on 1 training GPUs" in error_of(config)


def test_an_unknown_engine_setting_of_the_refiner(config: DictConfig) -> None:
    config.refiner.rollout = {"gpu_memory": 0.5}
    found = error_of(config)
    assert "refiner.rollout has keys that verl's rollout block does not know: gpu_memory" in found
