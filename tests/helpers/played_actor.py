"""The actor's workers in this process: the real worker around a model whose log-probs anybody can work out."""

from typing import Any

import torch
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from recipe.online_refiner.verl_glue.actor_worker import ActorWorker


def log_prob(before: list[int], token: int, *, is_reference: bool = False) -> float:
    """Return the model's log-prob of a token after others: a multiple of 1/16, so that sums are exact.

    The reference is the same model without its adapter.
    """
    return -(1 + (3 * sum(before) + 5 * len(before) + 7 * token + 4 * is_reference) % 13) / 16


def log_probs(context: list[int], answer: list[int], *, is_reference: bool = False) -> list[float]:
    """Return what the model says of each token of an answer."""
    ids = context + answer
    return [log_prob(ids[:t], ids[t], is_reference=is_reference) for t in range(len(context), len(ids))]


class Model:
    """What verl's training worker is to :class:`ActorWorker`: at temperature t log-probs are divided by t."""

    def infer_batch(self, data: TensorDict) -> TensorDict:
        """Return a number at each position, of the token after it; at the last one of none."""
        is_reference = bool(tu.pop(data, "no_lora_adapter", False))
        rows = []
        for ids in data["input_ids"].unbind():
            of_row = log_probs(ids[:1].tolist(), ids[1:].tolist(), is_reference=is_reference)
            rows.append(torch.tensor([*of_row, float("nan")]) / data["temperature"])
        found = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        return tu.get_tensordict({"log_probs": found, "entropy": torch.zeros_like(found)})


class Worker(ActorWorker):
    """One rank."""

    def __init__(self) -> None:
        """Load nothing."""
        self.actor = Model()
        self.enable_routing_replay = False

    def query_collect_info(self, mesh_name: str) -> bool:
        """Tell that its output counts."""
        return True


class Group:
    """A worker group: every rank gets an equal contiguous part of the rows, as verl's dispatch hands them out."""

    def __init__(self, num_ranks: int = 1) -> None:
        """Nothing is asked yet."""
        self.worker, self.num_ranks = Worker(), num_ranks
        self._dispatch_info = {"actor": [*range(num_ranks)]}
        self.asked: dict[str, list[list[str]]] = {}
        """The keys of each rank's rows in the last call of a method."""
        self.settings: dict[str, Any] = {}
        """What the update was told beside its rows."""
        self.seen: dict[int, list[float]] = {}
        """Log-probs of samples, as the update's own pass has computed them."""

    def compute_log_prob(self, rows: KVBatchMeta) -> KVBatchMeta:
        """Ask for what the model says of the responses."""
        return self._call("compute_log_prob", rows)

    def compute_refine_log_prob(self, rows: KVBatchMeta) -> KVBatchMeta:
        """Ask for what it says of refinements."""
        return self._call("compute_refine_log_prob", rows)

    def compute_in_place_log_prob(self, rows: KVBatchMeta) -> KVBatchMeta:
        """Ask for what the reference says of last turns."""
        return self._call("compute_in_place_log_prob", rows)

    def update_actor(self, rows: KVBatchMeta) -> dict[str, dict[str, list[float]]]:
        """Learn nothing."""
        self.settings = dict(rows.extra_info)
        return {"metrics": {"mfu": [0.0]}}

    def take_shown_log_probs(self) -> list[dict[int, list[float]]]:
        """Return what each rank's update has seen of samples."""
        return [self.seen, *[{}] * (self.num_ranks - 1)]

    def _call(self, method: str, rows: KVBatchMeta) -> KVBatchMeta:
        parts = rows.chunk(self.num_ranks)
        assert len({len(part) for part in parts}) == 1, "every rank runs as many rows"
        self.asked[method] = [part.keys for part in parts]
        return KVBatchMeta.concat([getattr(self.worker, method)(part) for part in parts])
