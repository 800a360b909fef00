"""The work of ``online-refiner check`` and ``refine``: answers to a data set are drawn, refined and written."""

import argparse
import asyncio
import hashlib
import importlib
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError
from tqdm import tqdm
from typing_extensions import TypedDict
from yaml import YAMLError

from recipe.offline.bench import GIVEN, Bench, Engine, Reward, num_answers
from recipe.offline.files import all_answers, card, formats, write
from recipe.offline.journal import LOST, Journal
from recipe.offline.shares import Found
from recipe.online_refiner.method.pairs import FAILURES
from refiner_worker.client import RunEndedError
from refiner_worker.config import BY_SOURCE, OF_SERVERS, External, RefinerConfig, read_refiner

if TYPE_CHECKING:  # it imports openai
    from refiner_worker.external import ExternalClient

ACTING = (*BY_SOURCE, *OF_SERVERS, "thoughts", "rewrites", "reject_leaks")
"""The keys of the block ``refiner`` that have an effect outside a run."""
OTHERS = ("data", "output", "problems", "jsonl", "license", "goes_on", "refiner")
"""The options that do not decide an answer or a refinement, or are recorded in another form."""
MAY_MOVE = ("url=", "api_key_env=", "request_timeout_s=")
"""The keys of the block ``refiner`` that do not decide a refinement."""
LINE_EVERY_S = 20.0
"""The seconds between lines of progress if the output is no terminal."""


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


async def work(arguments: argparse.Namespace) -> bool:
    """Answer, refine and write; return whether Ctrl-C ended the work.

    Raises:
        ValueError: If a setting is wrong, or the folder has the journal of a run with other settings.
        RunEndedError: If no server answers any more, or the engine has died.
    """
    configs = {way: config_of(way, arguments) for way in arguments.ways}
    rows, settings = read_data(arguments.data), settings_of(arguments, configs.values())
    name = "journal.jsonl" if arguments.goes_on else "check.jsonl"
    journal = Journal(arguments.output / name, settings, goes_on=arguments.goes_on)
    numbers = {
        n: num_answers(rows[n], arguments.samples) for n in choose(len(rows), arguments.problems, arguments.seed)
    }
    left = [n for n, number in numbers.items() if not journal.is_finished(n, number)]
    clients = {
        way: await asyncio.to_thread(client_of, config)
        for way, config in configs.items()
        if isinstance(config, External) and left
    }
    needs_engine = bool(left) and not (len(clients) == len(configs) and all(GIVEN in rows[n] for n in left))
    print(
        f"{len(left)} of {len(rows)} rows are left (--problems), {arguments.samples} answers to each (--samples), at "
        f"most {arguments.max_response_tokens} tokens an answer (--max-response-tokens) and {arguments.max_new_tokens} "
        f"a refinement (--max-new-tokens){'; loading the model ...' if needs_engine else ''}",
        flush=True,
    )
    bench, is_stopped = make_bench(arguments, journal, has_engine=needs_engine), False
    try:
        with tqdm(
            total=(1 + len(configs)) * sum(numbers[n] for n in left),
            unit=" answers and refinements",
            smoothing=0,
            mininterval=0.1 if sys.stderr.isatty() else LINE_EVERY_S,
        ) as bar:
            bench.on_progress = bar.update
            refiners = {way: bench.refiner(config, clients.get(way)) for way, config in configs.items() if left}
            async for row, group, refined in bench.problems(rows, left, refiners, arguments.samples, journal.known):
                for way, client in clients.items():
                    if not client.servers and any(one.verdict in FAILURES for one in refined[way]):
                        raise RunEndedError("no server of refiner.url answers any more; the same command goes on")
                journal.add_problem(row, group, refined)
    except asyncio.CancelledError:
        is_stopped = True
    finally:
        if bench.engine is not None:
            bench.engine.close()
    if is_stopped:
        also = "; the same command goes on" if arguments.goes_on else ""
        print(f"stopped: files and numbers are of the rows that were finished{also}", file=sys.stderr)
    if bench.failed:
        print(f"{len(bench.failed)} answers are left out, the first: {bench.failed[0]}")
    finish(arguments, settings, journal, rows, bench.tokenizer)
    return is_stopped


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
        raise ValueError("--data has no rows")
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
            raise ValueError(f"--refiner {one}: give KEY=VALUE")
    if "skip_reward_at_least" in keys:
        raise ValueError(
            "refiner.skip_reward_at_least: give --highest-reward; the ways are compared on the same answers"
        )
    if others := sorted(keys.keys() - set(ACTING)):
        raise ValueError(f"refiner.{others[0]} acts in a run only; those that act here are: {', '.join(ACTING)}")
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


