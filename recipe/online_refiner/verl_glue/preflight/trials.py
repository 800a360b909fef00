"""Rules that try a run's first actions: reading prompts, rewarding an answer, finding the files of agent loops.

They need verl, so this module is imported only after the config has passed the other rules.
"""

import asyncio
import contextlib
import inspect
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from omegaconf import DictConfig, OmegaConf
from verl import DataProto
from verl.trainer.ppo.reward import get_custom_reward_fn, resolve_reward_manager_cls
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.import_utils import load_extern_object
from verl.utils.tokenizer import normalize_token_ids

from recipe.online_refiner.verl_glue.preflight.files import one_line, wrong_with_extra_info
from recipe.online_refiner.verl_glue.reward_managers import load_checked_manager
from recipe.preflight.rules import MANAGER_KEY, PlannedRun, rule
from recipe.preflight.spelling import unknown
from recipe.rewarding.answers import checked_score
from refiner_worker.pictures import for_people, pictures_of
from refiner_worker.text.answer import CLOSE_TAG, OPEN_TAG

try:
    from verl.utils.import_utils import resolve_config_path
except ImportError:  # verl before 0.9.1, and its main branch of August 2026
    from verl.experimental.agent_loop.utils import resolve_config_path

NUM_FIRST = 4
"""The number of first rows per file that are read, in addition to the first row with each sequence of roles."""
NUM_LONGEST = 32
"""The number of rows per file whose tokens are counted: the rows with the most text."""
NUM_SCANNED = 10_000
"""The number of rows per file in which sequences of roles are searched."""
MADE_UP = "```python\nprint(0)\n```\n<answer>0</answer>\n#### 0\n\\boxed{0}"
"""A made-up answer that every kind of reward function can read."""
OURS = ("pkg://reward.", "pkg://recipe.")
MANAGERS = ("naive", "dapo", "gdpo", "rate_limited")
"""verl's reward managers that reward an answer in their own process."""
GIVEN = ("data_source", "solution_str", "ground_truth", "extra_info")
"""The arguments that those managers pass to a reward function."""
AGENT_FILES = ("multi_turn.tool_config_path", "multi_turn.function_tool_path", "agent.agent_loop_config_path")
_AS_PREPARED = "as online-refiner prepare writes them"


@rule("files")
def prompts_are_chats(run: PlannedRun) -> str | None:
    """The first prompts of each file, read by the run's data class, pass the chat template."""
    name = run.config.data.prompt_key
    for key in run.files.num_rows:
        for file, part in run.files.data(key).items():
            if name not in part.column_names:
                return f"{_lacks(key, file, part, name)}; set data.prompt_key, or write prompts {_AS_PREPARED}"
            for index in _first_of(part, name):
                row = part[index]
                where = f"data.{key}: row {index} of {Path(file).name}"
                if wrong := _wrong_with(row[name], is_text=run.blocks.hosts_refiner and run.files.sight is None):
                    return f"{where}: {wrong}"
                if wrong := wrong_with_extra_info(row):
                    return f"{where}: {wrong}"
        for where, row in first_rows(run, key):
            if "raw_prompt" not in row:
                return f"{where} has no raw_prompt, which verl's agent loops read: let data.custom_cls give it"
            if wrong := _wrong_with(row["raw_prompt"], is_text=run.blocks.hosts_refiner and run.files.sight is None):
                return f"{where}: {wrong}"
            try:
                is_shown = _shows_the_question(run, key, row)
            except Exception as error:  # a template may raise anything
                return _refused(where, error)
            if not is_shown:
                template = run.config.actor_rollout_ref.model.custom_chat_template
                what = "a template's text, not a file or a name" if template else "another chat template"
                return (
                    f"{where}: the prompt that the chat template writes does not show the question; set "
                    f"actor_rollout_ref.model.custom_chat_template to {what}"
                )
    return None


@rule("sizes")
def prompts_are_in_the_vocabulary(run: PlannedRun) -> str | None:
    """The policy's embedding has every token of the first prompts, and the EOS token."""
    shape, tokenizer = run.plan.policy_shape, run.files.tokenizer
    if shape is None:
        return None
    seen = {tokenizer.eos_token_id}
    for key in run.files.num_rows:
        for _, row in first_rows(run, key):
            seen.update(prompt_ids(run, key, list(row["raw_prompt"])))
    if max(seen) < shape.vocab:
        return None
    return (
        f"actor_rollout_ref.model: token {max(seen)} ({tokenizer.decode([max(seen)])}) of the prompts is not in the "
        f"model's embedding, which has {shape.vocab}; resize the embedding to the tokenizer, or use the model's own"
    )


