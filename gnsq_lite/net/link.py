"""Keeps one endpoint connected: connect, serve until the end, wait, again (CONN-3, PUB-3).

For a Reader's nsqds and a Writer's alike; whose link it is decides what follows from a loss.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Generic, Protocol, TypeVar

import gevent

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import ClosedError, ConnectionLost, NSQError
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.loop import lasting, pass_on
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.options import ReconnectOptions, format_address
from gnsq_lite.policy.reconnect import Reconnect
from gnsq_lite.policy.rng import Rng

C = TypeVar("C", bound=Connection)


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
        #: The connection that is tried or used.
        self.connection: C | None = None

    def run(self) -> None:
        """Connect, serve, and again until the owner says that it is over; waits."""
        lasting(self._run)

    def _run(self) -> None:
        while not self._owner.is_over():
            reason = self._once()
            if self._owner.is_over():
                return
            again = self._lost(reason)
            if again is Again.NEVER:
                return
            if again is Again.SOON:
                self._retry.restart()
            if again is not Again.AT_ONCE:
                delay = self._retry.failed()
                log_safely(self._log, logging.DEBUG, "%s: next attempt in %.1f s", self.endpoint, delay)
                gevent.sleep(delay)
                self._owner.on_retry()

    def _once(self) -> NSQError:
        """Connect and serve until the end; return its reason."""
        connection: C | None = None
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
            return ConnectionLost(format_address(self.endpoint.address), f"{type(error).__name__}: {error}")
        finally:
            if connection is not None:
                if connection.opened_at is not None:
                    self._retry.served(connection.clock.now() - connection.opened_at)
                connection.close(ConnectionLost(connection.address, "closed"))
                self._owner.on_disconnected(connection)
        raise ClosedError("a connection ended without a reason")

    def _lost(self, reason: NSQError) -> Again:
        try:
            return self._owner.on_lost(reason)
        except Exception as error:
            log_safely(self._log, logging.ERROR, "%s: what follows from its loss failed", self.endpoint, exc_info=error)
            return Again.LATER

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's, whether its handshake is done or not."""
        if self.connection is not None:
            self.connection.abandon()
