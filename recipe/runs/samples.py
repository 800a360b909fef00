"""A few refinements of a step stand beside verl's numbers in its trackers."""

from typing import Any

import pandas

COLUMNS = ("question", "response", "refined", "reward", "refined reward", "verdict")
NAME = "refiner/samples"
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
