"""The only reader of time.

Policies take a :class:`Clock`, so that their timing is tested without waiting.  Seconds, floats.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells time in seconds."""

    def now(self) -> float:
        """Return monotonic seconds; only differences mean something."""

    def wall(self) -> float:
        """Return seconds since 1970, for what people read."""


class MonotonicClock:
    """The machine's clock; asked several times per read, so no Python stands in between."""

    __slots__ = ()

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


SYSTEM_CLOCK = MonotonicClock()
