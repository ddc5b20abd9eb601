"""A Reader's rate limit in its loop: what may be in flight goes down as messages come, and up again with time."""

from __future__ import annotations

from collections.abc import Callable

from gevent.event import Event

from gnsq_lite.clock import Clock
from gnsq_lite.policy.rate import RateLimit


class Pacing:
    """Of one Reader; *set_allowed* is called with what may be in flight, when that changes."""

    def __init__(self, per_second: float, clock: Clock, set_allowed: Callable[[int], None]) -> None:
        self._limit = RateLimit(per_second, clock)
        self._clock, self._set_allowed = clock, set_allowed
        self._came = Event()
        self._told: int | None = None

    def received(self, count: int) -> None:
        """A read brought so many.  The RDY that this calls for goes out before their answers."""
        self._limit.received(count)
        self._came.set()
        self._tell()

    def run(self) -> None:
        """Allow more when it is time, until killed."""
        while True:
            self._tell()
            due = self._limit.next_tick
            self._came.clear()
            self._came.wait(None if due is None else max(0.001, due - self._clock.now()))
            self._limit.tick()

    def _tell(self) -> None:
        allowed = self._limit.allowed
        if allowed != self._told:
            self._told = allowed
            self._set_allowed(allowed)
