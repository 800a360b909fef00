"""One step as a discrete-event simulation: responses, rewards, refinements, on the replicas of a placement."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from recipe.online_refiner.sizing.replicas import Pace, Replica, Request

Placement = Literal["colocated", "dedicated", "shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas of one engine."""

    num_replicas: int
    pace: Pace
    max_running: int = 256
    kv_tokens: float = float("inf")


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """The responses to one prompt, and the requests for refinements of some."""

    responses: list[Request]
    refinements: list[Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Who refines, when, and what it takes beside the engines."""

    rollout: Pool
    refiner: Pool
    """Of placement ``shared`` nothing is used."""
    placement: Placement
    streams: bool = True
    """Of a dedicated refiner: whether a group is refined as soon as it is complete."""
    reward_s: float = 0.0
    """From an answer to its reward."""
    stage_s: float = 0.0
    """What refining takes beside the engine: rows read, encoded, parsed and written, engines woken."""
    shares_cores: bool = False
    """Whether all replicas use the same processors, as on a machine without accelerators."""
    batch: int | None = None
    """Of ``separate_async``: groups of a mini-batch. Prompts then follow each other without a pause, at least
    three times as many as are in flight."""
    num_in_flight: int = 0
    """Of ``separate_async``: groups that are being written or refined at a time."""


@dataclass(slots=True, kw_only=True)
class Played:
    """What a simulated step took, in seconds since its begin."""

    rollout_s: float
    """To the last reward of a response; of ``separate_async`` from one mini-batch to the next, without a refiner."""
    exposed_s: float
    """What refining adds; of ``separate_async`` to the time from one mini-batch to the next."""
    hidden_s: float
    """Before the last reward, since the first refinement was begun."""
    refiner_busy: float
    """Share of the time in which the refiner's replicas were at work; of placement ``shared`` 0."""
    num_requests: int
    """Done, which is all."""


@dataclass(slots=True)
class _Play:
    setting: Setting
    groups: list[Group]
    events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    counter: itertools.count = field(default_factory=itertools.count)
    missing: dict[int, int] = field(default_factory=dict)
    ends: dict[str, dict[int, float]] = field(default_factory=lambda: {"rewarded": {}, "refined": {}})
    begun: list[float] = field(default_factory=list)
    owner: dict[Request, tuple[int, str]] = field(default_factory=dict)
    pools: dict[str, list[Replica]] = field(default_factory=dict)
    loads: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    busy_s: float = 0.0
    num_done: int = 0
    queue: list[int] = field(default_factory=list)

    def run(self) -> None:
        """Play all groups to their end."""
        setting = self.setting
        pools = {"rollout": setting.rollout, **({} if setting.placement == "shared" else {"refiner": setting.refiner})}
        for name, pool in pools.items():
            self.pools[name] = [
                Replica(pace=pool.pace, max_running=pool.max_running, kv_tokens=pool.kv_tokens)
                for _ in range(pool.num_replicas)
            ]
            self.loads[name] = [(0, index) for index in range(pool.num_replicas)]
        self.queue = list(range(len(self.groups)))[::-1]
        for _ in range(setting.num_in_flight or len(self.groups)):
            self._begin_group(0.0)
        while self.events:
            now, _, action = heapq.heappop(self.events)
            action(now)

    def _begin_group(self, now: float) -> None:
        if self.queue:
            number = self.queue.pop()
            self._send_all(number, "rewarded", self.groups[number].responses, now)

    def _send_all(self, number: int, what: str, requests: list[Request], now: float) -> None:
        self.missing[number] = len(requests)
        for request in requests:
            self.owner[request] = (number, what)
            self._send("refiner" if what == "refined" and "refiner" in self.pools else "rollout", request, now)
        if not requests:
            self._end(number, what, now)

    def _send(self, pool: str, request: Request, now: float) -> None:
        loads, replicas = self.loads[pool], self.pools[pool]
        while loads[0][0] != replicas[loads[0][1]].load:  # said of an earlier time
            heapq.heappop(loads)
        index = heapq.heappop(loads)[1]
        replica = replicas[index]
        was_idle = not replica.load
        self._look(pool, index, now)
        replica.add(request)
        heapq.heappush(loads, (replica.load, index))
        if was_idle:
            self._share_cores(now)
        self._expect(pool, index)

    def _look(self, pool: str, index: int, now: float) -> None:
        """Bring a replica to a time; what it has done until then happens then."""
        replica = self.pools[pool][index]
        before, was_busy = replica.clock, replica.load > 0
        done = replica.advance(now)
        if pool == "refiner" and was_busy:
            self.busy_s += (replica.clock if replica.load else done[-1][0]) - before
        for time, request in done:
            self._at(time + self.setting.reward_s, partial(self._done, request))
        if done:
            heapq.heappush(self.loads[pool], (replica.load, index))
            if not replica.load:
                self._share_cores(now)

    def _expect(self, pool: str, index: int) -> None:
        replica = self.pools[pool][index]
        end = replica.next_end()
        if end is not None:
            self._at(end, partial(self._wake, pool, index, replica.version))

    def _wake(self, pool: str, index: int, version: int, now: float) -> None:
        if self.pools[pool][index].version == version:
            self._look(pool, index, now)
            self._expect(pool, index)

    def _share_cores(self, now: float) -> None:
        if not self.setting.shares_cores:
            return
        busy = [(pool, index) for pool, some in self.pools.items() for index, one in enumerate(some) if one.load]
        for pool, index in busy:
            replica = self.pools[pool][index]
            if replica.slowness != len(busy):
                self._look(pool, index, now)
                replica.slowness = float(len(busy))
                replica.version += 1
                self._expect(pool, index)

    def _done(self, request: Request, now: float) -> None:
        self.num_done += 1
        number, what = self.owner.pop(request)
        self.missing[number] -= 1
        if self.missing[number]:
            return
        self._end(number, what, now)

    def _end(self, number: int, what: str, now: float) -> None:
        self.ends[what][number] = now
        if what == "refined":
            if self.setting.batch:
                self._begin_group(now)
            return
        waits = self.setting.placement == "colocated" or not self.setting.streams
        if not waits:
            self._refine([number], now)
        elif len(self.ends["rewarded"]) == len(self.groups):
            self._refine(list(range(len(self.groups))), now)

    def _refine(self, numbers: list[int], now: float) -> None:
        for number in numbers:
            if self.groups[number].refinements:
                self.begun.append(now)
            self._send_all(number, "refined", self.groups[number].refinements, now)

    def _at(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (time, next(self.counter), action))


def simulate(setting: Setting, groups: list[Group], bare_s: float | None = None) -> Played:
    """Play a step; no groups take no time, and without refinements nothing is exposed.

    Args:
        setting: Who does what.
        groups: The requests.
        bare_s: Of ``separate_async``: a mini-batch without refinements, if that was played before.
    """
    play = _Play(setting, groups)
    play.run()
    rewarded, refined = sorted(play.ends["rewarded"].values()), sorted(play.ends["refined"].values())
    last = rewarded[-1] if rewarded else 0.0
    end, exposed, hidden = last, 0.0, 0.0
    if play.begun:
        end = max(last, refined[-1])
        exposed, hidden = end - last + setting.stage_s, max(0.0, last - min(play.begun))
    rollout = last
    if setting.batch:
        rollout = _interval(refined, setting)
        if play.begun:
            bare = [Group(responses=group.responses, refinements=[]) for group in groups]
            rollout, whole = simulate(setting, bare).rollout_s if bare_s is None else bare_s, rollout
            exposed = max(0.0, whole - rollout)
    busy = play.busy_s / (end * setting.refiner.num_replicas) if end else 0.0
    return Played(rollout_s=rollout, exposed_s=exposed, hidden_s=hidden, refiner_busy=busy, num_requests=play.num_done)


def _interval(ends: list[float], setting: Setting) -> float:
    """Return the seconds between two mini-batches, between those with which the pipeline fills and empties."""
    batch = setting.batch or 1
    skipped = -(-setting.num_in_flight // batch)
    first, last = (one * batch - 1 for one in (skipped, len(ends) // batch - skipped))
    return (ends[last] - ends[first]) * batch / (last - first)
