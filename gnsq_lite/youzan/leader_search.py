"""Looks for the leader of a partition that a Reader has lost (YZ-8, YZ-12, YZ-18)."""

from __future__ import annotations

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import CallLater, Check, Endpoint, Timer
from gnsq_lite.errors import ConnectionLost, NotLeaderError, NsqdError, NSQError, ProtocolError
from gnsq_lite.policy.rng import Rng
from gnsq_lite.youzan.partitions import MOVED

#: Longest pause, seconds, between two lookups for the leader of a partition that was lost; up to 30 % more by chance.
LONGEST_PAUSE = 8.0


def look_up_after(error: NSQError) -> float | None:
    """Return the seconds after which a lost connection calls for a lookup; None: the next regular poll will do.

    The end of a connection without an error frame is how consumers notice that a leader moved.
    """
    if isinstance(error, (ConnectionLost, ProtocolError)):
        return 0.05
    if isinstance(error, MOVED):
        return 0.2 if isinstance(error, NotLeaderError) else 1.0
    return 1.0 if not isinstance(error, NsqdError) else None


def first_pause(after: float, misses: int) -> float:
    """Return the seconds before the search for a leader that was lost *misses* times in a row.

    *after* for the first three, then twice as long each time, up to the longest pause.
    """
    return min(after * 2.0 ** min(max(0, misses - 3), 16), LONGEST_PAUSE)


class LeaderSearch:
    """The searches of one Reader, one at a time for each partition.

    Args:
        call_later: Calls a function once, after so many seconds.
        is_read: Returns whether the partition of a lost endpoint is read again.
        ask: Asks the nsqlookupds for it; returns whether to go on where they list none.
    """

    def __init__(self, call_later: CallLater, rng: Rng, clock: Clock, is_read: Check, ask: Check) -> None:
        self._call_later, self._rng, self._clock, self._is_read, self._ask = call_later, rng, clock, is_read, ask
        self._timers: dict[int | None, Timer] = {}
        #: How often each partition was lost since it was last subscribed for a while.
        self._misses: dict[int | None, int] = {}
        #: When each partition that is read was subscribed.
        self._found_at: dict[int | None, float] = {}

    def lost(self, endpoint: Endpoint, reason: NSQError) -> None:
        """Look for the leader of a partition whose connection was lost, if *reason* calls for it."""
        after, partition, now = look_up_after(reason), endpoint.partition, self._clock.now()
        if after is None:
            return
        if now - self._found_at.pop(partition, now) > LONGEST_PAUSE:
            self._misses.pop(partition, None)
        # An nsqlookupd may list for a minute a leader that says it is none.  And one with too few replicas sends, but
        # takes no FIN: each connection is good for handling the same message once more, in vain.
        misses = self._misses[partition] = self._misses.get(partition, 0) + 1
        self._look_up_in(endpoint, first_pause(after, misses))

    def found(self, endpoint: Endpoint) -> None:
        """Its partition is subscribed again."""
        self._found_at[endpoint.partition] = self._clock.now()

    def close(self) -> None:
        """Search no more."""
        for timer in self._timers.values():
            timer.close()
        self._timers.clear()

    def _look_up_in(self, lost: Endpoint, pause: float) -> None:
        """Ask after *pause* seconds, and until an nsqlookupd lists a leader: there may be none for many seconds."""
        before = self._timers.pop(lost.partition, None)
        if before is not None:
            before.close()

        def look_up() -> None:
            if not self._is_read(lost) and self._ask(lost):
                longer = min(max(1.0, 2.0 * pause), LONGEST_PAUSE)
                self._look_up_in(lost, longer * (1.0 + 0.3 * self._rng.random()))

        self._timers[lost.partition] = self._call_later(pause, look_up)
