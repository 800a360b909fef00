r"""verl on a machine without an accelerator, for any verl recipe.

A launcher and a setting switch a verl job to the CPU (FSDP2 over gloo, vLLM-CPU servers, Ray with logical GPUs)::

    python -m recipe.cpu_platform.launch -m verl.trainer.main_ppo \
        'hydra.searchpath=[pkg://recipe.cpu_platform.config]' +platform=cpu ...

The launcher sets :data:`ENVIRONMENT`, of which one variable makes every process that imports verl load
:mod:`recipe.cpu_platform.activate`, and imports what the processes share once for all (:mod:`recipe.preload`). With
that variable alone, ``VERL_USE_EXTERNAL_MODULES=recipe.cpu_platform.activate python -m verl.trainer.main_ppo ...``, the
job is the same, and starts slower. The config group ``platform`` holds the settings that verl reads from its config.
Importing this package itself changes nothing and needs neither torch nor verl. Source: ``verl/__init__.py`` (external
modules) and ``verl/plugin/platform`` of verl 0.9.1.
"""

import importlib.metadata
import os
from collections.abc import Mapping

from recipe import preload
from recipe.preload.noise import drop_expected

ACTIVATION_MODULE = "recipe.cpu_platform.activate"
MODULES_VARIABLE = "VERL_USE_EXTERNAL_MODULES"
REQUIRED_VERSIONS: dict[str, str] = {"verl": ">=0.9.0,<=0.9.1", "vllm-cpu": "==0.28.0"}

ENVIRONMENT: dict[str, str] = {  # must be in `os.environ` before the driver starts, unless the user has set it
    **preload.ENVIRONMENT,
    MODULES_VARIABLE: ACTIVATION_MODULE,
    # verl registers its FSDP engines for the devices "cuda" and "npu" only; the class itself runs on any device.
    "VERL_ENGINE_DEVICE": "cuda",
    # vLLM otherwise pins each engine to cores of its own, which starves the trainer and fails with many engines.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Lets vLLM keep the executor "uni" (config/platform/cpu.yaml): an engine's core and its worker are one process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # What verl sets for its workers, but which is read when vLLM is imported.
    "VLLM_LOGGING_LEVEL": "WARN",
    # vLLM compiles its log-prob kernel (vllm/v1/sample/ops/logprobs.py) even under enforce_eager. That needs a C++
    # compiler and takes up to a minute in each engine before the first token.
    "TORCHDYNAMO_DISABLE": "1",
    # Tokenizer threads fight with the compute threads for the same cores, and warn in each forked process.
    "TOKENIZERS_PARALLELISM": "false",
    # The C library gives large tensors back to the kernel when they are freed, and each new one is zeroed page by page.
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    # It keeps them in the main arena only, and a worker of Ray computes in a thread.
    "MALLOC_ARENA_MAX": "1",
}


def check_versions(versions: Mapping[str, str] = REQUIRED_VERSIONS) -> None:
    """Check that versions are installed for which the patches were written; ValueError if not."""
    from packaging.specifiers import SpecifierSet  # this package is also imported where nothing else is installed

    for name, required in versions.items():
        try:
            installed = importlib.metadata.version(name)
            is_right = installed in SpecifierSet(required)
        except importlib.metadata.PackageNotFoundError:
            installed, is_right = "not installed", False
        if not is_right:
            raise ValueError(
                f"the CPU platform needs {name}{required}, found: {installed}; run PLATFORM=cpu bash scripts/setup.sh "
                "in a clone without .venv, or with GPUs set platform=gpu"
            )


def check_environment() -> None:
    """Check, before Ray starts and without verl, that all processes will get the CPU platform; ValueError if not."""
    modules = os.environ.get(MODULES_VARIABLE, "")
    if ACTIVATION_MODULE not in modules.split(","):
        value = f"{modules},{ACTIVATION_MODULE}" if modules else ACTIVATION_MODULE
        raise ValueError(
            f"platform=cpu needs verl's CPU plugin; before the start, run: export {MODULES_VARIABLE}={value}"
        )
    platform = os.environ.get("VERL_PLATFORM", "cpu").strip().lower()
    if platform != "cpu":
        raise ValueError(
            f"platform=cpu contradicts VERL_PLATFORM={platform}; before the start, run: unset VERL_PLATFORM"
        )


def prepare_vllm() -> None:
    """Set what vLLM reads when it is imported, unless the user has, and where there is no GPU import its CPU platform.

    Raises:
        ValueError: If what the user has set keeps the CPU platform away.
    """
    import torch

    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # else asking begins CUDA, and vLLM's forks cannot
    if not torch.cuda.is_available():
        os.environ.update({**ENVIRONMENT, **os.environ})
        drop_expected()
        import recipe.cpu_platform.activate  # noqa: F401  # its settings of vLLM on a CPU
