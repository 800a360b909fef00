"""A lock that lets one process at a time write to a folder, and is released when that process ends or is killed.

It uses ``flock`` on a file of the folder, which the kernel releases with the process. On NFS it holds across machines.
"""

import errno
import fcntl
import os
import socket
import sys
import time
from pathlib import Path

from omegaconf import DictConfig

COMMAND, TRAINER = ".lock", ".lock.trainer"
"""The files that the command and the training process lock; the latter may outlive a killed command by seconds."""
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""The errors of a file system without locks, such as some that clusters mount."""
POLL_S = 0.5
LEASE_S = 120.0
"""Seconds for which a file server may keep the lock of a machine that is lost: a requeued job waits for it. NFS 4 keeps
it for 90 s."""


class Lock:
    """The right to write to a folder. It ends with this object, or with the process.

    Args:
        folder: The folder, which is made if it is absent.
        said: The setting that names the folder and its value, with which error messages begin.
        name: The name of the locked file.
        wait_s: How long to wait, in seconds, for another process to end.

    Raises:
        ValueError: If another process holds the lock, or the file cannot be written.
    """

    def __init__(self, folder: Path, said: str, name: str = COMMAND, wait_s: float = 0.0) -> None:
        """Take the lock, or go on with a warning where the file system has none."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / name).open("a+")
            self._take(said, wait_s)
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
            self._file.flush()
        except OSError as error:
            raise ValueError(f"{said} cannot be written: {error.strerror}; set another folder") from error

    def _take(self, said: str, wait_s: float) -> None:
        began, holder = time.monotonic(), ""
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not holder:
                    holder, wait_s = self._holder(said, wait_s)
                if time.monotonic() - began >= wait_s:
                    raise ValueError(
                        f"{said}: another process writes there ({holder}); wait until it ends, or set another folder"
                    ) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                print(
                    f"warning: {said}: its file system has no locks ({error.strerror}), so nothing prevents that a "
                    "second process writes there: start only one",
                    file=sys.stderr,
                )
                return None
            time.sleep(POLL_S)

    def _holder(self, said: str, wait_s: float) -> tuple[str, float]:
        """Return who holds the lock, and how long to wait for it: longer for another machine, which may be lost."""
        self._file.seek(0)
        holder = self._file.read()
        if not holder or holder.endswith(f" on {socket.gethostname()}"):
            return holder or "its name is not known", wait_s
        print(f"{said}: waiting up to {LEASE_S:g} s for {holder}, in case that machine is lost", file=sys.stderr)
        return holder, max(wait_s, LEASE_S)


def lock_folders(config: DictConfig, name: str = COMMAND, wait_s: float = 0.0) -> list[Lock]:
    """Lock the folders that a run writes to: ``run_dir``, and its checkpoints' and records' where they lie elsewhere.

    Raises:
        ValueError: If another run writes to one of them.
    """
    settings = {
        "run_dir": config.run_dir,
        "trainer.default_local_dir": config.trainer.default_local_dir,
        "records.path": config.records.path,
    }
    locked: dict[Path, Lock] = {}
    for key, value in settings.items():
        folder = Path(value).expanduser().absolute()
        if "://" not in value and not any(folder.is_relative_to(other) for other in locked):
            locked[folder] = Lock(folder, f"{key}={value}", name, wait_s)
    return [*locked.values()]
