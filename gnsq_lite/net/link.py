"""Keeps one endpoint connected, for Readers and Writers (CONN-3, PUB-3).

A link connects, reads until the connection ends, pauses, and connects again.  Its owner decides whether to reconnect.
"""

from __future__ import annotations

import logging
import random
from enum import Enum
from typing import Generic, Protocol, TypeVar

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import ClosedError, ConnectionLost, NSQError, WrongDialectError
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.dialing import connect_error, is_system_error
from gnsq_lite.net.loop import sleep
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.options import ReconnectOptions
from gnsq_lite.policy.reconnect import Reconnect

C = TypeVar("C", bound=Connection)


class Again(Enum):
    """When a link reconnects after it lost its connection or could not connect."""

    SOON = "connect again after the shortest pause"
    LATER = "connect again after a pause, which grows with each failure up to a maximum"
    NEVER = "do not connect again"


class LinkOwner(Protocol[C]):
    """The owner of a link.  The link calls these methods in its greenlet."""

    def make_connection(self) -> C:
        """Return a new connection that is not open yet.  An NSQError counts as a lost connection."""

    def on_connected(self, connection: C) -> None:
        """Use *connection*, whose handshake has ended."""

    def on_disconnected(self, connection: C) -> None:
        """Stop using *connection*, which has ended or could not be opened.  The link may call this twice."""

    def on_lost(self, reason: NSQError) -> Again:
        """Handle a lost connection or a failure to connect, and return when to reconnect.  Not called if is_over()."""

    def on_retry(self) -> None:
        """Handle the end of a pause, before the link reconnects."""

    def is_over(self) -> bool:
        """Return whether the link must not reconnect, for example because the Reader or Writer has ended."""


class Link(Generic[C]):
    """Keeps one connection to an endpoint, and makes a new connection after each loss."""

    def __init__(
        self,
        endpoint: Endpoint,
        owner: LinkOwner[C],
        options: ReconnectOptions,
        rng: random.Random,
        log: logging.Logger,
    ) -> None:
        self.endpoint, self._owner, self._log = endpoint, owner, log
        self._retry = Reconnect(options, rng=rng)
        #: The last connection: being opened, open, or ended.
        self.connection: C | None = None

    def run(self) -> None:
        """Keep the endpoint connected until is_over() returns True or on_lost() returns NEVER.  Blocks the greenlet."""
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
                delay = self._retry.failed(longest=isinstance(reason, WrongDialectError))
                log_safely(self._log, logging.DEBUG, "%s: next attempt in %.1f s", self.endpoint, delay)
                sleep(delay)
                self._owner.on_retry()
        finally:
            self._leave()

    def _once(self) -> NSQError:
        """Connect, read until the connection ends, and return the reason."""
        self.connection = None
        try:
            connection = self._open()
            if self._owner.is_over():
                return ConnectionLost(connection.address, "closed")
            self._owner.on_connected(connection)
            connection.run()
        except NSQError as error:
            return error
        raise ClosedError("a connection ended without a reason")

    def _open(self) -> C:
        """Make and open a connection.  Raises NSQError, also if the system has no memory or no descriptor left."""
        try:
            connection = self.connection = self._owner.make_connection()
            connection.open()
        except (MemoryError, OSError) as error:
            if not is_system_error(error):
                raise
            raise connect_error(str(self.endpoint), error) from error
        return connection

    def _leave(self) -> None:
        """Close the connection, if any, and tell the owner."""
        connection = self.connection
        if connection is not None:
            if connection.opened_at is not None:
                self._retry.served(connection.clock.now() - connection.opened_at)
            connection.close(ConnectionLost(connection.address, "closed"))
            self._owner.on_disconnected(connection)

    def close(self, reason: NSQError) -> None:
        """Close the current connection, if any.  :meth:`run` then continues as after any other loss."""
        if self.connection is not None:
            self.connection.close(reason)

    def abandon(self) -> None:
        """In a forked child, drop the parent's connection, which may still be in its handshake."""
        if self.connection is not None:
            self.connection.abandon()
