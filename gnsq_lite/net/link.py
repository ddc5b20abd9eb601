"""Keeps one endpoint connected: connect, serve until the end, wait, again (CONN-3, PUB-3).

Readers and Writers use it; the owner of a link decides what follows from a loss.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Generic, Protocol, TypeVar

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import ClosedError, ConnectionLost, NSQError, WrongDialectError
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.loop import sleep
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.options import ReconnectOptions
from gnsq_lite.policy.reconnect import Reconnect
from gnsq_lite.policy.rng import Rng

C = TypeVar("C", bound=Connection)


class Again(Enum):
    """When a link connects again after a loss."""

    AT_ONCE = "connect again now"
    SOON = "connect again after the shortest pause: it did what it is for"
    LATER = "connect again after a pause, which grows with each failure"
    NEVER = "leave it"


class LinkOwner(Protocol[C]):
    """The owner of a link; called in the link's greenlet."""

    def make_connection(self) -> C:
        """Return a new connection, not open yet.  An NSQError that it raises is the loss."""

    def on_connected(self, connection: C) -> None:
        """The handshake of *connection* is done."""

    def on_disconnected(self, connection: C) -> None:
        """*connection* is closed, whether its handshake was done or not."""

    def on_lost(self, reason: NSQError) -> Again:
        """Return when to connect again; not called after the end."""

    def on_retry(self) -> None:
        """A pause is over, and the link connects again."""

    def is_over(self) -> bool:
        """Return whether the Reader or Writer has ended, so that the link connects no more."""


class Link(Generic[C]):
    """The connections to one endpoint, one after the other."""

    def __init__(
        self, endpoint: Endpoint, owner: LinkOwner[C], options: ReconnectOptions, rng: Rng, log: logging.Logger
    ) -> None:
        self.endpoint, self._owner, self._log = endpoint, owner, log
        self._retry = Reconnect(options, rng=rng)
        #: The connection that is tried or used.
        self.connection: C | None = None

    def run(self) -> None:
        """Connect and serve, again and again, until ``owner.is_over()``; waits."""
        try:
            while not self._owner.is_over():
                reason = self._once()
                self._leave()
                if self._owner.is_over():
                    return
                again = self._owner.on_lost(reason)
                if again is Again.NEVER:
                    return
                if again is Again.SOON:
                    self._retry.restart()
                if again is not Again.AT_ONCE:
                    delay = self._retry.failed(longest=isinstance(reason, WrongDialectError))
                    log_safely(self._log, logging.DEBUG, "%s: next attempt in %.1f s", self.endpoint, delay)
                    sleep(delay)
                    self._owner.on_retry()
        finally:
            self._leave()

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
        raise ClosedError("a connection ended without a reason")

    def _leave(self) -> None:
        """Close the connection and report its end."""
        connection = self.connection
        if connection is not None:
            if connection.opened_at is not None:
                self._retry.served(connection.clock.now() - connection.opened_at)
            connection.close(ConnectionLost(connection.address, "closed"))
            self._owner.on_disconnected(connection)

    def close(self, reason: NSQError) -> None:
        """Close its connection, if there is one; its greenlet ends once ``owner.is_over()``."""
        if self.connection is not None:
            self.connection.close(reason)

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's, whether its handshake is done or not."""
        if self.connection is not None:
            self.connection.abandon()
