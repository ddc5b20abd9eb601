"""Stand-ins for time and chance.  No test of a policy sleeps."""

from __future__ import annotations


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return 1_700_000_000.0 + self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self._now += seconds
