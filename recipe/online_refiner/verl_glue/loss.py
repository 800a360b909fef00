"""The loss of modes with an imitation: verl's policy loss plus eta times the cross-entropy of used refinements.

    L = L_policy + eta * CE
    CE = -(1 / N) * sum over used pairs and all tokens t of w_t * log pi_theta(a'_t | s0, a'_<t)

With ``constraint.sft_normaliser=batch`` N is the divisor of verl's policy loss (``loss_agg_mode``: token-mean divides
by the tokens of all responses; the loss ``sapo`` averages each response). With ``accepted`` N is the number of tokens
of used refinements in the whole mini-batch, over all data-parallel ranks. The weight w_t is 1; in mode ``lagrangian``
it is the number of tokens of a that are charged for a'_t (``Lagrangian.times_charged``).

A mode of one's own may replace -log pi_theta(a'_t) by a loss from the logits (``LogitsLoss``).

The refinements are rows of the actor's own forward and backward pass: (context, a') with an empty response mask. No
second pass is made, because Megatron's distributed optimizer finalises gradients once per pass. verl's own loss, which
may be that of its distillation, gets the other rows of a micro-batch alone, and its denominators are the run's own.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from recipe.online_refiner.method.imitation import SEQUENCE_LOSSES, LogitsLoss
from recipe.online_refiner.metric_names import SFT_LOSS

Loss = tuple[Tensor, dict[str, Any]]
"""The result of verl's losses: the loss and its metrics."""

Seen = tuple[Tensor, Tensor, Tensor]
"""The log-probs of a micro-batch of B rows: jagged ``refine_shown`` and ``refine_loss_mask``, log-probs (B, T)."""
MicroBatches = Callable[[int], tuple[int, int]]
"""A function from a number of rows to the number of micro-batches and the rows in each."""
ONLY_RESPONSES = "only_responses"
"""The setting of a batch that asks for outputs of responses alone (``actor_engine.py``)."""
ZEROS = ("loss_mask", "response_mask", "advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights")
"""Fields of verl's policy loss, (response length,) each; all zero in a refined row. The last two may be absent."""
WHOLE_ZEROS = ("teacher_ids", "teacher_logprobs", "routed_experts")
"""Fields of whole sequences, (sequence length, ...) each; all zero in a refined row. They may be absent.

The first two are of verl's distillation loss, (sequence length, k). ``routed_experts`` (sequence length, layers, k)
has the experts that the rollout chose (router replay R3). Megatron replays them only in rows that have policy tokens
(``build_r3_replay_mask``); in refined rows each router chooses.
"""
PICTURES = "multi_modal_inputs"
"""verl's column for models that see: each row has the pictures of its prompt as tensors by name, or none."""


def refined_loss(
    verl_loss: partial[Loss],
    *,
    data: TensorDict,
    model_output: dict[str, Any] | None = None,
    dp_group: Any = None,
    student_logits: Tensor | None = None,
    data_format: str = "thd",
    seen: list[Seen] | None = None,
) -> Any:
    """Return verl's loss and metrics, plus eta * CE if the micro-batch belongs to a mini-batch with refined rows.

    Args:
        verl_loss: The loss of the run, ``ppo_loss`` or ``distillation_ppo_loss`` with the actor's config.
        data: A micro-batch; with jagged ``refine_loss_mask`` and ``refine_weights`` (B, response) and the settings
            ``refine_eta``, ``refine_normaliser``, ``refine_num_tokens`` and ``refine_longest`` if rows ride along.
            With the setting ``refine_loss``, a ``LogitsLoss``, also with its columns.
        model_output: The engine's output, with ``log_probs`` and what :func:`outputs_of_logits` has returned.
        dp_group: The data-parallel process group.
        student_logits: The logits, (1, tokens, vocabulary), or a rank's part of them; None: the engine calls the loss
            with its output.
        data_format: The layout of the logits in verl's words, such as ``thd``.
        seen: The list to which the log-probs of refined rows are added; None: they are not kept.

    Returns:
        With ``student_logits``, the result of :func:`outputs_of_logits`. Otherwise the loss and its metrics; summed
        over micro-batches and ranks, the loss has the CE of this module's formula.
    """
    if student_logits is not None:
        return outputs_of_logits(verl_loss, data, student_logits, data_format)
    assert model_output is not None
    if "refine_loss_mask" not in data:
        return verl_loss(model_output=model_output, data=data, dp_group=dp_group)
    config = scaled(verl_loss.keywords["config"], data)
    loss, metrics = policy_loss(partial(verl_loss, config=config, dp_group=dp_group), data, model_output)
    if seen is not None:
        log_probs = no_padding_2_padding(model_output["log_probs"], data)
        seen.append((data["refine_shown"], data["refine_loss_mask"], log_probs.detach()))
    mode, sizes = divisor(verl_loss, config, data)
    mask = data["refine_loss_mask"].to_padded_tensor(0)
    value = agg_loss(token_losses(data, model_output), mask, mode, **sizes)
    metrics[SFT_LOSS] = Metric(value=value.detach(), aggregation=AggregationType.SUM)
    return loss + data["refine_eta"] * value, metrics


