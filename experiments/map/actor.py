"""The product's actor worker around the small model: mini-batches, refined rows and losses are its and verl's own.

Ours is the engine alone, which is FSDP's part in a real run: a forward pass to log-probs, backward, clipped gradients,
a step of verl's optimizer.
"""

import contextlib
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.profiler import DistProfiler
from verl.utils.torch_functional import entropy_from_logits
from verl.workers.config.optimizer import build_optimizer
from verl.workers.engine.base import BaseEngine
from verl.workers.utils.losses import ppo_loss

from experiments.map.model import Model
from recipe.online_refiner.verl_glue.actor_worker import ActorWorker, MiniBatchWorker
from recipe.online_refiner.verl_glue.loss import refined_loss


def join_group() -> None:
    """Make this process the only rank of torch's process group: verl's workers gather numbers over it."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


class Engine(BaseEngine):
    """What an engine is to verl's training worker, for the small model in one process; a mini-batch is one pass."""

    def __init__(self, model: Model, optim: DictConfig | None) -> None:
        """Take a model, and what verl's block ``optim`` says of its optimizer; None: it does not learn."""
        self.module = model
        self.optimizer_config = omega_conf_to_dataclass(optim) if optim is not None else None
        self.optimizer = build_optimizer(model.parameters(), self.optimizer_config) if optim is not None else None

    def train_mode(self, **_: Any) -> Any:
        """Change nothing: the model has no mode."""
        return contextlib.nullcontext()

    eval_mode = train_mode

    def get_data_parallel_size(self) -> int:
        """Return the number of ranks."""
        return 1

    def get_data_parallel_rank(self) -> int:
        """Return this one's."""
        return 0

    def get_data_parallel_group(self) -> Any:
        """Return that of all ranks."""
        return torch.distributed.group.WORLD

    def is_mp_src_rank_with_outputs(self) -> bool:
        """Tell that its output counts."""
        return True

    def optimizer_zero_grad(self) -> None:
        """Drop the gradients."""
        assert self.optimizer is not None
        self.optimizer.zero_grad()

    def optimizer_step(self) -> float:
        """Make a step with clipped gradients and return their norm, as verl's FSDP engine does."""
        assert self.optimizer is not None and self.optimizer_config is not None
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.optimizer_config.clip_grad)
        if torch.isfinite(norm):
            self.optimizer.step()
        return norm.item()

    def lr_scheduler_step(self) -> float:
        """Keep the learning rate."""
        assert self.optimizer_config is not None
        return self.optimizer_config.lr

    def forward_backward_batch(self, data: TensorDict, loss_function: Any, forward_only: bool = False) -> Any:
        """Compute log-probs, and the loss with its gradient where there is one."""
        tu.assign_non_tensor(data, batch_num_tokens=int(data["loss_mask"].values().sum()), dp_size=1)
        output = self.outputs(data["input_ids"], calculate_entropy=bool(tu.get(data, "calculate_entropy", False)))
        if loss_function is None:
            return {"model_output": output, "loss": [], "metrics": {}}
        loss, metrics = loss_function(model_output=output, data=data, dp_group=None)
        if not forward_only:
            loss.backward()
        return {"model_output": {}, "loss": [loss.detach()], "metrics": {name: [one] for name, one in metrics.items()}}

    def outputs(self, ids: torch.Tensor, *, calculate_entropy: bool) -> dict[str, torch.Tensor]:
        """Return log-prob, and entropy if asked for, of the token after each token, jagged as ``ids``.

        Behind the last token of a sequence they say nothing, as with verl's engines.
        """
        offsets: torch.Tensor = ids.offsets()  # type: ignore[attr-defined]
        lengths = offsets.diff()
        logits = self.module(ids.to_padded_tensor(0))
        logits = logits[torch.arange(logits.shape[1]) < lengths[:, None]]
        found = {"log_probs": logits.log_softmax(-1).gather(-1, ids.values().roll(-1)[:, None])[:, 0]}
        if calculate_entropy:
            found["entropy"] = entropy_from_logits(logits)
        return {name: torch.nested.nested_tensor_from_jagged(one, offsets) for name, one in found.items()}


class Worker(MiniBatchWorker):
    """The product's training worker, with the engine above in the place of one that loads a model."""

    def __init__(self, engine: Engine) -> None:
        """Set what verl's own would read from a run's config."""
        self.engine, self.model_config, self.flops_counter = engine, OmegaConf.create({}), None
        self.device_name, self.profiler = "cpu", DistProfiler(0)
        settings = {"use_dynamic_bsz": True, "max_token_len_per_gpu": None, "infer_max_token_len_per_gpu": None}
        sizes = {"micro_batch_size_per_gpu": None, "infer_micro_batch_size_per_gpu": None}
        self.engine_config = OmegaConf.create(
            {**settings, **sizes, "use_fused_kernels": False, "forward_only": False, "strategy": "fsdp2"}
        )


class Actor(ActorWorker):
    """The product's actor: policy and reference, each with an engine of ours."""

    def __init__(self, config: DictConfig, policy: Model, reference: Model) -> None:
        """Take a run's block ``actor_rollout_ref`` and the two models."""
        join_group()
        self.config, self.enable_routing_replay, self.profiler = config, False, DistProfiler(0)
        self.actor, self.ref = Worker(Engine(policy, config.actor.optim)), Worker(Engine(reference, None))
        loss = partial(ppo_loss, config=omega_conf_to_dataclass(config.actor))
        self.actor.set_loss_fn(partial(refined_loss, loss))
