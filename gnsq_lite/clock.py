"""Reads the time, in seconds as floats, and limits rates.  Tests use a fake clock instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Interface of a clock."""

    def now(self) -> float:
        """Return monotonic seconds, for intervals."""

    def wall(self) -> float:
        """Return seconds since 1970, for timestamps."""


class MonotonicClock:
    """The system's clock.  Its methods are C functions, because a connection calls them several times per read."""

    __slots__ = ()

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


SYSTEM_CLOCK = MonotonicClock()


class Pace:
    """Limits a rate to *per_second*.  0 sets no limit.

    After a late call, the next calls wait less.  They make up for at most *burst* seconds of delay.
    """

    def __init__(
        self,
        per_second: float,
        clock: Clock = SYSTEM_CLOCK,
        wait: Callable[[float], object] = time.sleep,
        burst: float = 1.0,
    ) -> None:
        self._per_second, self._clock, self._wait, self._burst = per_second, clock, wait, burst
        self._next = clock.now()

    def take(self, count: int = 1) -> None:
        """Wait until the *count* of an earlier call is used up, and use *count* more."""
        if self._per_second:
            now = self._clock.now()
            due = max(self._next, now - self._burst)
            self._next = due + count / self._per_second
            if due > now:
                self._wait(due - now)
