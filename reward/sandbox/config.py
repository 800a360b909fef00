"""Which sandbox runs the programs, and the one of each configuration that a process shares."""

import atexit
import functools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from reward.sandbox.execution import Sandbox
from reward.sandbox.local import LocalSandbox
from reward.sandbox.remote import RemoteSandbox


@dataclass(slots=True, kw_only=True, frozen=True)
class SandboxConfig:
    """Where programs run; the defaults stand here only."""

    backend: str = "local"  # "local": zygotes on this machine; "remote": a SandboxFusion service
    url: str = ""  # remote: the service's address, http://host:port
    num_slots: int = field(default_factory=lambda: os.cpu_count() or 1)  # programs of this process that run at a time
    allow_unsafe: bool = False  # local: run programs even where Landlock or seccomp do not work

    def __post_init__(self) -> None:
        """Reject what no backend could do."""
        if self.backend not in BACKENDS:
            raise ValueError(f"sandbox backend is {self.backend!r}: set one of {', '.join(BACKENDS)}")
        if self.num_slots < 1:
            raise ValueError(f"sandbox num_slots is {self.num_slots}: set it to at least 1")


BACKENDS: dict[str, Callable[[SandboxConfig], Sandbox]] = {
    "local": lambda config: LocalSandbox(num_slots=config.num_slots, allow_unsafe=config.allow_unsafe),
    "remote": lambda config: RemoteSandbox(url=config.url, num_slots=config.num_slots),
}


def shared_sandbox(config: SandboxConfig) -> Sandbox:
    """The sandbox of this configuration, started at the first call and ended with this process."""
    with _lock:  # or threads that come first together would start one each
        return _start(config)


@functools.lru_cache
def _start(config: SandboxConfig) -> Sandbox:
    sandbox = BACKENDS[config.backend](config)
    atexit.register(sandbox.close)
    return sandbox


def _forget_parents_sandboxes() -> None:
    """Let a forked child start its own zygotes: those of its parent serve the parent alone."""
    global _lock
    _lock = threading.Lock()
    _start.cache_clear()


_lock = threading.Lock()
os.register_at_fork(after_in_child=_forget_parents_sandboxes)
