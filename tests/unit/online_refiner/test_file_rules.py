"""Mistakes in a run's files are one clear line before Ray starts."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
from checked_run import checked, error_of
from composed_main import CONFIG
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.main import command
from recipe.online_refiner.verl_glue.model_configs import plan_run
from recipe.online_refiner.verl_glue.preflight import images, trials
from recipe.online_refiner.verl_glue.preflight.duration import duration
from recipe.online_refiner.verl_glue.preflight.files import Files
from recipe.preflight.needed import NEEDED
from recipe.preflight.rules import PlannedRun, check
from recipe.sizing import times

ACTOR = "actor_rollout_ref.actor"
CRITIC = {"algorithm.adv_estimator": "gae", "critic.ppo_micro_batch_size_per_gpu": 2}
WORKERS = [("dataloader_num_workers", -1), ("filter_overlong_prompts_workers", 0)]
WORKERS += [("filter_overlong_prompts_workers", -2), ("dataloader_num_workers", "all")]
GOOD = {"inputs": ["1\n"], "outputs": ["2\n"]}
USER = {"role": "user", "content": "double it"}


def test_a_good_config_passes_and_its_plan_names_the_sizes(config: DictConfig) -> None:
    run = checked(config)
    blocks, plan = run.blocks, run.plan
    needed = blocks.refiner.prompt(run.files.tokenizer, {}, None, 16).max_tokens(64, 16) + 16
    assert plan.max_model_len == needed <= 2048
    assert plan.common.rollout.load_format == "auto" and plan.common.rollout.max_model_len == needed
    text = plan.describe(config, blocks, run.files.num_prompts)
    assert "colocated" in text and f"context {needed} tokens" in text
    assert "4 prompts, 2 a step" in text
    config.data.train_max_samples = 3
    assert checked(config).files.num_prompts == 3
    config.data.train_max_samples, config.trainer.total_epochs, config.trainer.total_training_steps = 4, 3, 6
    checked(config)


def test_a_step_that_takes_long_on_cpus_is_warned_of(config: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    run = checked(config)
    monkeypatch.setattr(times, "operations_per_second", lambda: (1e9, 2))
    said, warning = duration(run) or ("", None)
    assert said.startswith("a step takes 0 s or more on 2 cores") and warning is None
    monkeypatch.setattr(times, "operations_per_second", lambda: (1.0, 2))
    _, warning = duration(run) or ("", None)
    assert warning and "hours or more on 2 cores" in warning and "lower data.max_response_length=16" in warning
    config.constraint.mode = "none"
    alone, refined = (duration(one)[0].split()[3] for one in (checked(config), run))  # type: ignore[index]
    assert int(alone) < int(refined)
    config.trainer.device = "cuda"
    assert duration(run) is None


def test_a_dry_run_shows_what_the_refiner_reads_and_where_its_answer_is(config: DictConfig) -> None:
    text = trials.shown_prompt(checked(config))
    assert "  | This answer got the reward 0.00. (feedback)\n  | The answer:\n  | (the response)\n" in text
    assert "  | <|im_start|>assistant\n" in text
    assert text.endswith("its answer begins at once and ends at the end of its turn")
    config.refiner.template = "dialogue"
    ends = "  | <refined>\nits answer begins at once and ends at '</refined>' or the end of its turn"
    assert trials.shown_prompt(checked(config)).endswith(ends)
    config.refiner.thoughts = ["<think>", "</think>"]
    run = checked(config)
    assert "its answer begins after the last </think> and <refined> and ends at '</refined>'" in trials.shown_prompt(
        run
    )
    assert "between <think> and </think>" in run.plan.describe(config, run.blocks, 4)
    config.refiner.thoughts = ["<think>"]
    assert error_of(config).startswith("refiner.thoughts")


def checked_with(config: DictConfig, template: str, by_source: dict[str, Any] | None) -> PlannedRun:
    config.refiner.template, config.refiner.by_source = template, by_source
    return checked(config)


def test_a_data_source_has_a_template_of_its_own_and_none_is_forgotten(config: DictConfig, tmp_path: Path) -> None:
    config.refiner.by_source = {"mini_app": {"template": "dialogue"}}
    found = error_of(config)
    assert "the data source mini_apps of good.parquet is not in refiner.by_source, which has mini_app; add it" in found
    assert found.endswith("; did you mean mini_app? [every-data-source-has-a-refiner]")
    longest = checked_with(config, "apps_paper", None).plan.max_model_len
    run = checked_with(config, "general", {"mini_apps": {"template": "dialogue"}, "later": {"template": "apps_paper"}})
    assert run.plan.max_model_len == longest, "the longest prompt of all fits"
    plan = run.plan.describe(config, run.blocks, 4)
    assert "\n- mini_apps    template dialogue; by the common refiner\n- later        template apps_paper; by " in plan
    assert trials.shown_prompt(run).endswith("ends at '</refined>' or the end of its turn")
    template = tmp_path / "own.jinja"
    template.write_text("{{ response }}")
    config.refiner.by_source = {"mini_apps": {"context": ["sibling"], "template": str(template)}}
    assert error_of(config).startswith("refiner.by_source.mini_apps: refiner.context has sibling, but ")
    numbered = pandas.read_parquet(config.data.train_files).assign(data_source=7)
    numbered.to_parquet(tmp_path / "numbered.parquet")
    config.data.train_files = str(tmp_path / "numbered.parquet")
    assert error_of(config).endswith("[every-data-source-has-a-refiner]")
    assert "7" in checked_with(config, "general", {"7": {}}).plan.prompts
    unnamed = numbered.drop(columns="data_source")
    unnamed.to_parquet(tmp_path / "unnamed.parquet")
    config.data.train_files = str(tmp_path / "unnamed.parquet")
    config.refiner.by_source = {"mini_apps": {}}
    assert "unnamed.parquet has no column data_source" in error_of(config)


def test_a_weight_is_of_a_data_source_that_there_is(config: DictConfig) -> None:
    config.constraint.by_source = {"mini_apps": {"eta": 0}}
    run = checked(config)
    assert "\nconstraint     mode sft, eta 0.03, 0 for mini_apps, not refined\n" in run.plan.describe(
        config, run.blocks, 4
    )
    config.constraint.by_source = {"mini_app": {"eta": 0.1}}
    assert error_of(config).startswith("constraint.by_source.mini_app: no row of data.train_files has this data_source")
    assert error_of(config).endswith("; did you mean mini_apps? [weights-are-of-data-sources]")
    rows = pandas.read_parquet(config.data.train_files).drop(columns="data_source")
    rows.to_parquet(config.data.train_files)
    assert "has no column data_source, which constraint.by_source needs" in error_of(config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"thoughts": True}, "refiner.thoughts=True: set false, or two marks that differ"),
        ({"thoughts": ["<think>", ""]}, "refiner.thoughts=['<think>', '']: set false, or two marks"),
        ({"thoughts": ["---", "---"]}, "refiner.thoughts=['---', '---']: set false, or two marks"),
        ({"thought_length": 9999}, "a prompt and a thought of 9999 tokens fill the refiner's context, "),
    ],
)
def test_thoughts_that_cannot_be(config: DictConfig, changes: dict[str, Any], words: str) -> None:
    config.refiner = {**config.refiner, "thoughts": ["<think>", "</think>"], **changes}
    assert error_of(config).startswith(words)


def test_a_template_that_opens_a_thought_leaves_no_answer_by_itself(config: DictConfig) -> None:
    config.actor_rollout_ref.model.custom_chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
    )
    config.refiner.thoughts = False
    found = error_of(config)
    assert found.startswith("refiner.thoughts=false, but the chat template begins each reply with <think>")
    assert found.endswith("[thoughts-are-told-from-answers]")


def test_a_dataset_class_of_the_users_reads_its_files_itself(config: DictConfig, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch.utils.data import Dataset\n"
        "class Lines(Dataset):\n"
        "    def __init__(self, data_files, tokenizer, processor, config, max_samples):\n"
        "        self.rows = open(data_files).read().split()\n"
        "    def __len__(self):\n"
        "        return len(self.rows)\n"
        "    def __getitem__(self, index):\n"
        "        prompt = [{'role': 'user', 'content': self.rows[index]}]\n"
        "        return {'raw_prompt': prompt, 'data_source': 'd', 'reward_model': {'ground_truth': '{}'}}\n"
    )
    (tmp_path / "prompts.txt").write_text("a b c d e")
    config.data.train_files = config.data.val_files = f"{tmp_path}/prompts.txt"
    assert "prompts.txt; write them by online-refiner prepare" in error_of(config)
    OmegaConf.update(config, "data.custom_cls", {"path": f"{tmp_path}/own.py", "name": "Lines"})
    assert checked(config).files.num_prompts == 5
    text = (tmp_path / "own.py").read_text()
    for name, rule in (("raw_prompt", "prompts-are-chats"), ("reward_model", "rows-can-be-rewarded")):
        (tmp_path / "own.py").write_text(text.replace(name, "other"))
        found = error_of(config)
        assert found.startswith("data.train_files: row 0") and found.endswith(f" [{rule}]")
    (tmp_path / "own.py").write_text(text.replace("class Lines", "class Rows"))
    assert error_of(config).startswith("data.custom_cls: ")


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


def test_keys_that_still_have_verls_defaults_are_named_together(config: DictConfig) -> None:
    with initialize_config_dir(str(CONFIG), version_base=None):
        defaults = compose("online_refiner")
    for key in NEEDED:
        OmegaConf.update(config, key, OmegaConf.select(defaults, key))
    assert error_of(config) == (
        "actor_rollout_ref.model.path=~/models/deepseek-llm-7b-chat, data.train_files=~/data/rlhf/gsm8k/train.parquet, "
        "data.val_files=~/data/rlhf/gsm8k/test.parquet: these are verl's defaults, and no such files exist; set "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct data.train_files=data/train.parquet "
        "data.val_files=data/val.parquet, for example [needed-keys-are-set]"
    )


@pytest.mark.parametrize("path", ["/nowhere", "too/many/parts"])
def test_a_model_that_is_not_there_says_what_to_set(config: DictConfig, path: str) -> None:
    config.actor_rollout_ref.model.path = path
    found = error_of(config)
    assert found.startswith(f"actor_rollout_ref.model.path={path}: no ")
    assert "; set a model folder or a hub id, such as Qwen/Qwen2.5-0.5B-Instruct [" in found


def test_counts_that_may_be_zero_null_or_of_a_part_that_is_not_there(config: DictConfig) -> None:
    changes = {
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.rollout.max_num_seqs": None,
        f"{ACTOR}.fsdp_config.seed": 0,
    }
    changes |= {"reward.reward_model.n_gpus_per_node": 0, "critic.ppo_max_token_len_per_gpu": 0}
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    checked(config)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "override_config.rope_scaling={'rope_type': 'yarn', "),
        ({"rope_parameters": {"type": "yarn"}, "hidden_size": 8}, "override_config.rope_parameters={'type': 'yarn'}: "),
        ({"no_such": {"a": 1}}, "override_config.no_such={'a': 1}: verl cannot set it "),
    ],
)
def test_a_change_of_the_models_config_that_verl_cannot_make(
    config: DictConfig, override: dict[str, Any], said: str
) -> None:
    config.actor_rollout_ref.model.override_config = override
    found = error_of(config)
    assert found.startswith(f"actor_rollout_ref.model.{said}")
    assert found.endswith("write it into config.json of a copy of the model instead")


def test_a_policy_of_a_kind_that_is_not_known(config: DictConfig, tiny_llama: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama, tmp_path / "model")
    found = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**found, "model_type": "of_tomorrow"}))
    config.actor_rollout_ref.model.path = f"{tmp_path}/model"
    said = error_of(config)
    assert said.startswith(f"actor_rollout_ref.model.path={tmp_path}/model: ") and "of_tomorrow" in said


def test_a_ray_cluster_that_is_gone(config: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    OmegaConf.update(config, "ray_kwargs.ray_init", {"_temp_dir": str(tmp_path), "address": None}, force_add=True)
    checked(config)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "ray_current_cluster").write_text(address)
        checked(config)
    found = error_of(config)
    assert found.startswith(f"{tmp_path}/ray_current_cluster: nobody answers at {address}, ")
    assert "; run ray stop, or remove the file [ray-cluster-answers]" in found
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert error_of(config).startswith(f"RAY_ADDRESS: nobody answers at {address}, ")
    config.ray_kwargs.ray_init.address = "local"  # which comes first
    checked(config)
    config.ray_kwargs.ray_init.address = address
    assert error_of(config).startswith(f"ray_kwargs.ray_init.address: nobody answers at {address}, ")
    config.dry_run, config.sizing.gpu_memory_gib = True, 80
    config.actor_rollout_ref.rollout.gpu_memory_utilization = 0.1
    checked(config)


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


def test_a_file_whose_name_is_a_pattern(config: DictConfig, tmp_path: Path) -> None:
    shutil.copy(config.data.train_files, tmp_path / "a[1].parquet")
    config.data.train_files = f"{tmp_path}/a[1].parquet"
    assert "has [ and ] in its name, which datasets takes for a pattern; rename it" in error_of(config)


def test_rows_that_name_an_agent_loop(config: DictConfig) -> None:
    path = config.data.train_files
    for loops, is_known in ((["single_turn_agent"] * 4, True), (["tool_agent", *["single_turn_agnt"] * 3], False)):
        pandas.read_parquet(path).assign(agent_name=loops).to_parquet(path)
        if is_known:
            checked(config)
    found = error_of(config)
    assert "agent_name of a row in good.parquet=single_turn_agnt is not known" in found
    assert found.endswith("did you mean single_turn_agent? [agent-loops-have-their-files]")


def test_a_missing_data_file(config: DictConfig) -> None:
    config.data.val_files = "nowhere.parquet"
    found = error_of(config)
    assert "data.val_files: nowhere.parquet is empty or cannot be read: " in found
    assert "; set data.val_files to a file of `online-refiner prepare`, such as data/val.parquet" in found
    config.data.val_files = None
    said = "data.val_files=None: the data set is empty; set a file that has rows [data-have-rows]"
    assert error_of(config) == said


@pytest.mark.parametrize("value", ["~/train.parquet", ["~/train.parquet", "a.parquet"]])
def test_a_home_folder_that_no_shell_wrote_out(
    config: DictConfig, value: str | list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config.data.train_files = value
    found = error_of(config)
    assert found.startswith("data.train_files: ") and "/~/train.parquet'; set data.train_files to a file of " in found
    monkeypatch.setattr("sys.argv", ["main", "data.train_files=~/train.parquet"])  # Hydra has no words for it
    with pytest.raises(SystemExit, match="2"):
        command()
    assert capsys.readouterr().err.startswith("error: data.train_files: no shell reads the ~ ")


@pytest.mark.usefixtures("loggers")
@pytest.mark.parametrize(
    ("mistake", "status", "message"),
    [
        ("trainer.n_gpus_per_node=1000", 2, "error: trainer.n_gpus_per_node=1000, but this machine has"),
        ("constraint.eta=-1", 2, "error: constraint.eta=-1: Input should be greater"),
        ("refiner.etta=1", 2, "error: refiner.etta does not exist"),
    ],
)
def test_a_mistake_ends_the_command_with_one_line(
    config: DictConfig, mistake: str, status: int, message: str, monkeypatch: Any, capfd: Any
) -> None:
    files, model = config.data.train_files, config.actor_rollout_ref.model.path
    arguments = ["platform=cpu", f"data.train_files={files}", f"data.val_files={files}", "data.train_batch_size=2"]
    arguments += [
        f"actor_rollout_ref.model.path={model}",
        "reward.custom_reward_function.path=pkg://reward.verl_reward",
    ]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # else it starts itself again, with this one
    quiet = ["preload=false", "hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"]
    monkeypatch.setattr("sys.argv", ["main", *arguments, mistake, *quiet, f"hydra.run.dir={Path(files).parent}"])
    with pytest.raises(SystemExit, match=str(status)):
        command()
    said = capfd.readouterr()
    assert message in said.err and "Traceback" not in said.err and "Ray instance" not in said.out + said.err


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"run_dir": "/proc/x"}, "folders-can-be-written"),
        ({"run_dir": f"/tmp/{'x' * 300}"}, "folders-can-be-written"),
        ({"trainer.default_local_dir": "/etc/passwd/x"}, "folders-can-be-written"),
        ({"trainer.default_local_dir": None}, "folders-can-be-written"),
        ({"trainer.rollout_data_dir": "/proc/x"}, "folders-can-be-written"),
        ({"trainer.validation_data_dir": "/proc/x"}, "folders-can-be-written"),
        ({"trainer.val_only": True, "trainer.val_before_train": False}, "actor-is-trained"),
        ({"trainer.total_epochs": 3, "trainer.total_training_steps": 7}, "epochs-have-the-steps"),
        ({"trainer.critic_warmup": 1}, "actor-is-trained"),
        ({"algorithm.adv_estimator": "gae", "trainer.critic_warmup": 10**6}, "actor-is-trained"),
        ({"transfer_queue.backend.SimpleStorage.total_storage_size": 1}, "queue-holds-a-step"),
        (
            {"actor_rollout_ref.model.lora_rank": 8, "actor_rollout_ref.model.lora_adapter_path": "/n"},
            "models-are-there",
        ),
        ({"actor_rollout_ref.model.path": f"/{'x' * 300}"}, "models-are-there"),  # as what may not be read, an OSError
        ({"actor_rollout_ref.model.custom_chat_template": "/models/x.jinja"}, "prompts-are-chats"),
        ({"trainer.n_gpus_per_node": 1000}, "machine-has-the-workers"),
        ({"refiner.max_model_len": 80}, "refiner-reads-prompt-and-response"),
        ({"refiner.max_model_len": 100_000}, "refiner-reads-prompt-and-response"),
        ({"refiner.num_replicas": 2}, "replicas-fit"),
        (
            {
                "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
                "actor_rollout_ref.model.override_config.num_attention_heads": 3,
                "trainer.n_gpus_per_node": 2,
                "ray_kwargs.ray_init.num_gpus": 2,
            },
            "models-can-be-shared",
        ),
        ({"critic.fsdp.ulysses_sequence_parallel_size": 4, **CRITIC}, "sequences-are-shared-by-flash-attention"),
        *(({f"data.{key}": value}, "counts-are-counts") for key, value in WORKERS),
        ({"actor_rollout_ref.rollout.max_num_seqs": 0}, "counts-are-counts"),
        ({"refiner.rollout": {"max_num_seqs": -1}}, "counts-are-counts"),
        ({"transfer_queue.backend.SimpleStorage.num_data_storage_units": 1.5}, "counts-are-counts"),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3}, "micro-batches-are-filled"),
        ({f"{ACTOR}.ppo_mini_batch_size": 3}, "micro-batches-are-filled"),
        (
            {f"{ACTOR}.ppo_mini_batch_size": 3, "trainer.n_gpus_per_node": 2, "ray_kwargs.ray_init.num_gpus": 2},
            "micro-batches-are-filled",
        ),
        ({"algorithm.adv_estimator": "gae", "critic.ppo_micro_batch_size_per_gpu": 3}, "micro-batches-are-filled"),
        (
            {
                "refiner.placement": "dedicated",
                "refiner.n_gpus_per_node": 2,
                "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
                "ray_kwargs.ray_init.num_gpus": 3,
            },
            "replicas-fit",
        ),
        ({"reward.reward_manager.name": "nobody"}, "names-are-verls"),
        (
            {
                "refiner.placement": "shared",
                "actor_rollout_ref.model.lora_rank": 8,
                "actor_rollout_ref.rollout.max_model_len": 81,
            },
            "shared-servers-read-it-too",
        ),
        (
            {
                "refiner.placement": "shared",
                "actor_rollout_ref.model.lora_rank": 8,
                "constraint.mode": "penalty",
                "constraint.target": "in_place",
                "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
                "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 187,
            },
            "shared-servers-read-it-too",
        ),
    ],
)
def test_what_one_setting_makes_wrong(config: DictConfig, changes: dict[str, Any], rule: str) -> None:
    for key, value in changes.items():
        OmegaConf.update(config, key, value, force_add=True)
    assert error_of(config).endswith(f" [{rule}]")


def test_a_template_in_place_that_shows_refinements_alone_where_there_are_none(
    config: DictConfig, tmp_path: Path
) -> None:
    (tmp_path / "own.jinja").write_text("{{ question }} {{ refined }}")
    settings = {
        "constraint.mode": "penalty",
        "constraint.target": "in_place",
        "constraint.reward_gate": "failed",
        "refiner.skip_reward_at_least": 1.0,
        "constraint.in_place_template": str(tmp_path / "own.jinja"),
        "actor_rollout_ref.rollout.n": 2,
    }
    for key, value in settings.items():
        OmegaConf.update(config, key, value)
    assert "constraint.in_place_template must show sibling or solution" in error_of(config)


@pytest.mark.parametrize(
    "overrides",
    [
        {"refiner.placement": "dedicated", "refiner.n_gpus_per_node": 2},
        *(
            {"reward.reward_model": {"enable": used, "enable_resource_pool": True, "nnodes": 1, "n_gpus_per_node": 2}}
            for used in (True, False)
        ),
        {"distillation": {"enabled": True, "nnodes": 1, "n_gpus_per_node": 2}},
    ],
)
def test_more_pools_than_the_machine_has_gpus(
    config: DictConfig, overrides: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("recipe.online_refiner.verl_glue.preflight.files.read_ray_address", lambda _: None)
    for name, value in overrides.items():
        OmegaConf.update(config, name, value)
    found = error_of(config)
    assert found.startswith("the run needs 3 GPUs (1 for training, 2 for the ")
    assert found.endswith("or set ray_kwargs.ray_init.num_gpus=3 [machine-has-the-pools]")


def test_more_reserved_cpus_than_ray_has(config: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("recipe.online_refiner.verl_glue.preflight.files.read_ray_address", lambda _: None)
    units = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
    OmegaConf.update(config, units, 13)
    found = error_of(config)
    assert found.startswith("verl reserves 17 CPUs of Ray (13 storage units, ")
    assert found.endswith(f"are 16; lower {units}, or set ray_kwargs.ray_init.num_cpus=17 [machine-has-the-cpus]")


@pytest.mark.parametrize("limit", ["val_max_samples", "val_batch_size"])
def test_a_queue_for_as_many_responses_as_there_are_at_a_time(config: DictConfig, limit: str) -> None:
    config.transfer_queue.backend.SimpleStorage.total_storage_size = 2  # a step; there are 4 rows
    assert error_of(config).endswith(" [queue-holds-a-step]")
    config.data[limit] = 2
    checked(config)


@pytest.mark.parametrize(
    ("key", "value", "text", "message"),
    [
        (
            "reward.custom_reward_function.path",
            "pkg://rows_of_a_test",
            "def validate_row(row):\n    pass\n",
            "validate_row: TypeError: ",
        ),
        ("actor_rollout_ref.model.external_lib", "names_of_a_test", "1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_of_the_users_that_raises_what_it_likes(
    config: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str, text: str, message: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{value.removeprefix('pkg://')}.py").write_text(text)
    OmegaConf.update(config, key, value)
    assert error_of(config).startswith(key) and message in error_of(config)


def test_a_tokenizer_that_its_library_cannot_read(config: DictConfig, tiny_llama: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama, tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text('{"model": {"type": "of next year"}}')
    config.actor_rollout_ref.model.path = f"{tmp_path}/broken"
    assert error_of(config).startswith(f"actor_rollout_ref.model.path={tmp_path}/broken: no tokenizer there (")


def with_column(config: DictConfig, name: str, folder: Path) -> None:
    """Give the run's data a column of media."""
    rows = pandas.read_parquet(config.data.train_files)
    rows.assign(**{name: [["a.png"]] * len(rows)}).to_parquet(folder / "seen.parquet")
    config.data.train_files = str(folder / "seen.parquet")