def outputs_of_logits(
    verl_loss: partial[Any], data: TensorDict, student_logits: Tensor, data_format: str
) -> dict[str, Tensor]:
    """Return what is computed from the logits, (tokens,) each: for verl's distillation, and for the mode's own loss.

    Engines call the loss with the logits first where ``distillation_use_topk`` is set, as they call
    ``distillation_ppo_loss`` of ``verl/trainer/distillation/losses.py``.
    """
    distillation, own = verl_loss.keywords.get("distillation_config"), own_loss(data)
    found: dict[str, Tensor] = {}
    if distillation is not None and distillation.distillation_loss.loss_settings.use_topk:
        found |= verl_loss(data=data, student_logits=student_logits, data_format=data_format)
    if own is not None:
        found |= own.of_logits(verl_loss.keywords["config"], data, student_logits, data_format)
    return found


def scaled(config: Any, data: TensorDict) -> Any:
    """Return the actor's config with a ``loss_scale_factor`` if ``loss_agg_mode`` needs one and none is set.

    verl then divides by the longest response of each micro-batch. Refined rows change which responses are together,
    so the longest response of the mini-batch takes its place.
    """
    if config.loss_agg_mode != "seq-mean-token-sum-norm" or config.loss_scale_factor is not None:
        return config
    return replace(config, loss_scale_factor=data["refine_longest"])


def policy_loss(verl_loss: partial[Loss], data: TensorDict, model_output: dict[str, Any]) -> Loss:
    """Return verl's loss and metrics of the rows that have policy tokens; 0 and no metrics if no row has one.

    verl's loss is not called without rows, because the metrics of its distillation take a minimum over the tokens.
    """
    rows = data["response_mask"].to_padded_tensor(0).any(-1).nonzero().squeeze(-1).tolist()
    if not rows:
        return data["old_log_probs"].values().new_zeros(()), {}
    if len(rows) < len(data):
        data = tu.index_select_tensor_dict(data, rows)
        parts = {name: values.unbind() for name, values in model_output.items()}
        model_output = {name: jagged([values[row] for row in rows]) for name, values in parts.items()}
    return verl_loss(model_output=model_output, data=data)


def token_losses(data: TensorDict, model_output: dict[str, Any]) -> Tensor:
    """Return the weighted loss of each token of a' in refined rows, (B, T): -log pi_theta(a'_t), or the mode's own."""
    log_probs, own = no_padding_2_padding(model_output["log_probs"], data), own_loss(data)
    losses = -log_probs
    if own is not None:
        output = {name: no_padding_2_padding(model_output[name], data) for name in own.outputs}
        losses = own.of_tokens(log_probs, output)
    return data["refine_weights"].to_padded_tensor(0).to(log_probs.dtype) * losses


