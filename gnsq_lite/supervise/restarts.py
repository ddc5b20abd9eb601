"""Computes the delay before an ended process is started again.  The clock is an argument."""

from __future__ import annotations

from gnsq_lite.clock import Clock

#: First and longest delay before a restart, in seconds.
FIRST, LONGEST = 0.5, 30.0
#: Seconds of running after which a process counts as healthy.  The next restart of such a process has the first delay.
WELL_AFTER = 60.0


class Restarts:
    """Restart delays of one process.  Each early end doubles the delay, and a healthy run resets the delay."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.now()
        self._early = 0
        #: Number of starts of the process.
        self.starts = 0

    def started(self) -> None:
        """Record a start of the process."""
        self._started = self._clock.now()
        self.starts += 1

    def ended(self) -> float:
        """Record that the process ended or asked to be replaced.  Return the seconds to wait before the next start."""
        if self._clock.now() - self._started >= WELL_AFTER:
            self._early = 0
        self._early += 1
        return min(LONGEST, FIRST * 2.0 ** min(self._early - 1, 16))
