"""The work of ``online-refiner check`` and ``refine``: answers to a data set are drawn, refined and written."""

import argparse
import asyncio
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from recipe.offline.bench import GIVEN, Bench, Engine, Reward, num_answers
from recipe.offline.files import all_answers, card, formats, write
from recipe.offline.inputs import Asked
from recipe.offline.journal import LOST, Journal
from recipe.offline.shares import Found
from recipe.online_refiner.method.pairs import FAILURES
from refiner_worker.client import RunEndedError
from refiner_worker.config import External, RefinerConfig

if TYPE_CHECKING:  # it imports openai
    from refiner_worker.external import ExternalClient

OTHERS = ("data", "output", "problems", "jsonl", "license", "goes_on", "refiner")
"""The options that do not decide an answer or a refinement, or are recorded in another form."""
MAY_MOVE = ("url=", "api_key_env=", "request_timeout_s=")
"""The keys of the block ``refiner`` that do not decide a refinement."""
LINE_EVERY_S = 20.0
"""The seconds between lines of progress if the output is no terminal."""


async def work(arguments: argparse.Namespace, asked: Asked) -> bool:
    """Answer, refine and write; return whether Ctrl-C ended the work.

    Raises:
        ValueError: If a setting is wrong, or the folder has the journal of a run with other settings.
        RunEndedError: If no server answers any more, or the engine has died.
    """
    configs, rows, settings = asked.configs, asked.rows, settings_of(arguments, asked.configs.values())
    name = "journal.jsonl" if arguments.goes_on else "check.jsonl"
    journal = Journal(arguments.output / name, settings, goes_on=arguments.goes_on)
    numbers = {n: num_answers(rows[n], arguments.samples) for n in asked.chosen}
    left = [n for n, number in numbers.items() if not journal.is_finished(n, number)]
    clients = {
        way: await asyncio.to_thread(client_of, config)
        for way, config in configs.items()
        if isinstance(config, External) and left
    }
    needs_engine = bool(left) and not (len(clients) == len(configs) and all(GIVEN in rows[n] for n in left))
    print(
        f"{len(left)} of {len(rows)} rows are left to do (--problems), with {arguments.samples} answers to each row "
        f"(--samples), at most {arguments.max_response_tokens} tokens per answer (--max-response-tokens) and "
        f"{arguments.max_new_tokens} per refinement (--max-new-tokens)"
        f"{'; loading the model ...' if needs_engine else ''}",
        flush=True,
    )
    has_images = any(row.get("images") for row in rows)
    if has_images and arguments.jsonl and arguments.goes_on:
        raise ValueError("--jsonl: JSON cannot hold the images of the data; leave it out, and parquet is written")
    bench = make_bench(arguments, asked.reward, journal, has_engine=needs_engine, has_images=has_images)
    is_stopped = False
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
                        raise RunEndedError(
                            "no server of refiner.url answers any more; start one, then give the same command again"
                        )
                journal.add_problem(row, group, refined)
    except asyncio.CancelledError:
        is_stopped = True
    finally:
        if bench.engine is not None:
            bench.engine.close()
    if is_stopped:
        also = "; the same command continues" if arguments.goes_on else ""
        print(f"stopped: files and numbers have only the rows that were finished{also}", file=sys.stderr)
    if bench.failed:
        print(f"{len(bench.failed)} answers were left out, the first because of {bench.failed[0]}")
    finish(arguments, settings, journal, rows, bench.tokenizer)
    return is_stopped


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


def make_bench(
    arguments: argparse.Namespace, reward: Reward, journal: Journal, *, has_engine: bool, has_images: bool = False
) -> Bench:
    """Load the model, or only its tokenizer; each answer is written to the journal.

    The seed differs from that of an earlier start, with which the engine would draw the same answers again.
    """
    from recipe.online_refiner.verl_glue.preflight.files import read_tokenizer  # here: they import Ray
    from recipe.online_refiner.verl_glue.sight import sight_of
    from refiner_worker.text.turn_end import read_turn_end

    tokenizer = read_tokenizer(arguments.model, f"--model {arguments.model}")
    sight = sight_of(arguments.model, f"--model {arguments.model}") if has_images else None
    if sight is not None:
        tokenizer.chat_template = sight.processor.chat_template
    seed = arguments.seed + sum(map(len, journal.answers.values()))
    limits = arguments.max_model_len, seed, arguments.dtype
    return Bench(
        engine=Engine(arguments.model, *limits) if has_engine else None,
        tokenizer=tokenizer,
        sight=sight,
        turn_end=read_turn_end(arguments.model, tokenizer),
        reward=reward,
        max_response_tokens=arguments.max_response_tokens,
        max_model_len=arguments.max_model_len,
        on_answer=journal.add_answer,
    )


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
