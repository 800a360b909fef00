"""The command, killed at random points, then run to its end: ``killed_often.py JOURNAL NUM ARGUMENT...``.

Each time is a fork of this process, which has imported everything. Prints how many lines each kill has left, as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import recipe.offline.run  # noqa: F401  # before the forks
from recipe.commands import main


def start(arguments: list[str]) -> int:
    """Run the command in a process of its own, and return its id."""
    if pid := os.fork():
        return pid
    sys.argv = ["online-refiner", *arguments]
    try:
        main()
    except SystemExit as error:
        os._exit(int(error.code or 0))
    os._exit(1)


def main_of_test(journal: Path, num_kills: int, arguments: list[str]) -> None:
    """Kill it so often, four times of five after it has done more, then let it be."""

    def size() -> int:
        return journal.stat().st_size if journal.exists() else 0

    draw, left = random.Random(1), []
    for number in range(num_kills):
        before, pid = size(), start(arguments)
        while number % 5 and size() == before and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.4))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        left.append(journal.read_bytes().count(b"\n") if journal.exists() else 0)
    _, status = os.waitpid(start(arguments), 0)
    print(json.dumps(left), flush=True)
    raise SystemExit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main_of_test(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
