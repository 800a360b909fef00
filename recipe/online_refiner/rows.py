"""Between the TransferQueue's rows and the refine stage's records.

Fields written, one entry for every row of the batch, padding included (the queue drops a field that any row lacks):
``refine_ids`` and ``refine_mask`` jagged int64 (B, u), ``refine_accepted`` int64 (B,), ``kl_ref_log_prob`` jagged
float32 (B, response length). A row without a refinement has u = 1 and mask 0.
"""

import torch
import transfer_queue as tq
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from transfer_queue import KVBatchMeta

from recipe.online_refiner.refine_stage import Refinement, Rollout

NOT_FOR_THE_REWARD = {"extra_fields", "multi_modal_inputs", "num_turns"}
"""Non-tensor fields of a row that its agent loop adds; the others are the data set's columns."""


def real_rows(batch: KVBatchMeta) -> list[int]:
    """Return the positions of the rows that are rollouts, not padding."""
    return [index for index, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]


def read_rollouts(batch: KVBatchMeta) -> tuple[list[Rollout], list[str]]:
    """Read a batch's rollouts and the prompt (GRPO group) that each belongs to, padding left out."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
    prompts, responses, rewards = (data[name].unbind() for name in ("prompts", "responses", "rm_scores"))
    columns = {
        name: values.tolist()
        for name, values in data.items()
        if isinstance(values, NonTensorStack) and name not in NOT_FOR_THE_REWARD
    }
    rollouts = [
        Rollout(
            key=batch.keys[index],
            messages=columns["raw_prompt"][index],
            prompt_ids=prompts[index].tolist(),
            response_ids=responses[index].tolist(),
            reward=rewards[index].sum().item(),
            sample={name: values[index] for name, values in columns.items()},
        )
        for index in real_rows(batch)
    ]
    return rollouts, [str(rollout.sample["uid"]) for rollout in rollouts]


def write_refinements(batch: KVBatchMeta, refinements: list[Refinement]) -> None:
    """Write the refined responses of the real rows, in order."""
    by_row = dict(zip(real_rows(batch), refinements, strict=True))
    ids, masks, accepted = [], [], []
    for index in range(len(batch)):
        refinement = by_row.get(index)
        tokens = refinement.token_ids if refinement else []
        ids.append(torch.tensor(tokens or [0]))
        masks.append(torch.ones_like(ids[-1]) if tokens else torch.zeros_like(ids[-1]))
        accepted.append(int(refinement is not None and refinement.is_accepted))
    write_fields(batch, refine_ids=_jagged(ids), refine_mask=_jagged(masks), refine_accepted=torch.tensor(accepted))


def write_kl_log_probs(batch: KVBatchMeta, log_probs: list[list[float] | None]) -> None:
    """Write log pi_0 of the real rows' responses, in order; NaN where there is none."""
    by_row = dict(zip(real_rows(batch), log_probs, strict=True))
    missing = float("nan")
    rows = [
        torch.tensor(by_row.get(index) or [missing] * tag["response_len"], dtype=torch.float32)
        for index, tag in enumerate(batch.tags)
    ]
    write_fields(batch, kl_ref_log_prob=_jagged(rows))


def read_padded(batch: KVBatchMeta, *names: str) -> TensorDict:
    """Read tensor fields, jagged ones padded with zeros to (B, longest); a field that was not written is absent."""
    return tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(names)
    ).to_padded_tensor(0)


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
            name: _jagged([row[:length] for row, length in zip(values, lengths, strict=True)])
            for name, values in fields.items()
        },
    )


def _jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
