"""A few refinements of a step, and the numbers of their tokens, stand beside verl's numbers in its trackers."""

from collections.abc import Iterator, Sequence
from itertools import islice
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
Sample = tuple[str, str, str, float, float | None, str, str]


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
    rows_of_tokens = list(islice((row for record in tokens for row in tokens_of(record)), MAX_TOKENS))
    for name, rows in ((SAMPLES, list(map(sample_of, samples))), (TOKENS, rows_of_tokens)):
        if rows:
            _log_table(backends, step, name, rows)


def _log_table(backends: dict[str, Any], step: int, name: str, rows: Sequence[tuple]) -> None:
    columns = COLUMNS[name]
    if "wandb" in backends:
        wandb = backends["wandb"]
        wandb.log({name: wandb.Table(columns=list(columns), data=list(map(list, rows)))}, step=step)
    if "trackio" in backends:
        trackio = backends["trackio"].trackio
        trackio.log({name: trackio.Table(dataframe=pandas.DataFrame(rows, columns=columns, dtype=object))}, step=step)
    if "mlflow" in backends:
        import mlflow  # verl's adapter has no handle of it

        mlflow.log_table(pandas.DataFrame(rows, columns=columns, dtype=object), f"{name}/{step:06d}.json")
    if "tensorboard" in backends:
        text = "\n\n---\n\n".join(map(_markdown, rows)) if name == SAMPLES else _indented(rows, columns)
        backends["tensorboard"].writer.add_text(name, text, step)


def sample_of(record: dict[str, Any]) -> Sample:
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


def _markdown(sample: Sample) -> str:
    """Return a sample as Markdown; its texts are indented: whatever they hold is shown as it is."""
    question, response, refined, reward, refined_reward, verdict, _ = sample
    gain = f"reward {reward:.3f}" + ("" if refined_reward is None else f" → {refined_reward:.3f}") + f", {verdict}"
    blocks = (("question", question), ("response", response), ("refined", refined))
    parts = [f"**{name}**\n\n" + "\n".join(f"    {line}" for line in text.splitlines()) for name, text in blocks]
    return "\n\n".join([gain, *parts])


def _indented(rows: Sequence[tuple], columns: Sequence[str]) -> str:
    """Return tokens as Markdown that shows them as they are, each in a line of its own."""
    cells = pandas.DataFrame(rows, columns=columns, dtype=object)
    cells["token"] = cells["token"].map(repr)
    return "\n".join(f"    {line}" for line in cells.to_string(index=False).splitlines())
