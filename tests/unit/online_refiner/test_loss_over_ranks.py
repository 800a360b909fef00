"""The cross-entropy of a mini-batch whose refinements are spread unevenly over two ranks, against plain Python.

Two processes with gloo between them; the worker and both losses are real, the engine runs one row after the other.
"""

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from played_actor import log_probs
from tensordict import TensorDict
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from recipe.online_refiner.verl_glue.actor_worker import ActorWorker
from recipe.online_refiner.verl_glue.loss import jagged

ETA, EOS, NUM_RANKS, BATCH_TOKENS = 0.5, 2, 2, 40
ROWS = [
    ([3, 4], [11, 12, EOS], 0),
    ([5], [13, 41, 14, EOS], 2),
    ([6, 7], [15, EOS], 0),
    ([3, 4], [16, EOS], 0),
]
"""The rows of each rank: prompt, response, and the index at which the refined turn begins."""
REFINED = {
    0: [
        ([21, 22, EOS], [0.0, 1.0, 1.0]),
        ([23, EOS], [1.0, 1.0]),
        ([24, 25, 26, 27, EOS], [1.0, 2.0, 0.5, 1.0, 1.0]),
        ([21, 22, EOS], [1.0, 0.5, 1.0]),  # as the first one
    ],
    1: [
        ([28, EOS], [1.0, 1.0]),
        ([29, 30, 31, EOS], [1.0, 1.0, 1.0, 0.25]),
        ([32, EOS], [3.0, 1.0]),
        ([21, 22, EOS], [1.0, 1.0, 1.0]),
    ],
}
"""The refinements of each rank: a' and the weights of its tokens."""
CASES = {
    "one rank has all": ([1, 1, 1, 1], [0, 0, 0, 0]),
    "both have some": ([0, 0, 1, 1], [1, 1, 0, 1]),
    "none has any": ([0, 0, 0, 0], [0, 0, 0, 0]),
}
"""Which rows are used, of both ranks."""


def mini_batch(rank: int, used: list[int], **settings: Any) -> TensorDict:
    """Return a rank's share of rows that the policy's own loss learns nothing from."""
    prompts, responses, starts = zip(*ROWS, strict=True)
    sequences = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    columns: dict[str, list[list[Any]]] = {
        "prompts": list(prompts),
        "responses": list(responses),
        "input_ids": sequences,
        "position_ids": [[*range(len(ids))] for ids in sequences],
        "loss_mask": [[1] * len(ids) for ids in responses],
        "response_mask": [[1] * len(ids) for ids in responses],
        "advantages": [[0.0] * len(ids) for ids in responses],
        "old_log_probs": [log_probs(prompt, ids) for prompt, ids in zip(prompts, responses, strict=True)],
        "refine_ids": [ids for ids, _ in REFINED[rank]],
        "refine_weights": [weights for _, weights in REFINED[rank]],
    }
    tensors = {name: jagged([*map(torch.tensor, rows)]) for name, rows in columns.items()}
    tensors |= {"refine_used": torch.tensor(used), "refine_start": torch.tensor(starts)}
    tensors["refine_shown"] = torch.arange(len(used)) + 1
    return tu.get_tensordict(tensors, settings)


class Engine:
    """A data-parallel engine: each row is a micro-batch."""

    def __init__(self) -> None:
        self.num_rows, self.loss = 0, 0.0
        self.metrics: dict[str, Metric] = {}

    def get_data_parallel_group(self) -> Any:
        return torch.distributed.group.WORLD

    def train_mode(self, **_: Any) -> Any:
        return contextlib.nullcontext()

    def is_mp_src_rank_with_outputs(self) -> bool:
        return False

    def train_batch(self, data: TensorDict, loss_function: Any) -> None:
        tu.assign_non_tensor(data, dp_size=NUM_RANKS, batch_num_tokens=BATCH_TOKENS, global_batch_size=6)
        self.num_rows = len(data)
        for row in range(len(data)):
            micro_batch = tu.index_select_tensor_dict(data, [row])
            ids = micro_batch["input_ids"].unbind()[0].tolist()
            found = jagged([torch.tensor([*log_probs(ids[:1], ids[1:]), float("nan")])])  # of the token after it
            loss, metrics = loss_function(model_output={"log_probs": found}, data=micro_batch)
            self.loss += loss.item()
            for name, metric in metrics.items():
                if name in self.metrics:
                    self.metrics[name].extend(metric)
                else:
                    self.metrics[name] = metric


