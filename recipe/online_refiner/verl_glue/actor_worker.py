"""The policy's workers, which also compute log pi_theta(a'), and its cross-entropy in the optimizer step."""

from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.padding import response_from_nested

from recipe.online_refiner.config.megatron import micro_batch_group
from recipe.online_refiner.method.eq6 import NONE, charge
from recipe.online_refiner.verl_glue.loss import (
    ONLY_RESPONSES,
    PICTURES,
    MicroBatches,
    Seen,
    contexts,
    continued,
    jagged,
    pictures_of,
    refined_loss,
    settings_of,
    shown_log_probs,
    with_refined_rows,
)
from recipe.online_refiner.verl_glue.patches import mend_models, split_positions

SCORED_COLUMNS = [
    "prompts",
    "responses",
    "response_mask",
    "position_ids",
    PICTURES,
    "refine_ids",
    "refine_mask",
    "refine_start",
    "refine_counterparts",
]
"""The columns that :meth:`ActorWorker.compute_refine_log_prob` reads."""
IN_PLACE_COLUMNS = ["responses", "position_ids", "refine_start", "refine_in_place_prompt"]
"""The columns that :meth:`ActorWorker.compute_in_place_log_prob` reads."""


def refined_sequences(data: TensorDict) -> TensorDict:
    """Build the sequences (context, a') from TransferQueue rows, as input of verl's engines.

    Args:
        data: B rows with jagged ``prompts``, ``responses`` and ``position_ids``, maybe ``PICTURES``, ``refine_start``
            (B,), jagged ``refine_ids`` and ``refine_mask`` (B, u), and batch-level settings. A row without a
            refinement (mask 0) becomes two tokens without pictures: every rank must run as many rows.

    Returns:
        Jagged ``input_ids``, ``position_ids`` and ``loss_mask`` (B, context + u), and a' as ``responses`` (B, u), the
        only positions that an engine has to compute; with the same settings, and ``PICTURES`` if ``data`` has them.
    """
    are_refined = [bool(mask.any()) for mask in data["refine_mask"].unbind()]
    rows = zip(contexts(data), are_refined, strict=True)
    before = [context if is_refined else torch.zeros_like(context[:1]) for context, is_refined in rows]
    lengths = zip(data["position_ids"].unbind(), before, data["refine_ids"].unbind(), strict=True)
    positions = [continued(own, len(context), len(ids)) for own, context, ids in lengths]
    pictures = None
    if PICTURES in data:
        own_pictures = zip(pictures_of(data), are_refined, strict=True)
        pictures = [one if is_refined else {} for one, is_refined in own_pictures]
    return sequences(before, data["refine_ids"], data["refine_mask"], positions, settings_of(data), pictures)


def in_place_sequences(data: TensorDict) -> TensorDict:
    """Build the sequences (c, turn) of B rows with IN_PLACE_COLUMNS, as input of verl's engines.

    c is the prompt in which pi_0 has read the better answer (target ``in_place``), a text, and turn is the last turn of
    the response. A response that does not end with a turn of the policy is used whole. A row that is not scored has a c
    of one token; its result is not used.
    """
    turns = [
        response[start:] if start < len(response) else response
        for response, start in zip(data["responses"].unbind(), data["refine_start"].tolist(), strict=True)
    ]
    masks, before = jagged([torch.ones_like(turn) for turn in turns]), data["refine_in_place_prompt"].unbind()
    lengths = zip(data["position_ids"].unbind(), before, turns, strict=True)
    positions = [continued(own, 1, len(prompt) + len(turn) - 1) for own, prompt, turn in lengths]
    return sequences(list(before), jagged(turns), masks, positions, settings_of(data))


