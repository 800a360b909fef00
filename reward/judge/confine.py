"""What keeps test code in its process: a second line behind the list of what it may use.

A text of the answer's that test code runs as code after all can neither read files but the interpreter's modules, nor
write any, nor reach other processes or the network.
"""

import contextlib
import functools
import os
import sys
import sysconfig
import zoneinfo

from reward.sandbox.jail import kernel, landlock, seccomp

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_PACKAGES = ("site-packages", "dist-packages")


def confine_self() -> None:
    """Confine this process for good; where the kernel cannot, the list alone has to do."""
    with contextlib.suppress(OSError):
        kernel.prctl("NO_NEW_PRIVS", kernel.PR_SET_NO_NEW_PRIVS, 1)
        landlock.restrict_self(landlock.create_ruleset([(folder, landlock.READ) for folder in readable_folders()]))
    with contextlib.suppress(OSError):
        system_calls().install_in_slot()
        system_calls().install()


@functools.cache
def readable_folders() -> list[str]:
    """Where modules and time zones are, and what is said of the process itself."""
    packages = [path for path in sys.path if os.path.basename(path) in _PACKAGES]
    return [sysconfig.get_path("stdlib"), *packages, *_LIBRARIES, *zoneinfo.TZPATH, "/proc/self"]


@functools.cache
def system_calls() -> seccomp.Filter:
    """The filter of programs; OSError: there is none for this processor."""
    return seccomp.Filter()
