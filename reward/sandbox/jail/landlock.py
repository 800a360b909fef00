"""Landlock: which files a sandboxed process may open. Needs no privilege; it covers neither stat nor chmod."""

import ctypes
import os
import struct
from collections.abc import Iterable

from reward.sandbox.jail import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, READ_DIR, _MAKE_REG, _TRUNCATE = (1 << bit for bit in (0, 1, 2, 3, 8, 14))
# Rights that a ruleset governs, by the version of the kernel's interface. Version 1 has 13, each later one more.
_HANDLED_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_HANDLED_NET_RIGHTS = 0b11  # bind and connect over TCP, from version 4
_SCOPES = 0b11  # abstract UNIX sockets and signals to processes outside, from version 6

READ = _READ_FILE | READ_DIR
# Regular files that cannot be removed or renamed: every file stays where the slot counts it.
SCRATCH = READ | _WRITE_FILE | _MAKE_REG | _TRUNCATE
DEVICE = _READ_FILE | _WRITE_FILE
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1


def version() -> int:
    """Return the version of the kernel's interface; OSError where Landlock is missing or switched off."""
    number = kernel.SYS_LANDLOCK_CREATE_RULESET
    return kernel.syscall("landlock", number, None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))


def create_ruleset(rules: Iterable[tuple[str, int]], *, abi: int | None = None) -> int:
    """Return the descriptor of a ruleset that forbids every access but the given rights, each beneath its path.

    Args:
        rules: Pairs of a path and the rights beneath it. A path that does not exist is left out.
        abi: The version of Landlock's interface to use; None: the kernel's newest one.
    """
    abi = abi or version()
    handled = _HANDLED_FILE_RIGHTS[min(abi, max(_HANDLED_FILE_RIGHTS))]
    attributes = struct.pack("=QQQ", handled, _HANDLED_NET_RIGHTS * (abi >= 4), _SCOPES * (abi >= 6))
    size = ctypes.c_size_t(8 if abi < 4 else 16 if abi < 6 else 24)
    ruleset = kernel.syscall("landlock", kernel.SYS_LANDLOCK_CREATE_RULESET, attributes, size, ctypes.c_uint32(0))
    for path, rights in rules:
        try:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        allowed = rights & handled if os.path.isdir(path) else rights & handled & _FILE_ONLY
        arguments = (ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", allowed, parent), ctypes.c_uint32(0))
        kernel.syscall("landlock", kernel.SYS_LANDLOCK_ADD_RULE, *arguments)
        os.close(parent)
    return ruleset


def restrict_self(ruleset: int) -> None:
    """Put this process, which must have no_new_privs, under the ruleset for good."""
    kernel.syscall("landlock", kernel.SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
