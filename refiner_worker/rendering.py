"""The renderer of Jinja2 templates in Jinja2's sandbox, in a separate process with bounded time and memory.

The sandbox keeps a template from Python's own objects, so that it cannot run other code. It does not bound a loop, a
power or a repeated text. These end the process, which loses one prompt: the next prompt gets a new process.
"""

import contextlib
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CPU_S = 2.0
"""The largest CPU time of one prompt in seconds. Packaged templates take less than a millisecond."""
MAX_MEMORY = 2 << 30
"""The largest address space of the process in bytes."""
MAX_CHARACTERS = 16 << 20
"""The largest number of characters of one prompt, which is more than any model's context."""
MAX_WORDS = 300
"""The largest number of characters of an error's text."""


class TemplateFailedError(ValueError):
    """A template cannot be parsed or rendered. The text is one line that names the template's line."""


@dataclass(slots=True, frozen=True)
class BoundedTemplate:
    """A template that is rendered in another process.

    Attributes:
        source: The template's text.
        used: The variables that it uses.

    Raises:
        TemplateFailedError: If the template cannot be parsed.
    """

    source: str
    used: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Parse the template."""
        object.__setattr__(self, "used", frozenset(_ask("used", self.source, {})))

    def render(self, **variables: Any) -> str:
        """Return the rendered text.

        Raises:
            TemplateFailedError: If an expression raises an error, or the bounds are not kept.
        """
        return str(_ask("text", self.source, variables))

    def stop(self, **variables: Any) -> str | None:
        """Return the variable ``stop`` that the template sets; None if it sets none.

        Raises:
            TemplateFailedError: If the variable is no text, and for the reasons of :meth:`render`.
        """
        stop: str | None = _ask("stop", self.source, variables)
        return stop


class _Process:
    """The child process that renders templates for this process."""

    def __init__(self) -> None:
        """Start the renderer, which ends with this process."""
        self.owner = os.getpid()
        self.pipe, theirs = Pipe()
        variables = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # it needs no allocator
        self.process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(theirs.fileno()), str(MAX_CPU_S)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for the command
        )
        theirs.close()

    def ask(self, request: bytes) -> dict[str, Any]:
        """Return the renderer's reply; the renderer has ended if the reply has an error and no process is left."""
        try:
            self.pipe.send_bytes(request)
            reply: dict[str, Any] = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            status = self.process.wait()
            why = f"its process ended with status {status}"
            if status == -signal.SIGPROF:
                why = f"it takes more than {MAX_CPU_S:g} s of CPU time"
            return {"error": why, "is_gone": True}
        return reply


_lock = threading.Lock()
_processes: list[_Process] = []
"""The renderer process, at most one, which all templates of this process share."""


def _ask(what: str, source: str, variables: dict[str, Any]) -> Any:
    request = json.dumps([what, source, variables], default=str).encode()
    with _lock:
        if not _processes or _processes[0].owner != os.getpid():  # a fork shares the pipe of the other one
            _processes[:] = [_Process()]
        reply = _processes[0].ask(request)
        if reply.get("is_gone"):
            _processes.clear()
    if "error" in reply:
        raise TemplateFailedError(reply["error"])
    return reply["answer"]


@functools.lru_cache
def _parsed(source: str) -> tuple[Template, list[str]]:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    return environment.from_string(source), sorted(meta.find_undeclared_variables(environment.parse(source)))


def _answer(what: str, source: str, variables: dict[str, Any]) -> bytes:
    """Return the reply to a request, with the answer or the error."""
    try:
        template, used = _parsed(source)
        answer: Any = used
        if what == "stop":
            stop = getattr(template.make_module(variables), "stop", None)
            if stop is not None and not (isinstance(stop, str) and stop):
                return _failed(f"stop is {stop!r:.100}; set one text that is not empty")
            answer = stop
        elif what == "text":
            answer = template.render(variables)
        if isinstance(answer, str) and len(answer) > MAX_CHARACTERS:
            return _failed(f"it writes {len(answer)} characters; at most {MAX_CHARACTERS} are allowed")
        return json.dumps({"answer": answer}).encode()
    except Exception as error:  # an expression of a template may raise anything
        frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        line = error.lineno if isinstance(error, TemplateSyntaxError) else next(reversed(frames), None)
        where = f"line {line}: " if line else ""
        said = " ".join(str(error).split())[:MAX_WORDS]
        return _failed(f"{where}{type(error).__name__}{': ' if said else ''}{said}")


def _failed(line: str) -> bytes:
    return json.dumps({"error": line}).encode()


def _serve(pipe: Connection, max_cpu_s: float) -> None:
    """Answer requests until the other end of the pipe is closed; one that takes more CPU time ends this process."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the process that asks has ended
        while True:
            request = json.loads(pipe.recv_bytes())
            signal.setitimer(signal.ITIMER_PROF, max_cpu_s)  # SIGPROF ends a process that does not handle it
            reply = _answer(*request)
            signal.setitimer(signal.ITIMER_PROF, 0)
            pipe.send_bytes(reply)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])), float(sys.argv[2]))
