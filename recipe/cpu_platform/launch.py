r"""Run a verl command on the CPU, its workers as forks of one preloaded process.

    python -m recipe.cpu_platform.launch -m verl.trainer.main_ppo \
        'hydra.searchpath=[pkg://recipe.cpu_platform.config]' +platform=cpu ...

It is :mod:`recipe.preload.launch` with the variables of :data:`recipe.cpu_platform.ENVIRONMENT`.
"""

from recipe.cpu_platform import ENVIRONMENT
from recipe.preload.launch import main

if __name__ == "__main__":
    main(ENVIRONMENT)
