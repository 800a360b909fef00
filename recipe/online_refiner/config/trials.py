"""What a run does first, tried before Ray starts: reading prompts, rewarding an answer, finding a checkpoint.

Each function raises ValueError, one line for the user, where the run would end.
"""

import asyncio
import contextlib
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager, resolve_reward_manager_cls
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.import_utils import resolve_config_path
from verl.utils.tokenizer import normalize_token_ids

from recipe.online_refiner.config.fields import CRITIC_ESTIMATORS
from recipe.online_refiner.config.files import Files, one_line
from recipe.online_refiner.pairs import Rollout

NUM_FIRST = 4
"""Rows of each file that are read as the run will read them, beside the first of each sequence of roles."""
NUM_SCANNED = 10_000
"""Rows of each file of which those sequences are looked at."""
MADE_UP = "```python\nprint(0)\n```\n<answer>0</answer>\n#### 0\n\\boxed{0}"
"""An answer of whatever kind."""
OURS = ("pkg://reward.", "pkg://recipe.")
MANAGERS = ("naive", "dapo", "gdpo", "limited")
"""verl's reward managers that reward an answer in their own process."""
RESUME_MODES = ("auto", "disable", "resume_path")


def check_prompts(files: Files, config: DictConfig, key: str, *, is_text: bool) -> None:
    """Let the run's data class read the first prompts of each file, and the policy's chat template write them.

    Args:
        files: The run's.
        config: The run's.
        key: ``train_files`` or ``val_files``.
        is_text: Whether all content must be text.
    """
    name = config.data.prompt_key
    for file, part in files.data(key).items():
        need_columns(part, file, [name], "set data.prompt_key, or write the file by scripts/prepare_data.py")
        for index in _first_of(part, name):
            _check_messages(part[index][name], f"row {index} of {Path(file).name}", is_text)
    for where, row in first_rows(files, key, name):
        if "raw_prompt" not in row:
            raise ValueError(f"{where} has no raw_prompt, which verl's agent loops read: let data.custom_cls give it")
        _check_messages(row["raw_prompt"], where, is_text)
        try:
            num_tokens(files, config, key, row)
        except Exception as error:  # a template may raise anything
            raise ValueError(
                f"{where}: the chat template of the policy refuses it ({one_line(error)}); change the prompts, or set "
                "actor_rollout_ref.model.custom_chat_template"
            ) from error


def need_columns(part: datasets.Dataset, file: str, names: list[str], advice: str) -> None:
    """Check that a file has columns."""
    for name in names:
        if name not in part.column_names:
            there = ", ".join(part.column_names)
            raise ValueError(f"{Path(file).name} has no column {name} (it has {there}); {advice}")


