"""A Writer's core in its loop: a connection per nsqd, publishes pipelined and answered in order.

A publish is settled exactly once.  An error frame settles the publish it answers; when it ends the connection, nsqd has
not read what came after, so those are sent again elsewhere and nobody else is hurt.  Where a connection is lost without
a word, what was sent is of unknown outcome: sent again only where the caller asked for retries (PUB-2).
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterable
from typing import Any

import gevent
from gevent.event import Event

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import (
    BacklogFull,
    ClosedError,
    ConnectionLost,
    NotSent,
    NsqdError,
    NSQError,
    OutcomeUnknown,
    UnexpectedFrame,
)
from gnsq_lite.message import Message
from gnsq_lite.net.addresses import mapped
from gnsq_lite.net.connection import Connection, Target
from gnsq_lite.net.publication import Publication
from gnsq_lite.net.runtime import Loop, native_lock
from gnsq_lite.net.settings import ProducerSettings
from gnsq_lite.policy.reconnect import Reconnect
from gnsq_lite.wire import commands
from gnsq_lite.wire.constants import OK

log = logging.getLogger("gnsq_lite.writer")

_CHECK_EVERY = 1.0
_NEVER = float("inf")

#: Seconds without a read after which a connection is looked at before something is sent on it (PUB-3).
_STALE = 0.001


class Peer:
    """One nsqd of a Writer: its connection while there is one, and what it has not answered yet, in order."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        #: The connection, while the peer is in ``Producer.ready``; None otherwise.
        self.connection: Any = None
        self.pending: deque[Publication] = deque()
        self.error: NSQError | None = None
        self.task: Any = None


