"""When an ended process is started again.  Pure: the clock is an argument."""

from __future__ import annotations

from gnsq_lite.clock import Clock

#: Seconds before the first restart, and at most.
FIRST, LONGEST = 0.5, 30.0
#: After running for so many seconds a process counts as healthy: its next end is a first one.
WELL_AFTER = 60.0


class Restarts:
    """The restart delays of one process: doubled with every early end, reset by a healthy run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.now()
        self._early = 0
        #: How often it was started.
        self.starts = 0

    def started(self) -> None:
        """Note that the process was started."""
        self._started = self._clock.now()
        self.starts += 1

    def ended(self) -> float:
        """Note that it ended; return the seconds to wait before the next start."""
        if self._clock.now() - self._started >= WELL_AFTER:
            self._early = 0
        self._early += 1
        return min(LONGEST, FIRST * 2.0 ** min(self._early - 1, 16))