def first_rows(files: Files, key: str, prompt_key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the first rows of each file as the run will get them, each with where it stands; none that has media."""
    if files.media:
        return
    dataset, parts, start = files.dataset(key), files.data(key), 0
    places = {f"row {index}": index for index in range(min(NUM_FIRST, len(dataset)))} if not parts else {}
    for file, part in parts.items():
        places |= {f"row {index} of {Path(file).name}": start + index for index in _first_of(part, prompt_key)}
        start += part.num_rows
    for where, index in places.items():
        try:
            row = dataset[index]
        except Exception as error:  # a user's class may raise anything
            raise ValueError(f"{where} cannot be read: {one_line(error)}") from error
        yield where, row


def _first_of(part: datasets.Dataset, prompt_key: str) -> list[int]:
    """Return the first rows of a file, and the first of each sequence of roles and types of content."""
    num_rows = min(part.num_rows, NUM_SCANNED)
    first: dict[Any, int] = {}
    for index, prompt in enumerate(part.select(range(num_rows))[prompt_key]) if prompt_key in part.column_names else ():
        messages = prompt if isinstance(prompt, list) and all(isinstance(one, dict) for one in prompt) else [{}]
        shape = tuple((one.get("role"), type(one.get("content"))) for one in messages)
        first.setdefault((type(prompt), shape), index)
    return sorted({*range(min(NUM_FIRST, num_rows)), *first.values()})


def _check_messages(prompt: Any, where: str, is_text: bool) -> None:
    messages = list(prompt) if isinstance(prompt, (list, tuple, np.ndarray)) else []
    advice = "give messages with role and content, as scripts/prepare_data.py writes them"
    if not messages:
        raise ValueError(f"{where}: its prompt is {type(prompt).__name__} without messages; {advice}")
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ValueError(f"{where}: message {number} is {type(message).__name__}; {advice}")
        if "role" not in message or "content" not in message:
            raise ValueError(f"{where}: message {number} has {', '.join(message)}; {advice}")
        content = message["content"]
        if not isinstance(content, str) and (is_text or not isinstance(content, list)):
            raise ValueError(f"{where}: the content of message {number} is {type(content).__name__}; give text")


def num_tokens(files: Files, config: DictConfig, key: str, row: dict[str, Any]) -> int:
    """Return how long a row's prompt is, as ``RLHFDataset`` counts it (but for the schemas of ``tool_config_path``)."""
    settings = {"tools": getattr(files.dataset(key), "tool_schemas", None), **config.data.apply_chat_template_kwargs}
    settings.pop("tokenize", None)
    ids = files.tokenizer.apply_chat_template(
        list(row["raw_prompt"]), add_generation_prompt=True, tokenize=True, **settings
    )
    return len(normalize_token_ids(ids))


def check_lengths(files: Files, config: DictConfig, key: str) -> None:
    """Check that ``filter_overlong_prompts`` leaves a batch to train on, and a prompt to validate with."""
    dataset, limit = files.dataset(key), config.data.max_prompt_length
    if not config.data.filter_overlong_prompts or not isinstance(dataset, RLHFDataset) or files.media:
        return
    enough, found = config.data.train_batch_size if key == "train_files" else 1, 0
    for index in range(len(dataset)):
        with contextlib.suppress(Exception):  # what verl cannot read it filters away
            found += num_tokens(files, config, key, dataset[index]) <= limit
        if found >= enough:
            return
    raise ValueError(
        f"{found} of {len(dataset)} prompts have at most data.max_prompt_length={limit} tokens and {enough} are "
        "needed; raise it (or lower data.train_batch_size), or set data.filter_overlong_prompts=false"
    )


def check_reward(files: Files, config: DictConfig, key: str) -> None:
    """Load the run's reward and find what it reads; in a dry run let it reward a made-up answer.

    That is done where the function is verl's or of this package, or with ``dry_run=reward``, for each data source.
    """
    path, manager = config.reward.custom_reward_function.path, config.reward.reward_manager
    if config.reward.reward_model.enable and path is None:
        return
    try:
        get_custom_reward_fn(config)
    except Exception as error:  # a user's module may raise anything
        name = config.reward.custom_reward_function.name
        raise ValueError(f"reward.custom_reward_function: path={path}, name={name}: {one_line(error)}") from error
    try:
        resolve_reward_manager_cls(config)
    except Exception as error:
        raise ValueError(f"reward.reward_manager: {one_line(error)}") from error
    if manager.source != "register":  # one of the user's own reads what it likes
        return
    advice = "which verl's reward managers read; write it by scripts/prepare_data.py"
    for file, part in files.data(key).items():
        try:
            need_columns(part, file, ["data_source", "reward_model"], advice)
        except ValueError as error:
            raise ValueError(f"data.{key}: {error}") from None
    is_tried = files.is_dry_run == "reward" or (files.is_dry_run and (path is None or path.startswith(OURS)))
    seen = set()
    for where, row in first_rows(files, key, config.data.prompt_key):
        if not isinstance(row.get("reward_model"), dict) or "ground_truth" not in row["reward_model"]:
            raise ValueError(f"data.{key}: {where} has no reward_model.ground_truth, {advice}")
        if is_tried and manager.name in MANAGERS and str(row.get("data_source")) not in seen:
            seen.add(str(row.get("data_source")))
            try:
                asyncio.run(_reward(config, files.tokenizer, row))
            except Exception as error:  # as above
                raise ValueError(
                    f"reward.custom_reward_function.path={path}: it cannot reward an answer to {where} "
                    f"(data source {row.get('data_source')}): {one_line(error)}"
                ) from error


async def _reward(config: DictConfig, tokenizer: Any, row: dict[str, Any]) -> None:
    """Let verl's reward manager reward a made-up answer, as a reward worker does."""
    from recipe.online_refiner.refine_actors import reward_request  # here: it takes a second, and only a dry run asks

    names = ("data_source", "reward_model", "extra_info")
    request = {"extra_info": {}, **{name: row[name] for name in names if row.get(name) is not None}}
    rollout = Rollout(key="0_0_0", messages=[], prompt_ids=[0], response_ids=[], reward=0.0, request=request)
    ids = tokenizer.encode(MADE_UP, add_special_tokens=False)
    with contextlib.redirect_stdout(io.StringIO()):
        answer = await load_reward_manager(config, tokenizer).run_single(reward_request(rollout, ids))
    if not math.isfinite(float(answer["reward_score"])):
        raise ValueError(f"the reward is {answer['reward_score']}")


def check_agent_files(config: DictConfig) -> None:
    """Check that the files of agent loops and tools are there; what is in them is not run."""
    for key in ("multi_turn.tool_config_path", "multi_turn.function_tool_path", "agent.agent_loop_config_path"):
        path = OmegaConf.select(config.actor_rollout_ref.rollout, key)
        try:
            if path and not Path(resolve_config_path(path)).is_file():
                raise FileNotFoundError("no such file")
        except FileNotFoundError as error:
            raise ValueError(f"actor_rollout_ref.rollout.{key}={path}: {error}") from error


def check_checkpoint(config: DictConfig) -> None:
    """Check that what the run resumes from is there, and of as many workers."""
    trainer, mode, path = config.trainer, config.trainer.resume_mode, config.trainer.resume_from_path or None
    if mode not in RESUME_MODES:
        raise ValueError(f"trainer.resume_mode={mode}: set one of {', '.join(RESUME_MODES)}")
    if mode != "resume_path" and path is not None:
        raise ValueError(f"trainer.resume_from_path={path} is read with trainer.resume_mode=resume_path only: set that")
    if mode == "resume_path" and path is None:
        raise ValueError("trainer.resume_mode=resume_path: set trainer.resume_from_path")
    if mode == "auto":
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it says what it looks for
                path = find_latest_ckpt_path(trainer.default_local_dir)
        except ValueError as error:
            raise ValueError(f"trainer.resume_mode=auto: in trainer.default_local_dir: {error}") from error
    if mode == "disable" or path is None:
        return
    name, folder = f"trainer.resume_mode={mode}: {path}", Path(path)
    if not folder.is_dir():
        raise ValueError(f"{name}: no such folder")
    if not re.fullmatch(r".*global_step_\d+", path):
        raise ValueError(f"{name}: give a folder whose name ends with global_step_ and the step, without a slash")
    for role in ("actor", *(["critic"] if config.algorithm.adv_estimator in CRITIC_ESTIMATORS else [])):
        if not (folder / role).is_dir():
            raise ValueError(f"{name}: no {role} in it; give a checkpoint that verl has finished")
        sizes = {int(one.name.split("_")[3]) for one in (folder / role).glob("model_world_size_*_rank_*.pt")}
        num_workers = trainer.n_gpus_per_node * trainer.nnodes
        if sizes and num_workers not in sizes:
            raise ValueError(
                f"{name}: its {role} is of {min(sizes)} workers, the run has {num_workers} "
                "(trainer.n_gpus_per_node * trainer.nnodes): set as many"
            )
