"""The watch over the processes that a step waits for, so that a death ends the run instead of blocking it.

verl itself watches few of them. A call to a dead Ray actor raises an error, but a call to an actor that waits for a
dead one never returns. Such an actor is a rank in a collective operation, a sender of weights to an engine, or a replay
buffer that waits for an agent loop's rows. So training runs in a thread, and the main thread checks the processes.

Processes that can be lost without harm are not watched here: refine workers (``refine_actors.py``) and replicas of the
refiner (``verl_glue/hosting/group.py``) are replaced.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayError
from transfer_queue import interface
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.workers.rollout.replica import RolloutReplica

from recipe.online_refiner.verl_glue.hosting.group import in_thread
from recipe.runs.stop import shortened
from refiner_worker.client import DEATHS, RunEndedError
from refiner_worker.engines import has_failed

logger = logging.getLogger(__name__)

POLL_S = 1.0
ASK_EVERY_S = 10.0
LAST_LOOK_S = 15.0
"""The seconds in which a death that caused a failure of the training is searched."""
MIN_SHARE_OF_ROLLOUTS = 0.5
"""The least share of a step's rollouts with which the step is trained."""


@dataclass(slots=True, eq=False)
class Part:
    """A process that a step waits for."""

    name: str
    actor: ActorHandle
    has_failed: Callable[[Any], bool] | None = None
    """A function that returns whether a server's engine, a separate process, has died."""
    call: Any = None
    """The open question to the actor, which waits for the actor's work and fails at once if the actor dies."""
    _ask_at: float = 0.0

    def ask(self) -> None:
        """Ask the actor a question, unless one is open."""
        if self.call is None:
            self._ask_at = time.monotonic() + ASK_EVERY_S
            asks_engine = self.has_failed is not None
            self.call = (
                self.actor.__ray_call__.remote(self.has_failed) if asks_engine else self.actor.__ray_ready__.remote()
            )

    def death(self) -> str | None:
        """Look at the answer without waiting, or ask again; return what has died, in words, or None."""
        if self.call is None and time.monotonic() > self._ask_at:
            self.ask()
        if self.call is None or not ray.wait([self.call], timeout=0)[0]:
            return None
        call, self.call = self.call, None
        try:
            answer = ray.get(call)
        except ActorUnavailableError:  # out of reach for now; the next question tells whether it is dead
            return None
        except DEATHS as error:
            return f"{self.name} ({shortened(str(error))})"
        except RayError as error:
            logger.debug("%s: %s", self.name, error)  # it lives
            return None
        return f"the engine of {self.name}" if self.has_failed is not None and answer else None


def watch(parts: Sequence[Part], function: Callable[[], None]) -> None:
    """Call a function that waits for some parts, in a thread, and end with it.

    Raises:
        RunEndedError: If a part died, while the function went on or before it failed.
        Exception: What the function raises.
    """
    done = in_thread(function)
    while not wait([done], POLL_S).done:
        _look(parts)
    if isinstance(error := done.exception(), Exception):
        for part in parts:
            part.ask()
        deadline = time.monotonic() + LAST_LOOK_S
        while time.monotonic() < deadline and any(part.call is not None for part in parts):
            _look(parts, error)
            time.sleep(0.1)
    done.result()


def _look(parts: Sequence[Part], cause: Exception | None = None) -> None:
    """Look at every part once, without waiting, and raise RunEndedError if one has died."""
    for part in parts:
        if death := part.death():
            raise RunEndedError(
                f"a process that the run waits for has died: {death}. Most often the machine's memory was full: see "
                "the log above and the node's."
            ) from cause


def parts_of(trainer: PPOTrainer, agent_loop_workers: Iterable[ActorHandle]) -> list[Part]:
    """Return the processes that a step of any of verl's V1 trainers waits for."""
    actors = [(f"agent loop worker {n}", worker) for n, worker in enumerate(agent_loop_workers)]
    rewards = trainer.reward_loop_manager.reward_loop_workers
    actors += [(f"reward worker {n}", worker) for n, worker in enumerate(rewards)]
    groups = {"actor": trainer.actor_rollout_wg}
    groups |= {"critic": trainer.critic_wg} if trainer.use_critic else {}
    groups |= {"reference policy": trainer.ref_policy_wg} if trainer.use_reference_policy else {}
    seen: set[Any] = set()
    for name, group in groups.items():
        actors += [(f"worker {n} of the {name}", one) for n, one in enumerate(group.workers) if one not in seen]
        seen |= {*group.workers}
    actors.append(("the TransferQueue's controller", interface._TQ_CONTROLLER))
    storages = (interface._TQ_STORAGE or {}).get("SimpleStorage") or {}
    actors += [(f"the TransferQueue's storage {n}", storage) for n, storage in enumerate(storages.values())]
    parts = [Part(name, actor) for name, actor in actors]

    replicas: dict[str, list[RolloutReplica]] = {"rollout": [], "reward model": []}
    managers = [getattr(trainer, name, None) for name in ("llm_server_manager", "standalone_server_manager")]
    for manager in managers:  # of which the separate trainer has both
        replicas["rollout"] += manager.get_replicas() if manager is not None else []
    if trainer.reward_loop_manager.reward_model_manager is not None:
        replicas["reward model"] += trainer.reward_loop_manager.reward_model_manager.rollout_replicas
    if trainer.teacher_model_manager is not None:
        teachers = trainer.teacher_model_manager.teacher_model_managers.values()
        replicas["teacher"] = [replica for teacher in teachers for replica in teacher.rollout_replicas]
    for kind, ones in replicas.items():
        for n, replica in enumerate(ones):
            parts += [Part(f"{kind} server {n}", server, has_failed) for server in replica.servers]
    return parts


def refuse_too_few(num_rollouts: int, num_wanted: int, step: int) -> None:
    """End a run whose rollouts fail.

    Raises:
        RunEndedError: If a step has too few of its rollouts.
    """
    if num_rollouts < MIN_SHARE_OF_ROLLOUTS * num_wanted:
        raise RunEndedError(
            f"step {step}: {num_rollouts} of {num_wanted} rollouts are there, the others failed: their agent loop or "
            f"their reward raised an error, which the log above has. A step is trained on {MIN_SHARE_OF_ROLLOUTS:.0%} "
            "or more."
        )
