"""When a Reader's nsqd is not read: messages far beyond RDY stay where they are.

nsqd sends what it likes, and what a read brought costs memory.  So reading rests while more is in flight than RDY lets
nsqd send.  It rests and does not end: messages that nsqd has taken back, and sent again, count for a moment more than
nsqd thinks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Event, wait_or_set

log = logging.getLogger("gnsq_lite.net")

#: Messages nsqd may have out beyond its RDY before reading rests, at least; else a quarter of RDY.  Those that it has
#: taken back count here for a moment more, and a server that counts RDY down renews it while some are under way.
_SPARE = 10
#: Seconds after which a waiter checks again, even if it was not woken.
_LOOK_AGAIN = 1.0


class ReadingLimit:
    """Of one connection; in the loop's thread."""

    __slots__ = ("_room", "_told", "most", "rests")

    def __init__(self) -> None:
        #: Most messages in flight with which reading goes on.
        self.most = _SPARE
        #: Whether nothing is read until there is room.
        self.rests = False
        self._room = Event()
        self._told = False

    def allow(self, ready: int) -> None:
        """RDY was sent: so many may be out from now on, also where less is allowed later (it is never confirmed)."""
        self.most = max(self.most, ready + max(_SPARE, ready // 4))

    def look(self) -> None:
        """There may be room now."""
        self._room.set()

    def rest(self, address: str, in_flight: int, is_crowded: Callable[[], bool]) -> None:
        """Wait while it is crowded; told once."""
        if not self._told:
            self._told = True
            why = "%s: %d messages are in flight, more than RDY allows; no more are read until some are answered"
            log_safely(log, logging.WARNING, why, address, in_flight)
        self.rests = True
        try:
            while is_crowded():
                self._room.clear()
                wait_or_set(self._room, _LOOK_AGAIN)
        finally:
            self.rests = False
