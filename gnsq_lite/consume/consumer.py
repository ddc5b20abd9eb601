"""Combines connections, discovery, flow control and the handler pool into the core of a Reader.

This code runs in the loop's thread, except thread-safe methods.  The code of :mod:`gnsq_lite.consume.run_handler` runs
in the handlers' threads.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.consume.batches import BatchFeeder, RowsFeeder
from gnsq_lite.consume.closing import CLOSE_TIMEOUT, Closing
from gnsq_lite.consume.flow_control import FlowControl
from gnsq_lite.consume.losses import Losses
from gnsq_lite.consume.ordered import OrderedConnection
from gnsq_lite.consume.pool_kinds import default_concurrency, make_pool
from gnsq_lite.consume.pools import Pool, ThreadPool, Worker
from gnsq_lite.consume.rows import copies_of, count_rows
from gnsq_lite.consume.rows_connection import RowsConnection
from gnsq_lite.consume.run_handler import ASK_ALWAYS, BatchCalls, HandlerCalls, HandlerOutcomes, RowsCalls, key_of
from gnsq_lite.consume.settings import ConsumerSettings
from gnsq_lite.consume.subscribed import SubscribedConnection
from gnsq_lite.consume.time_limits import AFTER_LIMIT, TimeLimits
from gnsq_lite.consume.unconfirmed import Unconfirmed
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import (
    ClosedError,
    ConnectionLost,
    FinFailedError,
    InvalidError,
    NsqdError,
    NSQError,
    ReqFailedError,
)
from gnsq_lite.message import Message, is_open, send_back
from gnsq_lite.net.at_exit import close_at_exit
from gnsq_lite.net.connection import Target
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.net.io_thread import on_fork
from gnsq_lite.net.link import Again, Link
from gnsq_lite.net.loop import Loop, current_greenlet, in_task
from gnsq_lite.net.os_threads import WeakGroup, native_ident
from gnsq_lite.net.settings import mapped
from gnsq_lite.net.user_hooks import ErrorLog, UserHooks, log_safely
from gnsq_lite.net.waiting import Completion, in_hub, run_in_loop
from gnsq_lite.options import format_address
from gnsq_lite.policy.attempts import Tries, longest_requeue, requeue_delay
from gnsq_lite.policy.ordered import OrderedPartition

log = logging.getLogger("gnsq_lite.reader")

#: Seconds for which a caller of close() waits for the end of the Reader after the timeout of close().
_EXTRA_WAIT = 5.0
#: Names of the counters that are summed over all connections, open and closed.
COUNTED = ("received", "finished", "requeued", "expired")


class Consumer:
    """Consumes one channel from all nsqds of its topic.  Use it in the loop's thread, except thread-safe methods."""

    def __init__(self, loop: Loop, settings: ConsumerSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.loop, self.settings, self.clock = loop, settings, clock
        self.rng = random.Random()
        self.ended = Completion()
        #: The error that ended the Reader, or None.
        self.error: BaseException | None = None
        self.connections: dict[Endpoint, SubscribedConnection] = {}
        self._subscriptions: dict[Endpoint, Subscription] = {}
        self._greenlets: list[Any] = []
        self.hooks = UserHooks(loop, settings.hooks, is_closing=lambda: self.closing, on_exit=self.fail)
        self.tries = Tries(settings.retry.max_attempts, remembers_all=settings.not_before is not None)
        self.outcomes = HandlerOutcomes(loop, settings, self.tries, self.hooks, clock, on_exit=self.fail)
        self.concurrency = settings.concurrency or default_concurrency(settings.pool, settings.max_in_flight)
        # Hooks that run in greenlets of the loop count as handlers, so that close() waits for on_failure.
        self.end = Closing(clock, busy=lambda: self.limits.busy() + self.hooks.left)
        self._loss_log, self._refusal_log = ErrorLog(log, clock), ErrorLog(log, clock)
        self.before: Counter[str] = Counter()
        self.late_answers = self.answers_lost = self.reconnects = 0
        #: Longest requeue delay in seconds, by the address of an nsqd that refused a longer one.
        self._longest_requeues: dict[str, float] = {}
        #: Number of messages whose connection was closed before a handler began them.
        self.dropped = 0
        #: For each ordered partition the message whose FIN nsqd may not have executed.
        self.unconfirmed: dict[int | None, Unconfirmed] = {}
        self._is_started = False
        self._make_parts()
        close_at_exit(self)
        if settings.handle_signals:
            _closed_by_signal.add(self)

    def _make_parts(self) -> None:
        """Create the parts that an unexpected exception may leave inconsistent; reset() replaces them."""
        settings, loop = self.settings, self.loop
        kind = HandlerCalls if not settings.batch_size else RowsCalls if settings.takes_rows else BatchCalls
        max_attempts = settings.retry.max_attempts if settings.not_before is None else ASK_ALWAYS
        calls = kind(settings.handler, self.outcomes, max_attempts)
        self.pool = make_pool(settings.pool, loop, calls, self.concurrency, self.outcomes.on_exit, settings.lifespan)
        self.limits = TimeLimits(loop, settings, self.clock, self.pool, self.concurrency, self.outcomes)
        self.losses = Losses()
        #: Partitions whose leader may have moved.  If there are any, discovery polls the nsqlookupds more often.
        self._lost: set[int | None] = set()
        self.flow = FlowControl(settings, self.clock, self.rng, partial(self.hooks.call, "on_backoff"))
        self.flow.set_max_in_flight(self._without_waiting(settings.max_in_flight))
        #: The messages that no handler has begun.
        self.queue: Pool | BatchFeeder = self.pool
        if settings.batch_size:
            size, wait = settings.batch_size, settings.batch_wait or 1.0
            feeder = RowsFeeder if settings.takes_rows else BatchFeeder
            self.queue = feeder(loop, size, wait, self.pool, self.clock, self.flow.allocator.is_starved)
        #: Queues the messages of a read for the handlers.  After close() it requeues them at nsqd.
        self.handle: Callable[[list[Message]], None] = self.queue.submit
        self.discovery = Discovery(
            settings,
            settings.topic,
            "read",
            self.rng,
            self.clock,
            on_found=self._found,
            on_forget=self.losses.forget,
            on_lookup=self._close_changed,
            publish_waits=lambda: bool(self._lost),
        )

    # -- starting

    def start(self) -> None:
        """Connect to the given nsqds, and start the greenlets of flow control and discovery."""
        if self.closing:
            return  # close() was called before start()
        self._is_started = True
        self._greenlets.append(self.loop.spawn("ticker", self.flow.run, self._every_second))
        self._connect_given()
        if self.settings.lookupds:
            self._greenlets.append(self.loop.spawn("discovery", self.discovery.run))

    def reset(self) -> None:
        """Close all connections and restart with new parts.  Running handlers continue, but stats() omits them."""
        if self.ended.done() or not self._is_started:
            return
        flow, running = self.flow, list(self.pool.workers)
        self.queue.take_queued()
        self.pool.close()
        self.discovery.stop()
        self._make_parts()
        self._disconnect("an unexpected exception has ended all connections", running)
        if self.closing:
            self._end()
            return
        self.flow.set_max_in_flight(flow.max_in_flight)
        self.flow.set_paused(flow.paused)
        self._greenlets = [self.loop.spawn("restart", self._restart)]

    def _restart(self) -> None:
        self.loop.wait_after_reset()
        self._greenlets.clear()
        self.start()

    def _connect_given(self) -> None:
        for endpoint in self.settings.endpoints:
            self._connect(endpoint, direct=True)

    def _found(self, endpoints: Iterable[Endpoint]) -> None:
        """Connect to the endpoints that discovery found."""
        for endpoint in endpoints:
            self._connect(endpoint, direct=False)

    def _close_changed(self, *looked_up: Any) -> None:
        """Close each connection whose topic has changed since IDENTIFY, because nsqd delivers nothing to it (YZ-15)."""
        topic, dialect = self.settings.topic, self.settings.dialect
        for endpoint, connection in list(self.connections.items()):
            if dialect.identify_extra(topic, endpoint) != connection.target.identify_extra:
                connection.close(ConnectionLost(connection.address, f"the topic {topic} was changed"))

    def _connect(self, endpoint: Endpoint, *, direct: bool) -> None:
        if self.closing or endpoint in self._subscriptions:
            return
        subscription = self._subscriptions[endpoint] = Subscription(self, endpoint, direct=direct)
        subscription.task = self.loop.spawn(f"nsqd {endpoint}", subscription.serve)

    # -- connections

    def is_over(self, subscription: Subscription) -> bool:
        """Return whether *subscription* must not connect again."""
        return self.closing or self._subscriptions.get(subscription.endpoint) is not subscription

    def on_end(self, subscription: Subscription) -> None:
        """Remove a *subscription* whose greenlet has ended, so that discovery may find its endpoint again."""
        if self._subscriptions.get(subscription.endpoint) is subscription:  # else reset() has replaced it
            del self._subscriptions[subscription.endpoint]
            self.discovery.disconnected(subscription.endpoint)

    def on_connected(self, connection: SubscribedConnection) -> None:
        """Add a connection that is subscribed."""
        endpoint = connection.endpoint
        self.connections[endpoint] = connection
        self.losses.joined(endpoint)
        self._lost.discard(endpoint.partition)
        self.discovery.connected(endpoint)
        self.flow.joined(connection)
        said, settings = "%s: connected, subscribed to %s/%s", self.settings
        fields = settings.log_fields(endpoint)
        log_safely(log, logging.INFO, said, endpoint, settings.topic, settings.channel, extra=fields)
        limits, most = settings.limits, connection.max_msg_timeout
        if limits.touch and limits.time_limit is not None and most < limits.time_limit + AFTER_LIMIT:
            said = "%s: max-msg-timeout is %g s, so nsqd sends a message again before its handler reaches time_limit"
            log_safely(log, logging.WARNING, said, endpoint, most, extra=fields)
        self.hooks.call("on_connected", connection.address)

    def on_disconnected(self, connection: SubscribedConnection) -> None:
        """Remove a closed connection, and keep its counts."""
        if self.connections.get(connection.endpoint) is connection:
            del self.connections[connection.endpoint]
            self.flow.parted(connection)
            for name in COUNTED:
                self.before[name] += getattr(connection, name)

    def on_lost(self, endpoint: Endpoint, reason: NSQError) -> None:
        """Log a lost connection and call the hooks.  If no retry can ever subscribe, end the Reader with *reason*."""
        if isinstance(reason, InvalidError) and (longest := longest_requeue(str(reason))) is not None:
            self._longest_requeues[format_address(endpoint.address)] = longest
        is_news = self.losses.lost(endpoint, reason)  # a repeated reason is logged at DEBUG
        self._loss_log.add(reason, is_news=is_news, extra=self.settings.log_fields(endpoint))
        self.hooks.call("on_disconnected", str(endpoint), reason)
        self.hooks.call("on_error", reason)
        if self.settings.dialect.calls_for_lookup(reason):
            self._lost.add(endpoint.partition)
        if self.losses.is_hopeless(() if self.settings.lookupds else self.settings.endpoints):
            self.fail(reason)  # retries would only hide the wrong configuration

    # -- messages

    def _every_second(self, now: float) -> bool:
        """Check connections, deadlines and handlers.  Return whether a handler is free and no message is queued."""
        for connection in list(self.connections.values()):
            connection.close_if_dead(now)
            late = connection.expire_overdue(now)
            if late:
                self._on_late(connection, late)
        self.pool.retry_threads()
        self.limits.enforce()
        return not self.queue.queued() and self.limits.busy() < self.concurrency

    def _on_late(self, connection: SubscribedConnection, late: list[Message]) -> None:
        """Drop the queued messages that expired.  If there are any, lower the maximum RDY of *connection*."""
        queued = self._purge()
        not_begun = set(map(id, queued))
        for message in late:
            if id(message) not in not_begun:  # a handler has begun the message (MSG-4)
                for each in copies_of(message):
                    self.tries.tried(key_of(each), each.attempts)
        if queued:
            running = count_rows(m for m in self.pool.running() if m._connection == connection and is_open(m))
            self.flow.lower_limit(connection, count_rows(queued), running)

    def on_closed(self, connection: SubscribedConnection) -> None:
        """Drop the queued messages of a closed connection, because nsqd sends them again."""
        count = count_rows(self._purge())
        if count:
            self.dropped += count
            said = "%s: dropped %d messages that no handler had begun; nsqd sends them again"
            fields = self.settings.log_fields(connection.endpoint)
            log_safely(log, logging.INFO, said, connection.address, count, extra=fields)

    def _purge(self) -> list[Message]:
        """Remove and return the messages that timed out at nsqd before a handler began them."""
        gone = self.queue.purge()
        for message in gone:
            message._connection.skipped(message)
        return gone

    def on_answers_lost(self, count: int) -> None:
        """Count *count* answers that a closed connection could not send."""
        self.answers_lost += count

    def on_response(self, connection: SubscribedConnection, body: bytes) -> None:
        """Do nothing: the response is CLOSE_WAIT, which the connection has recorded."""

    def on_error_frame(self, connection: SubscribedConnection, error: NsqdError) -> None:
        """Count and log an answer that nsqd refused (ERR-1), and call on_error."""
        self.late_answers += 1
        if isinstance(error, (FinFailedError, ReqFailedError)):
            connection.on_answer_refused()
        self._refusal_log.add(error, extra=self.settings.log_fields(connection.endpoint))
        self.hooks.call("on_error", error)

    def requeue_delay(self, message: Message, asked: float | None) -> float:
        """Record the attempt.  Return *asked*, or the Reader's delay if *asked* is None (MSG-1).  Thread-safe.

        If the nsqd has refused a longer delay, return its longest delay.
        """
        self.tries.tried(key_of(message), message.attempts)
        delay = requeue_delay(self.settings.retry, message.attempts, self.rng) if asked is None else asked
        return min(delay, self._longest_requeues.get(message.nsqd_address, delay)) if self._longest_requeues else delay

    def set_max_in_flight(self, count: int) -> None:
        """Change max_in_flight (RDY-8), and the number of handlers if the option ``concurrency`` is None."""
        if self.settings.concurrency is None:
            self.concurrency = default_concurrency(self.settings.pool, count)
            self.limits.set_concurrency(self.concurrency)
        self.flow.set_max_in_flight(self._without_waiting(count))

    def _without_waiting(self, count: int) -> int:
        """Return *count*, with ``touch`` at most the messages of all places: a waiting message would not be touched."""
        places = self.concurrency * (self.settings.batch_size or 1)
        return min(count, places) if self.settings.limits.touch else count

    # -- the end (CLOSE-1)

    @property
    def closing(self) -> bool:
        """Whether close() was called."""
        return self.end.begun

    def close_from_anywhere(self, timeout: float, *, wait: bool) -> None:
        """Close.  If *wait*, wait at most *timeout* + 5 s, but not in a handler, a hook or the hub.  Thread-safe."""
        me = current_greenlet(), native_ident()
        in_handler = any(worker[0] in me for worker in tuple(self.pool.workers))
        if not wait or in_handler or in_hub() or in_task():
            self.loop.call_soon(partial(self.close, timeout))
        else:
            run_in_loop(self.loop, self.close, timeout)
            self.ended.wait(timeout + _EXTRA_WAIT)

    def close(self, timeout: float) -> None:
        """Begin a shutdown that waits at most *timeout* seconds for handlers.  Do not wait for its end.

        A second call can only shorten the wait.  The Reader ends at most about one second after the wait.
        """
        if self.end.begin(timeout):
            self.handle = send_back
            self.loop.spawn("closing", self._close)

    def _close(self) -> None:
        try:
            self.discovery.stop()
            connections = list(self.connections.values())
            for connection in connections:
                connection.send_close()
            send_back(self.queue.take_queued())
            self.end.drain(connections)
            self.pool.close()
            self.end.wait_for(self.pool.has_ended)
        finally:
            self._end()

    def fail(self, error: BaseException) -> None:
        """End the Reader with *error*, which start() or join() raises.  If it is not closing yet, close it at once."""
        settings, said = self.settings, "the Reader of %s/%s ends: %s"
        log_safely(log, logging.ERROR, said, settings.topic, settings.channel, error, extra=settings.log_fields())
        self.error = self.error or error
        if not self.closing:
            self.close(0.0)

    def _end(self) -> None:
        self.discovery.stop()
        self.pool.close()
        self._disconnect("the Reader was closed", self.pool.workers)
        self.ended.settle(error=self.error)

    def _disconnect(self, why: str, workers: list[Worker]) -> None:
        """Close all connections.  Kill the Reader's greenlets, except the caller and those that run inline handlers."""
        subscriptions = list(self._subscriptions.values())
        self._subscriptions.clear()
        for subscription in subscriptions:
            subscription.link.close(ConnectionLost(str(subscription.endpoint), why))
        for connection in list(self.connections.values()):
            self.on_disconnected(connection)
        self._kill(subscriptions, workers)

    def _kill(self, subscriptions: Iterable[Subscription], workers: list[Worker]) -> None:
        running = [worker[0] for worker in workers]
        greenlets = (*(each.task for each in subscriptions), *self._greenlets)
        self.loop.kill(each for each in greenlets if each not in running)

    def close_for_exit(self, timeout: float) -> int:
        """Requeue all unanswered messages, and wait at most *timeout* seconds.  Return 0: a Reader has no publishes."""
        self.close(0.0)
        self.ended.wait(timeout)
        return 0

    def after_fork(self) -> None:
        """Drop connections, jobs and greenlets in a forked child, because they belong to the parent."""
        self.end.begun = True
        for subscription in self._subscriptions.values():
            subscription.link.abandon()
        self.pool.abandon()
        if not self.loop.gone:  # monkey-patched: the child has copies of the loop and its greenlets
            self.queue.take_queued()
            self.discovery.abandon()
            self._kill(self._subscriptions.values(), [])
        self.ended.settle(error=ClosedError("this Reader belongs to the parent process; make a new one in the child"))


#: The Readers that SIGTERM closes.
_closed_by_signal = WeakGroup()
on_fork(_closed_by_signal.clear)


def close_all(core: Consumer, timeout: float = CLOSE_TIMEOUT) -> None:
    """Close *core* and all Readers that SIGTERM closes, and wait at most *timeout* + 5 seconds until they end."""
    cores: set[Consumer] = {core, *_closed_by_signal.members()}
    open_ones = [each for each in cores if not (each.ended.done() or each.loop.stopped or each.loop.gone)]
    for each in open_ones:
        each.loop.call_soon(partial(each.close, timeout))
    ends = SYSTEM_CLOCK.now() + timeout + _EXTRA_WAIT
    for each in open_ones:
        each.ended.wait(max(0.0, ends - SYSTEM_CLOCK.now()))


class Subscription:
    """Keeps a Reader connected to one nsqd or one partition (CONN-3, CONN-4).

    If the nsqd was given by address, the Subscription reconnects.  If discovery found the nsqd, a lost connection ends
    the Subscription, and discovery may start another one.
    """

    def __init__(self, owner: Consumer, endpoint: Endpoint, *, direct: bool) -> None:
        self._owner, self.endpoint, self.direct = owner, endpoint, direct
        self.link = Link[SubscribedConnection](endpoint, self, owner.settings.reconnect, owner.rng, log)
        self.on_connected, self.on_disconnected = owner.on_connected, owner.on_disconnected
        self.task: Any = None

    def serve(self) -> None:
        """Connect and receive until the Reader or this Subscription ends.  Blocks the greenlet."""
        try:
            self.link.run()
        finally:
            self._owner.on_end(self)

    # -- the link's owner

    def is_over(self) -> bool:
        """Return whether the Reader is closing or has dropped this Subscription."""
        return self._owner.is_over(self)

    def on_lost(self, reason: NSQError) -> Again:
        """Return when to reconnect: never if discovery found the nsqd, because discovery will find it again."""
        self._owner.on_lost(self.endpoint, reason)
        return Again.LATER if self.direct else Again.NEVER

    def on_retry(self) -> None:
        """Count a reconnect."""
        self._owner.reconnects += 1

    def make_connection(self) -> SubscribedConnection:
        """Return a new connection.  Raises NSQError if the address map fails or the dialect cannot subscribe."""
        owner, settings, dialect = self._owner, self._owner.settings, self._owner.settings.dialect
        topic = settings.topic
        target = Target(
            endpoint=self.endpoint,
            topic=topic,
            channel=settings.channel,
            subscribe=dialect.subscribe(topic, settings.channel, self.endpoint),
            choose_message=lambda negotiated: dialect.message_factory(topic, self.endpoint, negotiated),
            identify_extra=dialect.identify_extra(topic, self.endpoint),
            check_server=dialect.check_server,
            connect_to=mapped(settings.address_map, self.endpoint),
        )
        given, pool = (owner.loop, target, settings.connection, owner, owner.clock), settings.pool
        if dialect.is_ordered(topic):
            sequence = OrderedPartition(owner.clock)
            unconfirmed = owner.unconfirmed.setdefault(self.endpoint.partition, Unconfirmed(owner.clock))
            threads = owner.pool if isinstance(owner.pool, ThreadPool) and owner.queue is owner.pool else None
            return OrderedConnection(sequence, unconfirmed, threads, *given, reads_in_hub=pool != "inline")
        prompt, in_threads = settings.is_prompt, pool in ("thread", "async")
        reads_in_hub = prompt and pool != "inline"
        kind = partial(RowsConnection, settings.batch_size or 2**31) if settings.takes_rows else SubscribedConnection
        return kind(*given, is_prompt=prompt, reads_in_hub=reads_in_hub, writes_fins=in_threads)
