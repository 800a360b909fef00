"""One step as a discrete-event simulation: responses and refinements on replicas with continuous batching."""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

Placement = Literal["colocated", "dedicated", "shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of one forward pass of a replica: ``pass_s + token_s * computed tokens``."""

    pass_s: float
    """Weights read from memory, kernels launched, requests scheduled: whatever runs."""
    token_s: float
    """For each token computed: of prompts, of requests that decode, of drafts."""


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


@dataclass(slots=True, kw_only=True)
class Group:
    """The responses to one prompt, and the requests for refinements of some."""

    responses: list[Request]
    refinements: list[Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Engines and who refines."""

    pace: Pace
    """Of a replica of either engine."""
    num_rollouts: int = 1
    """Replicas that write responses."""
    num_refiners: int = 1
    """Replicas that refine; not used with placement ``shared``."""
    max_running: tuple[int, int] = (256, 256)
    """Requests that run at once on a replica of each."""
    placement: Placement
    streams: bool = True
    """Of a dedicated refiner: whether a group is refined as soon as it is complete."""
    stage_s: float = 0.0
    """What refining takes beside the engine: rows read, encoded, parsed and written, engines woken."""
    shares_cores: bool = False
    """Whether all replicas use the same processors, as on a machine without accelerators."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Replica:
    """Runs requests pass by pass: whoever waits begins with the next pass if there is room."""

    pace: Pace
    max_running: int
    is_busy: bool = False
    num_passes: int = 0
    computed: float = 0.0
    waiting: deque[Request] = field(default_factory=deque)
    running: list[tuple[int, int, Request]] = field(default_factory=list)
    """(number of its last pass, a tie-break, request)."""

    @property
    def load(self) -> int:
        """Requests that it has."""
        return len(self.running) + len(self.waiting)

    def begin(self, counter: "itertools.count[int]") -> float:
        """Begin a pass and return its seconds."""
        unread = 0
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting.popleft()
            heapq.heappush(self.running, (self.num_passes + request.num_passes, next(counter), request))
            self.computed += request.computed
            unread += request.prompt
        return self.pace.pass_s + self.pace.token_s * (self.computed + unread)

    def end(self) -> list[Request]:
        """End the pass and return what is done."""
        self.num_passes += 1
        done = []
        while self.running and self.running[0][0] <= self.num_passes:
            done.append(heapq.heappop(self.running)[2])
            self.computed -= done[-1].computed
        if not self.running:
            self.computed = 0.0  # a sum of fractions, less the same
        return done


class _Play:
    def __init__(self, setting: Setting, groups: list[Group]) -> None:
        self.setting, self.groups = setting, groups
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.counter = itertools.count()
        self.owner: dict[Request, tuple[int, bool]] = {}
        self.missing: dict[tuple[int, bool], int] = {}
        self.responded: list[float] = []
        self.refined: list[float] = []
        numbers = setting.num_rollouts, 0 if setting.placement == "shared" else setting.num_refiners
        self.pools = [
            [_Replica(pace=setting.pace, max_running=most) for _ in range(number)]
            for number, most in zip(numbers, setting.max_running, strict=True)
        ]

    def run(self) -> None:
        for number, group in enumerate(self.groups):
            self.send(number, False, group.responses, 0.0)
        while self.events:
            now, _, action = heapq.heappop(self.events)
            action(now)

    def at(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (time, next(self.counter), action))

    def send(self, number: int, is_refinement: bool, requests: list[Request], now: float) -> None:
        self.missing[number, is_refinement] = len(requests)
        pool = self.pools[is_refinement] or self.pools[0]
        for request in requests:
            self.owner[request] = number, is_refinement
            replica = min(pool, key=lambda one: one.load)
            replica.waiting.append(request)
            if not replica.is_busy:
                replica.is_busy = True
                self.at(now, partial(self.begin, replica))
        if not requests:
            self.complete(number, is_refinement, now)

    def begin(self, replica: _Replica, now: float) -> None:
        if not replica.load:
            replica.is_busy = False
            return
        num_busy = sum(one.load > 0 for pool in self.pools for one in pool) if self.setting.shares_cores else 1
        self.at(now + num_busy * replica.begin(self.counter), partial(self.end, replica))

    def end(self, replica: _Replica, now: float) -> None:
        for request in replica.end():
            number, is_refinement = self.owner.pop(request)
            self.missing[number, is_refinement] -= 1
            if not self.missing[number, is_refinement]:
                self.complete(number, is_refinement, now)
        self.at(now, partial(self.begin, replica))

    def complete(self, number: int, is_refinement: bool, now: float) -> None:
        if is_refinement:
            self.refined.append(now)
            return
        self.responded.append(now)
        if self.setting.placement != "colocated" and self.setting.streams:
            self.send(number, True, self.groups[number].refinements, now)
        elif len(self.responded) == len(self.groups):
            for other, group in enumerate(self.groups):
                self.send(other, True, group.refinements, now)


def replay(setting: Setting, groups: list[Group]) -> tuple[float, float]:
    """Play a step.

    Returns:
        Seconds to the last response, and those that refining adds: 0 where nothing is refined.
    """
    play = _Play(setting, groups)
    play.run()
    rollout_s = max(play.responded, default=0.0)
    refines = any(group.refinements for group in groups)
    return rollout_s, max(0.0, max(play.refined) - rollout_s) + setting.stage_s if refines else 0.0