def sequences(
    before: list[torch.Tensor],
    answers: torch.Tensor,
    masks: torch.Tensor,
    positions: list[torch.Tensor],
    settings: dict[str, Any],
    pictures: list[dict[str, Any]] | None = None,
) -> TensorDict:
    """Return the input of verl's engines for B sequences of a context and an answer, with the answers' mask."""
    ids = [torch.cat(one) for one in zip(before, answers.unbind(), strict=True)]
    rows = [torch.cat([torch.zeros_like(one), mask]) for one, mask in zip(before, masks.unbind(), strict=True)]
    columns: dict[str, Any] = {"input_ids": jagged(ids), "loss_mask": jagged(rows), "responses": answers}
    columns["position_ids"] = tu.nested_tensor_from_tensor_list(positions)
    if pictures is not None:
        columns[PICTURES] = pictures
    return tu.get_tensordict(columns, {**settings, ONLY_RESPONSES: True})


def eq6_columns(data: TensorDict, log_probs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the columns of :meth:`ActorWorker.compute_refine_log_prob` for rows with known log pi_theta(a')."""
    charged = charge(
        refine_log_probs=log_probs.to_padded_tensor(0.0).float(),
        counterparts=data["refine_counterparts"].cpu().to_padded_tensor(NONE),
        response_mask=data["response_mask"].cpu().to_padded_tensor(0),
    )
    lengths = data["responses"].offsets().diff().tolist()
    masks = data["refine_mask"].cpu().unbind()
    nll = [-row[mask.bool()].sum() for row, mask in zip(log_probs.unbind(), masks, strict=True)]
    return {
        "refine_charged": jagged([row[:length] for row, length in zip(charged, lengths, strict=True)]),
        "refine_nll": torch.stack(nll).float(),
        "refine_divergence": -charged.sum(-1),
    }


def even_micro_batches(num_rows: int, *, size: int, group: int = 1) -> tuple[int, int]:
    """Return (number of micro-batches, rows in each): the fewest that fit, all of the same size.

    So a mini-batch that is one row too long becomes two halves, and not a micro-batch of padding. A micro-batch has at
    most ``size`` rows, and the number of micro-batches is a multiple of ``group`` (:func:`micro_batch_group`).
    """
    count = -(-num_rows // (size * group)) * group
    return count, -(-num_rows // count)


def filled(data: TensorDict, micro_batches: MicroBatches) -> TensorDict:
    """Return rows of an engine's input, with the shortest ones repeated until they fill their micro-batches.

    verl's engines refuse a number that does not fill the last micro-batch (``prepare_micro_batches``).
    """
    count, size = micro_batches(len(data))
    if num_missing := count * size - len(data):
        shortest = int(data["input_ids"].offsets().diff().argmin())
        data = tu.index_select_tensor_dict(data, [*range(len(data)), *[shortest] * num_missing])
    tu.assign_non_tensor(data, micro_batch_size_per_gpu=size)
    return data


def evened(metrics: dict[str, Any], num_ranks: int) -> dict[str, Any]:
    """Return an update's metrics with the same number of values from each rank, as ``Metric.aggregate_dp`` requires.

    A micro-batch that has only refined rows gives no value of verl's metrics. For each missing value, 0 is added to a
    sum, and a rank's own aggregate to any other metric, so that no aggregate changes.

    Args:
        metrics: One ``Metric`` for each rank that has it, or other values, by name.
        num_ranks: The number of data-parallel ranks.
    """
    found = dict(metrics)
    for name, of_ranks in metrics.items():
        if not (isinstance(of_ranks, list) and isinstance(of_ranks[0], Metric)):
            continue
        is_sum = of_ranks[0].aggregation is AggregationType.SUM
        found[name] = of_ranks + [of_ranks[0].init_list() for _ in range(is_sum * (num_ranks - len(of_ranks)))]
        most = max(len(one.values) for one in of_ranks)
        for one in found[name]:
            one.extend([0.0 if is_sum else one.aggregate()] * (most - len(one.values)))
    return found


class MiniBatchWorker(TrainingWorker):
    """verl's training worker; refined rows join a mini-batch if the trainer sends ``refine_eta`` with it."""

    def __init__(self, config: TrainingWorkerConfig) -> None:
        super().__init__(config)
        # Only here: it imports all engines that are installed, which the driver does not need.
        from recipe.online_refiner.verl_glue.actor_engine import leave_out_what_no_loss_reads

        leave_out_what_no_loss_reads(self.engine)

    def train_batch(self, data: TensorDict) -> TensorDict | None:
        """Make one optimizer step on a mini-batch."""
        if tu.get_non_tensor_data(data, "refine_eta", None) is not None:
            micro_batches = self._micro_batches(self.engine_config.micro_batch_size_per_gpu)
            group = self.engine.get_data_parallel_group()
            data = with_refined_rows(data, dp_group=group, micro_batches=micro_batches)
        output = super().train_batch(data)
        if output is not None and "refine_loss_mask" in data:
            metrics, group = tu.get(output, "metrics"), self.engine.get_data_parallel_group()
            tu.assign_non_tensor(output, metrics=evened(metrics, torch.distributed.get_world_size(group)))
        return output

    def infer_batch(self, data: TensorDict) -> TensorDict | None:
        """Compute as verl's worker does, for any number of rows."""
        split_positions(data)
        micro_batches = self._micro_batches(self.engine_config.infer_micro_batch_size_per_gpu)
        output = super().infer_batch(filled(data, micro_batches))
        if output is None or len(output) == len(data):
            return output
        return tu.index_select_tensor_dict(output, list(range(len(data))))

    def _micro_batches(self, size: int) -> MicroBatches:
        """Return how rows are divided, at most ``size`` in a micro-batch; dynamic micro-batches have as many as fit."""
        engine = self.engine_config
        return partial(even_micro_batches, size=1 if engine.use_dynamic_bsz else size, group=micro_batch_group(engine))


class ActorWorker(DetachActorWorker):
    """verl's actor, rollout and reference worker, which also scores refinements and learns from them.

    verl has two classes of workers, which differ in one point: the class that is extended here can put weights aside,
    as ``separate_async`` needs.
    """

    actor_worker_cls = MiniBatchWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build the models and wrap the actor's loss."""
        mend_models()
        super().init_model()
        self.seen: list[Seen] = []
        if self.actor is not None:
            self.actor.set_loss_fn(partial(refined_loss, self.loss_fn, seen=self.seen))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take_shown_log_probs(self) -> dict[int, list[float]]:
        """Return log pi_theta(a'_t) of this rank's shown rows, as the last update saw it (:func:`shown_log_probs`)."""
        found = shown_log_probs(self.seen)
        self.seen.clear()
        return found

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_refine_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Compute log pi_theta(a'_t | s0, a'_<t) of B rows under the current weights, and Eq. 6 on it.

        Returns:
            ``refine_log_probs``, jagged (B, u); ``refine_charged``, jagged (B, response length), what Eq. 6 charges
            each token of a used pair for; ``refine_nll`` and ``refine_divergence`` (B,): minus their sums, in nats.
        """
        split_positions(data)
        sequences = refined_sequences(data)
        tu.assign_non_tensor(sequences, calculate_entropy=False, compute_loss=False)
        output = self.actor.infer_batch(sequences)
        if output is None:
            return None
        log_probs = response_from_nested(output["log_probs"], data["refine_mask"]).cpu()
        return tu.get_tensordict({"refine_log_probs": log_probs, **eq6_columns(data, log_probs)})

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_in_place_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Compute log pi_0(a_t | c, a_<t) of B rows' last turns: pi_0 is the policy without its adapter.

        Returns:
            ``refine_in_place``, jagged (B, response length), 0 before the turn.
        """
        split_positions(data)
        rows = in_place_sequences(data)
        tu.assign_non_tensor(
            rows, calculate_entropy=False, compute_loss=False, no_lora_adapter=True, **{ONLY_RESPONSES: True}
        )
        output = self.actor.infer_batch(rows)
        if output is None:
            return None
        turns = response_from_nested(output["log_probs"], rows["responses"]).cpu().float()
        scores = [torch.zeros(length) for length in data["responses"].offsets().diff().tolist()]
        for row, turn in zip(scores, turns.unbind(), strict=True):
            row[len(row) - len(turn) :] = turn
        return tu.get_tensordict({"refine_in_place": jagged(scores)})
