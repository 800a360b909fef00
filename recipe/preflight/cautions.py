"""What a run may well do, but seldom means: one line each, printed as a warning before it starts."""

from verl.utils.fs import copy_to_local

from recipe.preflight.rules import Run
from refiner_worker.turn_end import behind_a_reply, read_turn_end

FAR = 10
"""So many times beyond them is far."""


def cautions(run: Run) -> list[str]:
    """Return what a run's user should hear of eta and of the end of turns."""
    return [line for line in (_eta(run), _turn_end(run)) if line]


def _eta(run: Run) -> str | None:
    constraint = run.blocks.constraint
    tried = getattr(constraint, "TRIED", None)  # of modes that have an eta
    if tried is None or constraint.first_eta == 0:
        return None
    least, most = tried
    if least / FAR <= constraint.first_eta <= most * FAR:
        return None
    target = getattr(constraint, "target", "rewrite")
    said = f"constraint.eta={constraint.first_eta:g} is far from what was ever tried in mode {constraint.mode}"
    return f"{said}{f', target {target}' if target != 'rewrite' else ''}: {least:g} to {most:g}"


def _turn_end(run: Run) -> str | None:
    """Say so where engines do not stop at what the chat template writes behind a reply; base models are often so."""
    tokenizer, settings = run.files.tokenizer, run.config.data.apply_chat_template_kwargs
    end = read_turn_end(copy_to_local(run.config.actor_rollout_ref.model.path), tokenizer, settings)
    behind = behind_a_reply(tokenizer, settings)
    control = [token for token in behind if token in tokenizer.added_tokens_decoder]
    if not control or end.stops.intersection(behind):
        return None
    stops = ", ".join(tokenizer.decode([token]) for token in sorted(end.stops))
    return (
        f"the chat template ends a reply with {tokenizer.decode([control[0]])}, but engines stop only at {stops}: a "
        "model that was taught this template never ends a response; set eos_token of tokenizer_config.json, or "
        "eos_token_id of generation_config.json"
    )
