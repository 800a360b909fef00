"""The remote backend: SandboxFusion's HTTP API (`POST <url>/run_code`), outputs compared here.

An error of the service is an infra_error and never a verdict on the program: it is tried again, and then reported so.

The program is sent within a script that tells how it ended: on standard error that it did not compile, and on standard
output the value of a call, both behind a word drawn for this run. A program may find the word and forge a report; all
it can forge is what it could as well do: not compile, or return a value.
"""

import http.client
import json
import secrets
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from reward.limits import Limits
from reward.sandbox.execution import Execution, Program, Status, last_words

_JAIL = Path(__file__).with_name("jail")
_GRACE_S = 10.0  # wall seconds that a request may take beyond its program's time
_RUN = """
import builtins as _builtins, os as _os, sys as _sys

def _run():
    word, source, fn_name, arguments, leetcode, is_tested, iterator_limits = {job!r}
    try:
        code = compile(source, "solution.py", "exec", dont_inherit=True)
    except Exception as error:
        _os.write(2, f"{{word}}{{type(error).__name__}}: {{error}}".encode(errors="replace")[:1000])
        _os._exit(1)
    if hasattr(_sys, "set_int_max_str_digits"):
        _sys.set_int_max_str_digits(0)
    if fn_name is None:
        return exec(code, {{"__name__": "__main__", "__builtins__": _builtins}})
    namespace = ready_names(source, fn_name) if leetcode else {{}}
    if leetcode:
        allow_depth()
    namespace["__name__"] = "solution"
    exec(code, namespace)
    function = find_function(namespace, fn_name, has_class=leetcode)
    text, error = outcome_of_call(function, arguments, is_tested=is_tested, iterator_limits=iterator_limits)
    _sys.stdout.flush()
    if text:
        _os.write(1, (word + text).encode())
    if is_tested and isinstance(error, SystemExit):
        raise SystemExit(error.code or 1)
    if error is not None:
        raise error
    _os._exit(0)

_run()
"""


class ServiceError(Exception):
    """The service did not run the program, and may the next time."""


class RemoteSandbox:
    """Runs programs by a SandboxFusion service.

    Args:
        url: of the service, `http://host:port`, with or without `/run_code`.
        num_slots: requests at a time; further callers wait.
    """

    def __init__(self, *, url: str, num_slots: int) -> None:
        """Check the address.

        Raises:
            ValueError: it is no HTTP address.
        """
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"sandbox url is {url!r}: set it to the http:// address of a SandboxFusion service")
        self._url = url.rstrip("/").removesuffix("/run_code") + "/run_code"
        self._free = threading.BoundedSemaphore(num_slots)

    def execute(self, program: Program, *, limits: Limits, timeout_s: float) -> Execution:
        """See `Sandbox.execute`."""
        word = secrets.token_hex(16)
        request = {
            "code": script_of(program, word, limits, timeout_s=timeout_s),
            "stdin": program.stdin,
            "language": "python",
            "compile_timeout": limits.startup_s,
            "run_timeout": timeout_s,
            "memory_limit_MB": limits.memory_bytes >> 20,
            "files": {},
            "fetch_files": [],
        }
        # JSON may write a byte as six; more than that is no answer to one program.
        max_bytes = 6 * (limits.output_bytes + limits.file_bytes + program.max_result_bytes(limits))
        with self._free:
            for attempt in range(limits.infra_attempts):
                if attempt:
                    time.sleep(0.1 * 2**attempt)
                try:
                    answer = self._post(json.dumps(request).encode(), max_bytes, limits.startup_s + timeout_s)
                    execution = execution_of(answer, program, limits, timeout_s, word)
                    break
                except ServiceError as error:
                    execution = Execution(status="infra_error", detail=str(error))
        return execution

    def close(self) -> None:
        """There is nothing to end."""

    def _post(self, body: bytes, max_bytes: int, timeout_s: float) -> dict[str, Any]:
        request = urllib.request.Request(self._url, data=body, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s + _GRACE_S) as response:
                answer = json.loads(response.read(max_bytes))
        except urllib.error.HTTPError as error:
            with error:
                raise ServiceError(f"{self._url} answered {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # no connection, time-out, cut or no JSON
            raise ServiceError(f"{self._url}: {type(error).__name__}: {error}") from error
        if not isinstance(answer, dict):
            raise ServiceError(f"{self._url} answered with {type(answer).__name__}, not an object")
        return answer


def execution_of(answer: dict[str, Any], program: Program, limits: Limits, timeout_s: float, word: str) -> Execution:
    """From the service's answer to a status.

    Raises:
        ServiceError: the answer says, or shows, that the service did not run the program.
    """
    run = answer.get("run_result")
    if answer.get("status") == "SandboxError" or not isinstance(run, dict) or run.get("status") == "Error":
        raise ServiceError(f"the service failed: {str(answer.get('message') or answer.get('status'))[:300]}")
    stdout, stderr = str(run.get("stdout") or ""), str(run.get("stderr") or "")
    result = stdout.rpartition(word)[2].encode(errors="replace") if word in stdout else b""

    def ended(status: Status, detail: str = "") -> Execution:
        seconds = float(run.get("execution_time") or 0.0)
        shown = stdout if status == "ok" and program.fn_name is None else ""
        return Execution(status=status, stdout=shown, detail=detail, result=result, seconds=seconds)

    if run.get("status") == "TimeLimitExceeded":
        return ended("time_out", f"no end within {timeout_s:.3g} s")
    if run.get("status") != "Finished" or not isinstance(run.get("return_code"), int):
        raise ServiceError(f"the service answered with the unknown status {run.get('status')!r}")
    if word in stderr:
        return ended("compile_error", stderr.partition(word)[2][:300])
    if len(stdout.encode(errors="replace")) > program.max_result_bytes(limits):
        return ended("output_limit", f"more than {limits.output_bytes} bytes of output")
    said = last_words(stderr)
    if run["return_code"]:
        status: Status = "memory_limit" if said.startswith("MemoryError") else "runtime_error"
        return ended(status, said or f"exit status {run['return_code']}")
    if program.fn_name is not None and not result:
        return ended("runtime_error", "ended without returning a value")
    return ended("ok")


def script_of(program: Program, word: str, limits: Limits, *, timeout_s: float) -> str:
    """The script for this program, which has so many seconds; `word` begins its reports."""
    how = (program.leetcode, program.is_tested, program.iterator_limits(limits, timeout_s))
    source = _RUN.format(job=(word, program.code, program.fn_name, program.arguments, *how))
    if program.fn_name is None:
        return source
    return "\n".join([*((_JAIL / name).read_text(encoding="utf-8") for name in ("values.py", "leetcode.py")), source])
