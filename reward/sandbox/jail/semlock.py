"""A `_multiprocessing` for programs that have threads but no processes: the real one's semaphores need /dev/shm.

`multiprocessing.pool.ThreadPool` and `multiprocessing.dummy` make some of these.
"""

import sys
from _thread import get_ident
from threading import Condition
from types import ModuleType

_RECURSIVE_MUTEX = 0


class SemLock:
    """What `_multiprocessing.SemLock` is, among threads: a semaphore, or a lock that its holder may take again."""

    SEM_VALUE_MAX = (1 << 31) - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        """Start at the value; there is nothing that a name could be given to."""
        self.kind, self.maxvalue, self.name, self.handle = kind, maxvalue, None, 0
        self._changed = Condition()
        self._value = value
        self._num_held, self._holder = 0, 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take one, waiting as long as said; returns whether it was had."""
        with self._changed:
            if self.kind != _RECURSIVE_MUTEX or not self._is_mine():
                if not self._changed.wait_for(lambda: self._value > 0, timeout if block else 0.0):
                    return False
                self._value -= 1
            self._num_held += 1
            self._holder = get_ident()
            return True

    def release(self) -> None:
        """Give one back.

        Raises:
            AssertionError: another thread holds the lock.
            ValueError: more than the greatest value.
        """
        with self._changed:
            if self.kind == _RECURSIVE_MUTEX:
                if not self._is_mine():
                    raise AssertionError("attempt to release recursive lock not owned by thread")
            elif self._value >= self.maxvalue:
                raise ValueError("semaphore or lock released too many times")
            self._num_held -= 1
            if self.kind != _RECURSIVE_MUTEX or not self._num_held:
                self._value += 1
                self._changed.notify()

    def __enter__(self) -> bool:
        """Take one."""
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        """Give it back."""
        self.release()

    def _count(self) -> int:
        return self._num_held

    def _is_mine(self) -> bool:
        return self._num_held > 0 and self._holder == get_ident()

    def _get_value(self) -> int:
        return self._value

    def _is_zero(self) -> bool:
        return self._value == 0

    def _after_fork(self) -> None:
        self._num_held = 0


def install() -> None:
    """Let `multiprocessing` find this module's class where it looks for the real one."""
    module = ModuleType("_multiprocessing")
    module.__dict__.update(SemLock=SemLock, sem_unlink=lambda name: None, flags={})
    sys.modules["_multiprocessing"] = module
