"""The modules that a job's processes share, in the order of import, and changes to Ray that forks need."""

import contextlib
import ctypes
import gc
import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

CUDA_ERROR_NOT_INITIALIZED = 3

DRIVER: tuple[str, ...] = (  # of driver and workers, without Ray: imported before the driver forks the fork server
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "tensordict",
    "datasets",
    "pandas",
    "peft",
    "torchdata.stateful_dataloader",
)
ENGINE: tuple[str, ...] = (  # vLLM's, without Ray: imported by the fork server while the driver goes on
    "vllm.entrypoints.openai.api_server",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen2",
)
JOB: tuple[str, ...] = (  # these import Ray, which reads the job's variables then: imported with the first worker
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.experimental.agent_loop",
    "verl.experimental.reward_loop.reward_loop",
    "transfer_queue.controller",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The additional modules that workers of one kind of machine import."""

    engine: tuple[str, ...]
    """Modules that are imported with ``ENGINE``."""
    job: tuple[str, ...]
    """Modules that are imported with ``JOB``."""
    prepare: Callable[[], object] = lambda: None
    """A function that is called before the first import."""
    around_job: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    """A context manager in which ``job`` is imported."""


def load(names: Iterable[str]) -> None:
    """Import modules, without the garbage collector.

    Imports leave nothing to collect, and forks share the pages of objects that the collector does not touch. Warnings
    are dropped here.
    """
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            importlib.import_module(name)
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def capability_from_nvml() -> Iterator[None]:
    """Let modules ask for the GPU's capability while they are imported (``verl/utils/kernel/kernels.py`` does).

    torch's own answer begins CUDA; vLLM's comes from NVML.
    """
    import torch
    from vllm.platforms import current_platform

    stock = torch.cuda.get_device_capability
    torch.cuda.get_device_capability = lambda device=None: tuple(current_platform.get_device_capability(0))
    try:
        yield
    finally:
        torch.cuda.get_device_capability = stock


GPU = Device(
    engine=(
        "vllm.v1.attention.backends.flash_attn",
        "vllm.v1.worker.gpu_worker",
        "vllm.v1.worker.gpu.model_runner",
        "vllm.v1.worker.gpu_model_runner",  # which one, the model says
    ),
    job=("vllm.v1.executor.multiproc_executor",),  # the server's module begins CUDA (vLLM's kernels of FLA)
    around_job=capability_from_nvml,
)


def has_begun_cuda() -> bool:
    """Return whether this process has initialised the CUDA driver; its forks could not use the driver then."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != CUDA_ERROR_NOT_INITIALIZED


def spare_random_numbers() -> None:
    """Let Ray name actor classes by the system's random numbers, in a process that will be forked.

    Reason: ``ray/actor.py`` draws a random id for each decorated class, which seeds the generator of Ray's core. Forks
    would go on with its state: two workers would give their calls the same ids, and an actor that both of them call at
    once ends with a failed check (``core_worker.cc``: ``erased == 1``).
    """
    import ray.actor

    real = ray.actor.ActorClassID
    ray.actor.ActorClassID = SimpleNamespace(from_random=lambda: real(os.urandom(real.size())))


def title_workers() -> None:
    """Let Ray title its workers (``ray::WorkerDict``) by the package with which vLLM titles its engines.

    Reason: both have a copy of the code that looks for the title's place in memory (``ray._raylet`` its own), and only
    the one that looks first finds it.
    """
    import ray
    import setproctitle

    ray._raylet.setproctitle = setproctitle.setproctitle
