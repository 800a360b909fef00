"""Tables for verl's trackers: a few refinements of a step, and the numbers of their tokens."""

from collections.abc import Iterator
from itertools import islice
from textwrap import indent
from typing import Any

import pandas

REFINEMENTS, TOKENS = "refiner/samples", "refiner/tokens"
COLUMNS = {
    REFINEMENTS: ("question", "response", "refined", "reward", "refined reward", "verdict", "key"),
    TOKENS: ("key", "text", "place", "token", "log prob", "charged", "weight", "kept"),
}
"""The columns of the two tables."""
MAX_TOKENS = 2000
"""The largest number of rows of a step's token table: a tracker keeps all steps, and the run's files have the rest."""


def log_records(backends: dict[str, Any], step: int, shown: list[dict[str, Any]], tokens: list[dict[str, Any]]) -> None:
    """Write the shown refinements of a step to verl's logging backends that can show text.

    Args:
        backends: ``Tracking.logger`` of verl (``verl/utils/tracking.py``): backends by name.
        step: The step.
        shown: Records of the shown refinements; none: nothing is written.
        tokens: Records of their tokens (``rows.py`` ``read_tokens``); none: no table of tokens is written.
    """
    rows_of_tokens = islice((row for record in tokens for row in tokens_of(record)), MAX_TOKENS)
    for name, rows in ((REFINEMENTS, map(refinement_of, shown)), (TOKENS, rows_of_tokens)):
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


def refinement_of(record: dict[str, Any]) -> tuple:
    """Return a record as a row of the table."""
    question = str(record["prompt"][-1]["content"]) if record["prompt"] else ""
    refined = record["detail"] if record["refined"] is None else record["refined"]
    texts = map(_printable, (question, record["response"], refined))
    return (*texts, record["reward"], record["refined_reward"], record["verdict"], record["key"])


def tokens_of(record: dict[str, Any]) -> Iterator[tuple]:
    """Yield the tokens of a response and its refinement as rows of the table; None: not measured."""
    for text in ("response", "refined"):
        side = record[text] or {"tokens": []}
        for place, token in enumerate(side["tokens"]):
            numbers = (side[name][place] if side.get(name) else None for name in ("log_probs", "charged", "weights"))
            yield record["key"], text, place, _printable(token), *numbers, bool(side["kept"][place])


def _printable(text: str) -> str:
    """Replace what UTF-8 cannot hold: models write lone surrogates."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def _refinements_as_markdown(table: pandas.DataFrame) -> str:
    cells = (cell for row in table.to_dict("records") for cell in row.items())
    return "\n\n".join(f"**{name}**\n\n{indent(str(value), INDENT)}" for name, value in cells)


def _tokens_as_markdown(table: pandas.DataFrame) -> str:
    return indent(table.assign(token=table["token"].map(repr)).to_string(index=False), INDENT)


MARKDOWN = {REFINEMENTS: _refinements_as_markdown, TOKENS: _tokens_as_markdown}
INDENT = "    "
"""The indentation with which Markdown shows any text literally."""
