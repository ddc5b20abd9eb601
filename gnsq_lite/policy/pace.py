"""How much RDY a connection may have whose messages waited for a handler until nsqd took them back (MSG-5).

Such a message has cost one of its attempts for nothing.  So the connection's RDY goes down at once to what still moves:
the messages whose handlers run and are in time, none where every handler hangs.  It doubles again, once a second at
most, while handlers have nothing to do, or answer so fast that twice as many would wait for half of their time at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from gnsq_lite.clock import Clock

K = TypeVar("K")

#: Seconds between two looks whether handlers keep up again.
_LOOK = 1.0


@dataclass(slots=True)
class _Limit:
    most: int
    size: int
    patience: float
    looked_at: float
    answered: int = 0


class Pace(Generic[K]):
    """The connections that are held back, by any hashable key; the caller sets the limits that are returned."""

    __slots__ = ("_clock", "limits")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Of those that are held back now.
        self.limits: dict[K, _Limit] = {}

    def stalled(self, key: K, most: int, moving: int, patience: float) -> int:
        """Take that messages expired before a handler began them; return the limit of the connection's RDY now.

        Args:
            most: Its limit otherwise.
            moving: Its messages in flight that handlers have begun.
            patience: Seconds a message may wait, nsqd's msg_timeout.
        """
        before = self.limits[key].size if key in self.limits else most
        size = min(before, moving)
        self.limits[key] = _Limit(most, size, patience, self._clock.now())
        return size

    def answered(self, key: K, count: int) -> None:
        """Take that so many messages were answered in time."""
        if key in self.limits:
            self.limits[key].answered += count

    def remove(self, key: K) -> None:
        """The connection is gone."""
        self.limits.pop(key, None)

    def look(self, idle: bool) -> list[tuple[K, int]]:
        """Return the limits that change, *idle* when no message waits and a handler is free."""
        now = self._clock.now()
        changes: list[tuple[K, int]] = []
        for key, limit in list(self.limits.items()):
            seconds = now - limit.looked_at
            if seconds < _LOOK:
                continue
            keeps_up = limit.answered * limit.patience / 2.0 >= 2.0 * limit.size * seconds > 0.0
            limit.answered, limit.looked_at = 0, now
            if idle or keeps_up:
                limit.size = min(limit.most, max(1, 2 * limit.size))
                changes.append((key, limit.size))
                if limit.size == limit.most:
                    del self.limits[key]
        return changes
