"""What keeps test code in its process: a second line behind the list of what it may use.

A text of the answer's that test code runs as code after all can neither read files but the interpreter's modules, nor
write any, nor reach other processes or the network.
"""

import contextlib
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
        packages = [path for path in sys.path if os.path.basename(path) in _PACKAGES]
        folders = [sysconfig.get_path("stdlib"), *packages, *_LIBRARIES, *zoneinfo.TZPATH, "/proc/self"]
        landlock.restrict_self(landlock.create_ruleset([(folder, landlock.READ) for folder in folders]))
    with contextlib.suppress(OSError):
        calls = seccomp.Filter()
        calls.install_in_slot()
        calls.install()
