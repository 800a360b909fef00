"""The sandbox of each configuration that a process shares."""

import atexit
import functools
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reward.sandbox.local import LocalSandbox

GONE = dict.fromkeys(
    ("backend", "url"),
    "is gone: programs run on this machine; with a SandboxFusion service set verl's own reward.sandbox_fusion.url",
)
"""Settings of earlier releases, and what to do instead."""


@dataclass(slots=True, kw_only=True, frozen=True)
class SandboxConfig:
    """How programs run; the defaults stand here only."""

    num_slots: int = field(default_factory=lambda: os.cpu_count() or 1)  # programs of this process that run at a time
    allow_unsafe: bool = False  # run programs even where Landlock or seccomp do not work

    def __post_init__(self) -> None:
        """Reject what cannot be done."""
        if self.num_slots < 1:
            raise ValueError(f"sandbox num_slots is {self.num_slots}: set it to at least 1")

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "SandboxConfig":
        """Read the settings of `reward_kwargs.sandbox`; ValueError: one of them does not exist."""
        if unknown := fields.keys() - set(cls.__slots__):
            name = min(unknown)
            raise ValueError(f"sandbox.{name} {GONE.get(name, f'does not exist: set one of {cls.__slots__}')}")
        return cls(**fields)


def shared_sandbox(config: SandboxConfig) -> LocalSandbox:
    """The sandbox of this configuration, started at the first call and ended with this process."""
    with _lock:  # or threads that come first together would start one each
        return _start(config)


@functools.lru_cache
def _start(config: SandboxConfig) -> LocalSandbox:
    sandbox = LocalSandbox(num_slots=config.num_slots, allow_unsafe=config.allow_unsafe)
    atexit.register(sandbox.close)
    return sandbox


def _forget_parents_sandboxes() -> None:
    """Let a forked child start its own zygotes: those of its parent serve the parent alone."""
    global _lock
    _lock = threading.Lock()
    _start.cache_clear()


_lock = threading.Lock()
os.register_at_fork(after_in_child=_forget_parents_sandboxes)