def settings_of(arguments: argparse.Namespace, configs: Iterable[RefinerConfig]) -> dict[str, Any]:
    """Return the settings that must be the same when a command continues earlier work."""
    hashes = {
        name: [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
        for name, files in {"template": [one.template_path() for one in configs], "data": arguments.data}.items()
    }
    options = {name.replace("_", "-"): value for name, value in vars(arguments).items() if name not in OTHERS}
    return {**options, "refiner": [one for one in arguments.refiner if not one.startswith(MAY_MOVE)], **hashes}


def client_of(config: External) -> "ExternalClient":
    """Return the client of external servers.

    Raises:
        ValueError: If a URL, model or key is wrong.
    """
    from refiner_worker.external import ExternalRefiner, fault  # here: it needs openai

    if line := config.fault_of_url() or fault(config):
        raise ValueError(line)
    server = ExternalRefiner(config)
    server.wake_up()
    return server.client()


def make_bench(arguments: argparse.Namespace, journal: Journal, *, has_engine: bool) -> Bench:
    """Load the model, or only its tokenizer; each answer is written to the journal.

    The seed differs from that of an earlier start, with which the engine would draw the same answers again.
    """
    from recipe.online_refiner.verl_glue.preflight.files import read_tokenizer  # here: it imports Ray
    from refiner_worker.text.turn_end import read_turn_end

    reward = reward_of(arguments.reward)
    tokenizer = read_tokenizer(arguments.model, f"--model {arguments.model}")
    seed = arguments.seed + sum(map(len, journal.answers.values()))
    limits = arguments.max_model_len, seed, arguments.dtype
    return Bench(
        engine=Engine(arguments.model, *limits) if has_engine else None,
        tokenizer=tokenizer,
        turn_end=read_turn_end(arguments.model, tokenizer),
        reward=reward,
        max_response_tokens=arguments.max_response_tokens,
        max_model_len=arguments.max_model_len,
        on_answer=journal.add_answer,
    )


def reward_of(name: str) -> Reward:
    """Return a reward function.

    Raises:
        ValueError: If there is no function of this name.
    """
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"--reward {name}: {error}; give MODULE:NAME, of a MODULE.py in this folder") from error


def finish(
    arguments: argparse.Namespace,
    settings: Mapping[str, Any],
    journal: Journal,
    rows: Sequence[Mapping[str, Any]],
    tokenizer: Any,
) -> None:
    """Write the files and their card from all finished work, and print the shares."""
    files = []
    for name, made in formats([*all_answers(journal, rows, tokenizer)]).items():
        path = arguments.output / f"{name}.{'jsonl' if arguments.jsonl else 'parquet'}"
        write(path, made)
        files.append(f"`{path.name}`: {len(made)} rows")
        print(f"{path}: {len(made)} rows")
    shares = found_in(journal).describe()
    lost = [one for of_row in journal.refined.values() for ways in of_row.values() for one in ways.values()]
    if num_lost := sum(one.verdict in LOST for one in lost):
        shares += f"\n{num_lost} refinements were lost with their requests; the same command asks again"
    text = card({**settings, "refiner": arguments.refiner}, files, shares, arguments.license)
    (arguments.output / "card.md").write_text(text, encoding="utf-8")
    print(f"\n{shares}")


def found_in(journal: Journal) -> Found:
    """Return the counts of all finished rows."""
    found = Found()
    for row in sorted(journal.refined):
        found.add(*journal.problem(row))
    return found
