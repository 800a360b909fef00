"""The work of ``online-refiner refine``: the bench of ``online-refiner check`` on all rows, with a journal."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recipe.comparison import GIVEN, Bench
from recipe.offline.files import FORMATS, answers_of, card, write
from recipe.offline.journal import Journal
from recipe.online_refiner.pairs import FAILURES
from recipe.refiner_check import Countdown, Found, config_of, end, make_bench
from refiner_worker.client import RunEndedError
from refiner_worker.config import External

if TYPE_CHECKING:  # it imports openai
    from refiner_worker.external import ExternalClient


async def refine(arguments: argparse.Namespace, settings: dict[str, Any]) -> bool:
    """Answer, refine and write; return whether Ctrl-C ended it.

    Raises:
        ValueError: If a setting is wrong, or the folder has another run's journal.
        RunEndedError: If no server answers any more.
    """
    from datasets import load_dataset

    rows = load_dataset("parquet", data_files=[str(file) for file in arguments.data], split="train")
    if unknown := sorted({*arguments.format} - {*FORMATS}):
        raise ValueError(f"--format {unknown[0]} is not known; give {', '.join(FORMATS)}")
    config = config_of(arguments.way, arguments)
    journal = Journal(arguments.output, settings)
    left = [index for index in range(len(rows)) if index not in journal.refined]
    client = None
    if isinstance(config, External) and left:
        client = await asyncio.to_thread(client_of, config)
    asks = bool(left) and not (client and GIVEN in rows.column_names)
    said = "; loading the model ..." if asks else ""
    print(f"{len(left)} of {len(rows)} rows are left{said}", flush=True)
    bench = make_bench(arguments, has_engine=asks)
    bench.on_answer = journal.add_answer
    is_stopped, highest = False, arguments.highest_reward
    try:
        with Countdown(2 * arguments.samples * len(left), sys.stdout) as countdown:
            bench.on_progress = countdown.advance
            refiners = {arguments.way: bench.refiner(config, client)} if left else {}
            known = journal.answers.__getitem__
            async for row, group, refined in bench.problems(rows, left, refiners, arguments.samples, highest, known):
                found = refined[arguments.way]
                if client is not None and not client.servers and any(one.verdict in FAILURES for one in found):
                    raise RunEndedError("no server of refiner.url answers any more; the same command goes on")
                journal.add_problem(row, [one for one in group if one.reward < highest], found)
    except asyncio.CancelledError:
        is_stopped = True
    finally:
        end(bench)
    finish(arguments, settings, journal, rows, bench)
    return is_stopped


def client_of(config: External) -> "ExternalClient":
    """Return what asks the servers.

    Raises:
        ValueError: If a URL, model or key is wrong.
    """
    from refiner_worker.external import ExternalRefiner, fault  # here: it needs openai

    if line := config.fault_of_url() or fault(config):
        raise ValueError(line)
    server = ExternalRefiner(config)
    server.wake_up()
    return server.client()


def finish(
    arguments: argparse.Namespace,
    settings: Mapping[str, Any],
    journal: Journal,
    rows: Sequence[Mapping[str, Any]],
    bench: Bench,
) -> None:
    """Write the files and their card from all that is finished, and print the shares that ``check`` prints."""
    found = Found([arguments.way])
    for index in sorted(journal.refined):
        refined = {arguments.way: list(journal.refined[index].values())}
        found.add(journal.group(index), refined, arguments.highest_reward)
    files = {}
    for name in arguments.format:
        made = (FORMATS[name](*one) for one in answers_of(journal, rows, bench.tokenizer))
        path, number = write(arguments.output, name, filter(None, made), as_lines=arguments.jsonl)
        files[path.name] = number
        print(f"{path}: {number} rows")
    shares = found.describe(arguments.highest_reward)
    text = card(settings, files, shares, arguments.license)
    (arguments.output / "card.md").write_text(text, encoding="utf-8")
    print(shares)
