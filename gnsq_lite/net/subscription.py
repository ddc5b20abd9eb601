"""One nsqd, or one partition, of a Reader: connected while it is given or found (CONN-3, CONN-4)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import InvalidError, NSQError
from gnsq_lite.net.addresses import mapped
from gnsq_lite.net.link import Again, Link
from gnsq_lite.net.ordered import OrderedConnection
from gnsq_lite.net.subscribed import Subscribed
from gnsq_lite.net.target import Target

if TYPE_CHECKING:
    from gnsq_lite.net.consumer import Consumer

log = logging.getLogger("gnsq_lite.reader")


class Subscription:
    """Connects again and again to an nsqd that was given; one that was found waits, once lost, for a poll."""

    def __init__(self, core: Consumer, endpoint: Endpoint, *, direct: bool) -> None:
        self.core, self.endpoint, self.direct = core, endpoint, direct
        self.link = Link[Subscribed](endpoint, self, core.settings.reconnect, core.rng, log)
        self.task: Any = None
        #: Which of the dialect's ways to subscribe is tried, and how many there are.
        self._way, self._ways = 0, 1

    def serve(self) -> None:
        """Run until the Reader ends or, where the nsqd was found, until it is lost; waits."""
        try:
            self.link.run()
        finally:
            self.core.forget(self)

    # -- the link's owner

    def is_over(self) -> bool:
        """Whether the Reader is closing."""
        return self.core.closing

    def on_connected(self, connection: Subscribed) -> None:
        """It is subscribed."""
        self.core.joined(connection)

    def on_disconnected(self, connection: Subscribed) -> None:
        """It is gone."""
        self.core.parted(connection)

    def on_lost(self, reason: NSQError) -> Again:
        """Try the next way to subscribe at once, where this server may know another name for it."""
        connection = self.link.connection
        refused = connection is not None and connection.opened_at is None and isinstance(reason, InvalidError)
        if refused and "invalid command" in str(reason):
            self._way += 1
            if self._way % self._ways:
                return Again.AT_ONCE
        self.core.on_lost(self, reason)
        return Again.LATER if self.direct else Again.NEVER

    def on_retry(self) -> None:
        """Count it."""
        self.core.reconnects += 1

    def make_connection(self) -> Subscribed:
        """Return a connection that subscribes in the way that is tried.  Raises what the user's address map does."""
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
            return Subscribed(core.loop, target, settings.connection, core, core.clock)
        return OrderedConnection(core.loop, target, settings.connection, core, core.clock, sequence)
