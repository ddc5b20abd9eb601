"""When a lost nsqd is tried again (CONN-3), and when the nsqlookupds are asked (CFG-3, DISC-4)."""

from __future__ import annotations

import math

from gnsq_lite.clock import Clock
from gnsq_lite.options import LookupOptions, ReconnectOptions
from gnsq_lite.policy.rng import Rng

#: Seconds a connection is ready at least, and no less than the shortest delay, before it counts as a success.
_A_WHILE = 1.0


class Reconnect:
    """Delays between attempts: 8, 16, 32 ... seconds by default, up to a cap, each changed a little at random.

    One object per nsqd.  Only a connection that has served for a while counts as a success: a server that accepts and
    then refuses SUB or AUTH, or that breaks the protocol after it, is otherwise asked again and again at the shortest
    delay.
    """

    __slots__ = ("_next", "_options", "_rng", "failures")

    def __init__(self, options: ReconnectOptions, rng: Rng) -> None:
        self._options, self._rng = options, rng
        self._next = options.reconnect_delay
        #: Attempts and connections lost since the last success.
        self.failures = 0

    def failed(self, *, longest: bool = False) -> float:
        """Take a failed attempt or a lost connection; return the seconds to wait before the next attempt.

        *longest*: the longest delay at once, for what does not mend by itself.  The jitter goes both ways but never
        over ``max_reconnect_delay``.
        """
        self.failures += 1
        cap = self._options.max_reconnect_delay
        delay = cap if longest else self._next
        self._next = min(delay * 2.0, cap)
        return min(delay * (1.0 + self._options.reconnect_jitter * (2.0 * self._rng.random() - 1.0)), cap)

    def served(self, seconds: float) -> None:
        """Take, before :meth:`failed`, that a connection was ready for *seconds*: long enough, and it starts again."""
        if seconds >= max(_A_WHILE, self._options.reconnect_delay):
            self.restart()

    def restart(self) -> None:
        """Take, before :meth:`failed`, that the connection did what it is for: the delays start again."""
        self.failures = 0
        self._next = self._options.reconnect_delay


def retry_delay(count: int) -> float:
    """Return the seconds from the *count*-th urgent poll in a row to the next.

    They are 0.25, 0.5, 1 for a minute, and then double each time.
    """
    return 0.25 * 2.0 ** min(max(count - 1, 0), 2) * 2.0 ** min(max(count - 62, 0), 32)


class PollTimes:
    """The time of the next poll.

    A poll is *urgent* while no nsqd was ever found, or while a publish, or a partition that is read, waits for one.
    The interval is lengthened at random by up to lookupd_poll_jitter, the delay of an urgent poll is shortened by up to
    half of that.
    """

    __slots__ = ("_begun", "_clock", "_delay", "_interval", "_options", "_rng", "_urgent")

    def __init__(self, options: LookupOptions, clock: Clock, rng: Rng) -> None:
        self._options, self._clock, self._rng = options, clock, rng
        self._begun = -math.inf  # when the last poll began
        self._interval = self._delay = 0.0  # seconds from then to the next poll, and to an urgent one
        self._urgent = 0  # urgent polls in a row

    def begin(self, urgent: bool) -> None:
        """Note that a poll begins now."""
        jitter = self._options.lookupd_poll_jitter * self._rng.random()
        self._begun, self._urgent = self._clock.now(), self._urgent + 1 if urgent else 0
        self._interval = self._options.lookupd_poll_interval * (1.0 + jitter)
        self._delay = min(self._interval, retry_delay(self._urgent) * (1.0 - jitter / 2.0))

    def left(self, urgent: bool) -> float:
        """Return the seconds until the next poll; it is due when they are not above 0."""
        return self._begun + (self._delay if urgent else self._interval) - self._clock.now()

    def hasten(self) -> None:
        """Make the next poll due now."""
        self._begun = -math.inf
