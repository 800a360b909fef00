"""The remote backend against a small HTTP server that runs what it is sent, as SandboxFusion does."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from reward.apps import score_response
from reward.limits import Limits
from reward.problem import Problem
from reward.sandbox import Execution, Program, SandboxConfig, arguments_text, from_text
from reward.sandbox.config import BACKENDS
from reward.sandbox.remote import RemoteSandbox

LIMITS = Limits(test_s=5.0, infra_attempts=3, output_bytes=1000)


class Service(ThreadingHTTPServer):
    failures: list[object]  # what the next requests meet: a status code, a body, or seconds of silence
    num_requests = 0


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.num_requests += 1
        failure = self.server.failures.pop(0) if self.server.failures else None
        if isinstance(failure, int):
            self.send_error(failure)
            return
        if isinstance(failure, float):
            time.sleep(failure)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(failure if isinstance(failure, bytes) else json.dumps(self.run(request)).encode())

    def run(self, request: dict) -> dict:
        assert (self.path, request["language"]) == ("/run_code", "python")
        command = [sys.executable, "-I", "-c", request["code"]]
        try:
            done = subprocess.run(
                command, input=request["stdin"], capture_output=True, text=True, timeout=request["run_timeout"]
            )
        except subprocess.TimeoutExpired:
            return {"status": "Failed", "message": "", "run_result": {"status": "TimeLimitExceeded"}}
        result = {"status": "Finished", "return_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        return {"status": "Failed" if done.returncode else "Success", "message": "", "run_result": result}

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service(("127.0.0.1", 0), Handler)
    service.failures = []
    thread = threading.Thread(target=service.serve_forever, args=(0.05,))
    thread.start()
    yield service
    service.shutdown()
    thread.join()
    service.server_close()


@pytest.fixture
def sandbox(service: Service) -> RemoteSandbox:
    config = SandboxConfig(backend="remote", url=f"http://127.0.0.1:{service.server_port}/")
    sandbox = BACKENDS[config.backend](config)
    assert isinstance(sandbox, RemoteSandbox)
    return sandbox


def run(sandbox: RemoteSandbox, code: str, stdin: str = "", timeout_s: float = 5.0) -> Execution:
    return sandbox.execute(Program(code=code, stdin=stdin), limits=LIMITS, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("if __name__ == '__main__': print(int(input()) + 4)", "ok"),
        ("1 / 0", "runtime_error"),
        ("exit(3)", "runtime_error"),
        ("print(", "compile_error"),
        ("x = '\0'", "compile_error"),
        ("raise MemoryError", "memory_limit"),
        ("print('x' * 1001)", "output_limit"),
        ("while True: pass", "time_out"),
    ],
)
def test_programs(sandbox: RemoteSandbox, code: str, status: str) -> None:
    execution = run(sandbox, code, stdin="3\n", timeout_s=1.0 if status == "time_out" else 5.0)
    assert execution.status == status
    assert execution.stdout == ("7\n" if status == "ok" else "")


def test_calls(sandbox: RemoteSandbox) -> None:
    def call(code: str, *arguments: object, leetcode: bool = True, is_tested: bool = False) -> Execution:
        text = arguments_text(arguments)
        program = Program(code=code, fn_name="f", arguments=text, leetcode=leetcode, is_tested=is_tested)
        return sandbox.execute(program, limits=LIMITS, timeout_s=5.0)

    def outcome(*arguments: Any, **options: bool) -> list:
        return from_text(call(*arguments, **options).result)

    assert outcome("def f(a, b):\n    print('noise')\n    return a[1], b", {1: "x"}, (2,)) == ["value", ("x", (2,))]
    assert outcome("def f(a):\n    return a, {1}", (1.5,)) == ["value", ((1.5,), {1})]
    solution = "class Solution:\n    def f(self, a: List[int]) -> int:\n        return Counter(a)[1]"
    assert outcome(solution, [1, 1]) == ["value", 2]
    assert call(solution, [1, 1], leetcode=False).detail.startswith("NameError: name 'List' is not defined")
    plain = solution.replace(": List[int]", "")
    assert call(plain, [1, 1], leetcode=False).detail == "NameError: the code does not define f"
    assert outcome("def f(): return object()")[0] == "not plain"
    assert outcome("def f(a): a.append(3)", [1], is_tested=True) == ["value", None, [[0, [1, 3]]]]
    failed = call("def f(): raise KeyError('x')", is_tested=True)
    assert (failed.status, failed.detail) == ("runtime_error", "KeyError: 'x' (solution.py, line 1)")
    assert repr(from_text(failed.result)) == "['raised', KeyError('x')]"
    assert call("def f(): exit(0)").status == "runtime_error"
    ended = call("def f(): exit(0)", is_tested=True)
    assert (ended.status, repr(from_text(ended.result))) == ("runtime_error", "['raised', SystemExit(0)]")
    assert call("def g(): pass").detail == "NameError: the code does not define f"


@pytest.mark.parametrize(
    "failures",
    [[500], [503, 502], [429], [b"no JSON"], [b"[]"], [0.0], [b'{"status": "SandboxError", "message": "full"}']],
)
def test_failures_of_the_service_are_tried_again(
    service: Service, sandbox: RemoteSandbox, failures: list[object]
) -> None:
    service.failures = list(failures)
    assert run(sandbox, "print(7)").stdout == "7\n"
    assert service.num_requests == len(failures) + 1


def test_failure_of_the_service_is_no_verdict(service: Service, sandbox: RemoteSandbox) -> None:
    problem = Problem(problem_id="1", inputs=[""], outputs=[""])
    service.failures = [500, b'{"run_result": {"status": "Error"}}', b'{"run_result": {"status": "Finished"}}']
    result = score_response(problem, "```python\npass\n```", LIMITS, sandbox=sandbox)
    assert (result.outcome, result.score) == ("infra_error", None)
    assert service.num_requests == 3
    assert score_response(problem, "```python\npass\n```", LIMITS, sandbox=sandbox).outcome == "pass"


def test_no_service_is_infra_error() -> None:
    sandbox = RemoteSandbox(url="http://127.0.0.1:9", num_slots=1)
    execution = sandbox.execute(Program(code="1"), limits=Limits(infra_attempts=1), timeout_s=1.0)
    assert execution.status == "infra_error"


def test_config_errors_say_what_to_set() -> None:
    with pytest.raises(ValueError, match="sandbox url is ''"):
        BACKENDS["remote"](SandboxConfig(backend="remote"))
    with pytest.raises(ValueError, match="set one of local, remote"):
        SandboxConfig(backend="cloud")
