r"""verl on a machine without an accelerator, for any verl recipe.

Two settings switch a verl job to the CPU (FSDP2 over gloo, vLLM-CPU servers, Ray with logical GPUs)::

    VERL_USE_EXTERNAL_MODULES=recipe.cpu_platform.activate python -m verl.trainer.main_ppo \
        'hydra.searchpath=[pkg://recipe.cpu_platform.config]' +platform=cpu ...

The environment variable makes every process that imports verl load :mod:`recipe.cpu_platform.activate`; the config
group ``platform`` holds the settings that verl reads from its config. Importing this package itself changes nothing
and needs neither torch nor verl, so that a launcher can set :data:`ENVIRONMENT` before it imports them.

Source: ``verl/__init__.py`` (external modules) and ``verl/plugin/platform`` of verl 0.9.1.
"""

import os

ACTIVATION_MODULE = "recipe.cpu_platform.activate"
MODULES_VARIABLE = "VERL_USE_EXTERNAL_MODULES"

ENVIRONMENT: dict[str, str] = {MODULES_VARIABLE: ACTIVATION_MODULE}
"""What must be in ``os.environ`` before the first ``import verl`` of the driver; Ray's processes inherit it."""


def check_environment() -> None:
    """Check that this process, and so every process it starts, runs verl on the CPU platform.

    Call it before Ray starts. It does not import verl.

    Raises:
        ValueError: If the environment variable is missing, or if it contradicts ``VERL_PLATFORM``.
    """
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
