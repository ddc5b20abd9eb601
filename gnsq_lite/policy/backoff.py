"""When failing handlers slow a Reader down (BACK-1 to BACK-5), as a machine of three phases.

::

        failure (failure_ratio)              the pause is over
    FLOWING ----------> PAUSED(level) -----------------------------> PROBING
       ^                    ^                                           |
       |                    |  success, level - 1 > 0; failure          |
       |                    +-------------------------------------------+
       |                       success, level - 1 == 0                  |
       +----------------------------------------------------------------+

In FLOWING every connection has its share of RDY, in PAUSED none has any, in PROBING one connection has RDY 1.  This
machine only says which phase it is; :mod:`gnsq_lite.policy.rdy` says what is sent.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum

from gnsq_lite.clock import Clock
from gnsq_lite.errors import OptionError
from gnsq_lite.options import BackoffOptions
from gnsq_lite.policy.rng import Rng

#: ``failure_ratio`` counts this many recent outcomes at the most, and starts no backoff before the lower number.
_RECENT, _FEWEST = 20, 10


class Phase(Enum):
    """What the connections may do now."""

    FLOWING = "flowing"
    """All have their RDY."""
    PAUSED = "paused"
    """All have RDY 0."""
    PROBING = "probing"
    """One has RDY 1; its message decides."""


class Backoff:
    """Counts failures, and says when to stop, to try and to go on.

    The level is the number of failures not yet made up for by successes, one counted per pause.  It never passes
    :attr:`highest_level`, the first level whose exponential pause reaches ``longest``: more failures than that change
    nothing, and that many successes end the backoff whatever went before.  That holds for every strategy.
    """

    def __init__(self, options: BackoffOptions, *, clock: Clock, rng: Rng) -> None:
        self._options, self._clock, self._rng = options, clock, rng
        self._resume_at = 0.0
        self.highest_level = _highest_level(options)
        self.level = 0
        self.phase = Phase.FLOWING
        #: Why the last result of an own strategy was not used; None: it was.  The caller logs it.
        self.strategy_error: OptionError | None = None
        #: The last outcomes in FLOWING, True for a success; and the successes of the Reader at the last call.
        self._recent: deque[bool] = deque(maxlen=_RECENT)
        self._successes = 0

    @property
    def resume_at(self) -> float | None:
        """The clock's time from which :meth:`tick` ends the pause; None when there is no pause."""
        return self._resume_at if self.phase is Phase.PAUSED else None

    def left(self) -> float:
        """Return the seconds until the pause is over; 0.0 when there is none."""
        return 0.0 if self.resume_at is None else max(0.0, self.resume_at - self._clock.now())

    def record(self, success: bool, successes: int = 0) -> Phase:
        """Take the outcome of one message; return the phase to be in now.

        During a pause outcomes do not count, also when its time is over but :meth:`tick` has not said so: the pause
        is answered by one outcome, the first after it (BACK-3).

        *successes* is how many messages succeeded so far.  In FLOWING a caller may record failures only: what
        *successes* grew by since the last call are the outcomes before this one.
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
            self.reset()
        else:
            pause = self._pause(level)  # may run the user's code: before any change of state
            self.level, self.phase, self._resume_at = level, Phase.PAUSED, self._clock.now() + pause
        return self.phase

    def _fails_often(self) -> bool:
        """Return whether a failure in FLOWING starts backoff (BACK-1)."""
        ratio, recent = self._options.failure_ratio, self._recent
        return not ratio or (len(recent) >= _FEWEST and recent.count(False) >= ratio * len(recent))

    def tick(self) -> Phase:
        """Return the phase to be in now: a pause whose time is over becomes PROBING."""
        if self.phase is Phase.PAUSED and self._clock.now() >= self._resume_at:
            self.phase = Phase.PROBING
        return self.phase

    def reset(self) -> None:
        """Forget all failures."""
        self.level, self.phase = 0, Phase.FLOWING
        self._recent.clear()

    def _pause(self, level: int) -> float:
        """Return the seconds to pause at *level*: 0 to ``longest``, whatever an own strategy answers."""
        longest = self._options.longest
        exponential = min(longest, math.ldexp(self._options.unit, level - 1))
        strategy = self._options.strategy
        if strategy == "exponential":
            return exponential
        if strategy == "full-jitter":
            return exponential * self._rng.random()
        self.strategy_error = None
        try:
            result = strategy(level)
            seconds = float(result)  # what it gives may be anything
        except Exception as error:  # the user's code; flow control must go on
            seconds, why = math.nan, f"failed at level {level}: {error!r}"
        else:
            why = f"gave {result!r} at level {level}"
        if math.isnan(seconds):
            self.strategy_error = OptionError("strategy", strategy, f"{why}; the exponential pause is used")
            return exponential
        return min(max(seconds, 0.0), longest)


def _highest_level(options: BackoffOptions) -> int:
    level = 1
    while math.ldexp(options.unit, level - 1) < options.longest:
        level += 1
    return level