def divisor(verl_loss: partial[Loss], config: Any, data: TensorDict) -> tuple[str, dict[str, Any]]:
    """Return how the tokens' losses are summed and divided, as arguments of verl's ``agg_loss``.

    The engine averages gradients over ranks, so the sum is multiplied by ``dp_size``.
    """
    if data["refine_normaliser"] == "accepted":
        return "token-mean", {"dp_size": data["dp_size"], "batch_num_tokens": data["refine_num_tokens"]}
    names = ("dp_size", "batch_num_tokens", "global_batch_size")
    sizes = {**{name: data[name] for name in names}, "loss_scale_factor": config.loss_scale_factor}
    distillation = verl_loss.keywords.get("distillation_config")
    learns_rewards = distillation is None or distillation.distillation_loss.use_task_rewards
    by_row = learns_rewards and config.policy_loss.loss_mode in SEQUENCE_LOSSES
    return "seq-mean-token-mean" if by_row else config.loss_agg_mode, sizes


def shown_log_probs(seen: list[Seen]) -> dict[int, list[float]]:
    """Return log pi_theta(a'_t) of the refined rows that are shown, by their numbers, from the first of several passes.

    The tensors are read here, after the update: to read them in the loss would let the device wait.
    """
    found: dict[int, list[float]] = {}
    for shown, masks, log_probs in seen:
        for numbers, mask, row in zip(shown.unbind(), masks.unbind(), log_probs, strict=True):
            for number in numbers.tolist():
                if number and number not in found:
                    found[number] = row[: len(mask)].tolist()
    return found


def own_loss(data: TensorDict) -> LogitsLoss | None:
    """Return the ``LogitsLoss`` in a batch's settings; None if the loss of a token is -log pi_theta(a'_t)."""
    return tu.get_non_tensor_data(data, "refine_loss", None)


def settings_of(data: TensorDict) -> dict[str, Any]:
    """Return the batch-level settings of a TensorDict: entries that are neither tensors nor lists by row."""
    return {key: value.data for key, value in data.items() if isinstance(value, NonTensorData)}


def jagged(rows: list[Tensor]) -> Tensor:
    """Return rows of different lengths as one nested tensor."""
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def contexts(data: TensorDict) -> list[Tensor]:
    """Return the ids before each refined turn of some rows: the prompt and, in a later turn, the session so far."""
    rows = zip(data["prompts"].unbind(), data["responses"].unbind(), data["refine_start"].tolist(), strict=True)
    return [torch.cat([prompt, response[:start]]) for prompt, response, start in rows]


def pictures_of(data: TensorDict) -> list[dict[str, Any]]:
    """Return the pictures of each row, as verl's vision models take them (``PICTURES``); {} for a row of text."""
    return [one or {} for one in data[PICTURES]] if PICTURES in data else [{}] * len(data)


def are_equal(some: dict[str, Any], others: dict[str, Any]) -> bool:
    """Return whether two rows have the same pictures; False if these are not tensors."""
    if some.keys() != others.keys():
        return False
    return all(isinstance(value, Tensor) and torch.equal(value, others[name]) for name, value in some.items())


def continued(positions: Tensor, length: int, num_tokens: int) -> Tensor:
    """Return a row's positions up to its first ``length`` tokens, and those of ``num_tokens`` tokens of text after.

    Args:
        positions: (tokens,); of models with M-RoPE (4, tokens), as verl has them: the first line counts tokens, and
            the others are time, height and width. After a picture these go on together from the largest of them.
        length: At least 1.
        num_tokens: The number of tokens of text.
    """
    before = positions[..., :length]
    last = before.amax(-1, keepdim=True)
    if last.dim() > 1:
        last[1:] = last[1:].amax()
    return torch.cat([before, last + torch.arange(1, num_tokens + 1, dtype=last.dtype, device=last.device)], -1)


