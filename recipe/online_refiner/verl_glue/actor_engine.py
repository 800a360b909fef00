"""The actor's FSDP engine, which does not compute what no loss reads: logits of prompts, and padding rows.

A prompt is often longer than its response, and a small model's vocabulary is a fifth of its weights. verl's engine
computes logits of all tokens and drops those of the prompts.
"""

import inspect
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import PreTrainedModel
from verl.utils import tensordict_utils as tu
from verl.workers.engine import BaseEngine
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from recipe.online_refiner.verl_glue.loss import ONLY_RESPONSES


def leave_out_what_no_loss_reads(engine: BaseEngine) -> None:
    """Make an engine an :class:`ActorEngine` if its class is verl's FSDP engine itself, and not a subclass of it.

    The engine's class is changed because verl's registry refuses a second class for the same kind of engine.
    """
    if type(engine) is FSDPEngineWithLMHead:
        engine.__class__ = ActorEngine


class ActorEngine(FSDPEngineWithLMHead):
    """verl's engine. With the setting ONLY_RESPONSES it computes the outputs of responses, and may put 0 elsewhere.

    The setting changes nothing where the model cannot choose (:func:`takes_positions`), or where verl needs all logits
    or none: fused kernels, top-k losses, Ulysses, ``pad_to_length``.
    """

    def forward_step(self, micro_batch: TensorDict, loss_function: Any, forward_only: bool) -> Any:
        """Run a micro-batch of an update without its empty rows, but with at least one row.

        An empty row fills a micro-batch up to its size. Where the rows of a micro-batch are padded, an empty row would
        cost as much as the longest row. The number of micro-batches stays the same, so ranks stay in step.
        """
        if not forward_only and "refine_loss_mask" in micro_batch:
            is_filling = ~has_loss(micro_batch) & (micro_batch["input_ids"].offsets().diff() == 2)
            rows = (~is_filling).nonzero().squeeze(-1).tolist() or [0]
            if len(rows) < len(micro_batch):
                micro_batch = tu.index_select_tensor_dict(micro_batch, rows)
        return super().forward_step(micro_batch, loss_function, forward_only)

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Name the tokens whose logits are computed: the last one of each prompt, and the response."""
        inputs, arguments = super().prepare_model_inputs(micro_batch)
        if not self._leaves_out(micro_batch):
            return inputs, arguments
        offsets = micro_batch["input_ids"].offsets()
        lengths, first = offsets.diff(), first_wanted(micro_batch)
        is_packed = tu.get_non_tensor_data(micro_batch, "use_remove_padding", True)
        if not is_packed:  # logits are of the same columns in all rows
            first = first.min().expand_as(first)
        row = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
        column = torch.arange(len(row), device=lengths.device) - offsets[row]
        places = (column >= first[row]).nonzero().squeeze(-1)
        inputs["logits_to_keep"] = places if is_packed else torch.arange(int(first[0]), int(lengths.max())).to(places)
        for name in ("input_ids_rmpad_rolled", "temperature_rmpad"):
            if name in arguments:
                arguments[name] = arguments[name][places]
        arguments["places"] = places
        return inputs, arguments

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """Put verl's outputs for these tokens back to the tokens' places."""
        places = output_args.get("places")
        if places is None:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        ids, shorter = micro_batch["input_ids"], micro_batch.copy()
        num_before = torch.zeros_like(ids.values()).index_fill(0, places, 1).cumsum(0)
        offsets = torch.cat([ids.offsets()[:1], num_before[ids.offsets()[1:] - 1]])
        shorter["input_ids"] = torch.nested.nested_tensor_from_jagged(ids.values()[places], offsets)
        found = super().prepare_model_outputs(output, output_args, shorter, logits_processor_func)
        return {name: put_back(values.values(), places, ids) for name, values in found.items()}

    def _leaves_out(self, micro_batch: TensorDict) -> bool:
        names = (ONLY_RESPONSES, "use_fused_kernels", "distillation_use_topk")
        is_asked, is_fused, has_teacher = (tu.get_non_tensor_data(micro_batch, name, False) for name in names)
        needs_all = is_fused or has_teacher or self.use_ulysses_sp or self.pad_to_length
        return is_asked and not needs_all and takes_positions(self.module)


def takes_positions(module: torch.nn.Module) -> bool:
    """Return whether transformers defines the model's forward pass, and it takes ``logits_to_keep`` as positions."""
    model = next((part for part in module.modules() if isinstance(part, PreTrainedModel)), None)
    if model is None:
        return False
    forward = inspect.unwrap(model.forward)
    return forward.__module__.startswith("transformers.") and "logits_to_keep" in inspect.signature(forward).parameters


def has_loss(data: TensorDict) -> Tensor:
    """Return a mask (B,) of the rows that have a token in a loss."""
    masks = [data[name] for name in ("loss_mask", "refine_loss_mask") if name in data]
    counts = [mask.to_padded_tensor(0).sum(-1) for mask in masks]
    return torch.stack(counts).sum(0) > 0


def first_wanted(data: TensorDict) -> Tensor:
    """Return the position of the first token of each row whose logits are wanted, (B,).

    A row without a loss needs no logits. Its position is that of its last token, or the earliest position of the other
    rows if that is later.

    Args:
        data: Rows with jagged ``input_ids``, ``responses`` (their ends), ``loss_mask`` and maybe ``refine_loss_mask``.
    """
    lengths, is_read = data["input_ids"].offsets().diff(), has_loss(data)
    starts = (lengths - data["responses"].offsets().diff() - 1).clamp(min=0)
    earliest = starts[is_read].min() if is_read.any() else 0
    return torch.where(is_read, starts, (lengths - 1).clamp(min=earliest))


def put_back(values: Tensor, places: Tensor, like: Any) -> Tensor:
    """Return jagged rows of the shape of ``like``: value i at flat position ``places[i]``, 0 at other tokens."""
    total = values.new_zeros((len(like.values()), *values.shape[1:])).index_copy(0, places, values)
    return torch.nested.nested_tensor_from_jagged(total, like.offsets())
