"""The rows of verl's TransferQueue: the only module that reads and writes its columns.

What this extension writes, one entry for every row of a step, padding included (the queue drops a field that any row
lacks): ``refine_ids`` (a') and ``refine_mask`` jagged int64 (B, u), ``refine_used`` and ``refine_start`` (where the
refined turn begins in the response) int64 (B,), texts ``refine_detail`` (what a failed attempt wrote, or why it
failed), and in modes with a loss ``refine_shown`` int64 (B,), from 1 on the number of a row that is shown, else 0. A
row without a refinement has u = 1 and masks 0. The run's constraint adds columns (``Constraint.columns``):
``refine_counterparts`` (c(t) of Eq. 6) jagged int64 (B, response length),
``refine_weights`` (of the tokens of a' in the cross-entropy) jagged float32 (B, u) and others. On some rows only, and
read on those only: jagged float32 ``refine_log_probs`` (B, u) and ``refine_charged`` (B, response length),
``refine_nll`` and ``refine_divergence`` (B,), by the actor; and ``kl_ref_log_prob`` (B, response length), by the refine
workers.

Source: ``verl/trainer/ppo/v1/agent_loop_tq.py`` writes the rows; ``tests/e2e/online_refiner/test_refine_workers.py``
pins what is read of them.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
import transfer_queue as tq
from rapidfuzz.distance import Levenshtein
from tensordict import NonTensorData, NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop import AgentLoopOutput

from recipe.online_refiner.method.constraint import Constraint, row_columns
from recipe.online_refiner.method.pairs import (
    Pair,
    Refinement,
    Rollout,
    Turn,
    Verdict,
    feedback_of,
    group_of,
    last_turn,
)
from recipe.online_refiner.verl_glue.loss import jagged
from recipe.rewarding.answers import as_number
from refiner_worker.client import RunEndedError
from refiner_worker.pictures import as_text, for_people, has_pictures, images_in
from refiner_worker.text.tokens import conversation, decode

BY_AGENT_LOOP = {
    *AgentLoopOutput.model_fields,
    "multi_modal_inputs",
    "prompts",
    "responses",
    "input_ids",
    "position_ids",
    "loss_mask",
    "rollout_log_probs",
    "rm_scores",
    "teacher_ids",
    "teacher_logprobs",
}
"""Fields of a row that verl's agent loop adds to the columns of the data set."""
MAY_LACK = {"rm_scores", "data_source"}
OF_RESPONSE = ("responses", "old_log_probs", "refine_charged", "refine_counterparts")
OF_TOKENS = (*OF_RESPONSE, "refine_ids", "refine_log_probs", "refine_weights")
"""The columns that :func:`read_tokens` reads; a row may lack some."""
BY_THIS_EXTENSION = ("refine_", "kl_ref_")
MAX_DETAIL = 1000
"""The largest number of characters that are kept of a failed attempt's text."""
MAX_FEEDBACK = 1000
"""The largest number of characters that are recorded of a reward function's feedback."""
TAG = "refined_pair"
"""The tag of a refined row that holds its :class:`Pair`, as one text.

It is one text because the queue's ``KVBatchMeta`` copies all parts of its tags whenever rows are chosen.
"""


OVER_BUDGET = "refine_over_budget"
"""The name of a row's tag that says whether ``refiner.budget`` leaves the row out."""


def real_rows(batch: KVBatchMeta) -> list[int]:
    """Return the positions of the rows that are rollouts, not padding."""
    return [index for index, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]


def rows_of(batch: KVBatchMeta, positions: Iterable[int]) -> KVBatchMeta:
    """Return some rows of a batch, in this order."""
    positions = list(positions)
    return KVBatchMeta(
        keys=[batch.keys[index] for index in positions],
        tags=[batch.tags[index] for index in positions],
        partition_id=batch.partition_id,
    )


def rows_without(batch: KVBatchMeta, lost: Collection[str]) -> KVBatchMeta:
    """Return a batch without the rows of some keys, which are taken out of the queue."""
    if not lost:
        return batch
    tq.kv_clear(keys=list(lost), partition_id=batch.partition_id)
    return batch.select_keys([key for key in batch.keys if key not in lost])


