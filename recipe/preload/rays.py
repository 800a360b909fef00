"""What Ray must be told in a process that will be forked."""

import os
from types import SimpleNamespace


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
