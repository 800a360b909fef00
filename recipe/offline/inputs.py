"""The options of ``online-refiner check`` and ``refine``: variants of the refiner, rows, and the reward function."""

import argparse
import importlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NotRequired

from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict
from yaml import YAMLError

from recipe.preflight.rules import SET_A_MODEL
from refiner_worker.config import BY_SOURCE, OF_SERVERS, PLACEMENTS, RefinerConfig, read_refiner
from refiner_worker.keys import nearest

ACTING = (*BY_SOURCE, *OF_SERVERS, "thoughts", "rewrites", "reject_leaks")
"""The keys of the block ``refiner`` that have an effect outside a run."""


class Message(TypedDict):
    """A message of a chat."""

    role: str
    content: str | None


class Truth(TypedDict):
    """The part of a row that tells the reward function the right answer."""

    ground_truth: Any


class Row(TypedDict):
    """The columns that are read of a row: verl's schema, and the user's own answers (``GIVEN``)."""

    prompt: list[Message]
    data_source: str
    reward_model: Truth
    extra_info: NotRequired[dict[str, Any] | None]
    responses: NotRequired[list[str] | None]
    images: NotRequired[list[Any] | None]


@dataclass(frozen=True)
class Asked:
    """The contents of the options, read before anything is imported that takes seconds."""

    configs: dict[str, RefinerConfig]
    """The block ``refiner`` of each variant, by the variant's name."""
    rows: list[dict[str, Any]]
    """The rows of the data, in order."""
    chosen: list[int]
    """The numbers of the rows that are answered, in order."""
    reward: Callable[..., Any]
    """The reward function, with verl's arguments."""


def read_options(arguments: argparse.Namespace) -> Asked:
    """Read the options of ``check`` and ``refine``.

    Raises:
        ValueError: If an option is wrong; the line names it.
    """
    configs = {way: config_of(way, arguments) for way in arguments.ways}
    if arguments.model.startswith(("/", ".", "~")) and not Path(arguments.model, "config.json").is_file():
        raise ValueError(f"--model {arguments.model}: no model folder there (config.json is missing); {SET_A_MODEL}")
    rows = read_data(arguments.data)
    return Asked(configs, rows, choose(len(rows), arguments.problems, arguments.seed), reward_of(arguments.reward))


def choose(num_rows: int, num_problems: int, seed: int) -> list[int]:
    """Return the numbers of the chosen rows, in order; ``num_problems`` 0: all rows."""
    if num_problems < 0:
        raise ValueError(f"--problems {num_problems}: give 0 or more")
    return sorted(random.Random(seed).sample(range(num_rows), min(num_problems or num_rows, num_rows)))


def read_data(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the rows of parquet files.

    Raises:
        ValueError: If a file is missing or no parquet file, or a row does not have the schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, form = list[dict[str, Any]](), TypeAdapter(list[Row])
    for file in files:
        try:
            with file.open("rb") as opened:
                read = pq.read_table(opened).to_pylist()
            form.validate_python(read)
        except OSError as error:
            example = "--data data/train.parquet"
            raise ValueError(
                f"--data {file}: {error.strerror or error}; give a parquet file, as in {example}"
            ) from None
        except pa.ArrowInvalid:
            made = "`online-refiner prepare rows` makes one of CSV or JSON lines"
            raise ValueError(f"--data {file} is no parquet file; {made}") from None
        except ValidationError as error:
            first = error.errors()[0]
            number, *where = first["loc"]
            said = f"{'.'.join(map(str, where))}: {first['msg']}; it is {read[int(number)]!r:.200}"
            raise ValueError(f"--data {file}, row {number}, {said}") from None
        rows += read
    if not rows:
        raise ValueError(f"--data {' '.join(map(str, files))}: there are no rows; give a file that has some")
    return rows


def config_of(way: str, arguments: argparse.Namespace) -> RefinerConfig:
    """Return the block ``refiner`` of a variant; its own keys take precedence over the keys of all variants.

    Raises:
        ValueError: If a key is wrong, the template does not exist, or the key has an effect in a run only.
    """
    if arguments.samples < 1:
        raise ValueError(f"--samples {arguments.samples}: give 1 or more")
    template, *more = way.split("+")
    given = [*arguments.refiner, *(one for one in more if "=" in one)]
    try:
        keys = {str(key): value for key, value in OmegaConf.from_dotlist(given).items()}
    except YAMLError as error:
        raise ValueError(f"--refiner {' '.join(given)}: {error}") from error
    for one in given:
        if "=" not in one:
            raise ValueError(f"--refiner {one}: give KEY=VALUE, such as temperature=1")
    if "skip_reward_at_least" in keys:
        raise ValueError(
            f"refiner.skip_reward_at_least={keys['skip_reward_at_least']}: give --highest-reward instead, since all "
            "variants refine the same answers"
        )
    if others := sorted(keys.keys() - set(ACTING)):
        of_runs = {field.name for placement in PLACEMENTS.values() for field in fields(placement)} | {"placement"}
        said = "has an effect in a run only" if others[0] in of_runs else "does not exist"
        meant = nearest(others[0], ACTING) if others[0] not in of_runs else ""
        raise ValueError(f"refiner.{others[0]} {said}; set only keys of: {', '.join(ACTING)}{meant}")
    config = read_refiner(
        {
            "model_path": "",
            "placement": "external" if "url" in keys else "colocated",
            "template": template,
            "context": [one for one in more if "=" not in one],
            "skip_reward_at_least": arguments.highest_reward,
            "response_length": arguments.max_new_tokens,
            **keys,
        }
    )
    config.template_path()
    return config


def reward_of(name: str) -> Callable[..., Any]:
    """Return a reward function.

    Raises:
        ValueError: If there is no function of this name.
    """
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        example = "such as my_reward:compute_score for the file my_reward.py in this folder"
        raise ValueError(f"--reward {name}: {error}; give MODULE:NAME, {example}") from error
