"""Reads the time, in seconds as floats.  Tests use a fake clock instead."""

from __future__ import annotations

import time
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