def joined(data: TensorDict) -> TensorDict:
    """Return a mini-batch in which the first of several equal refinements stands for all of them.

    Refinements are equal if their ids, the ids before them and their pictures are. The row's weights are the sum of
    theirs, which is exact because a row's loss is linear in its weights, and its ``refine_shown`` has all their
    numbers.
    Nothing is joined if the mode has a ``LogitsLoss`` with columns, which may differ between equal refinements.
    """
    own = own_loss(data)
    if own is not None and own.columns:
        return data
    used, weights = data["refine_used"].tolist(), list(data["refine_weights"].unbind())
    shown = list(data.get("refine_shown", torch.zeros_like(data["refine_used"])).reshape(-1, 1))
    pictures, rows = pictures_of(data), defaultdict[tuple[int, ...], list[int]](list)
    for row, (context, ids) in enumerate(zip(contexts(data), data["refine_ids"].unbind(), strict=True)):
        if not used[row]:
            continue
        alike = rows[(len(context), *context.tolist(), *ids.tolist())]
        first = next((one for one in alike if are_equal(pictures[one], pictures[row])), None)
        if first is None:
            alike.append(row)
            continue
        used[row] = 0
        weights[first] = weights[first] + weights[row]
        shown[first] = torch.cat([shown[first], shown[row]])
    data = data.copy()
    data["refine_used"] = torch.tensor(used, device=data["refine_used"].device)
    data["refine_weights"], data["refine_shown"] = jagged(weights), jagged(shown)
    return data


@dataclass(slots=True, frozen=True, kw_only=True)
class RefinedRow:
    """A row that is appended to a mini-batch: an accepted refinement a', or an empty row."""

    context: Tensor
    """(context length,) the ids before a'."""
    ids: Tensor
    """(len a',) the ids of a'."""
    mask: Tensor
    """(len a',) 1; 0 in an empty row."""
    weights: Tensor
    """(len a',) the weights of the tokens in CE."""
    shown: Tensor
    """The numbers of the shown refinements for which the row stands; 0: none."""
    positions: Tensor
    """(..., context length + len a') the positions of all tokens (:func:`continued`)."""
    pictures: dict[str, Any]
    """The pictures in the context (``PICTURES``)."""


def refined_rows(data: TensorDict) -> list[RefinedRow]:
    """Return the used refinements of a mini-batch as rows."""
    shown = data.get("refine_shown", torch.zeros_like(data["refine_used"]))  # nobody asks for some
    columns = (data[name].unbind() for name in ("refine_ids", "refine_weights", "position_ids"))
    rows = zip(contexts(data), *columns, shown.unbind(), pictures_of(data), strict=True)
    used = data["refine_used"].bool().tolist()
    return [
        RefinedRow(
            context=context,
            ids=ids,
            mask=torch.ones_like(ids),
            weights=weights,
            shown=numbers.reshape(-1),
            positions=continued(positions, len(context), len(ids)),
            pictures=pictures,
        )
        for context, ids, weights, positions, numbers, pictures in compress(rows, used)
    ]


def empty_row(data: TensorDict) -> RefinedRow:
    """Return a row of two tokens without a loss and without pictures, which fills a micro-batch."""
    token = data["prompts"].unbind()[0][:1]
    zero = torch.zeros_like(token)
    positions = continued(data["position_ids"].unbind()[0], 1, 1)
    weights = zero.float()
    return RefinedRow(
        context=token, ids=token, mask=zero, weights=weights, shown=zero, positions=positions, pictures={}
    )