class Producer:
    """Carries publishes out.  Made and used in the loop's thread."""

    def __init__(self, loop: Loop, settings: ProducerSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.loop, self.settings, self.clock = loop, settings, clock
        self.rng = random.Random()
        self.peers: dict[Endpoint, Peer] = {}
        #: Peers whose handshake is done, in a list for round robin.
        self.ready: list[Peer] = []
        self.waiting: deque[Publication] = deque()
        self.closing = False
        self.published = self.failed = self.unknown = self.reconnects = 0
        self._turn = 0
        self._next_deadline = _NEVER
        self._timer: Any = loop.hub.loop.timer(0.0)
        self._drained: list[Event] = []
        self._backlog_lock = native_lock()
        self._reserved = self._released = 0
        self._batches: dict[str, list[Publication]] = {}
        self._greenlets: list[Any] = []
        self._started = False
        #: Whether every publish needs the dialect to choose where it goes.
        self.routed = False

    def start(self) -> None:
        """Begin to connect."""
        if self._started:
            return
        self._started = True
        for endpoint in self.settings.endpoints:
            self._add(endpoint)
        self._greenlets.append(self.loop.spawn("writer-ticker", self._tick))

    def _add(self, endpoint: Endpoint) -> Peer:
        peer = self.peers.get(endpoint)
        if peer is None:
            peer = self.peers[endpoint] = Peer(endpoint)
        if peer.task is None:
            peer.task = self.loop.spawn(f"writer {endpoint}", self._serve, peer)
        return peer

    # -- publishing

    def submit(self, publication: Publication) -> None:
        """Send it now, or as soon as an nsqd can be reached."""
        if self.closing:
            self._settle(publication, error=ClosedError("the Writer was closed"))
            return
        if publication.deadline < self._next_deadline:
            self._watch(publication.deadline)
        if self.settings.coalesce and publication.data:
            self._gather(publication)
        elif self.ready:
            self._send(publication)
        else:
            self.waiting.append(publication)

    def _send(self, publication: Publication) -> None:
        ready = self.ready
        if len(ready) == 1:
            peer = ready[0]
        else:
            self._turn = turn = (self._turn + 1) % len(ready)
            peer = ready[turn]
        connection = peer.connection
        if not peer.pending and self.clock.now() - connection.read_at > _STALE and connection.has_ended():
            self.ready.remove(peer)  # its greenlet will find out in a moment; the message need not be lost with it
            self.submit_again(publication)
            return
        peer.pending.append(publication)
        publication.sent = True
        connection.send(publication.data)

    def _gather(self, publication: Publication) -> None:
        """Keep single messages until the end of the turn: those to one topic go as one MPUB."""
        if not self._batches:
            self.loop.soon(self._send_batches)
        self._batches.setdefault(publication.topic, []).append(publication)

    def _send_batches(self) -> None:
        batches, self._batches = self._batches, {}
        for publications in batches.values():
            for batch in joined(publications, self.settings.max_body_size):
                if self.ready:
                    self._send(batch)
                else:
                    self.waiting.append(batch)

    # -- answers

    def on_response(self, connection: Connection, body: bytes) -> None:
        """An OK settles the oldest unanswered publish."""
        pending = self.peers[connection.endpoint].pending
        if not pending:
            raise UnexpectedFrame(f"an answer came to no publish: {body[:50]!r}")
        publication = pending.popleft()
        if body == OK:
            receipt = None
        elif publication.request is not None:
            receipt = self.settings.dialect.receipt(publication.request, body)
        else:
            raise UnexpectedFrame(f"not an OK: {body[:50]!r}")
        if not self._drained and publication.settle(receipt):
            self.published += publication.count
            self._released += publication.cost
        else:
            self._settle(publication, receipt)

    def on_error_frame(self, connection: Connection, error: NsqdError) -> None:
        """A refusal that leaves the connection open settles the oldest unanswered publish."""
        self._refuse(self.peers[connection.endpoint], error)

    def _refuse(self, peer: Peer, error: NsqdError) -> None:
        if not peer.pending:
            log.warning("%s", error)
            return
        self._settle(peer.pending.popleft(), error=error)

    def on_messages(self, connection: Connection, messages: list[Message]) -> None:
        """Nobody subscribed."""
        raise UnexpectedFrame("a message came to a connection that has not subscribed")

    def on_answered(self, connection: Connection, finished: int, requeued: int) -> None:
        """A Writer answers no messages."""

    def on_failure(self) -> None:
        """A Writer has no handlers."""

    def requeue_delay(self, message: Message) -> float:
        """A Writer has no messages."""
        return 0.0

    # -- one nsqd: connected, kept, connected again (PUB-3, PUB-4)

    def _serve(self, peer: Peer) -> None:
        retry = Reconnect(self.settings.reconnect, rng=self.rng)
        while not self.closing:
            error = self._once(peer, retry)
            if self.closing:
                return
            peer.error = error
            log.warning("%s", error, extra={"nsqd": str(peer.endpoint)})
            self._after_loss(peer, error)
            self._fail_hopeless()
            gevent.sleep(retry.failed())
            self.reconnects += 1

    def _once(self, peer: Peer, retry: Reconnect) -> NSQError:
        target = Target(
            endpoint=peer.endpoint,
            identify_extra=self.settings.dialect.identify_extra("", peer.endpoint),
            connect_to=mapped(self.settings.address_map, peer.endpoint),
        )
        connection = Connection(self.loop, target, self.settings.connection, self, self.clock)
        try:
            connection.open()
            retry.succeeded()
            peer.connection, peer.error = connection, None
            self.ready.append(peer)
            self._send_waiting()
            connection.run()
        except NSQError as error:
            return error
        except Exception as error:
            log.exception("%s: the connection failed in an unforeseen way", peer.endpoint)
            return ConnectionLost(connection.address, f"{type(error).__name__}: {error}")
        finally:
            connection.close(ConnectionLost(connection.address, "closed"))
            peer.connection = None
            if peer in self.ready:
                self.ready.remove(peer)
        raise ClosedError("a connection ended without a reason")

    def _send_waiting(self) -> None:
        waiting, self.waiting = self.waiting, deque()
        for publication in waiting:
            if not publication.done():
                self.submit_again(publication)

    def submit_again(self, publication: Publication) -> None:
        """Send, or keep until an nsqd can be reached; its deadline is watched already."""
        if self.ready:
            self._send(publication)
        else:
            self.waiting.append(publication)

    def _after_loss(self, peer: Peer, error: NSQError) -> None:
        """Settle or send again what the lost connection owed."""
        pending, peer.pending = peer.pending, deque()
        unread = isinstance(error, NsqdError)
        if unread and pending:
            self._settle(pending.popleft(), error=error)
        for publication in pending:
            if publication.done():
                continue
            if unread or publication.retries > 0:
                publication.retries -= 0 if unread else 1
                publication.sent = publication.sent and not unread
                self.submit_again(publication)
            else:
                why = f"the connection was lost before the answer came, so the outcome is unknown: {error}"
                self._settle(publication, error=OutcomeUnknown(why))

    def _fail_hopeless(self) -> None:
        """Fail what waits when no nsqd can be had, for a reason that waiting does not mend."""
        errors = [peer.error for peer in self.peers.values()]
        if self.ready or not errors or not all(isinstance(e, self.settings.misconfigured) for e in errors):
            return
        waiting, self.waiting = self.waiting, deque()
        for publication in waiting:
            self._settle(publication, error=errors[0])

    # -- deadlines

    def _watch(self, deadline: float) -> None:
        self._next_deadline = deadline
        self._timer.stop()
        self._timer.close()
        self._timer = self.loop.hub.loop.timer(max(0.0, deadline - self.clock.now()))
        self._timer.start(self._expire)

    def _expire(self) -> None:
        now = self.clock.now()
        self._next_deadline = _NEVER
        soonest = _NEVER
        for publications in (self.waiting, *(peer.pending for peer in self.peers.values())):
            for publication in publications:
                if publication.done():
                    continue
                if publication.deadline <= now:
                    self._settle(publication, error=publication.expired(self._why()))
                else:
                    soonest = min(soonest, publication.deadline)
        self.waiting = deque(p for p in self.waiting if not p.done())
        if soonest < _NEVER:
            self._watch(soonest)

    def _why(self) -> str:
        """Say why no nsqd can be reached, as far as it is known."""
        known = [str(peer.error) for peer in self.peers.values() if peer.error is not None]
        return f": {'; '.join(known[:3])}" if known else ""

    def _tick(self) -> None:
        while True:
            gevent.sleep(_CHECK_EVERY)
            now = self.clock.now()
            for peer in list(self.ready):
                if peer.connection is not None:
                    peer.connection.check(now)

    # -- the end

    def unsettled(self) -> int:
        """Publishes that have no outcome yet."""
        waiting: Iterable[Iterable[Publication]] = (
            self.waiting,
            *self._batches.values(),
            *(peer.pending for peer in self.peers.values()),
        )
        return sum(1 for group in waiting for p in group if not p.done())

    def reserve(self, publication: Publication, size: int) -> None:
        """Count a publish that nobody waits for against ``max_pending``; from any thread.  Raises BacklogFull."""
        with self._backlog_lock:
            if self._reserved - self._released + size > self.settings.max_pending:
                most = self.settings.max_pending
                raise BacklogFull(f"{most} bytes are on their way already (max_pending); nothing was sent")
            self._reserved += size
        publication.cost = size

    def _settle(self, publication: Publication, value: Any = None, error: BaseException | None = None) -> None:
        """Give a publish its outcome, once, and count it."""
        if not publication.settle(value, error):
            return
        self._count(publication, error)
        if self._drained and not self.unsettled():
            for event in self._drained:
                event.set()

    def _count(self, publication: Publication, error: BaseException | None) -> None:
        self._released += publication.cost
        if error is None:
            self.published += publication.count
        elif isinstance(error, OutcomeUnknown):
            self.unknown += publication.count
        else:
            self.failed += publication.count

    def drain(self, timeout: float) -> bool:
        """Wait until all that was submitted has an outcome; return whether it has."""
        deadline = self.clock.now() + timeout
        while self.unsettled():
            left = deadline - self.clock.now()
            if left <= 0:
                return False
            woken = Event()
            self._drained.append(woken)
            woken.wait(min(left, 0.1))
            self._drained.remove(woken)
        return True

    def close(self, timeout: float) -> None:
        """Wait for outcomes, at most *timeout* seconds, and disconnect; what has none then is settled as unknown."""
        if self.closing:
            return
        self.drain(timeout)
        self.closing = True
        for peer in self.peers.values():
            if peer.connection is not None:
                peer.connection.close(ConnectionLost(peer.connection.address, "the Writer was closed"))
            for publication in peer.pending:
                self._settle(publication, error=OutcomeUnknown("the Writer was closed before the answer came"))
        for publication in (*self.waiting, *(p for group in self._batches.values() for p in group)):
            self._settle(publication, error=NotSent("the Writer was closed before an nsqd could be reached"))
        self._timer.stop()
        me = gevent.getcurrent()
        for task in (*(peer.task for peer in self.peers.values()), *self._greenlets):
            if task is not None and task is not me:
                task.kill(block=False)

    def abandon(self) -> None:
        """In a forked child: connections and outcomes are the parent's."""
        self.closing = True
        for peer in self.peers.values():
            if peer.connection is not None:
                peer.connection.abandon()


class Batch(Publication):
    """Publishes of one turn to one topic, sent as one MPUB; each has its own outcome."""

    __slots__ = ("members",)

    members: list[Publication]

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Settle each member."""
        first = super().settle(value, error)
        if first:
            for member in self.members:
                member.settle(value, error)
        return first


def joined(publications: list[Publication], most: int) -> Iterable[Publication]:
    """Yield *publications* as MPUBs of at most *most* bytes; what stands alone stays as it is."""
    group: list[Publication] = []
    size = 4
    for publication in publications:
        body = publication.request.bodies[0] if publication.request is not None else b""
        if group and size + 4 + len(body) > most:
            yield _as_batch(group)
            group, size = [], 4
        group.append(publication)
        size += 4 + len(body)
    if group:
        yield _as_batch(group)


def _as_batch(group: list[Publication]) -> Publication:
    if len(group) == 1:
        return group[0]
    first = group[0]
    bodies = [p.request.bodies[0] for p in group if p.request is not None]
    data = commands.multipublish_head(first.topic) + commands.multipublish_body(bodies)
    batch = Batch(first._loop, first.topic, data, len(group), first.timeout, min(p.deadline for p in group))
    batch.members = group
    batch.retries = min(p.retries for p in group)
    return batch
