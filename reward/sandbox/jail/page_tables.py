"""The kernel's tables of a program's memory, which no limit counts: a page far from all others takes two pages more."""

import os

_SPARE_BYTES = 32 << 20
_SHARE = 64  # dense tables take less than this part of the memory


def has_too_large_page_tables(pid: int, memory_bytes: float) -> bool:
    """Whether they are larger than programs of so much memory need; False where /proc is mounted to hide the child."""
    return _page_table_bytes(pid) > _SPARE_BYTES + memory_bytes / _SHARE


def _page_table_bytes(pid: int) -> int:
    """0: it has ended, or is hidden. The first thread, for which all stand, may have ended before the others."""
    try:
        return _of_thread(f"/proc/{pid}/status") or _of_thread(f"/proc/{pid}/task/{_last_thread(pid)}/status")
    except OSError:
        return 0


def _last_thread(pid: int) -> str:
    return os.listdir(f"/proc/{pid}/task")[-1]


def _of_thread(path: str) -> int:
    with open(path, "rb", buffering=0) as file:
        _, _, rest = file.read(1 << 14).partition(b"\nVmPTE:")
    return int(rest.split(None, 1)[0]) << 10 if rest else 0
