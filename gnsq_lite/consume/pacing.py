"""A Reader's rate limit in its loop: what may be in flight goes down as messages come, and up again with time."""

from __future__ import annotations

from collections.abc import Callable

from gevent.event import Event

from gnsq_lite.clock import Clock
from gnsq_lite.options import HandlerOptions
from gnsq_lite.policy.rate import RateLimit


class Pacing:
    """Of one Reader; *set_allowed* is called with what may be in flight, when that changes."""

    def __init__(self, options: HandlerOptions, clock: Clock, set_allowed: Callable[[int], None]) -> None:
        rate = options.per_second
        self._limit = None if rate is None else RateLimit(rate, clock)
        self.is_needed = rate is not None
        self._clock, self._set_allowed = clock, set_allowed
        self._came = Event()
        self._told: int | None = None

    def received(self, count: int) -> None:
        """A read brought so many.  The RDY that this calls for goes out before their answers."""
        if self._limit is not None:
            self._limit.received(count)
            self._came.set()
            self._tell(self._limit)

    def run(self) -> None:
        """Allow more when it is time, until killed; returns at once where there is no limit."""
        limit = self._limit
        while limit is not None:
            self._tell(limit)
            due = limit.next_tick
            self._came.clear()
            self._came.wait(None if due is None else max(0.001, due - self._clock.now()))
            limit.tick()

    def _tell(self, limit: RateLimit) -> None:
        if limit.allowed != self._told:
            self._told = limit.allowed
            self._set_allowed(limit.allowed)
