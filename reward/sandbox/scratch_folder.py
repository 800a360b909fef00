"""The folder in which a zygote's slots have their scratch directories, and the removal of those that nobody owns."""

import contextlib
import fcntl
import os
import shutil
import tempfile

_PREFIX = "reward-scratch-"


class ScratchFolder:
    """A new folder; before it is made, those of dead owners are removed.

    A lock says that a folder's owner lives: it holds as long as this process or its zygote has the descriptor open.
    """

    def __init__(self) -> None:
        """Make and lock it.

        Raises:
            OSError: the folder for temporary files cannot be written to.
        """
        _remove_abandoned()
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX)
            with contextlib.suppress(FileNotFoundError):  # another start removed it before it was locked
                fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self.fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)  # those below are the zygote's standard streams
                os.close(fd)
                fcntl.flock(self.fd, fcntl.LOCK_SH)
                if os.path.exists(self.path):
                    break
                os.close(self.fd)
        os.fchmod(self.fd, 0o711)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.fd)


def _remove_abandoned() -> None:
    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        if name.startswith(_PREFIX):
            with contextlib.suppress(OSError):  # gone, in use, or not a folder
                _remove_if_abandoned(os.path.join(parent, name))


def _remove_if_abandoned(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    finally:
        os.close(fd)
