"""Shuts down a Reader's connections (CLOSE-1), after the Reader has answered each message that it received."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from gnsq_lite.clock import Clock
from gnsq_lite.consume.subscribed import SubscribedConnection
from gnsq_lite.message import send_back
from gnsq_lite.net.loop import sleep
from gnsq_lite.net.user_hooks import log_safely

log = logging.getLogger("gnsq_lite.reader")

#: Default time limit of close(), in seconds.
CLOSE_TIMEOUT = 30.0
#: Seconds for nsqd's last answers after the Reader has answered all messages.  Also the seconds after CLS until an
#: idle connection counts as closed.
_LINGER = 1.0
#: Seconds without a byte after which the Reader expects no message after CLOSE_WAIT.  Also the interval of the checks.
#: nsqd may send a message while it answers CLS.  The REQ for this message must be sent before the connection ends.
_LATE = 0.02


class Closing:
    """The shutdown of one Reader.  Call it in the loop's thread.

    Args:
        busy: Returns the number of running handlers and hooks.
    """

    def __init__(self, clock: Clock, busy: Callable[[], int]) -> None:
        self._clock, self._busy = clock, busy
        #: Whether the shutdown has begun.  The Reader requeues messages that arrive later.
        self.begun = False
        #: Number of handlers and hooks that were still running at the time limit.
        self.abandoned = 0
        self._close_by = self._asked_at = inf

    def begin(self, timeout: float) -> bool:
        """Set or shorten the time limit to *timeout* seconds from now.  Return whether this is the first call."""
        is_first, self.begun = not self.begun, True
        self._close_by = min(self._close_by, self._clock.now() + timeout)
        return is_first

    def drain(self, connections: list[SubscribedConnection]) -> None:
        """Wait for handlers, answers and CLOSE_WAIT, at most until the time limit.  Then shut *connections* down.

        The caller has sent CLS on each connection.  REQ 0 requeues all messages that are unanswered at the time limit.
        """
        self._asked_at = self._clock.now()
        self._wait_until(lambda: not self._busy() and self._are_done(connections), lambda: self._close_by)
        self.abandoned = self._busy()
        if self.abandoned:
            said = "%d handlers still run at the end of close()'s timeout; their messages are requeued"
            log_safely(log, logging.WARNING, said, self.abandoned)
        for connection in connections:
            send_back(connection.unanswered())
        lingers = self._clock.now() + _LINGER
        self._wait_until(lambda: self._are_done(connections), lambda: lingers)
        for connection in connections:
            connection.shut_down()
        self._wait_until(lambda: all(map(self._is_gone, connections)), lambda: lingers)

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Wait until *done* returns true, at most until the time limit."""
        self._wait_until(done, lambda: self._close_by)

    def _are_done(self, connections: list[SubscribedConnection]) -> bool:
        """Return whether all messages are answered and no more messages are expected."""
        now = self._clock.now()
        return all(
            self._is_gone(each) or (each.close_waited and not each.in_flight and now - each.read_at >= _LATE)
            for each in connections
        )

    def _is_gone(self, connection: SubscribedConnection) -> bool:
        """Return whether *connection* is closed, or has been idle since CLS was sent _LINGER seconds ago."""
        if not connection.is_open():
            return True
        if connection.in_flight or connection.unsent() or connection.read_at > self._asked_at:
            return False
        return self._clock.now() >= self._asked_at + _LINGER

    def _wait_until(self, done: Callable[[], bool], deadline: Callable[[], float]) -> None:
        while not done():
            left = deadline() - self._clock.now()
            if left <= 0:
                return
            sleep(min(left, _LATE))