@rule("files")
def prompts_are_short_enough(run: PlannedRun) -> str | None:
    """``filter_overlong_prompts`` leaves enough prompts to train on and one to validate with."""
    data = run.config.data
    for key, enough in {"train_files": data.train_batch_size, "val_files": 1}.items():
        dataset, found = run.files.dataset(key), 0
        if not data.filter_overlong_prompts or not isinstance(dataset, RLHFDataset) or run.files.has_other_media:
            continue
        for index in range(len(dataset)):
            with contextlib.suppress(Exception):  # what verl cannot read it filters away
                found += len(prompt_ids(run, key, list(dataset[index]["raw_prompt"]))) <= data.max_prompt_length
            if found >= enough:
                break
        else:
            return (
                f"data.{key}: {found} of {len(dataset)} prompts have at most data.max_prompt_length="
                f"{data.max_prompt_length} tokens and {enough} are needed; raise it (or lower data.train_batch_size), "
                "or set data.filter_overlong_prompts=false"
            )
    return None


@rule("files")
def prompts_are_not_cut(run: PlannedRun) -> str | None:
    """Without a filter, the longest prompts are short enough: verl silently cuts off the beginning of longer ones."""
    data = run.config.data
    if data.filter_overlong_prompts or data.truncation == "left":
        return None
    for key in run.files.num_rows:
        for where, row in _rows(run, key, lambda part: _longest_of(part, data.prompt_key)):
            try:
                num_tokens = len(prompt_ids(run, key, list(row["raw_prompt"])))
            except Exception as error:  # a template may raise anything
                return _refused(where, error)
            if num_tokens > data.max_prompt_length:
                return (
                    f"{where}: its prompt has {num_tokens} tokens, and verl would cut off its beginning at "
                    f"data.max_prompt_length={data.max_prompt_length}; raise it, set data.filter_overlong_prompts=true "
                    "to leave such prompts out, or data.truncation=left to have them cut"
                )
    return None


@rule("files")
def rows_can_be_rewarded(run: PlannedRun) -> str | None:
    """The reward function and its columns exist. A dry run calls verl's reward functions and ours."""
    reward = run.config.reward
    if reward.reward_model.enable and reward.custom_reward_function.path is None:
        return None
    if wrong := _wrong_with_function(run.config):
        return wrong
    if reward.reward_manager.source != "register":  # one of the user's own reads what it likes
        return None
    return _wrong_with_columns(run) or _wrong_with_rewards(run)


def _wrong_with_function(config: DictConfig) -> str | None:
    """Return why verl cannot load or call the run's reward function or reward manager."""
    own, manager = config.reward.custom_reward_function, config.reward.reward_manager
    said = f"reward.custom_reward_function.path={own.path}, name={own.name}"
    if own.path is not None and not (own.path and own.name):
        return f"{said}: set the file and the function, or path=null"
    try:
        get_custom_reward_fn(config)
        resolve_reward_manager_cls(config)
    except BaseException as error:  # a user's module may raise anything, and end
        return f"{said}, reward.reward_manager.name={manager.name}: {one_line(error)}"
    is_known = manager.source == "register" and manager.name in MANAGERS
    if own.path is not None and is_known and (wrong := _wrong_with_call(config.reward)):
        return f"{said}: {wrong}"
    return None


def _wrong_with_columns(run: PlannedRun) -> str | None:
    """Return which column of the data verl's reward managers miss."""
    for key in run.files.num_rows:
        for file, part in run.files.data(key).items():
            for column in {"data_source", "reward_model"}.difference(part.column_names):
                return (
                    f"{_lacks(key, file, part, column)}, which verl's reward managers read; write rows {_AS_PREPARED}"
                )
    return None


