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

from recipe.online_refiner.config.checks import Run, check, load
from recipe.online_refiner.main import command
from recipe.online_refiner.plan import make_plan
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


@pytest.mark.parametrize(
    ("key", "overrides"),
    [
        ("actor_rollout_ref.model.path", {"critic.model.path": "m"}),
        ("critic.model.path", {"algorithm.adv_estimator": "gae"}),
        ("reward.reward_model.model_path", {"reward.reward_model": {"enable": True}, "trainer.device": "cpu"}),
    ],
)
def test_a_missing_model_folder(config: DictConfig, tmp_path: Path, key: str, overrides: dict) -> None:
    for name, value in {**overrides, key: f"{tmp_path}/nowhere"}.items():
        OmegaConf.update(config, name, value)
    found = error_of(config)
    assert found.startswith(f"{key}={tmp_path}/nowhere: ") and found.endswith(" [models-are-there]")


def test_a_refiner_with_another_tokenizer(config: DictConfig, tiny_llama: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_llama, other)
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(other)
    config.refiner.model_path = str(other)
    assert error_of(config).endswith(" [refiner-has-the-policys-tokens]")


@pytest.mark.parametrize("missing", ["chat_template", "eos_token"])
def test_a_tokenizer_that_lacks_something(config: DictConfig, tiny_llama: Path, tmp_path: Path, missing: str) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_llama, base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    setattr(tokenizer, missing, None)
    if missing == "chat_template":
        (base / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(base)
    config.actor_rollout_ref.model.path = str(base)
    assert error_of(config).endswith(" [tokenizer-writes-chats]")


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        ([], "bad.parquet is empty or cannot be read: "),
        ([GOOD], "[data-have-rows]"),
        ([GOOD, {"inputs": [], "outputs": []}], "[problems-can-be-rewarded]"),
        ([GOOD, {"inputs": ["1", "2"], "outputs": ["1"]}], "[problems-can-be-rewarded]"),
    ],
)
def test_bad_data(config: DictConfig, write: Callable, tmp_path: Path, problems: list[Any], message: str) -> None:
    config.data.train_files = str(write(tmp_path / "bad.parquet", problems))
    found = error_of(config)
    assert found.startswith("data.train_files") and message in found


def test_a_missing_data_file(config: DictConfig) -> None:
    config.data.val_files = "nowhere.parquet"
    assert "data.val_files: nowhere.parquet is empty or cannot be read: " in error_of(config)
    config.data.val_files = None
    assert error_of(config) == "data.val_files: the data set is empty: None [data-have-rows]"


@pytest.mark.parametrize("value", ["~/train.parquet", ["a.parquet", "~/train.parquet"]])
def test_a_home_folder_that_no_shell_wrote_out(
    config: DictConfig, value: str | list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.data.train_files = value
    found = error_of(config)
    assert found.startswith("data.train_files: ~/train.parquet ") and found.endswith(" [home-is-written-out]")
    monkeypatch.setattr("sys.argv", ["main", "data.train_files=~/train.parquet"])  # Hydra has no words for it
    with pytest.raises(SystemExit, match="2"):
        command()
    assert capsys.readouterr().err.startswith("error: data.train_files: no shell reads the ~ ")


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"trainer.n_gpus_per_node": 0}, "training-has-workers"),
        ({"trainer.nnodes": 0}, "training-has-workers"),
        ({"reward.reward_model": {"enable": True, "enable_resource_pool": True}}, "reward-model-has-nodes"),
        ({"trainer.n_gpus_per_node": 1000}, "machine-has-the-workers"),
        ({"refiner.draft": "suffix"}, "suffix-drafts-are-installed"),
        ({"refiner.max_model_len": 80}, "refiner-reads-prompt-and-response"),
        ({"refiner.max_model_len": 100_000}, "refiner-reads-prompt-and-response"),
        ({"refiner.num_replicas": 2}, "replicas-fit"),
        (
            {
                **{"refiner.placement": "shared", "actor_rollout_ref.model.lora_rank": 8},
                "actor_rollout_ref.rollout.max_model_len": 81,
            },
            "shared-servers-read-it-too",
        ),
    ],
)
def test_what_one_setting_makes_wrong(config: DictConfig, changes: dict[str, Any], rule: str) -> None:
    checked(config)
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    assert error_of(config).endswith(f" [{rule}]")


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
    monkeypatch.setattr("recipe.online_refiner.config.files.read_ray_address", lambda _: None)
    for name, value in overrides.items():
        OmegaConf.update(config, name, value)
    found = error_of(config)
    assert found.startswith("the run needs 3 GPUs (1 for training, 2 for the re")
    assert found.endswith("or set ray_kwargs.ray_init.num_gpus=3 [machine-has-the-pools]")


def test_images_that_the_refiner_would_not_see(config: DictConfig, tmp_path: Path) -> None:
    path = Path(config.data.train_files)
    pandas.read_parquet(path).assign(images="a.png").to_parquet(tmp_path / "seen.parquet")
    config.data.train_files = str(tmp_path / "seen.parquet")
    assert error_of(config).endswith(" [prompts-are-text]")
    config.constraint.mode, config.measure.num_kl_rollouts = "none", 0
    checked(config)


@pytest.mark.parametrize(
    ("reward", "answers", "rule"),
    [
        ("pkg://reward.math", ["72", "\\frac{1}{2}"], None),
        ("pkg://reward.math", ["72", " "], "problems-can-be-rewarded"),
        (None, ["72"], "no-grader-runs-answers"),
    ],
)
def test_final_answers(
    config: DictConfig, tmp_path: Path, reward: str | None, answers: list[str], rule: str | None
) -> None:
    rows = [{"data_source": "numina_olympiads", "reward_model": {"ground_truth": answer}} for answer in answers * 2]
    pandas.DataFrame(rows).to_parquet(tmp_path / "math.parquet")
    config.data.train_files = config.data.val_files = f"{tmp_path}/math.parquet"
    config.reward.custom_reward_function.path = reward
    if rule is None:
        assert checked(config).files.num_prompts == 4
    else:
        assert error_of(config).endswith(f" [{rule}]")


def test_replicas_that_would_lie_across_nodes(config: DictConfig) -> None:
    config.refiner.placement, config.refiner.n_gpus_per_node, config.refiner.nnodes = "dedicated", 3, 2
    config.refiner.rollout = {"tensor_model_parallel_size": 2}
    run = Run(config=config, blocks=load(config))
    run.plan = make_plan(config, run.blocks, tokenizer=AutoTokenizer.from_pretrained(run.blocks.refiner.model_path))
    with pytest.raises(ValueError, match=r"\[replicas-align-with-nodes\]$"):
        check(run, "sizes")


def test_an_unknown_engine_setting_of_the_refiner(config: DictConfig) -> None:
    config.refiner.rollout = {"gpu_memory": 0.5}
    found = error_of(config)
    assert found.startswith("refiner.rollout ") and found.endswith("gpu_memory")