class Worker(ActorWorker.actor_worker_cls):
    """A rank's training worker."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.engine, self.model_config = Engine(), OmegaConf.create({})
        defaults = {
            "use_dynamic_bsz": True,
            "micro_batch_size_per_gpu": None,
            "max_token_len_per_gpu": 99,
            "forward_only": False,
            "use_fused_kernels": False,
        }
        self.engine_config = OmegaConf.create({**defaults, **settings})


class Built(DetachActorWorker):
    """verl's actor, with the worker above in the place of one that loads a model."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def init_model(self) -> None:
        actor = ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode="token-mean")
        self.actor, self.loss_fn = Worker(self.settings), partial(ppo_loss, config=actor)
        self.actor.set_loss_fn(self.loss_fn)


class Actor(ActorWorker, Built):
    """Our actor on it."""


def expected_shown(rank: int, run: dict[str, Any]) -> dict[int, Any]:
    """Return log pi(a'_t) of the refinements that ride along on a rank, by their rows' numbers."""
    rows = enumerate(zip(ROWS, REFINED[rank], CASES[run["case"]][rank], strict=True))
    return {
        number + 1: pytest.approx(log_probs(prompt + response[:start], ids))
        for number, ((prompt, response, start), (ids, _), is_used) in rows
        if is_used and run["settings"]
    }


def train(rank: int, folder: Path, runs: list[dict[str, Any]]) -> None:
    """Make each step, and write what the engine saw."""
    address = f"file://{folder / 'meet'}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=NUM_RANKS)
    found = []
    for run in runs:
        actor = Actor(run["engine"])
        actor.init_model()
        actor.actor.train_batch(mini_batch(rank, CASES[run["case"]][rank], **run["settings"]))
        engine = actor.actor.engine
        cross_entropy = engine.metrics.get("sft_cross_entropy")
        value = cross_entropy.aggregate() if cross_entropy else 0.0
        assert actor.take_shown_log_probs() == expected_shown(rank, run) and not actor.take_shown_log_probs()
        found.append([engine.num_rows, engine.loss, float(value)])
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


FIXED = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 4}
RUNS: list[tuple[str, str | None, dict[str, Any], int]] = [
    ("one rank has all", "accepted", {}, 7),
    ("one rank has all", "batch", FIXED, 8),
    ("both have some", "accepted", FIXED, 8),
    ("both have some", "batch", {}, 7),
    ("both have some", None, {}, 4),
    ("none has any", "accepted", FIXED, 4),
]
"""Case, normaliser (None: the mode adds nothing), settings of the engine, and rows of each rank: equal ones are one."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[list[list[float]]]:
    """Return the rows, the loss and the cross-entropy of each run, by rank."""
    folder, runs = tmp_path_factory.mktemp("ranks"), []
    for case, normaliser, engine, _ in RUNS:
        settings = {} if normaliser is None else {"refine_eta": ETA, "refine_normaliser": normaliser}
        runs.append({"case": case, "settings": settings, "engine": engine})
    torch.multiprocessing.start_processes(train, (folder, runs), NUM_RANKS, start_method="fork")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]


@pytest.mark.parametrize("run", range(len(RUNS)))
def test_the_cross_entropy_counts_the_refinements_of_all_ranks(found: list[Any], run: int) -> None:
    case, normaliser, _, num_rows = RUNS[run]
    total, num_tokens = 0.0, 0
    for rank, used in enumerate(CASES[case]):
        for (prompt, response, start), (ids, weights), is_used in zip(ROWS, REFINED[rank], used, strict=True):
            scores = log_probs(prompt + response[:start], ids)
            total -= is_used * sum(weight * score for weight, score in zip(weights, scores, strict=True))
            num_tokens += is_used * len(ids)
    expected = 0.0 if normaliser is None else total / (BATCH_TOKENS if normaliser == "batch" else max(1, num_tokens))
    assert [rank[run][0] for rank in found] == [num_rows] * NUM_RANKS, "as many micro-batches on every rank"
    assert sum(rank[run][1] for rank in found) / NUM_RANKS == pytest.approx(ETA * expected), (
        "engines average over ranks"
    )
    assert sum(rank[run][2] for rank in found) / NUM_RANKS == pytest.approx(expected)
