"""How a program ends: in the order in which CPython finalizes an interpreter, without clearing the library's modules.

What the program left is untrusted, and everything here may call it: an error in one step does not keep the next from
running, and an end that hangs meets the deadline. Few steps touch memory that the zygote shares, as each page of it is
copied then, which takes longer than the step.
"""

import atexit
import gc
import sys
from _io import _IOBase, _TextIOBase
from _thread import _count as num_threads
from collections.abc import Callable
from os import _exit


def end(status: int) -> None:
    """End the process as an interpreter would that is to end with this status."""
    try:
        _attempt(_wait_for_threads)
        _attempt(atexit._run_exitfuncs)
        if not _flush_standard_streams():
            status = 120
        _attempt(_drop_program)
        _flush_standard_streams()  # of a stream that was detached nothing can be asked any more
    finally:
        _exit(status)


def _attempt(step: Callable[[], object]) -> None:
    try:
        step()
    except BaseException:
        return


def _wait_for_threads() -> None:
    if num_threads():  # where no thread was started there is nothing to wait for
        sys.modules["threading"]._shutdown()
        sys.setswitchinterval(60.0)  # daemon threads stop here


def _flush_standard_streams() -> bool:
    is_flushed = True
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except BaseException:
            is_flushed = False
    return is_flushed


def _drop_program() -> None:
    """Let go of all that the program made, so that its files are closed and its `__del__` called."""
    # Garbage first; all but the oldest, for which everything would be looked through twice.
    gc.collect(1 if any(gc.get_count()[1:]) else 0)
    if "last_value" in sys.__dict__:
        sys.last_value = sys.last_traceback = None
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    name = "solution" if "solution" in sys.modules else "__main__"
    namespace = id(sys.modules[name].__dict__)
    del sys.modules[name]
    # A full collection frees the interpreter's spare objects as well: not without need.
    gc.collect(2 if gc.get_objects(2) else 1)
    if any([id(thing) == namespace or issubclass(type(thing), _IOBase) for thing in gc.get_objects()]):
        _take_from_library(namespace)


def _take_from_library(namespace: int) -> None:
    """Clear the program's names, and close its files, where something in the library holds them."""
    for clear_cache in sys.modules["typing"]._cleanups:  # the most frequent holder of a program's classes
        clear_cache()
    gc.collect()
    for names in _find(namespace):
        _clear(names)
    gc.collect()
    streams = [thing for thing in gc.get_objects() if issubclass(type(thing), _IOBase)]
    streams.sort(key=lambda stream: not isinstance(stream, _TextIOBase))  # what writes to another stream goes first
    for stream in streams:
        _attempt(stream.close)


def _find(namespace: int) -> list[dict]:
    """The dictionary of this id, in a list, if it is still there."""
    things = gc.get_objects()
    return [thing for thing in things if id(thing) == namespace and type(thing) is dict and "__builtins__" in thing]


def _clear(names: dict) -> None:
    """As CPython does: names with one underscore first, then the others."""
    for is_private in (True, False):
        for name in list(names):
            if type(name) is str and (name[:1] == "_" and name[1:2] != "_") is is_private and name != "__builtins__":
                names[name] = None