def _wrong_with_rewards(run: PlannedRun) -> str | None:
    """Return which row has no answer to compare with, or what the reward function raises on a source's first row."""
    dry_run, path = OmegaConf.select(run.config, "dry_run"), run.config.reward.custom_reward_function.path
    is_tried = dry_run == "reward" or (dry_run and (path is None or path.startswith(OURS)))
    is_tried = is_tried and run.config.reward.reward_manager.name in MANAGERS
    for key in run.files.num_rows:
        seen = set()
        for where, row in first_rows(run, key):
            if not isinstance(row.get("reward_model"), dict) or "ground_truth" not in row["reward_model"]:
                return f"{where} has no reward_model.ground_truth; write rows {_AS_PREPARED}"
            source = str(row.get("data_source"))
            if is_tried and source not in seen and (wrong := _wrong_with_reward(run, where, row)):
                return wrong
            seen.add(source)
    return None


def _wrong_with_reward(run: PlannedRun, where: str, row: dict[str, Any]) -> str | None:
    """Return what the reward function raises on a made-up answer to a row; ``dry_run=reward`` prints its reward."""
    path, source = run.config.reward.custom_reward_function.path, str(row.get("data_source"))
    place = where.replace(": ", ", ")
    of_row = f"a made-up answer to {place}, with data_source={source}"
    try:
        score = asyncio.run(_reward(run.config, run.files.tokenizer, row))
    except Exception as error:  # a user's function may raise anything
        if path is None and isinstance(error.__cause__ or error, NotImplementedError):
            return _no_reward_function(source, place)
        return f"reward.custom_reward_function.path={path} cannot reward {of_row}: {one_line(error)}"
    if OmegaConf.select(run.config, "dry_run") == "reward":
        print(f"reward         {score:g} for {of_row}")
    return None


@rule("files")
def agent_loops_have_their_files(run: PlannedRun) -> str | None:
    """The agent loops, the tools and the parser of tool calls exist."""
    rollout = run.config.actor_rollout_ref.rollout
    tools, functions, loops = AGENT_FILES
    paths = {key: path for key in AGENT_FILES if (path := OmegaConf.select(rollout, key))}
    name, form = rollout.agent.default_agent_loop, rollout.multi_turn.format
    names = [("actor_rollout_ref.rollout.agent.default_agent_loop", name), *_loops_of_rows(run)]
    if {loop for _, loop in names} == {"single_turn_agent"} and not paths:
        return None
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry  # here: they take seconds
    from verl.experimental.agent_loop.tool_parser import ToolParser
    from verl.tools.tool_registry import get_tool_class, load_function_tools_from_path

    known = {*_agent_loop_registry}
    read: Callable[[str], Any] = OmegaConf.load
    readers: dict[str, Callable[[str], Any]] = {
        tools: lambda file: [get_tool_class(one.class_name) for one in read(file).tools],
        functions: load_function_tools_from_path,
        loops: lambda file: known.update(one["name"] for one in read(file)),
    }
    for key, path in paths.items():
        try:
            readers[key](resolve_config_path(path))
        except BaseException as error:  # as above
            return f"actor_rollout_ref.rollout.{key}={path}: {one_line(error)}"
    for where, loop in names:
        if loop not in known and OmegaConf.select(run.config, MANAGER_KEY) is None:
            return unknown(where, loop, known)
    if "tool_agent" in {loop for _, loop in names} and form not in ToolParser._registry:
        return unknown("actor_rollout_ref.rollout.multi_turn.format", form, ToolParser._registry)
    return None


def _loops_of_rows(run: PlannedRun) -> list[tuple[str, str]]:
    """Return the agent loops that rows name in the column ``agent_name``, each with the file."""
    return [
        (f"data.{key}: agent_name of a row in {Path(file).name}", str(name))
        for key in run.files.num_rows
        for file, part in run.files.data(key).items()
        if "agent_name" in part.column_names
        for name in part.unique("agent_name")
    ]


def _no_reward_function(source: str, place: str) -> str:
    """Return the line about a data source that verl's ``default_compute_score`` does not know."""
    key = "reward.custom_reward_function.path"
    return (
        f"{key}=null, and verl has no reward function for the data source {source} of {place}; set it to a file with a "
        f"function compute_score, as in {key}=my_reward.py"
    )


def _lacks(key: str, file: str, part: datasets.Dataset, column: str) -> str:
    return f"data.{key}: {Path(file).name} has no column {column} (it has {', '.join(part.column_names)})"


