"""What the policy's workers do more than verl's: log pi_theta(a'), and its cross-entropy in the optimizer step."""

from functools import partial

import torch
from tensordict import TensorDict
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import response_from_nested

from recipe.online_refiner.constraint import NONE, charge
from recipe.online_refiner.loss import contexts, jagged, refined_loss, settings_of, with_refined_rows
from recipe.online_refiner.megatron import rows_multiple

SCORED_COLUMNS = [
    *("prompts", "responses", "response_mask"),
    *("refine_ids", "refine_mask", "refine_start", "refine_counterparts"),
]
"""What :meth:`ActorWorker.compute_refine_log_prob` reads."""


def refined_sequences(data: TensorDict) -> TensorDict:
    """Build the sequences (context, a') from TransferQueue rows, as input of verl's engines.

    Args:
        data: B rows with jagged ``prompts`` and ``responses``, ``refine_start`` (B,), jagged ``refine_ids`` and
            ``refine_mask`` (B, u), and batch-level settings. A row without a refinement (mask 0) becomes two tokens:
            every rank must run as many rows.

    Returns:
        Jagged ``input_ids``, ``position_ids`` and ``loss_mask`` (B, context + u), and a' as ``responses`` (B, u), the
        only positions that an engine has to compute; with the same settings.
    """
    rows = zip(contexts(data), data["refine_ids"].unbind(), data["refine_mask"].unbind(), strict=True)
    ids, positions, masks = [], [], []
    for before, refined, mask in rows:
        context = before if mask.any() else refined.new_zeros(1)
        ids.append(torch.cat([context, refined]))
        positions.append(torch.arange(len(ids[-1]), device=refined.device))
        masks.append(torch.cat([torch.zeros_like(context), mask]))
    tensors = {"input_ids": jagged(ids), "position_ids": jagged(positions), "loss_mask": jagged(masks)}
    return tu.get_tensordict({**tensors, "responses": data["refine_ids"]}, settings_of(data))


def eq6_columns(data: TensorDict, log_probs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what :meth:`ActorWorker.compute_refine_log_prob` says of rows with known log pi_theta(a')."""
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


class MiniBatchWorker(TrainingWorker):
    """verl's training worker; refined rows join a mini-batch if the trainer sends ``refine_eta`` with it."""

    def train_batch(self, data: TensorDict) -> TensorDict | None:
        """Make one optimizer step on a mini-batch."""
        if tu.get_non_tensor_data(data, "refine_eta", None) is not None:
            engine = self.engine_config
            data = with_refined_rows(
                data,
                dp_group=self.engine.get_data_parallel_group(),
                multiple=rows_multiple(engine, None if engine.use_dynamic_bsz else engine.micro_batch_size_per_gpu),
            )
        return super().train_batch(data)


class ActorWorker(DetachActorWorker):
    """verl's actor, rollout and reference worker, which also scores refinements and learns from them.

    Of verl's two the one that can put weights aside, as ``separate_async`` asks of it; otherwise they are the same.
    """

    actor_worker_cls = MiniBatchWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build the models and wrap the actor's loss."""
        super().init_model()
        if self.actor is not None:
            self.actor.set_loss_fn(partial(refined_loss, self.loss_fn))

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_refine_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Compute log pi_theta(a'_t | s0, a'_<t) under the current weights, without gradient, and Eq. 6 on it.

        Args:
            data: B rows with SCORED_COLUMNS (``rows.py``).

        Returns:
            ``refine_log_probs``, jagged (B, u); ``refine_charged``, jagged (B, response length), what Eq. 6 charges
            each token of a used pair for; ``refine_nll`` and ``refine_divergence`` (B,): minus their sums, in nats.
        """
        sequences = refined_sequences(data)
        tu.assign_non_tensor(sequences, calculate_entropy=False, compute_loss=False)
        output = self.actor.infer_batch(sequences)
        if output is None:
            return None
        log_probs = response_from_nested(output["log_probs"], data["refine_mask"]).cpu()
        return tu.get_tensordict({"refine_log_probs": log_probs, **eq6_columns(data, log_probs)})
