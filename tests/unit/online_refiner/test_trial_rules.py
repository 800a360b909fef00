"""Mistakes that show when a run's rows, rewards, checkpoint and tools are tried are one line before Ray starts."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas
import pytest
from checked_run import checked, error_of
from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer

from recipe.online_refiner.verl_glue.preflight import trials

GOOD = {"inputs": ["1\n"], "outputs": ["2\n"]}
USER = {"role": "user", "content": "double it"}
SYSTEM = {"role": "system", "content": "You are brief."}
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_prompts(path: Path, prompts: list[Any], **columns: Any) -> str:
    """Write rows that reward.verl_reward can use, with these prompts; a column that is None is left out."""
    row = {"data_source": "d", "reward_model": {"ground_truth": json.dumps(GOOD)}, **columns}
    row = {name: value for name, value in row.items() if value is not None}
    pandas.DataFrame([{"prompt": prompt, **row} for prompt in prompts]).to_parquet(path)
    return str(path)


def test_a_token_that_the_embedding_does_not_have(config: DictConfig, tiny_llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "more_tokens"
    shutil.copytree(tiny_llama, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(folder)
    config.actor_rollout_ref.model.path = str(folder)
    checked(config)  # no prompt has it
    row = pandas.read_parquet(config.data.train_files).iloc[0]
    prompts = [[{"role": "user", "content": "double <new>"}]]
    config.data.train_files = write_prompts(tmp_path / "new.parquet", prompts * 4, reward_model=row["reward_model"])
    assert error_of(config).endswith(" [prompts-are-in-the-vocabulary]")


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (["double it"] * 4, "row 0 of bad.parquet: its prompt is str"),
        ([["double it"]] * 4, "row 0 of bad.parquet: message 0 is str"),
        ([[USER], [USER], [], [USER]], "row 2 of bad.parquet: its prompt is "),
        ([[USER]] * 3 + [[{"role": "user", "content": None}]], "row 3 of bad.parquet: the content of message 0 is "),
        ([[{"role": "user", "content": [{"type": "text", "text": "a"}]}]] * 4, "the content of message 0 is list"),
        ([[USER], [USER], [{"role": "assistant", "content": "a"}]], "row 2 of bad.parquet: no message asks"),
        ([[{"role": "user", "content": " "}]] * 4, "row 0 of bad.parquet: no message asks the refiner anything; give "),
        ([[{"from": "human", "value": "a"}]] * 4, "row 0 of bad.parquet: message 0 has from, value"),
        (
            [[USER]] * 9 + [[SYSTEM, USER]],
            "row 9 of bad.parquet: the chat template of the policy refuses it (TemplateError: System ",
        ),
    ],
)
def test_prompts_that_the_rollout_could_not_read(
    config: DictConfig, tmp_path: Path, prompts: list[Any], message: str
) -> None:
    config.actor_rollout_ref.model.custom_chat_template = NO_SYSTEM
    config.data.val_files = [config.data.val_files, write_prompts(tmp_path / "bad.parquet", prompts)]
    found = error_of(config)
    assert found.startswith("data.val_files: ") and found.endswith(" [prompts-are-chats]")
    assert message in found


@pytest.mark.parametrize(
    ("column", "rule"),
    [
        ("prompt", "prompts-are-chats"),
        ("data_source", "rows-can-be-rewarded"),
        ("reward_model", "rows-can-be-rewarded"),
    ],
)
def test_a_column_that_a_file_does_not_have(config: DictConfig, tmp_path: Path, column: str, rule: str) -> None:
    path = Path(config.data.train_files)
    pandas.read_parquet(path).drop(columns=column).to_parquet(tmp_path / "lacks.parquet")
    config.data.train_files = [str(path), f"{tmp_path}/lacks.parquet"]
    found = error_of(config)
    assert found.startswith(f"data.train_files: lacks.parquet has no column {column} (it has ")
    assert found.endswith(f" [{rule}]")


def test_columns_of_other_names(config: DictConfig, tmp_path: Path) -> None:
    path = Path(config.data.train_files)
    pandas.read_parquet(path).rename(columns={"prompt": "chat"}).to_parquet(tmp_path / "chat.parquet")
    config.data.train_files = config.data.val_files = f"{tmp_path}/chat.parquet"
    config.data.prompt_key = "chat"
    checked(config)


def test_files_that_do_not_fit_together_or_have_another_end(config: DictConfig, tmp_path: Path) -> None:
    good = config.data.train_files
    config.data.train_files = [good, write_prompts(tmp_path / "text.parquet", ["double it"] * 4)]
    assert error_of(config).startswith("data.train_files: ")
    for name in ("rows.csv", "rows.jsonl.gz", "."):
        config.data.train_files = f"{tmp_path}/{name}"
        assert error_of(config).startswith("data.train_files: verl reads files that end in .parquet, .json, .jsonl")


@pytest.mark.parametrize(("key", "num_short"), [("train_files", 1), ("val_files", 0)])  # a step takes two prompts
def test_prompts_that_are_all_filtered_away(config: DictConfig, tmp_path: Path, key: str, num_short: int) -> None:
    long = [{"role": "user", "content": "double it " * 20}]
    config.data[key] = write_prompts(tmp_path / "long.parquet", [[USER]] * num_short + [long] * 8)
    config.data.filter_overlong_prompts = True
    found = error_of(config)
    assert found.startswith(f"data.{key}: ") and found.endswith(" [prompts-are-short-enough]")
    assert f"{num_short} of {num_short + 8} prompts" in found and "data.max_prompt_length=64" in found


@pytest.mark.parametrize("key", ["train_files", "val_files"])
@pytest.mark.parametrize("others", [7, 200])
def test_a_prompt_that_would_be_cut(
    config: DictConfig, tmp_path: Path, key: str, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one behind the rows that are scanned for their kinds, and one whose characters are several tokens each."""
    monkeypatch.setattr(trials, "NUM_SCANNED", 100)
    for text in ("double it " * 20, "\N{CAT FACE}" * 30):
        long = [SYSTEM, {"role": "user", "content": text}]
        prompts = [[USER]] * others + [long] + [[USER]] * 2
        config.data[key] = write_prompts(tmp_path / "long.parquet", prompts)
        found = error_of(config)
        assert found.startswith(f"data.{key}: row {others} of long.parquet: its prompt has ")
        assert "data.max_prompt_length=64; raise it, " in found and found.endswith(" [prompts-are-not-cut]")
    config.data.filter_overlong_prompts = True
    checked(config)
    config.data.filter_overlong_prompts, config.data.truncation = False, "left"
    checked(config)


