"""Between the TransferQueue's rows and the refine stage's records.

Fields written, one entry for every row of the batch, padding included (the queue drops a field that any row lacks):
``refine_ids``, ``refine_mask`` and ``refine_edited`` (1 where a' differs from a) jagged int64 (B, u),
``refine_accepted`` int64 (B,), ``kl_ref_log_prob`` jagged float32 (B, response length). A row without a refinement has
u = 1 and masks 0. ``refine_log_probs``, jagged float32 (B, u), exists on the rows of :func:`select` only.
"""

from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from transfer_queue import KVBatchMeta

from recipe.online_refiner.alignment import edited_tokens
from recipe.online_refiner.refine_stage import Refinement, Rollout, StageResult
from recipe.online_refiner.refined_rows import jagged

NOT_FOR_THE_REWARD = {"extra_fields", "multi_modal_inputs", "num_turns"}
"""Non-tensor fields of a row that its agent loop adds; the others are the data set's columns."""


def real_rows(batch: KVBatchMeta) -> list[int]:
    """Return the positions of the rows that are rollouts, not padding."""
    return [index for index, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]


def read_rollouts(batch: KVBatchMeta) -> list[Rollout]:
    """Read a batch's rollouts, padding left out; where nothing is rewarded yet their reward is 0."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
    prompts, responses = (data[name].unbind() for name in ("prompts", "responses"))
    rewards = data["rm_scores"].unbind() if "rm_scores" in data else torch.zeros(len(batch)).unbind()
    extras = _objects(data["extra_fields"]) if "extra_fields" in data else [{}] * len(batch)
    columns = {
        name: values.tolist()
        for name, values in data.items()
        if isinstance(values, NonTensorStack) and name not in NOT_FOR_THE_REWARD
    }
    return [
        Rollout(
            key=batch.keys[index],
            group=str(columns["uid"][index]),
            messages=columns["raw_prompt"][index],
            prompt_ids=prompts[index].tolist(),
            response_ids=responses[index].tolist(),
            reward=rewards[index].sum().item(),
            sample={name: values[index] for name, values in columns.items()},
            reward_extra_info=extras[index].get("reward_extra_info", {}),
        )
        for index in real_rows(batch)
    ]


def read_streamed(batch: KVBatchMeta, name: str) -> list[Any]:
    """Read what a streaming run's workers added to the output of each of :func:`read_rollouts`."""
    extras = _objects(read(batch, "extra_fields")["extra_fields"])
    return [extras[index][name] for index in real_rows(batch)]


def _objects(column: Any) -> list[Any]:
    """Return a non-tensor column as a list, whichever of its types the queue chose."""
    return [getattr(value, "data", value) for value in column]


def write_rewards(batch: KVBatchMeta, rewards: list[float]) -> None:
    """Write the reward of every row, on its last token; the batch has no padding yet."""
    rows = [torch.zeros(tag["response_len"]) for tag in batch.tags]
    for row, reward in zip(rows, rewards, strict=True):
        row[-1] = reward
    write_fields(batch, rm_scores=jagged(rows))


def write_refinements(batch: KVBatchMeta, result: StageResult) -> None:
    """Write the refined responses of the real rows, in order."""
    pairs = zip(result.rollouts, result.refinements, strict=True)
    by_row = dict(zip(real_rows(batch), pairs, strict=True))
    ids, masks, edited, accepted = [], [], [], []
    for index in range(len(batch)):
        rollout, refinement = by_row.get(index, (None, Refinement(verdict="")))
        ids.append(torch.tensor(refinement.token_ids or [0]))
        masks.append(torch.full_like(ids[-1], bool(refinement.token_ids)))
        accepted.append(int(refinement.is_accepted))
        differs = edited_tokens(rollout.response_ids, refinement.token_ids) if rollout and accepted[-1] else [False]
        edited.append(torch.tensor(differs).long().expand_as(ids[-1]))
    write_fields(
        batch,
        refine_ids=jagged(ids),
        refine_mask=jagged(masks),
        refine_edited=jagged(edited),
        refine_accepted=torch.tensor(accepted),
    )


