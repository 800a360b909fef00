"""The Ray actor that runs the trainer: verl's own, with this recipe's trainers."""

import logging

import ray
from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.device import auto_set_device

from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.config.rules.refining import STREAMING_MANAGER
from recipe.online_refiner.metric_names import meanings_of
from recipe.online_refiner.verl_glue import patches
from recipe.online_refiner.verl_glue.trainer import OnlineRefinerTrainer, RefinedLogProbs
from recipe.preflight.rules import MANAGER_KEY
from recipe.runs.files import RunDir
from recipe.runs.lock import TRAINER, lock_folders
from refiner_worker.client import RunEndedError

MAX_ORPHAN_S = 60.0
"""The seconds that Ray may take to end the processes of a run whose command was killed."""
ACTOR_IS_THERE = "actor and ref model engine initialized"
"""The line of verl's log after which it starts the rollout's engine; no hook of ours is called at that time."""


class OnlineRefinerSync(OnlineRefinerTrainer, PPOTrainerSync, RefinedLogProbs):
    """Rollout, refiner and actor take turns on the GPUs."""


class OnlineRefinerColocateAsync(OnlineRefinerTrainer, PPOTrainerColocateAsync, RefinedLogProbs):
    """A trainer like the one above, but each step takes the groups that complete first; the others continue later."""


class OnlineRefinerSeparateAsync(OnlineRefinerTrainer, PPOTrainerSeparateAsync, RefinedLogProbs):
    """Rollout, refiner and actor have GPUs of their own and work all the time; weights follow after some updates."""


class TaskRunner(TaskRunnerV1.__ray_metadata__.modified_class):  # Ray forbids subclassing the actor class itself
    """verl's task runner, which looks its trainer up by ``trainer.v1.trainer_mode``.

    The stock mode names stay in the config, because verl branches on them and reads ``trainer.v1.<mode>``; a new name
    would silently behave as asynchronous.
    """

    trainers = {
        "sync": OnlineRefinerSync,
        "colocate_async": OnlineRefinerColocateAsync,
        "separate_async": OnlineRefinerSeparateAsync,
    }

    def run(self, config: DictConfig) -> None:
        """Train to the end.

        Raises:
            RunEndedError: If another process writes to the run's folders, or the training cannot go on.
        """
        patches.apply()
        try:
            locks = lock_folders(config, TRAINER, wait_s=MAX_ORPHAN_S)
        except ValueError as error:
            raise RunEndedError(str(error)) from None
        run_dir = RunDir(config.run_dir)
        run_dir.write_config(config)
        run_dir.write_stage("reading data")

        def heard(record: logging.LogRecord) -> bool:
            if record.getMessage() == ACTOR_IS_THERE:
                run_dir.write_stage("starting the rollout's engine")
            return True

        logging.getLogger(trainer_base.__name__).addFilter(heard)
        blocks = read_blocks(config)
        run_dir.write_meanings(meanings_of(blocks.constraint))
        if blocks.streams:
            OmegaConf.update(config, MANAGER_KEY, STREAMING_MANAGER, force_add=True)
        if blocks.hosts_refiner and blocks.is_shared:
            from recipe.online_refiner.verl_glue.hosting.shared import register  # here: it needs vLLM

            register()
        TRAINER_REGISTRY.update(self.trainers)
        super().run(config)
        del locks  # held until here


OnlineRefinerTaskRunner = ray.remote(TaskRunner)


def train(config: DictConfig) -> None:
    """Run verl with this extension's task runner."""
    auto_set_device(config)
    run_ppo(config, task_runner_class=OnlineRefinerTaskRunner)
