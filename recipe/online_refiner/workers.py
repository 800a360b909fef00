"""The actor's worker, with one method more: log pi_theta(a') of refinements."""

import torch
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_from_nested


def refined_sequences(data: TensorDict) -> TensorDict:
    """Build the sequences (prompt, a') from TransferQueue rows, as input of verl's engines.

    Args:
        data: B rows with jagged ``prompts`` (B, j), ``refine_ids`` and ``refine_mask`` (B, u), and batch-level
            settings. A row without a refinement (mask 0) becomes two tokens: every rank must run as many rows.

    Returns:
        Jagged ``input_ids``, ``position_ids`` and ``loss_mask`` (B, prompt + u), with the same settings.
    """
    rows = zip(data["prompts"].unbind(), data["refine_ids"].unbind(), data["refine_mask"].unbind(), strict=True)
    ids, positions, masks = [], [], []
    for prompt, refined, mask in rows:
        context = prompt if mask.any() else refined.new_zeros(1)
        ids.append(torch.cat([context, refined]))
        positions.append(torch.arange(len(ids[-1]), device=refined.device))
        masks.append(torch.cat([torch.zeros_like(context), mask]))
    settings = {key: value.data for key, value in data.items() if isinstance(value, NonTensorData)}
    tensors = {
        name: torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        for name, rows in (("input_ids", ids), ("position_ids", positions), ("loss_mask", masks))
    }
    return tu.get_tensordict(tensors, settings)


class RefinerActorWorker(ActorRolloutRefWorker):
    """verl's actor, rollout and reference worker, which also scores refinements."""

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_refine_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Return ``refine_log_probs``, jagged (B, u): log pi_theta(a'_t | s0, a'_<t), current weights, no gradient."""
        output = self.actor.infer_batch(refined_sequences(data))
        if output is None:
            return None
        log_probs = response_from_nested(output["log_probs"], data["refine_mask"])
        return tu.get_tensordict({"refine_log_probs": log_probs.cpu()})
