"""Clocks for test code: a call takes what counts as the answer's time, whatever the sandbox and its other work take."""

import contextlib
import time
import timeit
from collections.abc import Callable, Iterator
from types import ModuleType

_wall, _cpu = time.perf_counter, time.process_time
_OF_WALL = ("time", "monotonic", "perf_counter")
_OF_CPU = ("process_time",)


class Clocks:
    """What the clocks of `time` and `timeit` show to one run of test code."""

    def __init__(self) -> None:
        """Show the real time."""
        self._left_out = {_wall: 0.0, _cpu: 0.0}  # seconds

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Show the same time at the end as at the start."""
        started = {clock: clock() for clock in self._left_out}
        try:
            yield
        finally:
            for clock, start in started.items():
                self._left_out[clock] += clock() - start

    def advance(self, seconds: float) -> None:
        """Show so many seconds more."""
        for clock in self._left_out:
            self._left_out[clock] -= seconds

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Let whoever imports a clock have these."""
        clocks: dict[tuple[ModuleType, str], Callable[[], float]] = {}
        for names, of_what in ((_OF_WALL, _wall), (_OF_CPU, _cpu)):
            for name in names:
                clocks[time, name] = self._seconds(getattr(time, name), of_what)
                clocks[time, f"{name}_ns"] = self._nanoseconds(getattr(time, f"{name}_ns"), of_what)
        clocks[timeit, "default_timer"] = clocks[time, "perf_counter"]
        real = {(module, name): getattr(module, name) for module, name in clocks}
        try:
            for (module, name), clock in clocks.items():
                setattr(module, name, clock)
            yield
        finally:
            for (module, name), clock in real.items():
                setattr(module, name, clock)

    def _seconds(self, real: Callable[[], float], of_what: Callable[[], float]) -> Callable[[], float]:
        return lambda: real() - self._left_out[of_what]

    def _nanoseconds(self, real: Callable[[], int], of_what: Callable[[], float]) -> Callable[[], int]:
        return lambda: real() - round(1e9 * self._left_out[of_what])
