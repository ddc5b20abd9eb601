"""Whether backoff holds a Reader far below the rate that it has without: pure."""

from __future__ import annotations

from gnsq_lite.clock import Clock

#: Seconds that a comparison covers, at the least, and the share of the full rate that is worth a warning.
COVERED, LOW = 60.0, 0.1


class BackoffCost:
    """Compares, about once a minute, a Reader's rate with its rate outside backoff."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at, self._handled = clock.now(), 0  # the last call
        self._began = (self._at, 0)  # the last comparison
        self._free = (0.0, 0)  # seconds outside backoff since then, and messages handled in these

    def changed(self, backs_off: bool, handled: int) -> tuple[float, float] | None:
        """Take that backoff begins or ends, and how many messages were handled so far.

        Returns the rate and the rate outside backoff, messages a second, if the first is below a tenth of the other.
        """
        now = self._clock.now()
        if backs_off:
            self._free = (self._free[0] + now - self._at, self._free[1] + handled - self._handled)
        self._at, self._handled = now, handled
        seconds, count = now - self._began[0], handled - self._began[1]
        if not backs_off or seconds < COVERED or not self._free[0]:
            return None
        rate, full = count / seconds, self._free[1] / self._free[0]
        self._began, self._free = (now, handled), (0.0, 0)
        return (rate, full) if rate < LOW * full else None