def _first_of(part: datasets.Dataset, prompt_key: str) -> list[int]:
    """Return a file's first rows, and its first row for each data source, sequence of roles and content type."""
    num_rows = min(part.num_rows, NUM_SCANNED)
    rows = part.select(range(num_rows))
    sources = rows["data_source"] if "data_source" in part.column_names else [None] * num_rows
    first: dict[Any, int] = {}
    for index, (prompt, source) in enumerate(zip(rows[prompt_key], sources, strict=True)):
        messages = prompt if isinstance(prompt, list) and all(isinstance(one, dict) for one in prompt) else [{}]
        shape = tuple((one.get("role"), type(one.get("content"))) for one in messages)
        first.setdefault((str(source), type(prompt), shape), index)
    return sorted({*range(min(NUM_FIRST, num_rows)), *first.values()})


def _longest_of(part: datasets.Dataset, prompt_key: str) -> list[int]:
    """Return the rows of a file whose messages have the most bytes of text, the longest first."""
    column, sizes = part.data.column(prompt_key), []
    if not (pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type)):
        return []
    for chunk in column.chunks:
        content = pc.struct_field(pc.list_flatten(chunk), "content")
        if not (pa.types.is_string(content.type) or pa.types.is_large_string(content.type)):
            return []
        lengths = pc.fill_null(pc.binary_length(content), 0).to_numpy()
        sizes.append(np.bincount(pc.list_parent_indices(chunk).to_numpy(), weights=lengths, minlength=len(chunk)))
    return [int(index) for index in np.argsort(-np.concatenate(sizes), kind="stable")[:NUM_LONGEST]] if sizes else []


