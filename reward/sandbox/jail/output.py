"""Standard output of one program: a pipe, which its slot moves to the file that the trusted process reads.

The kernel moves it: a slot that read it would leave it in memory of which all its later programs get a copy.
"""

from os import SPLICE_F_NONBLOCK, close, splice

_PIECE_BYTES = 1 << 16
_MAX_PIECES = 1 << 10  # more than a pipe holds, of a byte each too; who goes on writing must not keep its slot here
_MUCH_BYTES = 1 << 12  # what the smallest pipe that the kernel makes can hold
_FIRST_PAUSE_S, _MIN_PAUSE_S = 0.004, 0.001


class Output:
    """Drained now and then and at the end, not when something comes: most programs end before the pipe is full.

    Attributes:
        pause_s: how long to wait until the next `drain`; short while a program fills the pipe, so that it hardly waits.
    """

    __slots__ = ("_file", "_reader", "_room", "pause_s")

    def __init__(self, reader: int, file: int, max_bytes: int) -> None:
        """Take both descriptors; the reader must not block, as the program may read from the pipe as well."""
        self._reader, self._file = reader, file
        self._room = max_bytes + 1  # one more, by which the trusted process sees that it was too much
        self.pause_s = _FIRST_PAUSE_S

    def drain(self) -> bool:
        """Move what is there; returns whether it is no more than it may be."""
        room = self._room
        for _ in range(_MAX_PIECES):
            if not self._room:
                break
            try:
                moved = splice(self._reader, self._file, min(_PIECE_BYTES, self._room), flags=SPLICE_F_NONBLOCK)
            except BlockingIOError:
                break
            if not moved:
                break
            self._room -= moved
        self.pause_s = _MIN_PAUSE_S if room - self._room >= _MUCH_BYTES else 2 * self.pause_s
        return self._room > 0

    def close(self) -> None:
        """Move the rest and close both; the program has ended."""
        self.drain()
        close(self._reader)
        close(self._file)
