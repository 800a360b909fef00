r"""Run a verl command on the CPU, its workers as forks of one preloaded process.

    python -m recipe.cpu_platform.launch -m verl.trainer.main_ppo \
        'hydra.searchpath=[pkg://recipe.cpu_platform.config]' +platform=cpu ...

It is :mod:`recipe.preload.launch` with the variables of :data:`recipe.cpu_platform.ENVIRONMENT`.
"""

from recipe.cpu_platform import ENVIRONMENT
from recipe.preload.launch import main
from recipe.preload.modules import Device


def _prepare() -> None:
    from recipe.cpu_platform import patches  # here: it imports torch, and the driver may be told to start elsewhere

    patches.alias_vllm_distribution()


CPU = Device(
    engine=("vllm.v1.attention.backends.cpu_attn", "vllm.v1.worker.cpu_worker"),
    job=(
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
        "vllm.v1.executor.uniproc_executor",
        "recipe.cpu_platform.vllm_extension",
    ),
    prepare=_prepare,
)

if __name__ == "__main__":
    main(ENVIRONMENT, CPU)
