"""The remote backend: SandboxFusion's HTTP API (`POST <url>/run_code`), outputs compared here.

An error of the service is an infra_error and never a verdict on the program: it is tried again, and then reported so.
"""

import http.client
import json
import secrets
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from reward.limits import Limits
from reward.sandbox.counts import RunCounts
from reward.sandbox.execution import Execution, Program, Status, last_words
from reward.sandbox.wrapper import wrap

_GRACE_S = 10.0  # wall seconds that a request may take beyond its program's time


class ServiceError(Exception):
    """The service did not run the program."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        """`is_final`: another attempt would meet the same."""
        super().__init__(message)
        self.is_final = is_final


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
        self._counts = RunCounts()

    def execute(self, program: Program, *, limits: Limits, timeout_s: float) -> Execution:
        """See `Sandbox.execute`."""
        word = secrets.token_hex(16)
        request = {
            "code": wrap(program, word, limits, timeout_s=timeout_s),
            "stdin": program.stdin,
            "language": "python",
            "compile_timeout": limits.startup_s,
            "run_timeout": timeout_s,
            "memory_limit_MB": limits.memory_bytes >> 20,
            "files": {},
            "fetch_files": [],
        }
        body = json.dumps(request).encode()
        started = time.monotonic()
        with self._free:
            for attempt in range(limits.infra_attempts):
                if attempt:
                    self._counts.add("retries")
                    time.sleep(0.1 * 2**attempt)
                try:
                    answer = self._post(
                        body, limits, limits.startup_s + timeout_s + _GRACE_S, program.max_result_bytes(limits)
                    )
                    execution = judge(answer, program, limits, timeout_s, word)
                    break
                except ServiceError as error:
                    execution = Execution(status="infra_error", detail=str(error))
                    if error.is_final:
                        break
        self._counts.add_run(execution.status, time.monotonic() - started)
        return execution

    def metrics(self) -> dict[str, float]:
        """See `RunCounts.metrics`."""
        return self._counts.metrics()

    def close(self) -> None:
        """There is nothing to end."""

    def _post(self, body: bytes, limits: Limits, timeout_s: float, max_result_bytes: int) -> dict[str, Any]:
        request = urllib.request.Request(self._url, data=body, headers={"Content-Type": "application/json"})
        # JSON may write a byte as six; more than that is no answer to one program.
        max_bytes = 6 * (limits.output_bytes + limits.file_bytes + max_result_bytes)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                answer = json.loads(response.read(max_bytes))
        except urllib.error.HTTPError as error:
            with error:  # a request that the service calls wrong is wrong the next time as well
                is_final = error.code < 500 and error.code not in (408, 429)
                raise ServiceError(f"{self._url} answered {error.code} {error.reason}", is_final=is_final) from error
        except (OSError, http.client.HTTPException, ValueError) as error:  # no connection, time-out, cut or no JSON
            raise ServiceError(f"{self._url}: {type(error).__name__}: {error}") from error
        if not isinstance(answer, dict):
            raise ServiceError(f"{self._url} answered with {type(answer).__name__}, not an object")
        return answer


def judge(answer: dict[str, Any], program: Program, limits: Limits, timeout_s: float, word: str) -> Execution:
    """From the service's answer to a status.

    Raises:
        ServiceError: the answer says, or shows, that the service did not run the program.
    """
    run = answer.get("run_result")
    if answer.get("status") == "SandboxError" or not isinstance(run, dict) or run.get("status") == "Error":
        raise ServiceError(f"the service failed: {str(answer.get('message') or answer.get('status'))[:300]}")
    seconds = float(run.get("execution_time") or 0.0)

    def ended(status: Status, detail: str, result: bytes = b"") -> Execution:
        return Execution(status=status, detail=detail, result=result, seconds=seconds)

    if run.get("status") == "TimeLimitExceeded":
        return ended("time_out", f"no end within {timeout_s:.3g} s")
    if run.get("status") != "Finished" or not isinstance(run.get("return_code"), int):
        raise ServiceError(f"the service answered with the unknown status {run.get('status')!r}")
    stdout, stderr = str(run.get("stdout") or ""), str(run.get("stderr") or "")
    if word in stderr:
        return ended("compile_error", stderr.partition(word)[2][:300])
    if len(stdout.encode(errors="replace")) > program.max_result_bytes(limits):
        return ended("output_limit", f"more than {limits.output_bytes} bytes of output")
    said = last_words(stderr)
    if run["return_code"]:
        is_memory = said.startswith("MemoryError")
        status: Status = "memory_limit" if is_memory else "runtime_error"
        return ended(status, said or f"exit status {run['return_code']}", _behind(word, stdout))
    if program.fn_name is None:
        return Execution(status="ok", stdout=stdout, seconds=seconds)
    if word not in stdout:
        return ended("runtime_error", "ended without returning a value")
    return Execution(status="ok", result=_behind(word, stdout), seconds=seconds)


def _behind(word: str, stdout: str) -> bytes:
    return stdout.rpartition(word)[2].encode(errors="replace") if word in stdout else b""
