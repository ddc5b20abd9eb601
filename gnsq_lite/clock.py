"""The clock of the policies; tests replace it by a fake clock.  Times are seconds, as floats."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Interface of a clock."""

    def now(self) -> float:
        """Return monotonic seconds, for intervals."""

    def wall(self) -> float:
        """Return seconds since 1970, for timestamps that users read."""


class MonotonicClock:
    """The system's clock.  Its methods are C functions, because a connection calls them several times per read."""

    __slots__ = ()

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


SYSTEM_CLOCK = MonotonicClock()
