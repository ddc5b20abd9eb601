"""The orderly end of a Reader's connections (CLOSE-1): no message is lost, and none waits for nsqd's time-out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from gnsq_lite.clock import Clock
from gnsq_lite.consume.subscribed import Subscribed
from gnsq_lite.message import send_back
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.net.waiting import Event, wait_or_set

log = logging.getLogger("gnsq_lite.reader")

#: Seconds that close() waits for running handlers by default.
CLOSE_TIMEOUT = 30.0
#: Seconds for nsqd, beyond the time limit, to answer CLS, to read what was sent last and to close.
_LINGER = 1.0
#: Seconds without a byte after CLOSE_WAIT after which no message is under way: nsqd may be sending one as it answers
#: CLS, and does not read its REQ after the end of the connection.
_LATE = 0.02


class Closing:
    """The end of one Reader.  In the loop's thread.

    Args:
        busy: Returns how many handlers run.
    """

    def __init__(self, clock: Clock, busy: Callable[[], int]) -> None:
        self._clock, self._busy = clock, busy
        #: Whether it has begun: messages that still come go back.
        self.begun = False
        #: Handlers that still ran when the time was over.
        self.abandoned = 0
        self._close_by = self._asked_at = inf
        self._news = Event()

    def look(self) -> None:
        """Look again whether the end has come: something happened."""
        self._news.set()

    def begin(self, timeout: float) -> bool:
        """Set the time left, or shorten it; return whether this is the first call."""
        is_first, self.begun = not self.begun, True
        self._close_by = min(self._close_by, self._clock.now() + timeout)
        self._news.set()
        return is_first

    def drain(self, connections: list[Subscribed]) -> None:
        """Wait for the handlers, and for CLOSE_WAIT of *connections* to which CLS was sent; then shut them down.

        Handlers that run finish and answer.  What is unanswered when the time is over goes back with REQ 0, and so does
        what nsqd sent before it read CLS.  The sockets close after nsqd has read all of it.
        """
        self._asked_at = self._clock.now()
        self._wait_until(lambda: not self._busy() and self._are_done(connections), lambda: self._close_by)
        self.abandoned = self._busy()
        if self.abandoned:
            said = "%d handlers still run when the time is over; their messages go back to nsqd"
            log_safely(log, logging.WARNING, said, self.abandoned)
        for connection in connections:
            send_back(connection.in_flight.unanswered())
        lingers = self._clock.now() + _LINGER
        self._wait_until(lambda: self._are_done(connections), lambda: lingers)
        for connection in connections:
            connection.shut_down()
        self._wait_until(lambda: all(map(self._is_gone, connections)), lambda: lingers)

    def _are_done(self, connections: list[Subscribed]) -> bool:
        """Return whether nothing is unanswered, and no message is on its way here."""
        now = self._clock.now()
        return all(
            self._is_gone(each) or (each.close_waited and not each.in_flight.count and now - each.read_at >= _LATE)
            for each in connections
        )

    def _is_gone(self, connection: Subscribed) -> bool:
        """Return whether it is closed, or has no work and was silent since CLS."""
        if not connection.is_open():
            return True
        if connection.in_flight.count or connection.unsent() or connection.read_at > self._asked_at:
            return False
        return self._clock.now() >= self._asked_at + _LINGER

    def _wait_until(self, done: Callable[[], bool], deadline: Callable[[], float]) -> None:
        while not done():
            left = deadline() - self._clock.now()
            if left <= 0:
                return
            self._news.clear()
            wait_or_set(self._news, min(left, _LATE))