def select(batch: KVBatchMeta, wanted: list[int], *, num_chunks: int, multiple: int, fields: list[str]) -> KVBatchMeta:
    """Select rows for a worker group, which gets them in equal contiguous chunks.

    Args:
        batch: The step's rows; their number is a multiple of ``num_chunks * multiple``.
        wanted: Positions of the rows.
        num_chunks: Data-parallel ranks.
        multiple: Rows of a rank come in multiples of this (a fixed micro-batch size).
        fields: What the workers read.

    Returns:
        The wanted rows and as many others as the multiples need, the shortest; rows of equal length on every rank.
    """
    length = [tag["seq_len"] for tag in batch.tags]
    others = sorted(set(range(len(batch))) - set(wanted), key=length.__getitem__)
    num_rows = -(-len(wanted) // (num_chunks * multiple)) * num_chunks * multiple
    by_length = sorted(wanted + others[: num_rows - len(wanted)], key=length.__getitem__)
    selected = rows_of(batch, [index for chunk in range(num_chunks) for index in by_length[chunk::num_chunks]])
    selected.fields = fields
    return selected


def rows_of(batch: KVBatchMeta, positions: list[int]) -> KVBatchMeta:
    """Return some rows of a batch, in this order."""
    return KVBatchMeta(
        keys=[batch.keys[index] for index in positions],
        tags=[batch.tags[index] for index in positions],
        partition_id=batch.partition_id,
    )


def write_kl_log_probs(batch: KVBatchMeta, log_probs: list[list[float] | None]) -> None:
    """Write log pi_0 of the real rows' responses, in order; NaN where there is none."""
    by_row = dict(zip(real_rows(batch), log_probs, strict=True))
    missing = float("nan")
    rows = [
        torch.tensor(by_row.get(index) or [missing] * tag["response_len"], dtype=torch.float32)
        for index, tag in enumerate(batch.tags)
    ]
    write_fields(batch, kl_ref_log_prob=jagged(rows))


def read(batch: KVBatchMeta, *names: str) -> TensorDict:
    """Read tensor fields as they are, those of the response jagged; a field that any row lacks is absent."""
    return tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(names))


def read_padded(batch: KVBatchMeta, *names: str) -> TensorDict:
    """Read tensor fields, jagged ones padded with zeros to (B, longest)."""
    return read(batch, *names).to_padded_tensor(0)


def read_token_pairs(batch: KVBatchMeta, tokenizer: Any) -> list[dict[str, Any]]:
    """Read rows with their refinements as ``RunDir.append_tokens`` takes them: (text, log-prob) of every token."""
    names = {"response": ("responses", "old_log_probs"), "refined": ("refine_ids", "refine_log_probs")}
    data = read(batch, *(field for fields in names.values() for field in fields))
    pairs: list[dict[str, Any]] = [{"key": key} for key in batch.keys]
    for name, fields in names.items():
        for pair, ids, log_probs in zip(pairs, *(data[field].unbind() for field in fields), strict=True):
            tokens = zip(ids.tolist(), log_probs.tolist(), strict=True)
            pair[name] = [[tokenizer.decode([token]), round(log_prob, 4)] for token, log_prob in tokens]
    return pairs


def write_fields(batch: KVBatchMeta, **fields: torch.Tensor) -> None:
    """Write fields of every row and tell the batch of them, so that the workers read them too."""
    written = tq.kv_batch_put(
        keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
    )
    batch.fields = written.fields


def write_padded(batch: KVBatchMeta, **fields: torch.Tensor) -> None:
    """Write right-padded tensors over the response tokens, (B, longest response), as jagged fields."""
    lengths = [tag["response_len"] for tag in batch.tags]
    write_fields(
        batch,
        **{
            name: jagged([row[:length] for row, length in zip(values, lengths, strict=True)])
            for name, values in fields.items()
        },
    )
