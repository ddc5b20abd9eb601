"""A model of nsqds, wires with delay and handlers, which checks the allocator at every step.

The servers follow nsqd/client_v2.go: they send while in flight < RDY, and do not decrement RDY.  Commands and
messages take ``delay`` seconds on the wire.  Handlers answer within ``handle`` seconds.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field

from gnsq_lite.policy.rdy import SetReady
from tests.fakes import FakeClock
from tests.unit.policy.fed import Fed

IDLE, LOW, SETTLE = 1.0, 3.0, 0.1
EPSILON = 1e-6


@dataclass
class Server:
    """One nsqd, and the client's side of its connection."""

    key: object
    limit: int
    backlog: int = 0
    ready: int = 0
    in_flight: int = 0
    last_sent: int = 0
    greeted: bool = False
    commands: deque[tuple[float, str, int]] = field(default_factory=deque)
    arriving: deque[float] = field(default_factory=deque)
    handling: deque[float] = field(default_factory=deque)
    waits_since: float = 0.0

    @property
    def outstanding(self) -> int:
        """Return the number of messages that the client has or will receive without another command."""
        return len(self.arriving) + len(self.handling)


class World:
    """Runs an allocator with servers, and checks its promises at each step."""

    def __init__(
        self,
        max_in_flight: int,
        seed: int = 0,
        *,
        delay: float = 0.04,
        handle: float = 0.5,
        settle: float = SETTLE,
        idle: float = IDLE,
        low: float = LOW,
        always: bool = False,
    ) -> None:
        self.clock = FakeClock()
        self.rng = random.Random(seed)
        self.delay, self.handle, self.settle, self.idle, self.low = delay, handle, settle, idle, low
        self.allocator = Fed(
            max_in_flight,
            clock=self.clock,
            rng=self.rng,
            always=always,
            idle_timeout=idle,
            low_ready_timeout=low,
            settle=settle,
        )
        self.max_in_flight = max_in_flight
        self.flowing, self.probing = True, False
        self.servers: dict[object, Server] = {}
        self.lowered_at = -math.inf
        self.sent: list[SetReady] = []
        self.delivered: list[tuple[float, object]] = []
        self.most_servers, self.least_budget = 0, max_in_flight
        self.longest_wait = 0.0
        self._charge = 0

    # -- what may happen

    def add(self, key: object, limit: int = 2500, *, backlog: int = 0) -> list[SetReady]:
        self.servers[key] = Server(key, limit, backlog, waits_since=self.clock.now())
        self.most_servers = max(self.most_servers, len(self.servers))
        return self.apply(self.allocator.add(key, limit))

    def remove(self, key: object) -> list[SetReady]:
        del self.servers[key]
        return self.apply(self.allocator.remove(key))

    def publish(self, key: object, count: int) -> None:
        server = self.servers[key]
        server.backlog += count
        self._pump(server)
        self._settle_wires()

    def set_max_in_flight(self, count: int) -> list[SetReady]:
        if count < self.max_in_flight:
            self.lowered_at = self.clock.now()
        if count and not self.max_in_flight:
            self._restart_waits()
        if count:
            self.least_budget = min(self.least_budget or count, count)
        self.max_in_flight = count
        return self.apply(self.allocator.set_max_in_flight(count))

    def set_limit(self, key: object, limit: int) -> list[SetReady]:
        self.servers[key].limit = limit
        return self.apply(self.allocator.set_max_rdy_count(key, limit))

    def pause(self) -> list[SetReady]:
        self.flowing, self.probing = False, False
        return self.apply(self.allocator.pause())

    def probe(self) -> list[SetReady]:
        self.flowing, self.probing = False, True
        return self.apply(self.allocator.probe())

    def resume(self) -> list[SetReady]:
        if not self.flowing:
            self._restart_waits()
        self.flowing, self.probing = True, False
        return self.apply(self.allocator.resume())

    def answer(self, key: object, count: int = 1) -> list[SetReady]:
        server = self.servers[key]
        count = min(count, len(server.handling))
        for _ in range(count):
            server.handling.popleft()
        changes = self.apply(self.allocator.answered(key, count))
        server.commands.append((self.clock.now() + self.delay, "FIN", count))
        self._settle_wires()
        return changes

    def advance(self, seconds: float) -> None:
        """Advance the clock, and run all events until then in order."""
        end = self.clock.now() + seconds
        while True:
            due = min(self._due(), end)
            self.clock.advance(max(0.0, due - self.clock.now()))
            self._settle_wires()
            self._handlers_answer()
            self._tick()
            self.check()
            if due >= end:
                break

    def _due(self) -> float:
        due = math.inf
        for server in self.servers.values():
            if server.commands:
                due = min(due, server.commands[0][0])
            if server.arriving:
                due = min(due, server.arriving[0])
            if server.handling:
                due = min(due, server.handling[0])
        tick = self.allocator.next_tick
        return due if tick is None else min(due, tick)

    def _tick(self) -> None:
        for _ in range(2 * len(self.servers) + 3):
            if self.allocator.next_tick is None or self.allocator.next_tick > self.clock.now():
                return
            self.apply(self.allocator.tick())
        raise AssertionError("ticks without end")

    def _handlers_answer(self) -> None:
        for key, server in list(self.servers.items()):
            count = sum(1 for due in server.handling if due <= self.clock.now())
            if count:
                self.answer(key, count)

    # -- the wires and the servers

    def apply(self, changes: list[SetReady]) -> list[SetReady]:
        grown = False
        for change in changes:
            server = self.servers[change.key]
            assert 0 <= change.count <= max(0, server.limit), "RDY above the limit"
            assert change.count != server.last_sent, "a RDY that changes nothing"
            assert not (grown and change.count < server.last_sent), "reductions go first"
            grown = grown or change.count > server.last_sent
            if change.count and not server.greeted:
                assert change.count == 1, "RDY 1 first"
                server.greeted = True
            server.last_sent = change.count
            server.commands.append((self.clock.now() + self.delay, "RDY", change.count))
        self.sent += changes
        self._settle_wires()
        self.check()
        return changes

    def _settle_wires(self) -> None:
        for key, server in list(self.servers.items()):
            while server.commands and server.commands[0][0] <= self.clock.now():
                _, verb, count = server.commands.popleft()
                if verb == "RDY":
                    server.ready = count
                else:
                    server.in_flight -= count
                self._pump(server)
            arrived = 0
            while server.arriving and server.arriving[0] <= self.clock.now():
                server.arriving.popleft()
                server.handling.append(self.clock.now() + self.handle * self.rng.random())
                arrived += 1
            if arrived:
                server.handling = deque(sorted(server.handling))
                self.delivered.append((self.clock.now(), key))
                self.allocator.received(key, arrived)
                self.check()

    def _pump(self, server: Server) -> None:
        for _ in range(min(max(server.ready - server.in_flight, 0), server.backlog)):
            server.backlog -= 1
            server.in_flight += 1
            server.arriving.append(self.clock.now() + self.delay)

    # -- what is promised

    def check(self) -> None:
        allocator, now = self.allocator, self.clock.now()
        assert set(allocator._connections) == set(self.servers)
        ready = {key: allocator.ready(key) for key in self.servers}
        assert allocator.total_ready == sum(ready.values()) <= self.max_in_flight, "RDY above max_in_flight"
        for key, server in self.servers.items():
            assert allocator._connections[key].in_flight == len(server.handling)
            assert 0 <= ready[key] <= max(0, server.limit)
            assert ready[key] == server.last_sent
        if self.max_in_flight == 0 or not (self.flowing or self.probing):
            assert allocator.total_ready == 0
        if self.probing:
            assert allocator.total_ready <= 1
        self._check_charge(ready, now)
        self._check_shares(ready)
        self._check_waits(ready, now)

    def _check_charge(self, ready: dict[object, int], now: float) -> None:
        """Check that RDY and messages in flight fit max_in_flight, or do not grow after it was lowered."""
        charge = self.allocator.charged
        assert charge <= max(self.max_in_flight, self._charge), "RDY + in flight grew"
        self._charge = charge
        assert sum(max(ready[key], len(server.handling)) for key, server in self.servers.items()) <= charge
        out = sum(server.outstanding for server in self.servers.values())
        assert out <= charge, "more messages are out than were allowed for"
        if now > self.lowered_at + self.settle + 2 * self.delay + self.handle + EPSILON:
            assert charge <= self.max_in_flight, "still above max_in_flight"

    def _check_shares(self, ready: dict[object, int]) -> None:
        """Check that the budget is used evenly when no event is left."""
        eligible = {key: server.limit for key, server in self.servers.items() if server.limit > 0}
        if not self.flowing or self.allocator.next_tick is not None or self.allocator.owed:
            return
        if len(eligible) > self.max_in_flight:
            assert sum(ready.values()) == self.max_in_flight
            return
        assert sum(ready.values()) == min(self.max_in_flight, sum(eligible.values()))
        assert all(ready[key] > 0 for key in eligible)
        open_ended = [ready[key] for key, limit in eligible.items() if ready[key] < limit]
        if open_ended:
            assert max(ready.values()) - min(open_ended) <= 1

    def _check_waits(self, ready: dict[object, int], now: float) -> None:
        if not self.flowing or self.max_in_flight == 0:
            return
        for key, server in self.servers.items():
            if ready[key] or server.limit <= 0:
                server.waits_since = now
            else:
                wait = now - server.waits_since
                self.longest_wait = max(self.longest_wait, wait)
                assert wait <= self.bound() + EPSILON, f"{key} has waited {wait} s"

    def bound(self) -> float:
        """Return the longest wait, as the docstring of policy/rdy.py computes it."""
        turns = 2 * math.ceil(self.most_servers / max(1, self.least_budget))
        return turns * (self.low + self.settle + self.handle)

    def _restart_waits(self) -> None:
        """Restart the waits of connections that could not get RDY until now."""
        for server in self.servers.values():
            server.waits_since = self.clock.now()