def append_refined_rows(data: TensorDict, num_rows: int) -> TensorDict:
    """Append the accepted refinements of a mini-batch as rows, and empty rows up to a number.

    Args:
        data: A mini-batch of B rows: what verl's loss and engines read, and ``refine_ids``, ``refine_weights`` (both
            jagged), ``refine_used``, ``refine_start`` (B,) and maybe ``refine_shown``, (B,), or jagged if a row has
            several numbers.
        num_rows: The number of rows to append, at least as many as are accepted.

    Returns:
        B + num_rows rows with the fields that engines and loss read, ``refine_loss_mask`` and ``refine_weights``
        (jagged, response length), ``refine_shown`` (jagged), and the same settings. With a ``LogitsLoss`` they also
        have its columns, with 0 entries in rows of responses. Rows beyond the accepted ones have two tokens and masks
        of 0.
    """
    added = refined_rows(data)
    added += [empty_row(data)] * (num_rows - len(added))
    rows = {name: [*data[name].unbind()] for name in ("prompts", "responses", "input_ids")}
    masks, nothing = [torch.zeros_like(one) for one in rows["responses"]], torch.zeros_like(rows["prompts"][0][:1])
    rows["prompts"] += [row.context for row in added]
    rows["responses"] += [row.ids for row in added]
    rows["input_ids"] += [torch.cat([row.context, row.ids]) for row in added]
    rows["refine_loss_mask"] = masks + [row.mask for row in added]
    rows["refine_weights"] = [one.float() for one in masks] + [row.weights for row in added]
    rows["refine_shown"] = [nothing] * len(data) + [row.shown for row in added]
    for name in [one for one in ZEROS if one in data]:
        own = data[name].unbind()
        rows[name] = [*own, *(torch.zeros_like(row.ids, dtype=own[0].dtype) for row in added)]
    for name in [one for one in WHOLE_ZEROS if one in data]:
        own = data[name].unbind()
        rows[name] = [*own, *(own[0].new_zeros(len(row.context) + len(row.ids), *own[0].shape[1:]) for row in added)]
    rows |= _columns_of_loss(data, num_rows)
    columns: dict[str, Any] = {name: jagged(values) for name, values in rows.items()}
    positions = [*data["position_ids"].unbind(), *(row.positions for row in added)]
    columns["position_ids"] = tu.nested_tensor_from_tensor_list(positions)
    if PICTURES in data:
        columns[PICTURES] = pictures_of(data) + [row.pictures for row in added]
    return tu.get_tensordict(columns, settings_of(data))


def _columns_of_loss(data: TensorDict, num_rows: int) -> dict[str, list[Tensor]]:
    """Return the columns of the mode's ``LogitsLoss`` with ``num_rows`` rows more; only refined rows have entries."""
    loss, used = own_loss(data), data["refine_used"].bool().tolist()
    columns = {}
    for name in loss.columns if loss is not None else ():
        values = data[name].unbind()
        refined, empty = [*compress(values, used)], values[0][:0]
        columns[name] = [empty] * len(data) + refined + [empty] * (num_rows - len(refined))
    return columns


def with_refined_rows(data: TensorDict, *, dp_group: Any, micro_batches: MicroBatches) -> TensorDict:
    """Let the accepted refinements of a mini-batch ride along, the same number of rows on every data-parallel rank.

    Returns:
        The longer mini-batch with the settings ``refine_num_tokens`` and ``refine_longest``, the tokens of the longest
        response; ``data``, this rank's share, if no rank has one.
    """
    lengths, used = data["refine_ids"].offsets().diff(), data["refine_used"].bool()
    num_tokens = torch.tensor(int(lengths[used].sum()), device=get_device_id())
    data = joined(data)
    sizes = (int(data["refine_used"].sum()), int(data["responses"].offsets().diff().max()))
    largest = torch.tensor(sizes, device=get_device_id())
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=dp_group)
    torch.distributed.all_reduce(num_tokens, op=torch.distributed.ReduceOp.SUM, group=dp_group)
    if not num_tokens:
        return data
    num_rows, longest = largest.tolist()
    count, size = micro_batches(len(data) + num_rows)
    longer = append_refined_rows(data, count * size - len(data))
    # Where rows are padded to the longest of their micro-batch, those of about equal length are together.
    longer = tu.index_select_tensor_dict(longer, longer["input_ids"].offsets().diff().argsort(stable=True).tolist())
    tu.assign_non_tensor(longer, refine_num_tokens=int(num_tokens), refine_longest=longest)
    tu.assign_non_tensor(longer, micro_batch_size_per_gpu=size)
    tu.assign_non_tensor(longer, distillation_only=False)  # with it, engines would compute no log-probs
    if own_loss(longer) is not None:
        tu.assign_non_tensor(longer, distillation_use_topk=True)
    return longer
