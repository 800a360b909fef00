"""A trainer of one's own: verl's, with a metric more, with and without the online refiner."""

from typing import Any

import hydra
import ray
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.online_refiner.main import prepare
from recipe.online_refiner.verl_glue.task_runner import TaskRunner
from recipe.online_refiner.verl_glue.trainer import OnlineRefinerTrainer, RefinedLogProbs


class MyTrainer(PPOTrainerSync):
    """What you have: a subclass of one of verl's V1 trainers."""

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        metrics["mine/num_rows"] = len(batch.keys)
        return super()._update_actor(batch, metrics)


class MyRefinedTrainer(OnlineRefinerTrainer, MyTrainer, RefinedLogProbs):
    """The same with the refine stage: your class stands between these two."""


class MyTaskRunner(TaskRunner):
    """Runs it where the config says ``trainer.v1.trainer_mode=sync``: the mode of the class that you extend."""

    trainers = {**TaskRunner.trainers, "sync": MyRefinedTrainer}


@hydra.main(config_path="../own_recipe", config_name="recipe", version_base=None)
def main(config: DictConfig) -> None:
    """Check, then train."""
    try:
        print(prepare(config))
    except ValueError as error:  # it says what to set
        raise SystemExit(f"error: {error}") from None
    if not config.dry_run:
        run_ppo(config, task_runner_class=ray.remote(MyTaskRunner))


if __name__ == "__main__":
    main()
