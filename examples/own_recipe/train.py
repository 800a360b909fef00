"""A recipe of one's own, on verl's trainer with the online refiner."""

import hydra
from omegaconf import DictConfig
from verl.trainer.main_ppo import run_ppo

from recipe.online_refiner.main import prepare
from recipe.online_refiner.verl_glue.task_runner import OnlineRefinerTaskRunner


@hydra.main(config_path=".", config_name="recipe", version_base=None)
def main(config: DictConfig) -> None:
    """Check, then train."""
    try:
        print(prepare(config))
    except ValueError as error:  # it says what to set
        raise SystemExit(f"error: {error}") from None
    if not config.dry_run:
        run_ppo(config, task_runner_class=OnlineRefinerTaskRunner)


if __name__ == "__main__":
    main()