@pytest.mark.parametrize("name", ["videos", "audios"])
def test_videos_and_sounds_are_not_refined(config: DictConfig, tmp_path: Path, name: str) -> None:
    with_column(config, name, tmp_path)
    said = error_of(config)
    assert said.startswith(f"data.train_files: the column {name} would not reach the refiner")
    assert said.endswith(" [prompts-have-texts-and-images-alone]")
    config.constraint.mode, config.measure.num_kl_rollouts = "none", 0
    checked(config)


def test_images_need_a_model_that_sees(config: DictConfig, tmp_path: Path) -> None:
    """Nobody refines without images."""
    with_column(config, "images", tmp_path)
    said = error_of(config)
    assert said.startswith(f"actor_rollout_ref.model.path={config.actor_rollout_ref.model.path} reads text, but ")
    assert "set a model that sees" in said and said.endswith(" [models-read-images]")
    config.constraint.mode, config.measure.num_kl_rollouts = "none", 0
    checked(config)


def test_what_reads_images_is_installed(config: DictConfig, tiny_llama: Path, tmp_path: Path) -> None:
    with_column(config, "images", tmp_path)
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "vision_config": {}}))
    config.actor_rollout_ref.model.path = str(folder)
    assert "run: pip install torchvision qwen-vl-utils [models-read-images]" in error_of(config)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("actor_rollout_ref.actor.strategy", "megatron", "set model_engine=dp"),
        ("constraint.target", "in_place", "set constraint.target=rewrite"),
        ("refiner.placement", "shared", "set refiner.placement=colocated"),
    ],
)
def test_where_images_are_not_refined(config: DictConfig, tmp_path: Path, key: str, value: str, said: str) -> None:
    """The rule itself: other rules on these keys have other reasons."""
    with_column(config, "images", tmp_path)
    OmegaConf.update(config, key, value)
    run = PlannedRun(config=config, blocks=read_blocks(config))
    run.files = Files(config)
    wrong = images.images_are_refined_where_they_are_trained_on(run)
    assert wrong and wrong.startswith(f"{key}={value}: data.train_files has images (column images)") and said in wrong


