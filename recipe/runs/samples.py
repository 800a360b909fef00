"""Which refinements of a step are recorded and shown: a few stand beside verl's numbers in its trackers."""

import random
from typing import Any

import pandas

from recipe.online_refiner.pairs import Pair

COLUMNS = ("question", "response", "refined", "reward", "refined reward", "verdict")
NAME = "refiner/samples"
NUM_SAMPLES = 8
"""Of a step: half of them those that gained most, the rest attempts that were not accepted, as far as there are any."""
Sample = tuple[str, str, str, float, float | None, str]


def log_samples(backends: dict[str, Any], step: int, records: list[dict[str, Any]]) -> None:
    """Write a step's samples to those of verl's logging backends that can show text.

    Args:
        backends: ``Tracking.logger`` of verl (``verl/utils/tracking.py``): backends by name.
        step: The step.
        records: Of the samples; none: nothing is written.
    """
    samples = [sample_of(record) for record in records]
    if samples and "wandb" in backends:
        wandb = backends["wandb"]
        table = wandb.Table(columns=list(COLUMNS), data=[list(sample) for sample in samples])
        wandb.log({NAME: table}, step=step)
    if samples and "trackio" in backends:
        trackio = backends["trackio"].trackio
        trackio.log({NAME: trackio.Table(dataframe=pandas.DataFrame(samples, columns=COLUMNS))}, step=step)
    if samples and "mlflow" in backends:
        import mlflow  # verl's adapter has no handle of it

        mlflow.log_table(pandas.DataFrame(samples, columns=COLUMNS), f"{NAME}/{step:06d}.json")
    if samples and "tensorboard" in backends:
        backends["tensorboard"].writer.add_text(NAME, "\n\n---\n\n".join(map(_markdown, samples)), step)


def sample_of(record: dict[str, Any]) -> Sample:
    """Return a record as a row of the table."""
    question = str(record["prompt"][-1]["content"]) if record["prompt"] else ""
    refined = record["detail"] if record["refined"] is None else record["refined"]
    texts = map(_printable, (question, record["response"], refined))
    return (*texts, record["reward"], record["refined_reward"], record["verdict"])


def _printable(text: str) -> str:
    """Replace what UTF-8 cannot hold: models write lone surrogates."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def _markdown(sample: Sample) -> str:
    """Return a sample as Markdown; its texts are indented: whatever they hold is shown as it is."""
    question, response, refined, reward, refined_reward, verdict = sample
    gain = f"reward {reward:.3f}" + ("" if refined_reward is None else f" → {refined_reward:.3f}") + f", {verdict}"
    blocks = (("question", question), ("response", response), ("refined", refined))
    parts = [f"**{name}**\n\n" + "\n".join(f"    {line}" for line in text.splitlines()) for name, text in blocks]
    return "\n\n".join([gain, *parts])


def choose_records(pairs: dict[int, Pair], max_rows: int | None, seed: int) -> list[int]:
    """Return the rows of a step that are recorded: all, or at most so many, accepted refinements first, then others."""
    rows = sorted(pairs)
    if max_rows is None or max_rows >= len(rows):
        return rows
    random.Random(seed).shuffle(rows)
    rows.sort(key=lambda row: not pairs[row].is_accepted)
    return sorted(rows[:max_rows])


def choose_samples(pairs: dict[int, Pair]) -> list[int]:
    """Return the rows of the best accepted refinements of a step, and of some that were not accepted."""
    attempted = [row for row, pair in pairs.items() if pair.verdict.is_scored or pair.verdict.is_failure]
    accepted = [row for row in attempted if pairs[row].is_accepted]
    accepted.sort(key=lambda row: pairs[row].reward - pairs[row].refined_reward)
    others = [row for row in attempted if not pairs[row].is_accepted]
    return (accepted[: NUM_SAMPLES - min(len(others), NUM_SAMPLES // 2)] + others)[:NUM_SAMPLES]
