"""The work of ``online-refiner refine``: the bench of ``online-refiner check`` on all rows, with a journal."""

import argparse
import asyncio
import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from recipe.comparison import GIVEN, Bench, num_answers
from recipe.offline.files import FORMATS, answers_of, card, write
from recipe.offline.journal import LOST, Journal
from recipe.online_refiner.pairs import FAILURES
from recipe.refiner_check import Countdown, Found, config_of, end, make_bench, read_data
from refiner_worker.client import RunEndedError
from refiner_worker.config import External, RefinerConfig

if TYPE_CHECKING:  # it imports openai
    from refiner_worker.external import ExternalClient


SETTINGS = (
    "way",
    "model",
    "reward",
    "samples",
    "seed",
    "max_response_tokens",
    "max_new_tokens",
    "max_model_len",
    "dtype",
    "highest_reward",
)
"""Options that make an answer or a refinement what it is."""
MAY_MOVE = ("url=", "api_key_env=", "request_timeout_s=")
"""Keys of the refiner that do not."""


async def refine(arguments: argparse.Namespace) -> bool:
    """Answer, refine and write; return whether Ctrl-C ended it.

    Raises:
        ValueError: If a setting is wrong, or the folder has another run's journal.
        RunEndedError: If no server answers any more.
    """
    config = config_of(arguments.way, arguments)
    rows, settings = read_data(arguments.data), settings_of_run(arguments, config)
    journal = Journal(arguments.output, settings)
    left = [n for n, row in enumerate(rows) if not journal.is_finished(n, num_answers(row, arguments.samples))]
    client = None
    if isinstance(config, External) and left:
        client = await asyncio.to_thread(client_of, config)
    asks = bool(left) and not (client and all(GIVEN in rows[index] for index in left))
    said = "; loading the model ..." if asks else ""
    print(f"{len(left)} of {len(rows)} rows are left{said}", flush=True)
    bench = make_bench(arguments, has_engine=asks)
    bench.on_answer = journal.add_answer
    is_stopped = False
    try:
        with Countdown(2 * arguments.samples * len(left), sys.stdout) as countdown:
            bench.on_progress = countdown.advance
            refiners = {arguments.way: bench.refiner(config, client)} if left else {}
            async for row, group, refined in bench.problems(rows, left, refiners, arguments.samples, journal.known):
                found = refined[arguments.way]
                if client is not None and not client.servers and any(one.verdict in FAILURES for one in found):
                    raise RunEndedError("no server of refiner.url answers any more; the same command goes on")
                journal.add_problem(row, group, found)
    except asyncio.CancelledError:
        is_stopped = True
    finally:
        end(bench)
    finish(arguments, settings, journal, rows, bench)
    return is_stopped


def found_in(journal: Journal, way: str) -> Found:
    """Return what ``check`` would have found on what is done."""
    found = Found([way])
    for row in sorted(journal.refined):
        group, refined = journal.problem(row)
        found.add(group, {way: refined})
    return found


def settings_of_run(arguments: argparse.Namespace, config: RefinerConfig) -> dict[str, Any]:
    """Return what a run that goes on must have in common with its beginning."""
    files = (config.template_path(), *arguments.data)
    template, *data = (hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    options = {name.replace("_", "-"): getattr(arguments, name) for name in SETTINGS}
    refiner = [one for one in arguments.refiner if not one.startswith(MAY_MOVE)]
    return {**options, "refiner": refiner, "template": template, "data": data}


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
    files = {}
    for name, form in FORMATS.items():
        made = (form(*one) for one in answers_of(journal, rows, bench.tokenizer))
        path, number = write(arguments.output, name, filter(None, made), as_lines=arguments.jsonl)
        files[path.name] = number
        print(f"{path}: {number} rows")
    shares = found_in(journal, arguments.way).describe(arguments.highest_reward)
    if num_lost := sum(one.verdict in LOST for refined in journal.refined.values() for one in refined.values()):
        shares += f"\n{num_lost} refinements were lost with their requests; the same command asks again"
    text = card({**settings, "refiner": arguments.refiner}, files, shares, arguments.license)
    (arguments.output / "card.md").write_text(text, encoding="utf-8")
    print(shares)
