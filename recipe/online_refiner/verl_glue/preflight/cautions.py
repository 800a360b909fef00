"""Warnings on settings that are allowed but seldom intended: one line each, printed before the run starts."""

from omegaconf import OmegaConf
from transformers import AutoConfig
from verl.utils.fs import copy_to_local

from recipe.online_refiner.verl_glue.preflight.models import without_weights
from recipe.preflight.rules import PlannedRun, has_critic
from refiner_worker.text.turn_end import behind_a_reply, read_turn_end

FAR = 10
"""The factor by which a limit must be exceeded for a warning."""


def cautions(run: PlannedRun) -> list[str]:
    """Return the warnings to print before a run starts."""
    found = (_kl(run), _eta(run), _unread(run), _turn_end(run), _limit(run), _longrope(run), _weights(run))
    return [line for line in (*found, *_resumes_in_part(run)) if line]


def _kl(run: PlannedRun) -> str | None:
    """Warn if the KL to the reference model is asked for, but cannot be measured."""
    return run.blocks.fault_of_kl and f"{run.blocks.fault_of_kl}; kl_ref/k3 is not measured in this run"


def _eta(run: PlannedRun) -> str | None:
    constraint = run.blocks.constraint
    if constraint.TRIED is None:
        return None
    least, most = constraint.TRIED
    own = {f"constraint.by_source.{source}.eta": one.eta for source, one in (constraint.by_source or {}).items()}
    for key, eta in {"constraint.eta": constraint.first_eta, **own}.items():
        if eta == 0 or least / FAR <= eta <= most * FAR:
            continue
        target = getattr(constraint, "target", "rewrite")
        where = f"mode {constraint.mode}{f' with target {target}' if target != 'rewrite' else ''}"
        said = f"{key}={eta:g} is far from all values that were tried in {where} ({least:g} to {most:g})"
        return f"{said}; set a value of this range, such as {key}={least:g}"
    return None


def _unread(run: PlannedRun) -> str | None:
    """Warn if a key of the critic is set that verl does not read, and without which it trains the same."""
    size = OmegaConf.select(run.config, "critic.ulysses_sequence_parallel_size", default=1)
    if size == 1 or not has_critic(run.config):
        return None
    return (
        f"critic.ulysses_sequence_parallel_size={size} is not read, so each GPU of the critic computes whole "
        f"sequences; set critic.fsdp.ulysses_sequence_parallel_size={size} to share them"
    )


def _turn_end(run: PlannedRun) -> str | None:
    """Warn if engines do not stop at the chat template's end of a reply, as is common with base models."""
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


def _limit(run: PlannedRun) -> str | None:
    """Warn if verl draws limited rows anew at each start (``RLHFDataset._read_files_and_tokenize``)."""
    data, num_rows = run.config.data, run.files.num_rows
    limits = {"data.train_max_samples": num_rows["train_files"], "data.val_max_samples": num_rows["val_files"]}
    drawn = [key for key, total in limits.items() if 0 < OmegaConf.select(run.config, key) < total]
    if not drawn or not data.shuffle or data.seed is not None:
        return None
    said = f"{drawn[0]}={OmegaConf.select(run.config, drawn[0])} without data.seed"
    return f"{said}: each start draws different rows, also when a run is resumed; set data.seed=1"


def _longrope(run: PlannedRun) -> str | None:
    """Warn if trainer and vLLM use different rotary frequencies for short responses.

    vLLM chooses an engine's frequencies by ``max_model_len``, transformers a micro-batch's by its longest row.
    """
    model, rollout = run.config.actor_rollout_ref.model, run.config.actor_rollout_ref.rollout
    found = AutoConfig.from_pretrained(copy_to_local(model.path), trust_remote_code=model.trust_remote_code)
    rope = getattr(found, "rope_parameters", None) or {}
    longest = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    limit = rope.get("original_max_position_embeddings", longest)
    if rope.get("rope_type") != "longrope" or longest <= limit:
        return None
    return (
        f"this model has other rotary frequencies above {limit} tokens (longrope): vLLM, with up to {longest} tokens, "
        "uses them for all texts, but the trainer only for micro-batches with a longer row; set "
        f"actor_rollout_ref.rollout.max_model_len={limit} or less"
    )


def _weights(run: PlannedRun) -> str | None:
    """Warn if a plan for another machine has not found the weights."""
    folders = without_weights(run)  # of a run on this machine a rule refuses them
    return f"{', '.join(folders)}: there are no weights, so only the config was checked" if folders else None


def _resumes_in_part(run: PlannedRun) -> list[str]:
    """Warn of the state that a resumed run begins anew because the user's ``load_contents`` leaves it out."""
    blocks = {"actor_rollout_ref.actor": run.config.actor_rollout_ref.actor}
    if has_critic(run.config):
        blocks["critic"] = run.config.critic
    said = []
    for key, block in blocks.items():
        contents = OmegaConf.select(block, "checkpoint.load_contents")
        parts = {"optimizer": "the optimizer's state", "extra": "the learning-rate schedule and the random numbers"}
        anew = [words for word, words in parts.items() if contents is not None and word not in contents]
        if anew and run.config.trainer.resume_mode != "disable":
            said.append(f"{key}.checkpoint.load_contents={contents}: a resumed run begins {' and '.join(anew)} anew")
    return said
