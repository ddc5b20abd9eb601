"""Asks the nsqlookupds again soon for the leader of a partition that was lost (YZ-12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.net.loop import Loop, sleep

#: Longest pause, seconds, between two lookups for the leader of a partition that was lost; up to 30 % more by chance.
LONGEST_PAUSE = 8.0


def first_pause(after: float, misses: int) -> float:
    """Return the seconds before the search for a leader that was lost *misses* times in a row.

    *after* for the first three, then twice as long each time, up to the longest pause.
    """
    return min(after * 2.0 ** min(max(0, misses - 3), 16), LONGEST_PAUSE)


class LeaderSearch:
    """Of one Reader; *is_read* says whether the partition of a lost endpoint is read again, *ask* asks for it now.

    *ask* returns whether to go on where that finds none.
    """

    def __init__(
        self,
        loop: Loop,
        rng: Random,
        clock: Clock,
        is_read: Callable[[Endpoint], bool],
        ask: Callable[[Endpoint], bool],
    ) -> None:
        self._loop, self._rng, self._clock, self._is_read, self._ask = loop, rng, clock, is_read, ask
        #: One search at a time for each partition.
        self._searches: dict[int | None, Any] = {}
        #: How often each partition was lost since it was last subscribed for a while.
        self._misses: dict[int | None, int] = {}
        #: When each partition that is read was subscribed.
        self._found_at: dict[int | None, float] = {}

    def lost(self, endpoint: Endpoint, after: float) -> None:
        """Look for the leader of its partition, first after so many seconds."""
        partition = endpoint.partition
        now = self._clock.now()
        if now - self._found_at.pop(partition, now) > LONGEST_PAUSE:
            self._misses.pop(partition, None)
        # An nsqlookupd may list for a minute a leader that says it is none.  And one with too few replicas sends, but
        # takes no FIN: each connection is good for handling the same message once more, in vain.
        misses = self._misses[partition] = self._misses.get(partition, 0) + 1
        before = self._searches.pop(partition, None)
        if before is not None:
            before.kill(block=False)
        pause = first_pause(after, misses)
        self._searches[partition] = self._loop.spawn("look up", self._look_up, endpoint, pause)

    def found(self, endpoint: Endpoint) -> None:
        """Its partition is subscribed again."""
        self._found_at[endpoint.partition] = self._clock.now()

    def tasks(self) -> Iterable[Any]:
        """Return the greenlets of all searches."""
        return self._searches.values()

    def _look_up(self, lost: Endpoint, pause: float) -> None:
        """Ask until an nsqlookupd lists a leader: there may be none for many seconds."""
        while True:
            sleep(pause)
            if self._is_read(lost) or not self._ask(lost):
                return
            pause = min(max(1.0, 2.0 * pause), LONGEST_PAUSE) * (1.0 + 0.3 * self._rng.random())