def first_rows(run: PlannedRun, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the first rows as the run will get them, each with its place; none if verl's class would need more."""
    yield from _rows(run, key, lambda part: _first_of(part, run.config.data.prompt_key))


def _rows(
    run: PlannedRun, key: str, choose: Callable[[datasets.Dataset], list[int]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows that ``choose`` returns for each file, each with its place.

    If a class of the user reads the files, its first rows are yielded, since only that class knows its files.
    """
    if run.files.has_other_media:
        return
    dataset, parts, start = run.files.dataset(key), run.files.data(key), 0
    places = [] if parts else [(f"row {index}", index) for index in range(min(NUM_FIRST, len(dataset)))]
    for file, part in parts.items():
        places += [(f"row {index} of {Path(file).name}", start + index) for index in choose(part)]
        start += part.num_rows
    for where, index in places:
        try:
            row = dataset[index]
        except BaseException as error:  # a user's class may raise anything, and end
            raise ValueError(f"data.{key}: {where} cannot be read: {one_line(error)}") from error
        yield f"data.{key}: {where}", row


def shown_prompt(run: PlannedRun) -> str:
    """Return the refiner's prompt for the first row and a made-up response, and the place of its answer."""
    where, row = next(first_rows(run, "train_files"), ("", {}))
    if not row:
        return ""
    source = str(row.get("data_source"))
    prompt = run.plan.prompts.get(source, run.plan.prompt)
    is_external = run.blocks.refiner.placement == "external" or source in run.blocks.refiner.own_servers
    told = {name: f"({name})" for name in prompt.limits}
    shown = list(row["raw_prompt"]), "(the response)", 0.0
    is_rewritten = prompt.thoughts and run.blocks.refiner.rewrites == "response"
    thought = "(its reasoning)" if is_rewritten else None
    text = prompt.content(*shown, told=told, thought=thought)
    pictures = pictures_of(prompt_ids(run, "train_files", list(row["raw_prompt"])))
    if not is_external:
        ids = prompt.encode(text, pictures)
        text = str(run.files.tokenizer.decode(ids if pictures is None else pictures.collapse(ids)))
    text = text if pictures is None else for_people(text)
    lines = "".join(f"  | {line}\n" for line in text.splitlines())
    head = f"the refiner reads this for {where}{pictures.described() if pictures else ''}:\n{lines}"
    begins = f"after the last {prompt.thoughts.closing.strip()}" if prompt.thoughts else "at once"
    if is_rewritten:
        begins += f" and {OPEN_TAG}, twice: its reasoning and then its answer; each"
        return f"{head}its part begins {begins} ends at {CLOSE_TAG}"
    if prompt.uses_tags and (prompt.thoughts or is_external):
        begins = f"after {OPEN_TAG}" if not prompt.thoughts else f"{begins} and {OPEN_TAG}"
    ends = f"at {prompt.stop!r} or the end of its turn" if prompt.stop else "at the end of its turn"
    return f"{head}its answer begins {begins} and ends {ends}"


def _wrong_with(prompt: Any, *, is_text: bool) -> str | None:
    """Return what is wrong with a prompt that no chat template can write, or whose text the refiner cannot read."""
    messages = list(prompt) if isinstance(prompt, (list, tuple, np.ndarray)) else []
    if not messages:
        return f"its prompt is {type(prompt).__name__} without messages; give role and content, {_AS_PREPARED}"
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            return f"message {number} is {type(message).__name__}; give role and content, {_AS_PREPARED}"
        if "role" not in message or "content" not in message:
            return f"message {number} has {', '.join(message)}; give role and content, {_AS_PREPARED}"
        content = message["content"]
        if not isinstance(content, str) and (is_text or not isinstance(content, list)):
            return f"the content of message {number} is {type(content).__name__}; give text"
    if is_text and not any(message["content"].strip() for message in messages if message["role"] != "assistant"):
        return f"no message asks the refiner anything; give the question as a user's message, {_AS_PREPARED}"
    return None


def _refused(where: str, error: Exception) -> str:
    """Return the line about a row that the policy's chat template refuses."""
    return (
        f"{where}: the chat template of the policy refuses it ({one_line(error)}); change the prompts, or set "
        "actor_rollout_ref.model.custom_chat_template"
    )


def prompt_ids(run: PlannedRun, key: str, messages: list[dict[str, Any]]) -> list[int]:
    """Return a prompt as ``RLHFDataset`` counts its tokens (except the schemas of ``tool_config_path``)."""
    tools = getattr(run.files.dataset(key), "tool_schemas", None)
    own = run.config.data.apply_chat_template_kwargs
    if run.files.sight is not None:
        return asyncio.run(run.files.sight.encode(messages, **{**own, **({"tools": tools} if tools else {})}))
    settings = {"tools": tools, **own, "tokenize": True}
    ids: list[int] = normalize_token_ids(
        run.files.tokenizer.apply_chat_template(messages, add_generation_prompt=True, **settings)
    )
    return ids


def _shows_the_question(run: PlannedRun, key: str, row: dict[str, Any]) -> bool:
    """Return whether a different last message gives a different prompt, so that the template shows the question."""
    messages = list(row["raw_prompt"])
    if not isinstance(messages[-1]["content"], str):  # parts of which some are images
        return True
    other = [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']} {MADE_UP}"}]
    return prompt_ids(run, key, other) != prompt_ids(run, key, messages)


def _wrong_with_call(reward: DictConfig) -> str | None:
    """Return why verl's reward managers cannot call the run's reward function, by its parameters; it is not called."""
    own = reward.custom_reward_function
    function = load_extern_object(own.path, own.name)
    if not callable(function):
        return f"it is a {type(function).__name__}; give a function"
    try:
        inspect.signature(function).bind(**dict.fromkeys([*GIVEN, *(own.get("reward_kwargs") or {})]))
    except TypeError as error:
        return f"verl calls it with {', '.join(GIVEN)} and reward_kwargs by name: {error}"
    except ValueError:  # some of C have no signature
        return None
    return None


async def _reward(config: DictConfig, tokenizer: Any, row: dict[str, Any]) -> float:
    """Let verl's reward manager reward a made-up answer, as a reward worker does; raise if the reward is no number."""
    ids = torch.tensor([tokenizer.encode(MADE_UP, add_special_tokens=False)])
    tensors = {
        "prompts": ids[:, :1],
        "responses": ids,
        "attention_mask": torch.ones(1, 1 + ids.shape[1], dtype=torch.long),
    }
    names = ("data_source", "reward_model", "extra_info")
    columns = {"extra_info": {}, **{name: row[name] for name in names if row.get(name) is not None}}
    request = DataProto.from_dict(tensors, {name: np.array([value]) for name, value in columns.items()})
    with contextlib.redirect_stdout(io.StringIO()):
        answer = await load_checked_manager(config, tokenizer).run_single(request)
    score = checked_score(answer["reward_score"])
    filters, extras = config.algorithm.get("filter_groups"), answer.get("reward_extra_info") or {}
    if filters and filters.enable and filters.metric not in ("reward", *extras):
        said = f"the reward function returns no {filters.metric}, which algorithm.filter_groups.metric names"
        raise ValueError(f"{said}: set reward, or one of {list(extras)}" if extras else f"{said}: set reward")
    return score
