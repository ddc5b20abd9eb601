"""One nsqd, or one partition, of a Reader: connected while it is given or found (CONN-3, CONN-4)."""

from __future__ import annotations

import logging
import random
from typing import Any, Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.consume.ordered import OrderedConnection
from gnsq_lite.consume.pools import Pool
from gnsq_lite.consume.settings import ConsumerSettings
from gnsq_lite.consume.subscribed import MessageOwner, Subscribed
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import InvalidError, NSQError
from gnsq_lite.net.addresses import mapped
from gnsq_lite.net.link import Again, Link
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.lost import DeliveryStalled
from gnsq_lite.net.target import Target

log = logging.getLogger("gnsq_lite.reader")


class SubscriptionOwner(MessageOwner, Protocol):
    """Who gets the messages of all subscriptions; told in the loop's thread."""

    loop: Loop
    settings: ConsumerSettings
    clock: Clock
    rng: random.Random
    pool: Pool

    def is_over(self, subscription: Subscription) -> bool:
        """Whether it is to connect no more."""

    def on_connected(self, connection: Subscribed) -> None:
        """It is subscribed."""

    def on_disconnected(self, connection: Subscribed) -> None:
        """It is gone, or could not be had."""

    def on_lost(self, endpoint: Endpoint, reason: NSQError) -> None:
        """Settle what follows from the loss."""

    def on_retry(self) -> None:
        """It is connected again."""

    def on_end(self, subscription: Subscription) -> None:
        """It connects no more."""


class Subscription:
    """Connects again and again to an nsqd that was given; one that was found waits, once lost, for a poll."""

    def __init__(self, owner: SubscriptionOwner, endpoint: Endpoint, *, direct: bool) -> None:
        self._owner, self.endpoint, self.direct = owner, endpoint, direct
        self.link = Link[Subscribed](endpoint, self, owner.settings.reconnect, owner.rng, log)
        self.task: Any = None
        #: Which of the dialect's ways to subscribe is tried, and how many there are.
        self._way, self._ways = 0, 1

    def serve(self) -> None:
        """Run until the Reader ends or, where the nsqd was found, until it is lost; waits."""
        try:
            self.link.run()
        finally:
            self._owner.on_end(self)

    # -- the link's owner

    def is_over(self) -> bool:
        """Whether the Reader is closing, or has begun again without this one."""
        return self._owner.is_over(self)

    def on_connected(self, connection: Subscribed) -> None:
        """It is subscribed."""
        self._owner.on_connected(connection)

    def on_disconnected(self, connection: Subscribed) -> None:
        """It is gone."""
        self._owner.on_disconnected(connection)

    def on_lost(self, reason: NSQError) -> Again:
        """Try the next way to subscribe at once, where this server may know another name for it."""
        connection = self.link.connection
        refused = connection is not None and connection.opened_at is None and isinstance(reason, InvalidError)
        if refused and "invalid command" in str(reason):
            self._way += 1
            if self._way % self._ways:
                return Again.AT_ONCE
        self._owner.on_lost(self.endpoint, reason)
        if isinstance(reason, DeliveryStalled):
            return Again.AT_ONCE
        return Again.LATER if self.direct else Again.NEVER

    def on_retry(self) -> None:
        """Count it."""
        self._owner.on_retry()

    def make_connection(self) -> Subscribed:
        """Return a connection that subscribes in the way that is tried.  Raises what the user's address map does."""
        owner, settings, dialect = self._owner, self._owner.settings, self._owner.settings.dialect
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
            check_server=dialect.check_server,
            connect_to=mapped(settings.address_map, self.endpoint),
        )
        sequence = dialect.sequence(topic, self.endpoint)
        given, pool = (owner.loop, target, settings.connection, owner, owner.clock), settings.pool
        if sequence is not None:
            return OrderedConnection(sequence, *given, reads_in_hub=pool != "inline")
        prompt, in_threads = settings.is_prompt, pool == "thread"
        reads_in_hub = prompt and pool != "inline"
        return Subscribed(*given, is_prompt=prompt, reads_in_hub=reads_in_hub, writes_fins=in_threads)