OWN = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n    return {}\n"


@pytest.mark.parametrize(
    ("dry_run", "reward", "rule"),
    [
        (True, {}, None),
        (True, {"name": "compute_scores"}, "rows-can-be-rewarded"),
        (True, {"reward_kwargs": {"max_concurrency": 0}}, "rows-can-be-rewarded"),
        (False, {"reward_kwargs": {"max_concurrency": 0}}, None),
        ("reward", {"path": "own: {'score': 0.5}"}, None),
        ("reward", {"path": "own: 1 / 0"}, "rows-can-be-rewarded"),
        (True, {"path": "own: 1 / 0"}, None),
        ("reward", {"path": "own: 'right'"}, "rows-can-be-rewarded"),
        ("reward", {"path": "own: {'reward': 1}"}, "rows-can-be-rewarded"),
        ("reward", {"path": "own: float('nan')"}, "rows-can-be-rewarded"),
        ("reward", {"path": "own: '0.5'"}, "rows-can-be-rewarded"),
        ("reward", {"path": "own: None"}, "rows-can-be-rewarded"),
        ("reward", {"path": "own: __import__('numpy').ones(1)"}, "rows-can-be-rewarded"),
        ("reward", {"path": "own: __import__('numpy').float32(0.5)"}, None),
        ("reward", {"path": "own: next(iter([]))"}, "rows-can-be-rewarded"),
        ("reward", {"path": "own: exit(3)"}, "rows-can-be-rewarded"),
        ("reward", {"path": "own: (_ for _ in ()).throw(KeyboardInterrupt)"}, "rows-can-be-rewarded"),
        (
            True,
            {"path": "other: *arguments):\n    pass\nraise KeyboardInterrupt\ndef other("},
            "problems-can-be-rewarded",
        ),
        (True, {"path": None}, "rows-can-be-rewarded"),  # verl knows no data source mini_apps
        (False, {"name": None}, "rows-can-be-rewarded"),
        (False, {"path": ""}, "rows-can-be-rewarded"),
        (False, {"name": "__doc__"}, "rows-can-be-rewarded"),
        (False, {"path": "other: answer, truth"}, "rows-can-be-rewarded"),
        (False, {"path": "other: data_source, solution_str, ground_truth"}, "rows-can-be-rewarded"),
        (
            False,
            {"path": "other: data_source, solution_str, ground_truth, extra_info", "reward_kwargs": {"scale": 2}},
            "rows-can-be-rewarded",
        ),
    ],
)
def test_one_reward_of_a_made_up_answer(
    config: DictConfig, tmp_path: Path, dry_run: bool | str, reward: dict[str, Any], rule: str | None
) -> None:
    config.dry_run = dry_run
    for key, value in reward.items():
        if str(value).startswith("own: "):
            (tmp_path / "own.py").write_text(OWN.format(value.removeprefix("own: ")))
            value = f"{tmp_path}/own.py"
        if str(value).startswith("other: "):
            (tmp_path / "own.py").write_text(f"def compute_score({value.removeprefix('other: ')}):\n    return 0\n")
            value = f"{tmp_path}/own.py"
        OmegaConf.update(config.reward.custom_reward_function, key, value, force_add=True)
    if rule is None:
        checked(config)
    else:
        assert error_of(config).endswith(f" [{rule}]")


def test_a_dict_without_score_says_what_to_add(config: DictConfig, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.format("{'reward': 1.0}"))
    config.reward.custom_reward_function.path, config.dry_run = f"{tmp_path}/own.py", "reward"
    assert "returned a dict without score (it has reward); add 'score': 0.5" in error_of(config)


