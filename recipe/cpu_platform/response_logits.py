"""The LM head on response positions only: verl's FSDP2 engine for models of a vocabulary that a CPU feels.

Reason: with padded inputs (``use_remove_padding=False``, all that a CPU has) ``FSDPEngineWithLMHead`` in
``verl/workers/engine/fsdp/transformer_impl.py`` computes logits, log-probs and their gradients of prompts and padding
too. The head of a small model is a fifth of all arithmetic, and each copy of its (tokens, vocabulary) output goes
through main memory. Nobody reads what is left out: verl takes log-probs and entropies out of the engine's nested output
with ``no_padding_2_padding`` and ``response_from_nested`` (``verl/workers/utils/padding.py``), both of which return the
positions that predict ``responses`` and no other. (``sft_loss`` reads by a mask instead; it belongs to verl's SFT
trainers, whose micro-batches have no ``responses``.)

Nothing of verl is replaced: ``model.external_lib`` of ``config/platform/cpu.yaml`` imports this module, which registers
the engine for the vendor of :class:`recipe.cpu_platform.platform.PlatformCPU`; without it the registry falls back to
verl's own engine. Hugging Face's ``logits_to_keep`` selects the same positions in every row: where prompts differ in
length it keeps twice as many as there are response tokens. A hook before the head takes exactly those.

Responses to one prompt in one micro-batch are computed behind one copy of it (``shared_prompts.py``).
"""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.autograd.function import once_differentiable
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import entropy_from_logits_with_chunking, logprobs_from_logits
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.engine.fsdp.transformer_impl import _scale_logits_by_temperature

from recipe.cpu_platform.shared_prompts import pack, understands

MODEL_INPUTS = {"input_ids", "attention_mask", "position_ids"}
"""What verl hands to the model for padded text; more of it means images, fused kernels or packed sequences."""

OUTPUT_ARGS = {"input_ids_rmpad_rolled", "temperature", "temperature_is_one"}
"""What verl keeps beside it for the outputs of padded text."""

OTHER_OUTPUTS = ("distillation_use_topk", "distillation_only", "calculate_sum_pi_squared", "enable_routing_replay")
"""Settings of a micro-batch that ask for more than log-probs and entropy of the responses."""

CACHED_ROWS = 8
"""Rows of logits that are reduced at once: what is computed on the way (1.6 MB for 49152 tokens) stays in the cache."""


class LogProbs(torch.autograd.Function):
    """log softmax(logits)[label] in nats; the backward pass overwrites the logits with their gradient.

    A caller that needs the logits after the backward pass, or runs it twice, gets autograd's error about a tensor that
    was modified in place.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """Return (N,) log-probs of labels (N,) under logits (N, V)."""
        normalizer = torch.cat([few.logsumexp(-1) for few in logits.split(CACHED_ROWS)])
        ctx.save_for_backward(logits, labels, normalizer)
        return logits.gather(-1, labels[:, None]).squeeze(-1) - normalizer

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return gradient * (onehot(label) - softmax(logits)), (N, V), in the memory of the logits."""
        logits, labels, normalizer = ctx.saved_tensors
        logits = logits.detach()  # the same memory, and a version counter that tells other users of the change
        logits.sub_(normalizer[:, None]).exp_().mul_(-gradient[:, None])
        return logits.scatter_add_(-1, labels[:, None], gradient[:, None]), None


def response_positions(num_tokens: Tensor, num_response: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and the place in the row of every position that predicts a response token, each (N,).

    Args:
        num_tokens: (B,) lengths of prompt and response together.
        num_response: (B,) lengths of the responses, N in all; each leaves at least one token of prompt.
    """
    rows = torch.arange(len(num_tokens), device=num_tokens.device).repeat_interleave(num_response)
    in_response = torch.arange(len(rows), device=rows.device) - (num_response.cumsum(0) - num_response)[rows]
    return rows, in_response + (num_tokens - num_response - 1)[rows]


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cuda", vendor="generic")
class ResponseLogitsEngine(FSDPEngineWithLMHead):
    """verl's engine, which computes response positions only; others hold 0 in its outputs.

    A micro-batch or model that is not of the known form (see :meth:`_reads_responses_only`) takes verl's own path.
    """

    _head_positions: tuple[Tensor, Tensor] | None = None

    def _build_model_optimizer(self) -> None:
        super()._build_model_optimizer()
        head = self.module.get_output_embeddings()
        self._has_linear_head = isinstance(head, torch.nn.Linear)
        if self._has_linear_head:
            head.register_forward_pre_hook(self._take_positions)
        self._understands_masks = understands(self.module.config)

    def _take_positions(self, head: torch.nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Let the head see (1, N, hidden) of the (B, L, hidden) states, in the pass they were asked for."""
        positions, self._head_positions = self._head_positions, None
        return None if positions is None else (arguments[0][positions][None], *arguments[1:])

    def _reads_responses_only(self, micro_batch: TensorDict, model_inputs: dict, output_args: dict) -> bool:
        responses = micro_batch.get("responses", None)
        return (
            self._has_linear_head
            and model_inputs.keys() == MODEL_INPUTS
            and output_args.keys() == OUTPUT_ARGS
            and not any(tu.get_non_tensor_data(micro_batch, name, False) for name in OTHER_OUTPUTS)
            and self._autocast_dtype == torch.float32
            and not self.engine_config.entropy_checkpointing
            and getattr(responses, "is_nested", False)
            and bool((responses.offsets().diff() < micro_batch["input_ids"].offsets().diff()).all())
        )

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return verl's inputs of the model and of :meth:`prepare_model_outputs`, and choose the head's positions."""
        model_inputs, output_args = super().prepare_model_inputs(micro_batch)
        self._head_positions = None
        if self._reads_responses_only(micro_batch, model_inputs, output_args):
            num_tokens = micro_batch["input_ids"].offsets().diff()
            num_response = micro_batch["responses"].offsets().diff()
            self._head_positions = response_positions(num_tokens, num_response)
            output_args["response_positions"] = self._head_positions
            if self._understands_masks:
                rows = list(micro_batch["input_ids"].unbind())
                packed = pack(rows, num_response.tolist(), self.module.config.hidden_size)
                if packed is not None:
                    self._head_positions = packed.positions
                    model_inputs = {name: getattr(packed, name) for name in MODEL_INPUTS}
        return model_inputs, output_args

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Callable | None
    ) -> dict[str, Tensor]:
        """Return jagged (B, tokens) ``log_probs``, and ``entropy`` if asked for, in nats."""
        if "response_positions" not in output_args:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
        rows, places = output_args["response_positions"]
        assert output.logits.shape[:2] == (1, len(rows)), f"the head gave {tuple(output.logits.shape)}"
        logits = _scale_logits_by_temperature(
            output.logits.squeeze(0),
            output_args["temperature"][rows, None],
            is_unit_temperature=output_args["temperature_is_one"],
        )
        offsets = micro_batch["input_ids"].offsets()
        packed = offsets[rows] + places
        labels = micro_batch["input_ids"].values()[packed + 1]

        def jagged(values: Tensor) -> Tensor:
            everywhere = values.new_zeros(int(offsets[-1])).index_put((packed,), values)
            return torch.nested.nested_tensor_from_jagged(everywhere, offsets)

        if not tu.get_non_tensor_data(micro_batch, "calculate_entropy", False):
            return {"log_probs": jagged(LogProbs.apply(logits, labels))}
        # The backward pass of the entropy reads the logits.
        return {
            "log_probs": jagged(logprobs_from_logits(logits, labels)),
            "entropy": jagged(entropy_from_logits_with_chunking(logits, CACHED_ROWS)),
        }
