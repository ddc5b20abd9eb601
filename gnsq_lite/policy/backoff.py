"""Backoff of a Reader after handlers fail (BACK-1 to BACK-5), as a state machine with three phases.

::

        failure (failure_ratio)              the pause is over
    FLOWING ----------> PAUSED(level) -----------------------------> PROBING
       ^                    ^                                           |
       |                    |  success, level - 1 > 0; failure          |
       |                    +-------------------------------------------+
       |                       success, level - 1 == 0                  |
       +----------------------------------------------------------------+

In FLOWING each connection has its share of RDY, in PAUSED all connections have RDY 0, in PROBING one connection has RDY
1.  This module only decides the phase.  :mod:`gnsq_lite.policy.rdy` computes the RDY commands.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum
from random import Random

from gnsq_lite.clock import Clock
from gnsq_lite.options import BackoffOptions

#: Maximum number of last outcomes that ``failure_ratio`` counts, and minimum number with which it starts backoff.
_RECENT, _FEWEST = 20, 10


class Phase(Enum):
    """Phase of a backoff."""

    FLOWING = "flowing"
    """Each connection has its share of RDY."""
    PAUSED = "paused"
    """All connections have RDY 0."""
    PROBING = "probing"
    """One connection has RDY 1; the outcome of its message decides the next phase."""


class Backoff:
    """Counts failures, and decides when to pause, to probe and to resume.

    After each pause the outcome of one message changes the level: a failure raises the level by 1, and a success lowers
    it by 1.  The level never exceeds :attr:`highest_level`, the first level whose exponential pause reaches
    ``longest``.  So :attr:`highest_level` successes in a row always end the backoff.
    """

    def __init__(self, options: BackoffOptions, *, clock: Clock, rng: Random) -> None:
        self._options, self._clock, self._rng = options, clock, rng
        self._resume_at = 0.0
        self.highest_level = 1
        while math.ldexp(options.unit, self.highest_level - 1) < options.longest:
            self.highest_level += 1
        self.level = 0
        self.phase = Phase.FLOWING
        #: The last outcomes in FLOWING, True for a success.
        self._recent: deque[bool] = deque(maxlen=_RECENT)
        #: Number of successes at the last call of :meth:`record`.
        self._successes = 0

    @property
    def resume_at(self) -> float | None:
        """Time at which the pause ends; None without a pause."""
        return self._resume_at if self.phase is Phase.PAUSED else None

    def left(self) -> float:
        """Return the seconds until the pause ends; 0.0 without a pause."""
        return 0.0 if self.resume_at is None else max(0.0, self.resume_at - self._clock.now())

    def record(self, success: bool, successes: int = 0) -> Phase:
        """Record the outcome of one message, and return the new phase.

        Outcomes in PAUSED are ignored.  In PROBING the first outcome changes the level (BACK-3).

        *successes* is the number of messages that have succeeded so far.  So in FLOWING the caller may record only
        failures: this method computes the number of successes since the last call.
        """
        passed, self._successes = successes - self._successes, max(successes, self._successes)
        if self.phase is Phase.PAUSED or not self._options.enabled:
            return self.phase
        if self.phase is Phase.FLOWING:
            self._recent.extend([True] * min(passed, _RECENT))
            self._recent.append(success)
            if success or not self._fails_often():
                return self.phase
        level = self.level - 1 if success else min(self.level + 1, self.highest_level)
        if level == 0:
            self.level, self.phase = 0, Phase.FLOWING
            self._recent.clear()
        else:
            self.level, self.phase, self._resume_at = level, Phase.PAUSED, self._clock.now() + self._pause(level)
        return self.phase

    def _fails_often(self) -> bool:
        """Return whether enough of the last messages failed to start backoff (BACK-1)."""
        ratio, recent = self._options.failure_ratio, self._recent
        return not ratio or (len(recent) >= _FEWEST and recent.count(False) >= ratio * len(recent))

    def tick(self) -> Phase:
        """Change to PROBING if the pause is over.  Return the phase."""
        if self.phase is Phase.PAUSED and self._clock.now() >= self._resume_at:
            self.phase = Phase.PROBING
        return self.phase

    def _pause(self, level: int) -> float:
        """Return the pause at *level* in seconds, at most ``longest``."""
        exponential = min(self._options.longest, math.ldexp(self._options.unit, level - 1))
        return exponential * self._rng.random() if self._options.strategy == "full-jitter" else exponential