def test_without_a_reward_function_the_key_to_set_is_named(config: DictConfig) -> None:
    """Row 0 of good.parquet has the data source mini_apps, for which verl has no reward function."""
    config.reward.custom_reward_function.path, config.dry_run = None, True
    assert error_of(config) == (
        "reward.custom_reward_function.path=null, and verl has no reward function for the data source mini_apps of "
        "data.train_files, row 0 of good.parquet; set it to a file with a function compute_score, as in "
        "reward.custom_reward_function.path=my_reward.py [rows-can-be-rewarded]"
    )


def test_a_reward_of_which_so_many_may_run_is_tried_as_others(config: DictConfig, tmp_path: Path) -> None:
    config.reward.reward_manager.name, config.dry_run = "rate_limited", True
    checked(config)
    (tmp_path / "own.py").write_text("def compute_score(answer, truth):\n    return 0\n")
    config.reward.custom_reward_function.path = f"{tmp_path}/own.py"
    assert "verl calls it with data_source, " in error_of(config)


def test_a_filter_by_what_the_reward_does_not_say(config: DictConfig) -> None:
    config.dry_run = True
    for metric, is_said in (("acc", True), ("reward", True), ("seq_reward", False)):
        OmegaConf.update(config, "algorithm.filter_groups", {"enable": True, "metric": metric}, force_add=True)
        if is_said:
            checked(config)
        else:
            assert "no seq_reward, which algorithm.filter_groups.metric names: set reward, or " in error_of(config)


def test_each_data_source_is_tried_wherever_it_begins(config: DictConfig, tmp_path: Path) -> None:
    config.dry_run = True
    config.reward.custom_reward_function.path = None
    rows = pandas.read_parquet(config.data.train_files).iloc[[0] * 12].assign(data_source="openai/gsm8k")
    rows["reward_model"] = [{"style": "rule", "ground_truth": "4"}] * len(rows)
    for last, rule in (("openai/gsm8k", None), ("mine", "rows-can-be-rewarded")):
        rows.iloc[-1, rows.columns.get_loc("data_source")] = last
        rows.to_parquet(tmp_path / "rows.parquet")
        config.data.train_files = config.data.val_files = f"{tmp_path}/rows.parquet"
        if rule is None:
            checked(config)
        else:
            assert "the data source mine of data." in error_of(config) and error_of(config).endswith(f" [{rule}]")
    (tmp_path / "other").mkdir()
    rows.assign(data_source="openai/gsm8k").to_parquet(tmp_path / "other" / "rows.parquet")
    config.data.train_files = [f"{tmp_path}/rows.parquet", f"{tmp_path}/other/rows.parquet"]
    assert "the data source mine of data." in error_of(config), "files may have the same name"


TOOL = """
tools:
  - class_name: tool_of_a_test.Tool
    config: {type: native}
    tool_schema: {type: function, function: {name: t, description: d, parameters: {type: object, properties: {}}}}
"""


def test_tools_are_looked_for_and_not_started(
    config: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of verl's own start Ray."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tool_of_a_test.py").write_text(
        "from pathlib import Path\nfrom verl.tools.base_tool import BaseTool\n"
        "class Tool(BaseTool):\n    def __init__(self, config, tool_schema):\n"
        "        super().__init__(config, tool_schema)\n        Path(__file__).with_name('started').touch()\n"
    )
    (tmp_path / "tools.yaml").write_text(TOOL)
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = f"{tmp_path}/tools.yaml"
    config.data.filter_overlong_prompts = True
    checked(config)
    assert not (tmp_path / "started").exists()
    config.actor_rollout_ref.rollout.agent.default_agent_loop = "tool_agent"
    for key in ("multi_turn.tool_config_path", "multi_turn.function_tool_path", "agent.agent_loop_config_path"):
        OmegaConf.update(config.actor_rollout_ref.rollout, key, "nowhere.yaml")
        found = error_of(config)
        assert found.startswith(f"actor_rollout_ref.rollout.{key}=nowhere.yaml: ")
        assert found.endswith(" [agent-loops-have-their-files]")
        OmegaConf.update(config.actor_rollout_ref.rollout, key, None)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "broken.yaml").write_text("- name: [\n")
    for key, value in {
        "agent.agent_loop_config_path": f"{tmp_path}/broken.yaml",
        "agent.default_agent_loop": "tool_agnt",
        "multi_turn.format": "llama3",
        "multi_turn.function_tool_path": f"{tmp_path}/broken.py",
    }.items():
        before = OmegaConf.select(config.actor_rollout_ref.rollout, key)
        OmegaConf.update(config.actor_rollout_ref.rollout, key, value)
        found = error_of(config)
        assert re.match(
            rf"{re.escape(f'actor_rollout_ref.rollout.{key}={value}')}(: | is not known; set one of: )", found
        )
        assert found.endswith(" [agent-loops-have-their-files]")
        OmegaConf.update(config.actor_rollout_ref.rollout, key, before)
