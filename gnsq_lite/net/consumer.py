"""A Reader's core in its loop: connections, handler pool and policies wired together.

The policies decide (:mod:`gnsq_lite.policy`); what is here carries out.  Everything runs in the loop's thread but
:meth:`Consumer.on_exception` and :meth:`Consumer.on_too_many_attempts`, which run where handlers run.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from typing import Any

import gevent
from gevent.event import Event

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import (
    AlreadyAnswered,
    AuthFirstError,
    BadChannelError,
    BadTopicError,
    ClosedError,
    ConnectionLost,
    InvalidError,
    NsqdError,
    NSQError,
    ProtocolError,
    SubOrderIsMustError,
    TLSError,
    UnauthorizedError,
)
from gnsq_lite.message import Message, Requeue
from gnsq_lite.net.addresses import mapped
from gnsq_lite.net.batches import BatchFeeder
from gnsq_lite.net.connection import Connection, Target
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.net.handlers import default_concurrency, make_batch_runner, make_pool, make_runner
from gnsq_lite.net.runtime import Completion, Loop
from gnsq_lite.net.settings import ConsumerSettings
from gnsq_lite.policy.attempts import requeue_delay
from gnsq_lite.policy.backoff import Backoff, Phase
from gnsq_lite.policy.rdy import ReadyAllocator, SetReady
from gnsq_lite.policy.reconnect import Reconnect
from gnsq_lite.wire import commands

log = logging.getLogger("gnsq_lite.reader")

#: Errors that another attempt does not mend: where nothing else is to be had, the Reader ends with them.
MISCONFIGURED = (
    TLSError,
    AuthFirstError,
    UnauthorizedError,
    BadTopicError,
    BadChannelError,
    SubOrderIsMustError,
    ProtocolError,
)

#: Seconds between two looks at silent connections and late messages.
_CHECK_EVERY = 1.0


class Consumer:
    """Runs one subscription over all its nsqds.  Made and used in the loop's thread."""

    def __init__(self, loop: Loop, settings: ConsumerSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.loop, self.settings, self.clock = loop, settings, clock
        self.rng = random.Random()
        self.ended = Completion()
        self.connections: dict[Endpoint, Connection] = {}
        self.allocator = ReadyAllocator(
            settings.max_in_flight,
            clock=clock,
            rng=self.rng,
            idle_timeout=settings.rdy_idle_timeout,
            low_ready_timeout=settings.rdy_low_timeout,
        )
        self.backoff = Backoff(settings.backoff, clock=clock, rng=self.rng)
        make = make_batch_runner if settings.batch_size else make_runner
        run = make(settings.handler, self, settings.retry.max_attempts)
        self._concurrency_given = settings.concurrency is not None
        concurrency = settings.concurrency or default_concurrency(settings.pool, settings.max_in_flight)
        self.pool = make_pool(settings.pool, loop, run, concurrency, self.on_handler_exit)
        self.batches = (
            BatchFeeder(loop, settings.batch_size, settings.batch_wait, self.pool, self.is_starved)
            if settings.batch_size
            else None
        )
        self.finished = self.requeued = self.failures = self.given_up = self.late_answers = self.reconnects = 0
        #: Counts of connections that are gone.
        self.received_before = self.expired_before = 0
        self.closing = False
        self._max_in_flight = settings.max_in_flight
        self._paused = False
        self._tasks: dict[Endpoint, Any] = {}
        self._subscribe_with: dict[Endpoint, int] = {}
        self._hopeless: dict[Endpoint, NSQError] = {}
        self._wake_ticker = Event()
        self._quiet = Event()
        self.discovery: Discovery | None = None
        self._greenlets: list[Any] = []

    # -- starting

    def start(self) -> None:
        """Connect to the direct nsqds, ask the nsqlookupds, begin to tick."""
        settings = self.settings
        self.discovery = Discovery.for_reader(self.loop, settings, self.rng, self.clock, self._found)
        self._greenlets.append(self.loop.spawn("ticker", self._tick))
        for endpoint in settings.endpoints:
            self._connect(endpoint, direct=True)
        if settings.lookupds:
            self._greenlets.append(self.loop.spawn("discovery", self.discovery.run))

    def _found(self, endpoints: Iterable[Endpoint]) -> None:
        """Discovery says: connect to these, which are not connected."""
        for endpoint in endpoints:
            self._connect(endpoint, direct=False)

    def _connect(self, endpoint: Endpoint, *, direct: bool) -> None:
        if self.closing or endpoint in self._tasks:
            return
        self._tasks[endpoint] = self.loop.spawn(f"nsqd {endpoint}", self._serve, endpoint, direct)

    # -- one nsqd: no exception ends its greenlet but the Reader's end (CONN-3, CONN-4)

    def _serve(self, endpoint: Endpoint, direct: bool) -> None:
        retry = Reconnect(self.settings.reconnect, rng=self.rng)
        try:
            while not self.closing:
                reason = self._once(endpoint, retry)
                if self.closing:
                    return
                self._tell_lost(endpoint, reason)
                if not direct:
                    return  # a later poll that still lists it connects again
                delay = retry.failed()
                log.info("%s: next attempt in %.1f s", endpoint, delay)
                self._give_up_if_hopeless(endpoint, reason)
                gevent.sleep(delay)
                self.reconnects += 1
        finally:
            self._tasks.pop(endpoint, None)
            if self.discovery is not None:
                self.discovery.disconnected(endpoint)

    def _once(self, endpoint: Endpoint, retry: Reconnect) -> NSQError:
        """Connect and serve until the end; return its reason."""
        connection: Connection | None = None
        try:
            connection = Connection(self.loop, self._target(endpoint), self.settings.connection, self, self.clock)
            connection.open()
            if self.closing:
                connection.close(ConnectionLost(connection.address, "the Reader was closed"))
            retry.succeeded()
            self._joined(connection)
            connection.run()
        except InvalidError as error:
            self._try_next_subscribe(endpoint, connection, error)
            return error
        except NSQError as error:
            return error
        except Exception as error:
            log.exception("%s: the connection failed in an unforeseen way", endpoint)
            return ConnectionLost(str(endpoint), f"{type(error).__name__}: {error}")
        finally:
            if connection is not None:
                connection.close(ConnectionLost(connection.address, "closed"))
                self._parted(connection)
        raise ClosedError("a connection ended without a reason")

    def _target(self, endpoint: Endpoint) -> Target:
        settings, dialect = self.settings, self.settings.dialect
        ways = dialect.subscribe(settings.topic, settings.channel, endpoint)
        way = self._subscribe_with.get(endpoint, 0) % len(ways)
        return Target(
            endpoint=endpoint,
            topic=settings.topic,
            channel=settings.channel,
            subscribe=ways[way],
            make_message=dialect.message_factory(settings.topic, endpoint, way, None),
            identify_extra=dialect.identify_extra(settings.topic, endpoint),
            connect_to=mapped(settings.address_map, endpoint),
        )

    def _try_next_subscribe(self, endpoint: Endpoint, connection: Connection | None, error: NsqdError) -> None:
        if connection is not None and connection.opened_at is None and "invalid command" in error.text:
            self._subscribe_with[endpoint] = self._subscribe_with.get(endpoint, 0) + 1

    def _joined(self, connection: Connection) -> None:
        endpoint = connection.endpoint
        self.connections[endpoint] = connection
        self._hopeless.pop(endpoint, None)
        negotiated = connection.negotiated
        limit = negotiated.max_rdy_count if negotiated is not None else 2500
        own = self.settings.dialect.ready_limit(self.settings.topic, endpoint)
        counts_down = negotiated is not None and not negotiated.negotiated
        if self.discovery is not None:
            self.discovery.connected(endpoint)
        self._apply(self.allocator.add(endpoint, limit if own is None else min(own, limit), counts_down=counts_down))
        self._wake_ticker.set()
        log.info("%s: connected, subscribed to %s/%s", endpoint, self.settings.topic, self.settings.channel)
        self._call_hook("on_connected", connection.address)

    def _parted(self, connection: Connection) -> None:
        if self.connections.get(connection.endpoint) is connection:
            del self.connections[connection.endpoint]
            self.received_before += connection.received
            self.expired_before += connection.expired
            self._apply(self.allocator.remove(connection.endpoint))
            if not self.allocator.keys and self.backoff.phase is Phase.PROBING:
                self._wake_ticker.set()
        self._quiet.set()

    def _tell_lost(self, endpoint: Endpoint, reason: NSQError) -> None:
        log.warning("%s", reason, extra={"nsqd": str(endpoint), "topic": self.settings.topic})
        self._call_hook("on_disconnected", str(endpoint), reason)
        self._call_hook("on_error", reason)

    def _give_up_if_hopeless(self, endpoint: Endpoint, reason: NSQError) -> None:
        """End the Reader when no nsqd it knows can ever be had: asking on would only hide the mistake."""
        if isinstance(reason, MISCONFIGURED):
            self._hopeless[endpoint] = reason
            known = set(self.settings.endpoints)
            if not self.settings.lookupds and not self.connections and known <= set(self._hopeless):
                self.fail(reason)

    def fail(self, error: BaseException) -> None:
        """End the Reader with *error*, which start() or join() raises."""
        log.error("the Reader of %s/%s ends: %s", self.settings.topic, self.settings.channel, error)
        self.closing = True
        self.loop.spawn("closing", self._end_with, error)

    def _end_with(self, error: BaseException) -> None:
        self._stop_all()
        self.ended.settle(error=error)

    # -- messages

    def on_messages(self, connection: Connection, messages: list[Message]) -> None:
        """Hand what a read brought to the pool."""
        self._apply(self.allocator.received(connection.endpoint, len(messages)))
        if self.closing:
            self._send_back(messages)
        elif self.batches is not None:
            self.batches.add(messages)
        else:
            self.pool.submit(messages)

    def on_answered(self, connection: Connection, finished: int, requeued: int) -> None:
        """Count what left; a success may end backoff (BACK-2)."""
        self.finished += finished
        self.requeued += requeued
        self._apply(self.allocator.answered(connection.endpoint, finished + requeued))
        if finished and self.backoff.level:
            self._outcome(True)
        if self.closing:
            self._quiet.set()

    def on_response(self, connection: Connection, body: bytes) -> None:
        """CLOSE_WAIT, while closing."""
        self._quiet.set()

    def on_error_frame(self, connection: Connection, error: NsqdError) -> None:
        """A late answer (ERR-1): counted, logged, told; nothing else happens."""
        self.late_answers += 1
        log.warning("%s", error)
        self._call_hook("on_error", error)

    def requeue_delay(self, message: Message) -> float:
        """Return the seconds a failed message rests (MSG-1)."""
        return requeue_delay(self.settings.retry, message.attempts, self.rng)

    # -- outcomes; these two run where handlers run

    def on_exception(self, job: Any, error: BaseException) -> None:
        """Requeue the messages of a handler that raised, as far as it has not answered them."""
        asked = error if isinstance(error, Requeue) else None
        delay, backoff = (asked.delay, asked.backoff) if asked else (None, True)
        for message in job if isinstance(job, list) else (job,):
            if asked is None:
                self.failures += 1
                log.warning(
                    "handler failed on %r (attempt %d): %s: %s",
                    message.id,
                    message.attempts,
                    type(error).__name__,
                    error,
                    exc_info=error,
                    extra={"topic": message.topic, "channel": message.channel, "nsqd": message.nsqd_address},
                )
                self._call_hook("on_failure", message, error)
            try:
                message.requeue(delay, backoff)
            except AlreadyAnswered:
                pass

    def on_too_many_attempts(self, message: Message) -> None:
        """FIN after the give-up callback succeeded, else REQ (MSG-4)."""
        try:
            self.settings.on_give_up(message)
        except Exception as error:
            log.exception("giving up %r failed; it is requeued", message.id)
            self._call_hook("on_failure", message, error)
            answer: Callable[[], None] = message.requeue
        else:
            self.given_up += 1
            answer = message.finish
        try:
            answer()
        except AlreadyAnswered:
            pass

    def on_handler_exit(self, error: BaseException) -> None:
        """A handler raised KeyboardInterrupt or SystemExit: the Reader ends with it; others end their worker only."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            self.loop.call_soon(lambda: self.fail(error))
        else:
            log.error("a handler raised %s; its message was requeued", type(error).__name__, exc_info=error)

    # -- backoff

    def on_failure(self) -> None:
        """A message failed (BACK-1)."""
        if self.settings.backoff.enabled:
            self._outcome(False)

    def _outcome(self, success: bool) -> None:
        before = self.backoff.phase
        after = self.backoff.record(success)
        if after is before:
            return
        if after is Phase.PAUSED:
            self._apply(self.allocator.pause())
            resume_at = self.backoff.resume_at
            pause = max(0.0, resume_at - self.clock.now()) if resume_at is not None else 0.0
            log.warning("backing off for %.1f s (level %d)", pause, self.backoff.level)
            self._call_hook("on_backoff", pause)
            self._wake_ticker.set()
        elif after is Phase.FLOWING:
            log.info("backoff is over")
            self._apply(self.allocator.resume())
            self._call_hook("on_backoff", 0.0)

    # -- ticking

    def _tick(self) -> None:
        while True:
            now = self.clock.now()
            due = [now + _CHECK_EVERY]
            if self.allocator.next_tick is not None:
                due.append(self.allocator.next_tick)
            if self.backoff.phase is Phase.PAUSED and self.backoff.resume_at is not None:
                due.append(self.backoff.resume_at)
            self._wake_ticker.wait(max(0.001, min(due) - now))
            self._wake_ticker.clear()
            try:
                self._tick_once()
            except Exception:
                log.exception("a tick failed")

    def _tick_once(self) -> None:
        now = self.clock.now()
        for connection in list(self.connections.values()):
            connection.check(now)
        if self.backoff.phase is Phase.PAUSED and self.backoff.tick() is Phase.PROBING:
            self._apply(self.allocator.probe())
        self._apply(self.allocator.tick())

    def _apply(self, decisions: Iterable[SetReady]) -> None:
        for decision in decisions:
            connection = self.connections.get(decision.key)  # type: ignore[call-overload]
            if connection is not None and not self.closing:
                connection.send(commands.ready(decision.count))

    def set_max_in_flight(self, count: int) -> None:
        """Change it (RDY-8); the default concurrency follows."""
        self._max_in_flight = count
        if not self._paused:
            self._apply(self.allocator.set_max_in_flight(count))
        if not self._concurrency_given:
            self.pool.set_concurrency(default_concurrency(self.settings.pool, count))
        self._wake_ticker.set()

    def set_paused(self, paused: bool) -> None:
        """RDY 0 everywhere, or back."""
        self._paused = paused
        self._apply(self.allocator.set_max_in_flight(0 if paused else self._max_in_flight))
        self._wake_ticker.set()

    def is_starved(self) -> bool:
        """RDY-7."""
        return self.allocator.is_starved()

    @property
    def max_in_flight(self) -> int:
        """As it was set last, paused or not."""
        return self._max_in_flight

    def queued(self) -> int:
        """Messages that wait for a handler."""
        return self.pool.queued() + (self.batches.waiting() if self.batches is not None else 0)

    def state(self) -> str:
        """One word for people and health checks."""
        if self.ended.done():
            return "closed"
        if self.closing:
            return "closing"
        if self._paused:
            return "paused"
        if self.backoff.phase is not Phase.FLOWING:
            return "backoff"
        return "connected" if self.connections else "connecting"

    # -- the end (CLOSE-1)

    def close(self, timeout: float) -> None:
        """Stop in order, within *timeout* seconds; waits."""
        if self.closing:
            return
        self.closing = True
        deadline = self.clock.now() + timeout
        if self.discovery is not None:
            self.discovery.stop()
        connections = list(self.connections.values())
        for connection in connections:
            connection.send_close()
        self._send_back(self._take_queued())
        self._wait_until(lambda: self._is_quiet(connections), deadline)
        left = self.pool.busy()
        if left:
            log.warning("%d handlers still run after %g s; their messages go back to nsqd", left, timeout)
        for connection in connections:
            self._send_back(list(connection.in_flight.values()))
            connection.flush_now()
            connection.shut_down()
        self._wait_until(lambda: not any(c.is_open() for c in connections), max(deadline, self.clock.now() + 1.0))
        self._stop_all()
        self.ended.settle()

    def _take_queued(self) -> list[Message]:
        jobs = self.pool.take_queued() + (self.batches.take() if self.batches is not None else [])
        return [m for job in jobs for m in (job if isinstance(job, list) else (job,))]

    def _is_quiet(self, connections: list[Connection]) -> bool:
        if self.pool.busy():
            return False
        return all(not c.is_open() or (c.close_waited and not c.in_flight) for c in connections)

    def _wait_until(self, done: Any, deadline: float) -> None:
        while not done():
            left = deadline - self.clock.now()
            if left <= 0:
                return
            self._quiet.clear()
            self._quiet.wait(min(left, 0.05))

    def _send_back(self, messages: Iterable[Message]) -> None:
        for message in messages:
            try:
                message.requeue(0.0, backoff=False)
            except AlreadyAnswered:
                pass

    def _stop_all(self) -> None:
        self.pool.close()
        for connection in list(self.connections.values()):
            connection.close(ConnectionLost(connection.address, "the Reader was closed"))
        me = gevent.getcurrent()
        for task in (*self._tasks.values(), *self._greenlets):
            if task is not me:
                task.kill(block=False)

    def abandon(self) -> None:
        """In a forked child: everything is the parent's."""
        self.closing = True
        for connection in self.connections.values():
            connection.abandon()
        self.ended.settle(error=ClosedError("this Reader belongs to the parent process; make one in the child"))

    def _call_hook(self, name: str, *args: Any) -> None:
        hook = getattr(self.settings.hooks, name)
        if hook is None:
            return
        try:
            hook(*args)
        except Exception:
            log.exception("the hook %s failed", name)