def shards(batch: KVBatchMeta, num_shards: int) -> list[KVBatchMeta]:
    """Split a batch into at most ``num_shards`` parts with about equally many tokens; groups stay together."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(batch.keys):
        groups[group_of(key)].append(index)
    parts: list[list[int]] = [[] for _ in range(num_shards)]
    load = [0] * num_shards
    length = {group: sum(batch.tags[index]["seq_len"] for index in rows) for group, rows in groups.items()}
    for group in sorted(groups, key=lambda name: -length[name]):
        lightest = load.index(min(load))
        parts[lightest] += groups[group]
        load[lightest] += length[group]
    return [rows_of(batch, part) for part in parts if part]


def read(batch: KVBatchMeta, *names: str) -> TensorDict:
    """Read fields as they are in the queue; fields over the response are jagged.

    Raises:
        RunEndedError: If a row lacks one, except MAY_LACK: then the queue leaves it out of all rows.
    """
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(names))
    if lacking := set(names) - set(data.keys()) - MAY_LACK:
        raise RunEndedError(
            f"rows of the TransferQueue lack the fields {sorted(lacking)}; if they are columns of your own constraint, "
            "its method columns has to return them for every row, such as [0]"
        )
    return data


def read_padded(batch: KVBatchMeta, *names: str) -> TensorDict:
    """Read tensor fields, jagged ones padded with zeros to (B, longest)."""
    return read(batch, *names).to_padded_tensor(0)


def write(batch: KVBatchMeta, fields: dict[str, Any], tags: list[dict[str, Any]] | None = None) -> None:
    """Write fields, and maybe tags, of all rows of ``batch`` into the queue; ``batch`` stays as it is."""
    data = TensorDict(fields, batch_size=len(batch))
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=data, tags=tags)


def write_column(batch: KVBatchMeta, name: str, values: torch.Tensor) -> None:
    """Write a right-padded column over the response tokens, (B, longest response), as a jagged field.

    The batch may hold only some of a step's rows; the other rows then lack the column.
    """
    lengths = [tag["response_len"] for tag in batch.tags]
    write(batch, {name: jagged([row[:length] for row, length in zip(values, lengths, strict=True)])})


def write_rewards(batch: KVBatchMeta, rewards: list[float]) -> None:
    """Write the reward of every row, on its last token; the batch has no padding yet."""
    rows = [torch.zeros(tag["response_len"]) for tag in batch.tags]
    for row, reward in zip(rows, rewards, strict=True):
        row[-1] = reward
    write(batch, {"rm_scores": jagged(rows)})


def write_refinements(batch: KVBatchMeta, turns: list[Turn], pairs: list[Pair], constraint: Constraint) -> None:
    """Write the refined responses of some rows, the columns of the run's constraint, and the pairs as tags."""
    refined = [turn.refinement.token_ids for turn in turns]
    details = ["" if one.verdict.is_scored else one.text[:MAX_DETAIL] for one in (turn.refinement for turn in turns)]
    fields = {
        "refine_ids": jagged([torch.tensor(ids or [0]) for ids in refined]),
        "refine_mask": jagged([torch.tensor([1] * len(ids) or [0]) for ids in refined]),
        "refine_used": torch.tensor([int(turn.is_used) for turn in turns]),
        "refine_start": torch.tensor([turn.start for turn in turns]),
        "refine_detail": NonTensorStack(*details),
    }
    columns = [row_columns(constraint, turn) for turn in turns]
    for name in columns[0]:
        fields[name] = jagged([torch.as_tensor(of_row[name]) for of_row in columns])
    write(batch, fields, [with_pair(tag, pair) for tag, pair in zip(batch.tags, pairs, strict=True)])


def write_nothing(batch: KVBatchMeta, pairs: list[Pair], constraint: Constraint) -> None:
    """Write rows without a refinement, whatever is there: padding copies a row, a dead worker leaves none."""
    turns = [
        Turn(
            response_length=tag["response_len"],
            start=0,
            ids=[],
            refinement=Refinement(verdict=pair.verdict),
            is_used=False,
            reward=math.nan,
        )
        for tag, pair in zip(batch.tags, pairs, strict=True)
    ]
    write_refinements(batch, turns, pairs, constraint)


