"""Shuts a Reader's connections down gracefully (CLOSE-1): no message is lost or must time out at nsqd."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from gnsq_lite.clock import Clock
from gnsq_lite.consume.subscribed import Subscribed
from gnsq_lite.message import send_back
from gnsq_lite.net.loop import sleep
from gnsq_lite.net.user_hooks import log_safely

log = logging.getLogger("gnsq_lite.reader")

#: Seconds that close() waits for running handlers by default.
CLOSE_TIMEOUT = 30.0
#: Seconds for nsqd, after the time limit, to answer CLS, to read the last bytes and to close.
_LINGER = 1.0
#: Seconds without a byte after CLOSE_WAIT after which no message is expected.  nsqd may send a message while it answers
#: CLS, and reads no REQ after the connection has ended.  Also the seconds between two checks.
_LATE = 0.02


class Closing:
    """The shutdown of one Reader.  Call it in the loop's thread.

    Args:
        busy: Returns the number of running handlers.
    """

    def __init__(self, clock: Clock, busy: Callable[[], int]) -> None:
        self._clock, self._busy = clock, busy
        #: Whether the shutdown has begun; later messages are requeued.
        self.begun = False
        #: Number of handlers that still ran at the time limit.
        self.abandoned = 0
        self._close_by = self._asked_at = inf

    def begin(self, timeout: float) -> bool:
        """Set or shorten the time limit, in seconds from now; return whether this is the first call."""
        is_first, self.begun = not self.begun, True
        self._close_by = min(self._close_by, self._clock.now() + timeout)
        return is_first

    def drain(self, connections: list[Subscribed]) -> None:
        """Wait for the handlers and for CLOSE_WAIT on *connections*, to which CLS was sent; then shut them down.

        Running handlers finish and answer.  REQ 0 requeues the messages that are unanswered at the time limit, and the
        messages that nsqd sent before it read CLS.  The sockets close after nsqd has read all answers.
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
        """Return whether all messages are answered and no message is expected."""
        now = self._clock.now()
        return all(
            self._is_gone(each) or (each.close_waited and not each.in_flight.count and now - each.read_at >= _LATE)
            for each in connections
        )

    def _is_gone(self, connection: Subscribed) -> bool:
        """Return whether *connection* is closed, or has no work and received nothing since CLS."""
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
            sleep(min(left, _LATE))
