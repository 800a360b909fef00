"""A pseudo-terminal, and what is shown on it."""

import os
import pty
import re
import threading
from collections.abc import Callable

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(do: Callable[[int], object]) -> str:
    """Return what is shown on a pseudo-terminal, whose descriptor ``do`` gets, without the codes of the cursor."""
    master, slave = pty.openpty()
    shown = bytearray()

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                shown.extend(data)
        except OSError:  # Linux: nobody has it open any more
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        do(slave)
    finally:
        os.close(slave)
        reader.join()
        os.close(master)
    return CODES.sub("", shown.decode().replace("\r\n", "\n").replace("\r", "\n"))
