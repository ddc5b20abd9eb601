"""Keeps one endpoint connected: connect, serve until the end, wait, again (CONN-3, PUB-3).

For a Reader's nsqds and a Writer's alike; whose link it is decides what follows from a loss.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from enum import Enum
from typing import Generic, Protocol, TypeVar

import gevent

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import ClosedError, ConnectionLost, NSQError, WrongDialectError
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.loop import lasting, pass_on
from gnsq_lite.net.lost import Interrupted, interrupted
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.options import ReconnectOptions, format_address
from gnsq_lite.policy.reconnect import Reconnect
from gnsq_lite.policy.rng import Rng

C = TypeVar("C", bound=Connection)

#: Seconds before a connection that a signal handler's exception has ended is made anew, the first time.
_SOON = 0.05


class Again(Enum):
    """What follows from a loss."""

    AT_ONCE = "connect again now"
    SOON = "connect again after the shortest pause: it did what it is for"
    LATER = "connect again after a pause, which grows with each failure"
    NEVER = "leave it"


class LinkOwner(Protocol[C]):
    """What a link asks and tells; in the link's greenlet."""

    def make_connection(self) -> C:
        """Return a new connection, not open yet.  What it raises is the loss."""

    def on_connected(self, connection: C) -> None:
        """Its handshake is done."""

    def on_disconnected(self, connection: C) -> None:
        """It is closed, whether it was connected or not."""

    def on_lost(self, reason: NSQError) -> Again:
        """Settle what follows from the loss; not called after the end."""

    def on_retry(self) -> None:
        """A pause is over; it is connected again."""

    def is_over(self) -> bool:
        """Whether the Reader or Writer has ended: nothing is connected any more."""


class Link(Generic[C]):
    """The connections to one endpoint, one after the other.  No exception but a kill ends its greenlet early."""

    def __init__(
        self, endpoint: Endpoint, owner: LinkOwner[C], options: ReconnectOptions, rng: Rng, log: logging.Logger
    ) -> None:
        self.endpoint, self._owner, self._log = endpoint, owner, log
        self._retry = Reconnect(options, rng=rng)
        #: Of what was none of nsqd's doing; but it may be a fault that comes again and again.
        self._resume = Reconnect(replace(options, reconnect_delay=min(_SOON, options.reconnect_delay)), rng=rng)
        #: The connection that is tried or used.
        self.connection: C | None = None
        #: Why it has ended, until all that follows from that is done: should that be interrupted, it is done again.
        self._reason: NSQError | None = None
        #: Whether what follows from that has failed once.
        self._fails = False

    def run(self) -> None:
        """Connect, serve, and again until the owner says that it is over; waits."""
        try:
            lasting(self._run)
        finally:
            self._leave()

    def _run(self) -> None:
        while not self._owner.is_over():
            if self._reason is None:
                self._reason = interrupted(format_address(self.endpoint.address))
                self._reason = self._once()
            self._leave()
            if self._owner.is_over():
                return
            again = self._lost(self._reason)
            reason, self._reason = self._reason, None
            if again is Again.NEVER:
                return
            if again is Again.SOON:
                self._retry.restart()
            if again is not Again.AT_ONCE:
                retry = self._resume if isinstance(reason, Interrupted) else self._retry
                delay = retry.failed(longest=isinstance(reason, WrongDialectError))
                log_safely(self._log, logging.DEBUG, "%s: next attempt in %.1f s", self.endpoint, delay)
                gevent.sleep(delay)
                self._owner.on_retry()

    def _once(self) -> NSQError:
        """Connect and serve until the end; return its reason."""
        self.connection = None
        try:
            connection = self.connection = self._owner.make_connection()
            connection.open()
            if self._owner.is_over():
                return ConnectionLost(connection.address, "closed")
            self._owner.on_connected(connection)
            connection.run()
        except NSQError as error:
            return error
        except gevent.GreenletExit:
            raise
        except BaseException as error:  # from a signal handler it may be of any kind, and is not the connection's
            if isinstance(error, Exception):
                why = "%s: the connection failed unforeseen"
                log_safely(self._log, logging.ERROR, why, self.endpoint, exc_info=error)
            else:
                pass_on(error)
            return Interrupted(format_address(self.endpoint.address), f"{type(error).__name__}: {error}")
        raise ClosedError("a connection ended without a reason")

    def _lost(self, reason: NSQError) -> Again:
        """Settle what follows; once more where that is interrupted, but not where it fails by itself."""
        try:
            again = self._owner.on_lost(reason)
        except Exception as error:
            self._fails = not self._fails
            if self._fails:
                raise
            log_safely(self._log, logging.ERROR, "%s: what follows from its loss failed", self.endpoint, exc_info=error)
            return Again.LATER
        self._fails = False
        return again

    def _leave(self) -> None:
        """Be done with the connection; again: nothing."""
        connection = self.connection
        if connection is not None:
            if connection.opened_at is not None:
                for retry in (self._retry, self._resume):
                    retry.served(connection.clock.now() - connection.opened_at)
            connection.close(ConnectionLost(connection.address, "closed"))
            self._owner.on_disconnected(connection)

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's, whether its handshake is done or not."""
        if self.connection is not None:
            self.connection.abandon()