def test_a_model_whose_positions_of_images_verl_does_not_compute(config: DictConfig) -> None:
    run = PlannedRun(config=config, blocks=read_blocks(config))
    run.files = Files(config)
    assert images.positions_of_images_are_verls(run) is None, "the data have no images"
    run.files.processor = SimpleNamespace(get_rope_index=len)
    assert images.positions_of_images_are_verls(run) is None
    run.files.processor = SimpleNamespace()
    wrong = images.positions_of_images_are_verls(run)
    assert wrong and wrong.startswith("actor_rollout_ref.model.path=") and "set a model such as Qwen/" in wrong


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
    rows = [
        {"data_source": "numina_olympiads", "reward_model": {"ground_truth": answer}, "prompt": [USER]}
        for answer in answers * 2
    ]
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
    run = PlannedRun(config=config, blocks=load(config))
    run.plan = plan_run(config, run.blocks, tokenizer=AutoTokenizer.from_pretrained(run.blocks.refiner.model_path))
    with pytest.raises(ValueError, match=r"\[replicas-fit\]$"):
        check(run, "sizes")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"gpu_memory": 0.5}, "gpu_memory"),
        ({"load_format": "dummy"}, "pi_0 would have random weights; set auto"),
        ({"max_model_len": 10}, "max_model_len is not read: set refiner.max_model_len"),
        ({"temperature": 0.5}, "temperature is not read: set refiner.temperature"),
        ({"n": 4}, "n is not read: each response is refined once; drop it"),
        ({"ignore_eos": True}, "ignore_eos is not read: each request says 1.0 and false; drop it"),
    ],
)
def test_an_engine_setting_that_is_not_the_refiners(config: DictConfig, setting: dict[str, Any], message: str) -> None:
    config.refiner.rollout = setting
    found = error_of(config)
    assert found.startswith("refiner.rollout") and found.endswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ question }} Write it again.", "does not show {{ response }}"),
        ("{% include 'other' %}{{ response }}", "no loader for this environment specified"),
        ("{% set stop = '' %}{{ response }}", "stop is ''; set one text that is not empty"),
        ("{{ response }} Begin with {{ open_tag }}", "so must show {{ close_tag }}"),
        ("x " * 3000 + "{{ response }}", "[refiner-reads-prompt-and-response]"),
        (b"\xe9 {{ response }}", "invalid continuation byte"),
    ],
)
def test_a_template_that_cannot_refine(config: DictConfig, tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "own.jinja").write_bytes(text if isinstance(text, bytes) else text.encode())
    config.refiner.template = f"{tmp_path}/own.jinja"
    found = error_of(config)
    assert found.startswith("refiner.") and message in found
