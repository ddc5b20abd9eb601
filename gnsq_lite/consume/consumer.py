"""A Reader's core in its loop: connections, flow control and handler pool wired together.

Everything runs in the loop's thread; what runs where handlers run is in :mod:`gnsq_lite.consume.run_handler`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.consume.batches import BatchFeeder, drop, take_queued
from gnsq_lite.consume.closing import Closing
from gnsq_lite.consume.endpoints import Losses, StoppedPartitions
from gnsq_lite.consume.flow_control import FlowControl
from gnsq_lite.consume.ordered import OrderedConnection
from gnsq_lite.consume.pools import default_concurrency, make_pool
from gnsq_lite.consume.run_handler import HandlerOutcomes, key_of, make_batch_runner, make_runner
from gnsq_lite.consume.settings import ConsumerSettings
from gnsq_lite.consume.subscribed import Subscribed
from gnsq_lite.consume.time_limits import TimeLimits
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import (
    ClosedError,
    ConnectionLost,
    FinFailedError,
    InvalidError,
    NsqdError,
    NSQError,
    PartitionStopped,
    ReqFailedError,
)
from gnsq_lite.message import Message, is_expired, send_back
from gnsq_lite.net.at_exit import close_at_exit
from gnsq_lite.net.connection import Target
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.net.link import Again, Link
from gnsq_lite.net.loop import PAUSE, Loop, current_greenlet, sleep
from gnsq_lite.net.os_threads import native_ident
from gnsq_lite.net.settings import mapped
from gnsq_lite.net.stream import DeliveryStalled
from gnsq_lite.net.user_hooks import LossLog, UserHooks, log_safely
from gnsq_lite.net.waiting import Completion
from gnsq_lite.policy.attempts import Tries, requeue_delay

log = logging.getLogger("gnsq_lite.reader")


class Consumer:
    """Runs one subscription over all its nsqds.  Made and used in the loop's thread."""

    def __init__(self, loop: Loop, settings: ConsumerSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.loop, self.settings, self.clock = loop, settings, clock
        self.rng = random.Random()
        self.ended = Completion()
        self.connections: dict[Endpoint, Subscribed] = {}
        self.hooks = UserHooks(loop, settings.hooks, is_closing=lambda: self.closing, on_exit=self.fail)
        self.flow = self._make_flow()
        self.tries = Tries(settings.retry.max_attempts)
        self.outcomes = HandlerOutcomes(
            loop, settings, self.tries, self.hooks, stop_partition=self.stop_partition, on_exit=self.fail
        )
        make = make_batch_runner if settings.batch_size else make_runner
        run = make(settings.handler, self.outcomes, settings.retry.max_attempts)
        self._concurrency_given = settings.concurrency is not None
        self._concurrency = settings.concurrency or default_concurrency(settings.pool, settings.max_in_flight)
        self.pool = make_pool(settings.pool, loop, run, self._concurrency, self.outcomes.on_exit)
        self.limits = TimeLimits(loop, settings, clock, self.pool, self._concurrency, self.outcomes, self.hooks)
        self.batches = self._make_batches()
        #: Where messages go that come: to the handlers or, once the end has begun, back.
        self.handle: Callable[[list[Message]], None] = self.batches.add if self.batches else self.pool.submit
        self.late_answers = self.answers_lost = self.reconnects = 0
        #: Counts of connections that are gone.
        self.received_before = self.finished_before = self.requeued_before = self.expired_before = 0
        #: Messages whose connection was gone before a handler began them.
        self.dropped = 0
        #: What it ends with, if not an orderly close.
        self.error: BaseException | None = None
        self.end = Closing(
            loop,
            clock,
            self.ended,
            connections=self.connections.values,
            take_queued=self._take_queued,
            busy=lambda: self.limits.busy() + self.hooks.left,  # else a handler's thread calls them, and is busy
            in_handler=self._in_handler,
            refuse=self._refuse,
            stop_discovery=self._stop_discovery,
            end=self._end,
        )
        self._subscriptions: dict[Endpoint, Subscription] = {}
        self.stopped = StoppedPartitions(self.tries)
        self.losses = Losses(settings.reconnect, clock=clock, rng=self.rng)
        self._loss_log = LossLog(log, clock)
        self.search = settings.dialect.leader_search(loop.timer, self.rng, self._is_read, self._ask)
        self.discovery: Discovery | None = None
        self._greenlets: list[Any] = []
        self._is_started = False
        loop.cores.add(self)
        close_at_exit(self)

    def _make_flow(self) -> FlowControl:
        on_backoff = partial(self.hooks.call, "on_backoff")
        return FlowControl(self.settings, self.clock, self.rng, on_backoff)

    def _make_batches(self) -> BatchFeeder | None:
        settings = self.settings
        if not settings.batch_size:
            return None
        size, wait = settings.batch_size, settings.batch_wait or 1.0
        return BatchFeeder(self.loop, size, wait, self.pool, self.clock, self.flow.is_starved)

    # -- starting

    def start(self) -> None:
        """Connect to the direct nsqds, ask the nsqlookupds, begin to tick."""
        if self.closing:
            return  # close() was quicker
        self._is_started = True
        settings = self.settings
        self.discovery = Discovery(
            settings,
            settings.topic,
            "read",
            self.rng,
            self.clock,
            on_found=self._found,
            on_forget=self._forgotten,
            on_lookup=self._renew,
        )
        self._greenlets.append(self.loop.spawn("ticker", self.flow.run, self._look_around))
        if self.limits.is_needed:
            self._greenlets.append(self.loop.spawn("time limits", self.limits.run))
        self._connect_given()
        if settings.lookupds:
            self._greenlets.append(self.loop.spawn("discovery", self.discovery.run))

    def reset(self) -> None:
        """Close all connections and begin again with fresh state; running handlers go on (see Loop)."""
        if self.ended.done() or not self._is_started:
            return
        self._stop_all("an unexpected exception has ended all connections")
        if self.closing:
            self._end()
            return
        self.pool.reset()
        before, self.flow = self.flow, self._make_flow()
        self.flow.max_in_flight = before.max_in_flight
        self.flow.set_paused(before.paused)
        if self.batches is not None:
            self.batches.take()
        self.batches = self._make_batches()
        self.handle = self.batches.add if self.batches else self.pool.submit
        self.losses = Losses(self.settings.reconnect, clock=self.clock, rng=self.rng)
        self._greenlets = [self.loop.spawn("begin again", self._begin_again)]

    def _begin_again(self) -> None:
        sleep(PAUSE)
        self._greenlets.clear()
        self.start()

    def _stop_all(self, why: str) -> None:
        """Close all connections, and end the greenlets that are not the caller's and run no handlers."""
        subscriptions = list(self._subscriptions.values())
        for connection in list(self.connections.values()):
            self._count(connection)
        self.connections.clear()
        self._subscriptions.clear()  # now their greenlets end by themselves: inline handlers run in them
        for subscription in subscriptions:
            subscription.link.close(ConnectionLost(str(subscription.endpoint), why))
        if self.discovery is not None:
            self.discovery.stop()
        self._stop_search()
        self.loop.kill(self._greenlets)

    def _count(self, connection: Subscribed) -> None:
        """Keep the counts of a connection that is gone."""
        self.received_before += connection.received
        self.finished_before += connection.finished
        self.requeued_before += connection.requeued
        self.expired_before += connection.expired

    def _connect_given(self) -> None:
        for endpoint in self.settings.endpoints:
            self._connect(endpoint, direct=True)

    def _found(self, endpoints: Iterable[Endpoint]) -> None:
        """Discovery says: connect to these, which are not connected."""
        for endpoint in endpoints:
            if not self.losses.rests(endpoint):
                self._connect(endpoint, direct=False)

    def _forgotten(self, endpoints: Iterable[Endpoint]) -> None:
        """Forget endpoints that are disconnected and no longer listed."""
        for endpoint in endpoints:
            self.losses.forget(endpoint)

    def _renew(self, *looked_up: Any) -> None:
        """Reconnect where the topic differs from what IDENTIFY said: nsqd delivers nothing there (YZ-15)."""
        topic, dialect = self.settings.topic, self.settings.dialect
        for endpoint, connection in list(self.connections.items()):
            if dialect.identify_extra(topic, endpoint) != connection.target.identify_extra:
                connection.close(ConnectionLost(connection.address, f"{topic} was changed"))

    def _connect(self, endpoint: Endpoint, *, direct: bool) -> None:
        if self.discovery is not None and endpoint in self.stopped:
            self.discovery.disconnected(endpoint)  # once it goes on it is to be found
        if self.closing or endpoint in self._subscriptions or endpoint in self.stopped:
            return
        subscription = self._subscriptions[endpoint] = Subscription(self, endpoint, direct=direct)
        subscription.task = self.loop.spawn(f"nsqd {endpoint}", subscription.serve)

    # -- connections come and go

    def is_over(self, subscription: Subscription) -> bool:
        """Whether it is to connect no more."""
        return self.closing or self._subscriptions.get(subscription.endpoint) is not subscription

    def on_end(self, subscription: Subscription) -> None:
        """Its greenlet has ended: a poll may find the endpoint again."""
        if self._subscriptions.get(subscription.endpoint) is subscription:  # not since it was stopped
            del self._subscriptions[subscription.endpoint]
            if self.discovery is not None:
                self.discovery.disconnected(subscription.endpoint)

    def on_connected(self, connection: Subscribed) -> None:
        """A connection is subscribed."""
        endpoint = connection.endpoint
        self.connections[endpoint] = connection
        self.losses.joined(endpoint)
        if self.search is not None:
            self.search.found(endpoint)
        if self.discovery is not None:
            self.discovery.connected(endpoint)
        self.flow.joined(connection)
        said, settings = "%s: connected, subscribed to %s/%s", self.settings
        fields = settings.log_fields(endpoint)
        log_safely(log, logging.INFO, said, endpoint, settings.topic, settings.channel, extra=fields)
        self.hooks.call("on_connected", connection.address)

    def on_disconnected(self, connection: Subscribed) -> None:
        """A connection is gone."""
        if self.connections.get(connection.endpoint) is connection:
            self.flow.parted(connection)
            self._drop_queued(connection)
            self._count(connection)
            del self.connections[connection.endpoint]
        self.end.look()

    def _look_around(self, now: float) -> bool:
        """Look at silent connections and late messages; return whether a handler is free and nothing waits for it."""
        for connection in list(self.connections.values()):
            connection.check(now)
            late = connection.count_out(now)
            if late:
                self._on_late(connection, late)
        self._drop_cut()
        self.pool.look()
        self.limits.look()
        return not self.queued() and self.limits.busy() < self._concurrency

    def _drop_cut(self) -> None:
        """Take what waits of connections that are gone, though their greenlet has not noticed: it runs a handler."""
        for connection in list(self.connections.values()):
            if not connection.is_open():
                self._drop_queued(connection)

    def _drop_queued(self, connection: Subscribed) -> None:
        """nsqd sends again what a connection that is gone has brought: no handler needs to begin it here."""
        gone = drop(self.pool, self.batches, lambda message: message._connection is connection)
        gone += connection.cut()
        if gone:
            self.dropped += len(gone)
            said = "%s: %d messages that waited for a handler are dropped; nsqd sends them again"
            fields = self.settings.log_fields(connection.endpoint)
            log_safely(log, logging.INFO, said, connection.address, len(gone), extra=fields)

    def on_lost(self, endpoint: Endpoint, reason: NSQError) -> None:
        """Tell, look up again where the leader may have moved, and end the Reader where nothing was or can be had."""
        is_news = self.losses.lost(endpoint, reason)  # one that stays away is logged once
        self._loss_log.add(reason, is_news=is_news, extra=self.settings.log_fields(endpoint))
        self.hooks.call("on_disconnected", str(endpoint), reason)
        self.hooks.call("on_error", reason)
        if self.search is not None and self.settings.lookupds:
            self.search.lost(endpoint, reason)
        if self.losses.is_hopeless(() if self.settings.lookupds else self.settings.endpoints):
            self.fail(reason)  # asking on would only hide the mistake

    def stop_partition(self, message: Message) -> None:
        """Read a partition no further: its message cannot be handled, and no later one may come before it (YZ-13)."""
        for endpoint, connection in list(self.connections.items()):
            if connection is message._connection:
                self.stopped.stop(endpoint, message)
                error = PartitionStopped(self.settings.topic, endpoint.partition, message.attempts)
                log_safely(log, logging.ERROR, "%s", error, extra=self.settings.log_fields(endpoint))
                self.hooks.call("on_error", error)
                connection.close(error)
                subscription = self._subscriptions.get(endpoint)
                if subscription is not None:
                    subscription.direct = False
                    self.on_end(subscription)

    def resume_partition(self, name: int | str) -> None:
        """Read a stopped partition on.  Raises OptionError."""
        self.stopped.resume(name)
        if self.discovery is not None:
            self.discovery.poke()
        self._connect_given()

    def fail(self, error: BaseException) -> None:
        """End the Reader at once with *error*, which start() or join() raises; what is unanswered goes back."""
        settings, said = self.settings, "the Reader of %s/%s ends: %s"
        log_safely(log, logging.ERROR, said, settings.topic, settings.channel, error, extra=settings.log_fields())
        self.error = self.error or error
        if not self.closing:
            self.end.close(0.0)

    # -- messages

    def _on_late(self, connection: Subscribed, late: list[Message]) -> None:
        """nsqd has taken these back: those that no handler has begun leave the queue, and slow the connection down."""
        others: list[Message] = []

        def useless(message: Message) -> bool:
            if not is_expired(message):
                others.append(message)
            return is_expired(message)

        waiting = drop(self.pool, self.batches, useless)
        not_begun = {id(message) for message in waiting}
        for message in late:
            if id(message) not in not_begun:
                self.tries.tried(key_of(message), message.attempts)
        for message in waiting:
            self.outcomes.on_expired(message)
        if not_begun:
            running = connection.in_flight.count - sum(message._connection is connection for message in others)
            self.flow.stalled(connection, len(not_begun), running)

    def on_answers_lost(self, count: int) -> None:
        """Answers came when their connection was gone."""
        self.answers_lost += count
        self._drop_cut()

    def on_response(self, connection: Subscribed, body: bytes) -> None:
        """CLOSE_WAIT, while closing."""
        self.end.look()

    def on_error_frame(self, connection: Subscribed, error: NsqdError) -> None:
        """A late answer (ERR-1): counted, logged with others of its second, told; nothing else happens."""
        self.late_answers += 1
        if isinstance(error, (FinFailedError, ReqFailedError)):
            connection.answer_refused()
        connection.complaints.add(log, error, self.settings.log_fields(connection.endpoint))
        self.hooks.call("on_error", error)

    def requeue_delay(self, message: Message, asked: float | None) -> float:
        """Return the seconds a message rests that its handler sends back: *asked*, or by its attempts (MSG-1)."""
        self.tries.tried(key_of(message), message.attempts)
        return requeue_delay(self.settings.retry, message.attempts, self.rng) if asked is None else asked

    def set_max_in_flight(self, count: int) -> None:
        """Change it (RDY-8); the default concurrency follows."""
        self.flow.set_max_in_flight(count)
        if not self._concurrency_given:
            self._concurrency = default_concurrency(self.settings.pool, count)
            self.limits.set_concurrency(self._concurrency)

    def queued(self) -> int:
        """Messages that wait for a handler."""
        return self.pool.queued() + (self.batches.waiting() if self.batches is not None else 0)

    # -- the end; CLOSE-1 is in gnsq_lite.consume.closing

    @property
    def closing(self) -> bool:
        """Whether it is being closed, or was."""
        return self.end.begun

    def _in_handler(self) -> bool:
        return any(seat[0] in (current_greenlet(), native_ident()) for seat in tuple(self.pool.seats))

    def _refuse(self) -> None:
        self.handle = send_back

    def _take_queued(self) -> list[Message]:
        return take_queued(self.pool, self.batches)

    def _is_read(self, lost: Endpoint) -> bool:
        """Return whether its partition has a connection again; if that one fails, the search begins again."""
        return any(endpoint.partition == lost.partition for endpoint in self._subscriptions)

    def _ask(self, lost: Endpoint) -> bool:
        """Ask the nsqlookupds now; return whether to look for it further."""
        if self.discovery is not None:
            self.discovery.poke()
        return lost.partition is not None and lost not in self.stopped

    def _stop_search(self) -> None:
        if self.search is not None:
            self.search.close()

    def _stop_discovery(self) -> None:
        if self.discovery is not None:
            self.discovery.stop()

    def _end(self) -> None:
        """Close what is open and end every greenlet but the caller's."""
        self.pool.close()
        for connection in list(self.connections.values()):
            connection.close(ConnectionLost(connection.address, "the Reader was closed"))
        self._stop_search()
        self.loop.kill((*(s.task for s in self._subscriptions.values()), *self._greenlets))
        self.ended.settle(error=self.error)

    def close_for_exit(self, timeout: float) -> int:
        """Give back at once what is unanswered, and wait for the end; return 0: it has published nothing."""
        self.end.close(0.0)
        self.ended.wait(timeout)
        return 0

    def abandon(self) -> None:
        """In a forked child: everything is the parent's."""
        self.end.begun = True
        for subscription in self._subscriptions.values():
            subscription.link.abandon()
        self.pool.abandon()
        if not self.loop.gone:  # monkey-patched: the loop came along, with its greenlets and lists
            self._take_queued()
            if self.discovery is not None:
                self.discovery.abandon()
            self._stop_search()
            self.loop.kill((*(s.task for s in self._subscriptions.values()), *self._greenlets))
        self.ended.settle(error=ClosedError("this Reader belongs to the parent process; make one in the child"))


class Subscription:
    """One nsqd, or one partition, of a Reader: connected while it is given or found (CONN-3, CONN-4).

    It connects again and again to an nsqd that was given; one that was found waits, once lost, for a poll.
    """

    def __init__(self, owner: Consumer, endpoint: Endpoint, *, direct: bool) -> None:
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
        self._owner.reconnects += 1

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
