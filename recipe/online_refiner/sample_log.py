"""A few refinements of every step where verl logs the step's numbers: a table in W&B, text in TensorBoard."""

from typing import Any

from recipe.online_refiner.refine_stage import SKIPPED, StageResult

NUM_SAMPLES = 8
"""Of a step: half of them those that gained most, the rest attempts that were not accepted, as far as there are any."""
COLUMNS = ("question", "response", "refined", "reward", "refined reward", "verdict")
NAME = "refiner/samples"
Sample = tuple[str, str, str, float, float | None, str]


def log_samples(backends: dict[str, Any], step: int, result: StageResult) -> None:
    """Write a step's samples to those of verl's logging backends that can show text.

    Args:
        backends: ``Tracking.logger`` of verl (``verl/utils/tracking.py``): backends by name.
        step: The training step.
        result: Its refinements.
    """
    samples = choose_samples(result)
    if not samples:
        return
    if "wandb" in backends:
        wandb = backends["wandb"]
        wandb.log({NAME: wandb.Table(columns=list(COLUMNS), data=[list(sample) for sample in samples])}, step=step)
    if "tensorboard" in backends:
        backends["tensorboard"].writer.add_text(NAME, "\n\n---\n\n".join(map(_markdown, samples)), step)


def choose_samples(result: StageResult) -> list[Sample]:
    """Return the best accepted refinements of a step, and some that were not accepted."""
    accepted: list[tuple[float, Sample]] = []  # with its gain
    others: list[Sample] = []
    for rollout, refinement, response in zip(result.rollouts, result.refinements, result.responses, strict=True):
        if refinement.verdict in SKIPPED:
            continue
        question = str(rollout.messages[-1]["content"]) if rollout.messages else ""
        question, response, refined = map(_printable, (question, response, refinement.text))
        sample = (question, response, refined, rollout.reward, refinement.reward, refinement.verdict)
        if refinement.verdict == "accepted" and refinement.reward is not None:
            accepted.append((refinement.reward - rollout.reward, sample))
        else:
            others.append(sample)
    accepted.sort(key=lambda pair: -pair[0])
    num_others = min(len(others), NUM_SAMPLES // 2)
    chosen = [sample for _, sample in accepted[: NUM_SAMPLES - num_others]]
    return chosen + others[: NUM_SAMPLES - len(chosen)]


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