def write_shown(batch: KVBatchMeta, shown: list[int]) -> None:
    """Number the shown rows among all rows of a step; ``shown`` has their positions."""
    numbers = torch.zeros(len(batch), dtype=torch.int64)
    numbers[shown] = torch.arange(1, len(shown) + 1)
    write(batch, {"refine_shown": numbers})


def write_log_probs(batch: KVBatchMeta, log_probs: list[list[float]]) -> None:
    """Write log pi_0 of the responses of all rows."""
    write(batch, {"kl_ref_log_prob": jagged(list(map(torch.tensor, log_probs)))})


def with_pair(tag: dict[str, Any], pair: Pair) -> dict[str, Any]:
    """Return a row's tag with its pair."""
    return {**tag, TAG: json.dumps({name: getattr(pair, name) for name in Pair.__dataclass_fields__})}


def pair_of(tag: dict[str, Any]) -> Pair | None:
    """Return a row's pair, from its tag; None if the row is not refined yet, or is padding.

    A checkpoint's tag may come from another version of this extension: names that this version lacks are ignored.
    """
    if TAG not in tag or tag.get("is_padding", False):
        return None
    known = json.loads(tag[TAG])
    pair = Pair(**{name: known[name] for name in Pair.__dataclass_fields__ if name in known})
    pair.verdict = Verdict(pair.verdict)
    return pair


def read_tags(batch: KVBatchMeta, rows: list[int]) -> None:
    """Update a batch with the current tags of some rows."""
    tags = tq.kv_list(batch.partition_id)[batch.partition_id]
    for row in rows:
        batch.tags[row] = tags[batch.keys[row]]


def read_records(batch: KVBatchMeta, tokenizer: Any, keep_image: Callable[[Any], str]) -> list[dict[str, Any]]:
    """Read refined rows as records: the prompt, the turn, a', both rewards, and the verdict.

    ``keep_image`` keeps an image of a prompt, and returns the name that stands for it in the record.
    """
    texts, tensors = ("raw_prompt", "extra_fields", "refine_detail"), ("prompts", "responses", "refine_ids")
    data = read(batch, *texts, *tensors)
    columns = [
        read_sources(batch),
        *(objects(data[name]) for name in texts),
        *(data[name].unbind() for name in tensors),
    ]
    rows = []
    for key, tag, source, chat, extra, detail, prompt, response, refined in zip(
        batch.keys, batch.tags, *columns, strict=True
    ):
        pair = pair_of(tag)
        assert pair is not None, "only refined rows are recorded"
        is_scored = pair.verdict.is_scored
        earlier, turn = response[: pair.start], response[pair.start :]
        rows.append(
            {
                "key": key,
                "data_source": source,
                "prompt": _shown(conversation(tokenizer, list(chat), prompt.tolist(), earlier.tolist())),
                "response": decode(tokenizer, turn),
                "feedback": feedback_of(_said(extra))[:MAX_FEEDBACK],
                "refined": decode(tokenizer, refined) if is_scored else None,
                "reward": pair.reward,
                "refined_reward": pair.refined_reward if is_scored else None,
                "verdict": pair.verdict,
                "detail": detail,
                **({"images": list(map(keep_image, images_in(chat)))} if has_pictures(chat) else {}),
            }
        )
    return rows


