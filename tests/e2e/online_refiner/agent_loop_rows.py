"""Rows of a TransferQueue as verl's agent loop writes them."""

from typing import Any

import torch
import transfer_queue
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop import AgentLoopOutput
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

NUM_GROUPS, GROUP_SIZE = 4, 2
COLUMNS = {"data_source": "letters", "reward_model": {"ground_truth": "7"}, "extra_info": {"index": 3}}


def write_step(step: int, tokenizer: Any, output_number: int = 0, **changes: Any) -> KVBatchMeta:
    """Write the rows of a step as verl's agent loop does, and one row of padding that copies the first.

    Args:
        step: Its number.
        tokenizer: The policy's.
        output_number: Of its session, the last part of the keys.
        changes: Fields that are unlike those of verl's own agent loops.
    """
    keys, rows = [], []
    response_ids = [*tokenizer.encode("abc"), tokenizer.eos_token_id]
    for number in range(NUM_GROUPS * GROUP_SIZE):
        output = AgentLoopOutput(
            prompt_ids=[5, 6],
            response_ids=response_ids,
            response_mask=[1] * len(response_ids),
            response_logprobs=[-0.1] * len(response_ids),
            reward_score=0.25,
            num_turns=2,
            metrics={"compute_score": 0.1},
            extra_fields={"from_loop": "x", "reward_extra_info": {"acc": 1}},
        )
        uid = f"s{step}g{number // GROUP_SIZE}"
        prompt = [{"role": "user", "content": "Write."}]
        row = {**output.as_dict(), "raw_prompt": prompt, "uid": uid, "session_id": number % GROUP_SIZE, **COLUMNS}
        row["loss_mask"], row["input_ids"] = row["response_mask"], torch.cat([row["prompts"], row["responses"]])
        keys.append(f"{uid}_{number % GROUP_SIZE}_{output_number}")
        rows.append({**row, "multi_modal_inputs": {}, "position_ids": torch.arange(len(row["input_ids"])), **changes})
    length = len(rows[0]["responses"])
    tags = [{"prompt_len": 2, "response_len": length, "seq_len": 2 + length, "max_global_steps": 0} for _ in keys]
    keys, rows, tags = [*keys, "pad_0_0"], [*rows, rows[0]], [*tags, {**tags[0], "is_padding": True}]
    transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train")
