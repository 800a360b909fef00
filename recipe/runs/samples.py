"""A few refinements of a step, and the numbers of their tokens, stand beside verl's numbers in its trackers."""

from collections.abc import Iterator
from itertools import islice
from textwrap import indent
from typing import Any

import pandas

SAMPLES, TOKENS = "refiner/samples", "refiner/tokens"
COLUMNS = {
    SAMPLES: ("question", "response", "refined", "reward", "refined reward", "verdict", "key"),
    TOKENS: ("key", "text", "place", "token", "log prob", "charged", "weight", "kept"),
}
"""Of the two tables."""
MAX_TOKENS = 2000
"""Rows of a step's table of tokens: a tracker keeps all steps, and the run's own files have the rest."""


def log_records(
    backends: dict[str, Any], step: int, samples: list[dict[str, Any]], tokens: list[dict[str, Any]]
) -> None:
    """Write a step's samples to those of verl's logging backends that can show text.

    Args:
        backends: ``Tracking.logger`` of verl (``verl/utils/tracking.py``): backends by name.
        step: The step.
        samples: Records of the samples; none: nothing is written.
        tokens: Records of their tokens (``rows.py`` ``read_tokens``), likewise.
    """
    rows_of_tokens = islice((row for record in tokens for row in tokens_of(record)), MAX_TOKENS)
    for name, rows in ((SAMPLES, map(sample_of, samples)), (TOKENS, rows_of_tokens)):
        table = pandas.DataFrame(rows, columns=COLUMNS[name], dtype=object)
        if not table.empty:
            _log_table(backends, step, name, table)


def _log_table(backends: dict[str, Any], step: int, name: str, table: pandas.DataFrame) -> None:
    if "wandb" in backends:
        wandb = backends["wandb"]
        wandb.log({name: wandb.Table(dataframe=table)}, step=step)
    if "trackio" in backends:
        trackio = backends["trackio"].trackio
        trackio.log({name: trackio.Table(dataframe=table)}, step=step)
    if "mlflow" in backends:
        import mlflow  # verl's adapter has no handle of it

        mlflow.log_table(table, f"{name}/{step:06d}.json")
    if "tensorboard" in backends:
        backends["tensorboard"].writer.add_text(name, MARKDOWN[name](table), step)


def sample_of(record: dict[str, Any]) -> tuple:
    """Return a record as a row of the table."""
    question = str(record["prompt"][-1]["content"]) if record["prompt"] else ""
    refined = record["detail"] if record["refined"] is None else record["refined"]
    texts = map(_printable, (question, record["response"], refined))
    return (*texts, record["reward"], record["refined_reward"], record["verdict"], record["key"])


def tokens_of(record: dict[str, Any]) -> Iterator[tuple]:
    """Yield the tokens of a response and of its refinement as rows of the table; None: not measured."""
    for text in ("response", "refined"):
        side = record[text] or {"tokens": []}
        for place, token in enumerate(side["tokens"]):
            numbers = (side[name][place] if side.get(name) else None for name in ("log_probs", "charged", "weights"))
            yield record["key"], text, place, _printable(token), *numbers, bool(side["kept"][place])


def _printable(text: str) -> str:
    """Replace what UTF-8 cannot hold: models write lone surrogates."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def _samples_as_markdown(table: pandas.DataFrame) -> str:
    cells = (cell for row in table.to_dict("records") for cell in row.items())
    return "\n\n".join(f"**{name}**\n\n{indent(str(value), INDENT)}" for name, value in cells)


def _tokens_as_markdown(table: pandas.DataFrame) -> str:
    return indent(table.assign(token=table["token"].map(repr)).to_string(index=False), INDENT)


MARKDOWN = {SAMPLES: _samples_as_markdown, TOKENS: _tokens_as_markdown}
INDENT = "    "
"""Of texts, which Markdown then shows as they are, whatever they hold."""