def _shown(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a chat as people read it, whose pictures are placeholders."""
    if not has_pictures(chat):
        return chat
    return [{**message, "content": for_people(message["content"] or "")} for message in as_text(chat)]


def read_tokens(
    batch: KVBatchMeta,
    tokenizer: Any,
    seen: Mapping[str, list[float]],
    paying: Collection[str],
    eta: float,
    scale: Callable[[str], float],
) -> list[dict[str, Any]]:
    """Read refined rows as records with the numbers of each token of a and a', after the update.

    ``seen`` has log pi_theta(a'_t) by key, where the update's own pass has computed it; tokens of the rows ``paying``
    are charged. ``scale`` returns the weight of a data source as a multiple of ``eta``.

    Returns:
        For each row the weight of its data source. For a, the last turn, and for a' the texts of the tokens, their
        log-probs under the policy before the update, and which the edit from a to a' keeps; of a also what each is
        charged, in nats (at most 0 by Eq. 6), and for which token of a'; of a' the weights in the cross-entropy. None:
        not measured, not charged, not imitated.
    """
    rows = []
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        one = tq.kv_batch_get(keys=[key], partition_id=batch.partition_id, select_fields=list(OF_TOKENS))
        known = {name: one[name].unbind()[0].tolist() for name in OF_TOKENS if name in one}
        pair = pair_of(tag)
        assert pair is not None, "only refined rows are recorded"
        of_turn = {name: known[name][pair.start :] for name in known if name in OF_RESPONSE}
        own, refined = of_turn["responses"], known["refine_ids"] if pair.verdict.is_scored else []
        weights, own_scale = known.get("refine_weights", []), scale(pair.source)
        matches = [block for block in Levenshtein.opcodes(own, refined) if block.tag == "equal"]
        response = {
            "tokens": tokenizer.batch_decode([[token] for token in own]),
            "log_probs": _rounded(of_turn["old_log_probs"]),
            "kept": _marked(len(own), [(block.src_start, block.src_end) for block in matches]),
            "charged": _rounded(of_turn["refine_charged"]) if key in paying else None,
            "counterparts": of_turn["refine_counterparts"] if key in paying else None,
        }
        rewrite = {
            "tokens": tokenizer.batch_decode([[token] for token in refined]),
            "log_probs": _rounded(known.get("refine_log_probs") or seen.get(key)),
            "kept": _marked(len(refined), [(block.dest_start, block.dest_end) for block in matches]),
            "weights": [weight / own_scale for weight in weights] if eta and any(weights) else None,
        }
        rows.append({"key": key, "eta": eta * own_scale, "response": response, "refined": rewrite if refined else None})
    return rows


def _rounded(values: list[float] | None) -> list[float | None] | None:
    """Return rounded numbers; None for infinity and NaN, which JSON lacks and a diverged model gives."""
    return None if values is None else [round(value, 5) if math.isfinite(value) else None for value in values]


def _marked(length: int, spans: Iterable[tuple[int, int]]) -> list[int]:
    marks = [0] * length
    for start, end in spans:
        marks[start:end] = [1] * (end - start)
    return marks


def select(batch: KVBatchMeta, wanted: list[int], *, num_chunks: int, fields: list[str]) -> KVBatchMeta:
    """Select rows, by positions, for a worker group, which gets them in equal contiguous chunks, one for each rank.

    Returns:
        The wanted rows, and the shortest other rows until each rank has as many. Every rank gets rows of about equal
        length. A step has enough rows: verl's ``_balance_batch`` makes them a multiple of the ranks.
    """
    length = [tag["seq_len"] for tag in batch.tags]
    others = sorted(set(range(len(batch))) - set(wanted), key=length.__getitem__)
    num_rows = -(-len(wanted) // num_chunks) * num_chunks
    by_length = sorted(wanted + others[: num_rows - len(wanted)], key=length.__getitem__)
    selected = rows_of(batch, [index for chunk in range(num_chunks) for index in by_length[chunk::num_chunks]])
    selected.fields = fields
    return selected


def for_actor(batch: KVBatchMeta, wanted: list[int], actor: Any, fields: list[str], temperature: float) -> KVBatchMeta:
    """Return the wanted rows and as many others as the actor's ranks need; the actor fills micro-batches."""
    num_chunks = max(actor._dispatch_info["actor"]) + 1  # as verl's _balance_batch counts ranks
    rows = select(batch, wanted, num_chunks=num_chunks, fields=fields)
    rows.extra_info = {"temperature": temperature}
    return rows


def read_rollouts(batch: KVBatchMeta) -> list[Rollout]:
    """Read the rollouts of some rows, with all that refining and rewarding needs; a missing reward is 0."""
    columns = ["num_turns", "extra_fields", *_columns_of_data_set(batch)]
    data = read(batch, "prompts", "responses", "response_mask", "rm_scores", *columns)
    rewards = [row.sum().item() for row in data["rm_scores"].unbind()] if "rm_scores" in data else [0.0] * len(batch)
    values = {name: objects(data[name]) for name in columns}
    turns, extras = values.pop("num_turns"), values.pop("extra_fields")
    return [
        Rollout(
            key=key,
            messages=list(values["raw_prompt"][row]),
            prompt_ids=prompt.tolist(),
            response_ids=response.tolist(),
            start=last_turn(mask.tolist()),
            reward=rewards[row],
            feedback=feedback_of(_said(extras[row])),
            is_wanted=not batch.tags[row].get(OVER_BUDGET, False),
            reward_columns=reward_columns({name: one[row] for name, one in values.items()}, turns[row], extras[row]),
        )
        for row, (key, prompt, response, mask) in enumerate(
            zip(batch.keys, *(data[name].unbind() for name in ("prompts", "responses", "response_mask")), strict=True)
        )
    ]


def read_sequences(batch: KVBatchMeta) -> list[tuple[list[int], list[int]]]:
    """Read prompt and response of every row, as ids."""
    data = read(batch, "prompts", "responses")
    prompts, responses = data["prompts"].unbind(), data["responses"].unbind()
    return [(prompt.tolist(), response.tolist()) for prompt, response in zip(prompts, responses, strict=True)]


def read_chats(batch: KVBatchMeta) -> list[list[dict[str, Any]]]:
    """Read the messages of every row's prompt, with its pictures."""
    return [list(chat) for chat in objects(read(batch, "raw_prompt")["raw_prompt"])]


def read_rewards(batch: KVBatchMeta) -> list[float]:
    """Read the reward of every row."""
    return [row.sum().item() for row in read(batch, "rm_scores")["rm_scores"].unbind()]


def read_sources(batch: KVBatchMeta) -> list[str | None]:
    """Read the data source of every row; None if the data set has none."""
    data = read(batch, "data_source")
    return list(map(str, objects(data["data_source"]))) if "data_source" in data else [None] * len(batch)


def read_numbers(batch: KVBatchMeta) -> list[dict[str, float | None]]:
    """Read the reward function's other fields for each row; None for values that are not finite numbers."""
    said = map(_said, objects(read(batch, "extra_fields")["extra_fields"]))
    return [{name: as_number(value) for name, value in of_row.items()} for of_row in said]


def _said(extra_fields: dict[str, Any]) -> dict[str, Any]:
    """Return the reward function's fields other than the reward."""
    return extra_fields.get("reward_extra_info", {})


def reward_columns(columns: dict[str, Any], num_turns: int, extra_fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields other than token ids that verl's ``AgentLoopWorker._compute_score`` sends to a reward worker.

    The columns are the data set's. The reward's own result, which the agent loop's fields have later, is left out.
    """
    loop = {name: value for name, value in extra_fields.items() if name != "reward_extra_info"}
    return {**columns, "__num_turns__": num_turns, "tool_extra_fields": loop}


def has_columns_of(constraint: Constraint, batch: KVBatchMeta) -> bool:
    """Return whether restored rows have this constraint's columns. Rows saved by another constraint lack some."""
    refinement = Refinement(verdict=Verdict.NONE)
    nothing = Turn(response_length=1, start=0, ids=[], refinement=refinement, is_used=False, reward=math.nan)
    return row_columns(constraint, nothing).keys() <= _columns(batch)


def _columns(batch: KVBatchMeta) -> set[str]:
    """Return the names of the columns that all rows have, from the queue's metadata."""
    return {*tq.get_client().kv_retrieve_meta(keys=batch.keys, partition_id=batch.partition_id).field_names}


def _columns_of_data_set(batch: KVBatchMeta) -> list[str]:
    return [name for name in sorted(_columns(batch) - BY_AGENT_LOOP) if not name.startswith(BY_THIS_EXTENSION)]


def objects(column: Any) -> list[Any]:
    """Return a column's values as a list, whichever type the queue chose for the column."""
    if isinstance(column, torch.Tensor):
        return list(column.unbind())
    return [value.data if isinstance(value, NonTensorData) else value for value in column]
