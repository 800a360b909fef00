"""A slot's scratch directory: the only place where programs may write, emptied after each.

Where mounts are allowed it is a file system in memory of its own, which cannot grow beyond its size, counts files
without names too, and goes with the slot. Elsewhere it is a directory whose files are measured from time to time;
programs cannot remove or rename files there, so that every file stays where it is counted.
"""

import contextlib
import errno
import os
import resource
from os import _exit, listdir, statvfs, waitpid

from reward.sandbox.jail import kernel, landlock

_MAX_FILES = 256
_FILES_WHEN_EMPTY = 1  # the directory itself
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's


class Scratch:
    """The scratch directory of one slot.

    Args:
        path: absolute.
        max_bytes: of all files at a time.
        is_mounted: whether it is a file system of its own.
    """

    __slots__ = ("is_mounted", "max_bytes", "path")

    def __init__(self, path: str, max_bytes: int, *, is_mounted: bool) -> None:
        """Make the directory; before `mount`, it is on the file system of the folder above.

        Raises:
            OSError: the folder above has gone or is full.
        """
        self.path, self.max_bytes, self.is_mounted = path, max_bytes, is_mounted
        if is_mounted:  # every slot mounts on the same directory, in a namespace of its own
            os.makedirs(path, mode=0o700, exist_ok=True)
        else:
            remove_tree(path)  # of a slot that was killed
            os.mkdir(path, 0o700)

    def give_to(self, uid: int | None) -> None:
        """Mount it if it is to be mounted, and let this user's programs write in it; None: the own user's."""
        # Not the program's own directory: it cannot change its mode.
        owner, group, mode = (os.geteuid(), os.getegid(), 0o700) if uid is None else (0, uid, 0o770)
        if self.is_mounted:
            mount(self.path, self.max_bytes, f"uid={owner},gid={group},mode={mode:o}")
        elif uid is not None:
            os.chown(self.path, owner, group)
            os.chmod(self.path, mode)
        os.utime(self.path, (0, 0))

    @property
    def is_untouched(self) -> bool:
        """Whether no program has listed it or made anything in it, of which its times and files' numbers tell."""
        status = os.stat(self.path)
        return status.st_atime_ns == status.st_mtime_ns == 0

    @property
    def rights(self) -> int:
        """What Landlock grants to programs here."""
        return landlock.SCRATCH | landlock.REMOVE_FILE if self.is_mounted else landlock.SCRATCH

    def is_within_limits(self) -> bool:
        """Whether neither the files' size nor their number is beyond the limits."""
        if self.is_mounted:
            usage = statvfs(self.path)
            return usage.f_bfree > 0 and usage.f_ffree > 0
        num_files = num_bytes = 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                num_files += 1
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile: possible without Landlock only
                    num_bytes += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                if num_files > _MAX_FILES or num_bytes > self.max_bytes:
                    return False
        return True

    def empty(self) -> None:
        """Remove what is in it; where it is mounted, in a child, as the names are the program's."""
        if not self.is_mounted:
            self._remove_files()
            return
        usage = statvfs(self.path)
        if usage.f_files - usage.f_ffree == _FILES_WHEN_EMPTY:
            return
        pid = kernel.fork()
        if pid == 0:
            try:
                self._remove_files()
                _exit(0)
            finally:
                _exit(1)
        if waitpid(pid, 0)[1]:
            raise OSError(errno.EIO, f"{self.path} could not be emptied")

    def _remove_files(self) -> None:
        for name in listdir(self.path):
            path = os.path.join(self.path, name)
            try:
                os.unlink(path)
            except OSError as error:  # a directory: possible without Landlock only
                if error.errno not in (errno.EISDIR, errno.EPERM, errno.EACCES):
                    raise
                remove_tree(path)

    def remove(self) -> None:
        """Remove it; a mounted one goes with the slot."""
        if not self.is_mounted:
            remove_tree(self.path)


def mount(path: str, max_bytes: int, options: str) -> None:
    """Mount a file system in memory on the path, for this process's mount namespace only.

    It holds a page and a file more than the limits: once there is no room left, they have been passed.
    """
    page = resource.getpagesize()
    size = (-(-max_bytes // page) + 1) * page
    # Slaves, not private: what the machine unmounts meanwhile is not kept in use by this namespace.
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_SLAVE, "")
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("tmpfs", path, "tmpfs", flags, f"size={size},nr_inodes={_MAX_FILES + 2},{options}")


def remove_tree(folder: str) -> None:
    """Remove the folder and what is in it, as far as possible."""
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in files:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(parent, name))
        for name in folders:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(parent, name))
    with contextlib.suppress(OSError):
        os.rmdir(folder)
