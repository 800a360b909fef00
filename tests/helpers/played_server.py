"""A small server of chats that plays whatever a stranger's server may do, on a port of its own."""

import contextlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

MODEL = "played"


@dataclass(slots=True, kw_only=True)
class Reply:
    """What is sent back."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    """What is said of the body's length, if that is a lie."""
    hangs: bool = False
    """Nothing is sent, and the connection stays open."""
    is_endless: bool = False


def chat(text: Any, reason: str | None = "stop", **more: Any) -> Reply:
    """Return a whole answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    usage = {"prompt_tokens": 11, "completion_tokens": 7}
    return Reply(body=json.dumps({"choices": [choice], "usage": usage, **more}).encode())


def several(*replies: Reply) -> Reply:
    """Return the first answers of some replies as one with as many choices, which cost the prompt of one."""
    bodies = [json.loads(one.body) for one in replies]
    choices = [{**body["choices"][0], "index": index} for index, body in enumerate(bodies)]
    usage = {"prompt_tokens": 11, "completion_tokens": 7 * len(replies)}
    return Reply(body=json.dumps({"choices": choices, "usage": usage}).encode())


def error(status: int, message: str = "", **headers: str) -> Reply:
    """Return a refusal as OpenAI's servers write it."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, body=json.dumps({"error": {"message": message}}).encode(), headers=names)


class Server(ThreadingHTTPServer):
    """Answers each chat by a function of its message and of how often that was asked before."""

    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True

    def __init__(self, answer: Callable[[str, int], Reply], port: int = 0, models: Reply | None = None) -> None:
        """Listen from now on."""
        super().__init__(("127.0.0.1", port), Handler)
        self.answer = answer
        self.models = models or Reply(body=json.dumps({"data": [{"id": MODEL}]}).encode())
        self.asked: dict[str, list[float]] = defaultdict(list)
        """When each message came."""
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.num_probes, self.num_at_once, self.most_at_once = 0, 0, 0
        self.lock, self.ended = threading.Lock(), threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def num_asked(self) -> int:
        """Chats so far."""
        return len(self.bodies)

    def end(self) -> None:
        """Go away, as a killed one does: what is under way gets no answer."""
        self.ended.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        """Write nothing."""

    def do_GET(self) -> None:
        """List the models; a proxy is asked by the whole address."""
        self.server.num_probes += 1
        is_list = urlsplit(self.path).path == "/v1/models"
        self.send(self.server.models if is_list else error(404, "no such page"))

    def do_POST(self) -> None:
        """Answer a chat."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server, content = self.server, body["messages"][-1]["content"]
        message = content if isinstance(content, str) else json.dumps(content)
        with server.lock:
            server.bodies.append(body)
            server.keys.add(self.headers["authorization"])
            server.asked[message].append(time.monotonic())
            num_before = len(server.asked[message]) - 1
            server.num_at_once += 1
            server.most_at_once = max(server.most_at_once, server.num_at_once)
        try:
            is_there = self.path == "/v1/chat/completions"
            self.send(server.answer(message, num_before) if is_there else error(404, "no such page"))
        finally:
            with server.lock:
                server.num_at_once -= 1

    def send(self, reply: Reply) -> None:
        """Send a reply, true or false."""
        if reply.hangs or self.server.ended.is_set():
            self.server.ended.wait(60)
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in {"content-type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        if reply.is_endless:
            self.close_connection = True
            self.end_headers()
            with contextlib.suppress(OSError):
                while not self.server.ended.is_set():
                    self.wfile.write(b" " * (1 << 16))
            return
        self.send_header("content-length", str(len(reply.body) if reply.length is None else reply.length))
        self.end_headers()
        self.wfile.write(reply.body)
        self.close_connection = reply.length is not None


@contextlib.contextmanager
def serving(answer: Callable[[str, int], Reply], **more: Any) -> Iterator[Server]:
    """Yield a server, which ends with the block."""
    server = Server(answer, **more)
    try:
        yield server
    finally:
        server.end()
