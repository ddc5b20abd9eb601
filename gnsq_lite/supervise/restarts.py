"""When a process that ended is started again.  Pure: the clock is given."""

from __future__ import annotations

from gnsq_lite.clock import Clock

#: Seconds before the first new start, and at the most.
FIRST, LONGEST = 0.5, 30.0
#: A process that ran for so many seconds was well: its next end counts as a first one.
WELL_AFTER = 60.0


class Restarts:
    """The delays of one process: doubled with every early end, back to the first one after a good run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.now()
        self._early = 0
        #: How often it was started.
        self.starts = 0

    @property
    def early_ends(self) -> int:
        """Ends in a row that came soon after their start."""
        return self._early

    def started(self) -> None:
        """The process runs from now on."""
        self._started = self._clock.now()
        self.starts += 1

    def ended(self) -> float:
        """Return the seconds to wait before the next start."""
        if self._clock.now() - self._started >= WELL_AFTER:
            self._early = 0
        self._early += 1
        return min(LONGEST, FIRST * 2.0 ** min(self._early - 1, 16))
