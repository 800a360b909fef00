"""What a machine does in a second: estimates by GPU, or constants that were measured in a run."""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from recipe.online_refiner.sizing.replicas import Pace
from recipe.online_refiner.sizing.shapes import Shape

GIB = float(1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Of a data sheet; dense, in bfloat16."""

    flops: float
    bandwidth: float
    """Bytes a second from its memory."""
    host_bandwidth: float
    """Bytes a second from the host's."""
    memory: float = 80 * GIB


GPUS = {
    "h100": Gpu(flops=989e12, bandwidth=3.35e12, host_bandwidth=50e9),
    "a100": Gpu(flops=312e12, bandwidth=2.0e12, host_bandwidth=25e9),
}
READ_SHARE, PREFILL_SHARE, TRAIN_SHARE = 0.6, 0.5, 0.35
"""Estimates: how much of bandwidth and FLOP rate decoding, prompts and training reach."""
PASS_OVERHEAD_S = 0.005
"""Estimate: scheduling, sampling and launches of one pass."""
STAGE_S = 1.0
"""Estimate: rows read, encoded, parsed and written by refine workers, in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Seconds of one replica, and tokens a second of one training GPU."""

    rollout: Pace
    refiner: Pace
    origin: str = ""
    """Where they come from, in words."""
    rollout_width: float = 1.0
    """What a token of the policy's responses costs more than one of the refiner's (sampling, log-probs, an adapter)."""
    reward_s: float = 0.0
    stage_s: float = STAGE_S
    wake_s: float = 0.0
    """Of a colocated refiner, to wake and to sleep."""
    kv_tokens: tuple[float, float] = (math.inf, math.inf)
    """What the KV cache of a replica of the rollout holds, and of the refiner."""
    train_tokens_per_s: float = math.inf
    score_tokens_per_s: float = math.inf
    """Of log-probs."""

    def write(self, path: Path) -> None:
        """Write them as JSON, for ``sizing.constants``."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def of_gpu(
    name: str,
    policy: Shape,
    refiner: Shape,
    *,
    sizes: tuple[int, int] = (1, 1),
    share: float = 0.5,
    memory: float | None = None,
) -> Constants:
    """Return estimates for a GPU.

    Args:
        name: One of GPUS.
        policy: The model that writes and learns.
        refiner: The one that refines.
        sizes: GPUs of a replica of each.
        share: Of a GPU's memory that an engine takes.
        memory: Of a GPU, in bytes, where it is not the data sheet's: of the cache alone, paces stay.

    Raises:
        ValueError: If a model leaves no KV cache; says what to raise.
    """
    gpu = GPUS[name] if memory is None else replace(GPUS[name], memory=memory)
    tokens = [_kv_tokens(gpu, *one, share) for one in (("rollout", policy, sizes[0]), ("refiner", refiner, sizes[1]))]
    work = gpu.flops * TRAIN_SHARE / (2 * policy.num_active)
    return Constants(
        origin=f"estimates for {name.upper()}",
        rollout=_pace(gpu, policy, sizes[0]),
        refiner=_pace(gpu, refiner, sizes[1]),
        kv_tokens=(tokens[0], tokens[1]),
        wake_s=2 * 2 * refiner.num_parameters / sizes[1] / gpu.host_bandwidth,
        train_tokens_per_s=work / 4,  # forward, backward (twice that), and the forward pass of checkpointing again
        score_tokens_per_s=work,
    )


def _kv_tokens(gpu: Gpu, name: str, shape: Shape, size: int, share: float) -> float:
    left = share * gpu.memory - 2 * shape.num_parameters / size
    if left <= 0:
        raise ValueError(
            f"the {name}'s weights take {2 * shape.num_parameters / size / GIB:.1f} GiB a GPU, its engine has "
            f"{share * gpu.memory / GIB:.1f} of {gpu.memory / GIB:.0f}; raise its tensor parallelism "
            f"(--tensor-parallel, tensor_model_parallel_size), now {size}"
        )
    return left / shape.kv_bytes(size)


def _pace(gpu: Gpu, shape: Shape, size: int) -> Pace:
    return Pace(
        pass_s=PASS_OVERHEAD_S + 2 * shape.num_parameters / size / (gpu.bandwidth * READ_SHARE),
        token_s=2 * shape.num_active / size / (gpu.flops * PREFILL_SHARE),
        context_s=shape.kv_bytes(size) / (gpu.bandwidth * READ_SHARE),
    )


def read(path: str) -> Constants:
    """Read what :meth:`Constants.write` wrote.

    Raises:
        ValueError: If it cannot be read; names the key.
    """
    try:
        values = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        paces = {name: Pace(**values[name]) for name in ("rollout", "refiner")}
        return Constants(**{**values, **paces, "kv_tokens": tuple(values["kv_tokens"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        names = ", ".join(GPUS)
        raise ValueError(f"sizing.constants={path}: {error}; set one of {names}, or a file of size_fleet") from error
