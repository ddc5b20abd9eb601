"""Chooses when to connect to an nsqd again (CONN-3), also after a reset, and when to poll nsqlookupds (DISC-4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from gnsq_lite.clock import Clock
from gnsq_lite.errors import NSQError, WrongDialectError
from gnsq_lite.options import LookupOptions, ReconnectOptions

#: Seconds for which a connection must stay open to count as a success, unless ``reconnect_delay`` is longer.
_A_WHILE = 1.0
#: Shortest and longest pause in seconds between a reset of all Readers and Writers of a loop and their new connections.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 8.0
#: Seconds without a reset after a pause until the next pause is the shortest again.
CALM = 10.0


def why_hopeless(reasons: Sequence[NSQError | None]) -> NSQError | None:
    """Return one of *reasons*, the last errors of all nsqds, if reconnecting cannot help.  Otherwise return None.

    Reconnecting cannot help if every nsqd has a permanent error, or if one nsqd has another dialect, because then every
    nsqd of the cluster has another dialect.
    """
    wrong = [reason for reason in reasons if isinstance(reason, WrongDialectError)]
    if wrong or all(reason is not None and reason.is_permanent for reason in reasons):
        return next(iter(wrong or reasons), None)
    return None


class Reconnect:
    """Delays between attempts to connect to one nsqd: each twice the last one, up to a cap, with jitter.

    Only a connection that stayed open for some time after its handshake counts as a success.  If a server accepts
    connections but refuses SUB or AUTH or violates the protocol, the delays grow too.
    """

    def __init__(self, options: ReconnectOptions, rng: Random) -> None:
        self._options, self._rng = options, rng
        self._next = options.reconnect_delay
        #: Failed attempts and lost connections since the last success.
        self.failures = 0

    def failed(self, *, longest: bool = False) -> float:
        """Record a failed attempt or a lost connection.  Return the seconds to wait before the next attempt.

        *longest* selects the longest delay, for an error that a retry cannot fix.  The jitter shortens or lengthens a
        delay, but no delay exceeds ``max_reconnect_delay``.
        """
        self.failures += 1
        cap = self._options.max_reconnect_delay
        delay = cap if longest else self._next
        self._next = min(delay * 2.0, cap)
        return min(delay * (1.0 + self._options.reconnect_jitter * (2.0 * self._rng.random() - 1.0)), cap)

    def served(self, seconds: float) -> None:
        """Reset the delays if a lost connection was open for long enough.  Call it before :meth:`failed`."""
        if seconds >= max(_A_WHILE, self._options.reconnect_delay):
            self.restart()

    def restart(self) -> None:
        """Reset the delays, so that the next one is the shortest.  Call it before :meth:`failed`."""
        self.failures = 0
        self._next = self._options.reconnect_delay


class ResetPauses:
    """Pauses between the resets of a loop and the new connections: each twice the last one, up to LONGEST_PAUSE.

    A reset during a pause neither lengthens the pause nor makes the next pause longer.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._length = 0.0
        self._ends = -math.inf

    def begin(self) -> None:
        """Begin a pause, unless the last one has not ended."""
        now = self._clock.now()
        if now >= self._ends:
            is_calm = now >= self._ends + CALM
            self._length = FIRST_PAUSE if is_calm else min(self._length * 2.0, LONGEST_PAUSE)
            self._ends = now + self._length

    def left(self) -> float:
        """Return the seconds until the end of the pause, or 0.0."""
        return max(0.0, self._ends - self._clock.now())


def retry_delay(count: int) -> float:
    """Return the seconds from the *count*-th urgent poll in a row to the next poll.

    The delays are 0.25 s, 0.5 s, and 1 s for a minute.  After that each delay is twice the last delay.
    """
    return 0.25 * 2.0 ** min(max(count - 1, 0), 2) * 2.0 ** min(max(count - 62, 0), 32)


class PollTimes:
    """Computes the time of the next poll.

    A poll is *urgent* if no nsqd was found yet, or if a publish or a consumed partition waits for an nsqd.  A random
    share, at most lookupd_poll_jitter, lengthens the interval.  Half of this share shortens an urgent delay.
    """

    def __init__(self, options: LookupOptions, clock: Clock, rng: Random) -> None:
        self._options, self._clock, self._rng = options, clock, rng
        self._begun = -math.inf  # time at which the last poll began
        self._interval = self._delay = 0.0  # seconds from then to the next regular poll, and to the next urgent poll
        self._urgent = 0  # urgent polls in a row

    def begin(self, urgent: bool) -> None:
        """Record that a poll begins now."""
        jitter = self._options.lookupd_poll_jitter * self._rng.random()
        self._begun, self._urgent = self._clock.now(), self._urgent + 1 if urgent else 0
        self._interval = self._options.lookupd_poll_interval * (1.0 + jitter)
        self._delay = min(self._interval, retry_delay(self._urgent) * (1.0 - jitter / 2.0))

    def left(self, urgent: bool) -> float:
        """Return the seconds until the next poll, or a number <= 0 if the poll is due."""
        return self._begun + (self._delay if urgent else self._interval) - self._clock.now()

    def hasten(self) -> None:
        """Make the next poll due now."""
        self._begun = -math.inf
