"""The time for which a step computes on CPUs, from the models' sizes and the speed of this machine."""

import os
import time

from recipe.sizing.shapes import Shape

FORWARD, BACKWARD = 2, 4
"""Floating-point operations of a pass for each parameter and token."""
WIDTH = 512
"""The rows and columns of the matrices whose product measures a core."""
MEASURED_S = 0.1


def num_operations(policy: Shape, num_rollouts: int, prompt: int, response: int) -> float:
    """Return the floating-point operations of a step apart from refining.

    They are those of the rollouts, of their log-probs before the update, and of the update.

    Args:
        policy: The policy's shape.
        num_rollouts: The number of responses of a step.
        prompt: The number of tokens of a prompt.
        response: The number of tokens of a response.
    """
    passes = 3 * FORWARD + BACKWARD
    return passes * num_rollouts * (prompt + response) * policy.num_active


def num_operations_of_refining(refiner: Shape, num_rollouts: int, prompt: int, response: int) -> float:
    """Return the floating-point operations of refining each response once, by a refinement as long as the response."""
    return FORWARD * num_rollouts * (prompt + 2 * response) * refiner.num_active


def operations_per_second() -> tuple[float, int]:
    """Return the floating-point operations per second of this process on all its cores, and the number of cores.

    One core is measured, in CPU seconds, so that other processes of the machine change the result little.
    """
    import torch  # here: it takes seconds

    matrix, num_cores = torch.randn(WIDTH, WIDTH), len(os.sched_getaffinity(0))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    matrix @ matrix
    number, began = 0, time.process_time()
    while (seconds := time.process_time() - began) < MEASURED_S:
        matrix @ matrix
        number += 1
    torch.set_num_threads(num_threads)
    return num_cores * number * 2 * WIDTH**3 / seconds, num_cores


def shown(seconds: float) -> str:
    """Return a time as a reader takes it in: 40 s, 12 minutes, 3 hours."""
    for size, name in ((3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
