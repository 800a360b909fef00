"""Replicas of an engine with continuous batching: how long requests take that run together."""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of one forward pass of a replica: ``pass_s + token_s * computed tokens + context_s * tokens read``."""

    pass_s: float
    """Weights read from memory, kernels launched, requests scheduled: whatever runs."""
    token_s: float
    """For each token computed: of prompts, of requests that decode, of drafts."""
    context_s: float = 0.0
    """For each token of KV cache that a decoding request reads."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """What one answer asks of a replica.

    Example: ``Request(prompt=500, answer=100, gained=1.5, computed=3.0)`` takes 67 passes, each with a draft of two
    tokens, of which one in two passes is accepted.
    """

    prompt: int
    """Tokens before the answer."""
    answer: int
    """Tokens to write."""
    gained: float = 1.0
    """Tokens of the answer that a pass writes: 1, and accepted drafts."""
    computed: float = 1.0
    """Tokens that a pass computes: 1, and drafts; more where a token costs more, as through an adapter."""

    @property
    def num_passes(self) -> int:
        """Passes from the first, which reads the prompt."""
        return max(1, math.ceil(self.answer / self.gained - 1e-9))


@dataclass(slots=True, kw_only=True, eq=False)
class Replica:
    """Runs requests pass by pass: whoever waits begins with the next pass if there is room.

    Between two events the same requests run, so their passes are one sum: no loop over tokens.
    """

    pace: Pace
    max_running: int = 256
    kv_tokens: float = math.inf
    """Tokens that its KV cache holds; a request needs room for its prompt and its whole answer."""
    clock: float = 0.0
    """When its last pass ended, or, idle, until when it was looked at."""
    slowness: float = 1.0
    """What a pass takes longer because others use its processors."""
    version: int = 0
    """Of its running requests: what was said of an earlier one no longer holds."""
    num_passes: int = 0
    _running: list[tuple[int, int, Request]] = field(default_factory=list)
    _waiting: deque[Request] = field(default_factory=deque)
    _computed: float = 0.0
    _gained: float = 0.0
    _context: float = 0.0
    _reserved: int = 0
    _unread: int = 0
    _serial: int = 0

    @property
    def load(self) -> int:
        """Requests that it has."""
        return len(self._running) + len(self._waiting)

    def add(self, request: Request) -> None:
        """Take a request, at the boundary of passes to which :meth:`advance` has brought it."""
        self._waiting.append(request)
        self._admit()

    def next_end(self) -> float | None:
        """Return when a request will be done if nothing comes; None if there is none."""
        return self.clock + self._seconds(self._left()) if self._running else None

    def advance(self, now: float) -> list[tuple[float, Request]]:
        """Run until the first boundary of passes at or after a time; return what was done, and when."""
        done = []
        while self._running and self.clock < now:
            left = self._left()
            if self.clock + self._seconds(left) > now:
                self._run(self._passes_until(now, left))
                if self._running[0][0] > self.num_passes:
                    break
            else:
                self._run(left)
            while self._running and self._running[0][0] <= self.num_passes:
                _, _, request = heapq.heappop(self._running)
                done.append((self.clock, request))
                self._computed -= request.computed
                self._gained -= request.gained
                self._context -= request.prompt + request.gained * request.num_passes
                self._reserved -= request.prompt + request.answer
            self._admit()
            if not self._running:  # sums of fractions, less the same
                self._computed = self._gained = self._context = 0.0
        self.clock = max(self.clock, now)
        return done

    def _left(self) -> int:
        return self._running[0][0] - self.num_passes

    def _seconds(self, num_passes: int) -> float:
        pace = self.pace
        context = num_passes * self._context + self._gained * num_passes * (num_passes - 1) / 2
        fixed = num_passes * (pace.pass_s + pace.token_s * self._computed) + pace.token_s * self._unread
        return self.slowness * (fixed + pace.context_s * context)

    def _passes_until(self, now: float, most: int) -> int:
        least = 1
        while least < most:
            middle = (least + most) // 2
            if self.clock + self._seconds(middle) >= now:
                most = middle
            else:
                least = middle + 1
        return least

    def _run(self, num_passes: int) -> None:
        self.clock += self._seconds(num_passes)
        self.num_passes += num_passes
        self._context += self._gained * num_passes
        self._unread = 0
        self.version += 1

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.max_running:
            request = self._waiting[0]
            size = request.prompt + request.answer
            if self._running and self._reserved + size > self.kv_tokens:
                break
            self._waiting.popleft()
            self._serial += 1
            heapq.heappush(self._running, (self.num_passes + request.num_passes, self._serial, request))
            self._reserved += size
            self._computed += request.computed
            self._gained += request.gained
            self._context += request.prompt
            self._unread += request.prompt
            self.version += 1
