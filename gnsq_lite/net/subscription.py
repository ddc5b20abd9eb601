"""One nsqd, or one partition, of a Reader: no exception but the Reader's end ends its greenlet (CONN-3, CONN-4)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import gevent

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import ClosedError, ConnectionLost, InvalidError, NSQError
from gnsq_lite.net.addresses import mapped
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.ordered import OrderedConnection
from gnsq_lite.net.target import Target
from gnsq_lite.net.telling import log_safely
from gnsq_lite.policy.reconnect import Reconnect

if TYPE_CHECKING:
    from gnsq_lite.net.consumer import Consumer

log = logging.getLogger("gnsq_lite.reader")


class Subscription:
    """Connects, serves, and, for an nsqd that was given, connects again; one that was found waits for a poll."""

    def __init__(self, core: Consumer, endpoint: Endpoint, *, direct: bool) -> None:
        self.core, self.endpoint, self.direct = core, endpoint, direct
        self.task: Any = None
        #: The one that is tried or served.
        self.connection: Connection | None = None
        #: Which of the dialect's ways to subscribe is tried, and how many there are.
        self._way, self._ways = 0, 1

    def serve(self) -> None:
        """Run until the Reader ends or, where the nsqd was found, until it is lost; waits."""
        core = self.core
        retry = Reconnect(core.settings.reconnect, rng=core.rng)
        try:
            while not core.closing:
                way = self._way
                reason = self._once(retry)
                if core.closing:
                    return
                if self._way != way and self._way % self._ways:
                    continue  # at once: the server may know another name for it
                self._tell_lost(reason)
                if not self.direct:
                    return
                delay = retry.failed()
                log_safely(log, logging.DEBUG, "%s: next attempt in %.1f s", self.endpoint, delay)
                gevent.sleep(delay)
                core.reconnects += 1
        finally:
            core.forget(self)

    def _tell_lost(self, reason: NSQError) -> None:
        try:
            self.core.on_lost(self, reason)
        except Exception as error:
            log_safely(log, logging.ERROR, "%s: what follows from its loss failed", self.endpoint, exc_info=error)

    def _once(self, retry: Reconnect) -> NSQError:
        """Connect and serve until the end; return its reason."""
        core = self.core
        connection: Connection | None = None
        try:
            connection = self.connection = self._make()
            connection.open()
            if core.closing:
                connection.close(ConnectionLost(connection.address, "the Reader was closed"))
            core.joined(connection)
            connection.run()
        except NSQError as error:
            refused = connection is not None and connection.opened_at is None and isinstance(error, InvalidError)
            if refused and "invalid command" in str(error):
                self._way += 1
            return error
        except Exception as error:
            log_safely(log, logging.ERROR, "%s: the connection failed unforeseen", self.endpoint, exc_info=error)
            return ConnectionLost(str(self.endpoint), f"{type(error).__name__}: {error}")
        finally:
            if connection is not None:
                if connection.opened_at is not None:
                    retry.served(core.clock.now() - connection.opened_at)
                connection.close(ConnectionLost(connection.address, "closed"))
                core.parted(connection)
        raise ClosedError("a connection ended without a reason")

    def _make(self) -> Connection:
        core, settings, dialect = self.core, self.core.settings, self.core.settings.dialect
        topic = settings.topic
        ways = dialect.subscribe(topic, settings.channel, self.endpoint)
        self._ways = len(ways)
        way = self._way % self._ways
        target = Target(
            endpoint=self.endpoint,
            topic=topic,
            channel=settings.channel,
            subscribe=ways[way],
            choose_message=lambda negotiated: dialect.message_factory(topic, self.endpoint, way, negotiated),
            identify_extra=dialect.identify_extra(topic, self.endpoint),
            connect_to=mapped(settings.address_map, self.endpoint),
        )
        sequence = dialect.sequence(topic, self.endpoint)
        if sequence is None:
            return Connection(core.loop, target, settings.connection, core, core.clock)
        ordered = OrderedConnection(core.loop, target, settings.connection, core, core.clock)
        ordered.sequence = sequence
        return ordered
