"""One nsqd of a Writer: connected, kept, connected again (PUB-3, PUB-4, YZ-11)."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import gevent

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import (
    ClosedError,
    ConnectionLost,
    NsqdError,
    NSQError,
    OutcomeUnknown,
)
from gnsq_lite.net.addresses import mapped
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.target import Target
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.options import format_address
from gnsq_lite.policy.reconnect import Reconnect
from gnsq_lite.publish.answer_queue import AnswerQueue
from gnsq_lite.publish.coalescing import gathered
from gnsq_lite.publish.publication import Publication
from gnsq_lite.publish.shared_connection import STALE, SharedConnection
from gnsq_lite.wire.constants import OK

if TYPE_CHECKING:
    from gnsq_lite.publish.producer import Producer

log = logging.getLogger("gnsq_lite.writer")

#: With so many publishes unanswered, that many bytes of answers are waited for at once: nsqd answers one by one, and
#: each answer has 10 bytes or more.  A poll and a read for each would cost as much as the publish.
MANY = 32
_AT_ONCE = 160


class Peer:
    """An nsqd, or a partition on it: its connection while there is one, and what it has not answered, in order."""

    def __init__(self, producer: Producer, endpoint: Endpoint) -> None:
        self.producer, self.endpoint = producer, endpoint
        self._succeed = producer.outcomes.succeed
        #: The connection, once its handshake is done; None before and after.
        self.connection: Any = None
        #: The one that is tried or used.
        self.tried: Connection | None = None
        #: Whether threads use the connection too; the queue of answers is theirs as well then.
        self.shared = producer.loop.is_shared
        self.pending: AnswerQueue[Publication] = AnswerQueue()
        #: Routed publishes, which may go nowhere else, until the connection is there.
        self.waiting: deque[Publication] = deque()
        self.error: NSQError | None = None
        self.task: Any = None
        #: Left out of the turn until it answers, and what it owed at the last look (PUB-4).
        self.suspected = False
        self.seen: Publication | None = None

    def send(self, publication: Publication) -> bool:
        """Send it; False, and nothing was sent, when the connection turns out to have ended."""
        connection = self.connection
        if connection is None:
            return False
        idle = connection.is_idle() if self.shared else not self.pending
        if idle and self.producer.clock.now() - connection.read_at > STALE and connection.has_ended():
            self._gone()  # its greenlet will find out in a moment; the message need not be lost with it
            return False
        command = publication.command()
        if self.shared:
            connection.put(publication, command)
            return True
        if publication.carrier is None:
            publication.sent = True
        elif not publication.mark_sent():
            return True
        pending = self.pending
        send = connection.send if pending else connection.send_at_once  # many that wait are joined, one is not
        pending.append(publication)
        if len(pending) == MANY:
            connection.read_at_least(_AT_ONCE)
        send(command)
        return True

    # -- answers; the connection's owner

    def on_response(self, connection: Connection, body: bytes) -> None:
        """An OK settles the oldest unanswered publish."""
        pending = self.pending
        receipt = None if pending and body == OK else pending.receipt(body, self.producer.settings.dialect.receipt)
        self._succeed(self._answered(connection), receipt)

    def on_error_frame(self, connection: Connection, error: NsqdError) -> None:
        """A refusal that leaves the connection open settles the oldest unanswered publish."""
        if not self.pending:
            connection.complaints.add(log, error)
            return
        self.producer.refused(self._answered(connection), error)

    def _answered(self, connection: Connection) -> Publication:
        """Take the oldest unanswered publish away."""
        publication = self.pending.popleft()
        if len(self.pending) == MANY - 1 and not self.shared:
            connection.read_at_least(1)
        if self.suspected:
            self.producer.rotation.answered(self, in_time=not publication.done())
        return publication

    def owes(self) -> list[Publication]:
        """Return what it has not answered, what was not sent to it for now included; a copy, for threads go on."""
        unsent = self.tried.unsent_publishes() if isinstance(self.tried, SharedConnection) else ()
        return [*self.pending, *unsent, *self.waiting]

    def oldest(self) -> Publication | None:
        """Return the first of what it owes; None where it owes nothing."""
        return next(iter(self.owes()), None)

    def take_movable(self) -> list[Publication]:
        """Take away, in order, what another may have instead: what was not sent, and what may be sent again."""

        def may_move(publication: Publication) -> bool:
            return self.producer.rotation.goes_elsewhere(publication, self)

        with self.producer.threads.lock:
            again = self.pending.take_repeatable(may_move)
        waiting, self.waiting = self.waiting, deque()
        for publication in waiting:
            if not publication.done():
                (again if may_move(publication) else self.waiting).append(publication)
        return again

    # -- life

    def serve(self) -> None:
        """Keep connected until the Writer closes; waits.  No exception but that ends it."""
        producer = self.producer
        retry = Reconnect(producer.settings.reconnect, rng=producer.rng)
        while not producer.ended:
            error = self._once(retry)
            if producer.ended:
                return
            again = str(error) == str(self.error)  # an nsqd that stays away is told of once
            self.error = error
            level = logging.DEBUG if again else logging.WARNING
            log_safely(log, level, "%s", error, extra={"nsqd": str(self.endpoint)})
            producer.rotation.failed(self, error)
            self._after_loss(error)
            producer.fail_hopeless()
            gevent.sleep(retry.failed())
            producer.reconnects += 1

    def _once(self, retry: Reconnect) -> NSQError:
        producer = self.producer
        connection: Connection | None = None
        try:
            connection = self.tried = self._make()
            connection.open()
            self.connection, self.error = connection, None
            producer.joined(self)
            connection.run()
        except NSQError as error:
            return error
        except Exception as error:
            log_safely(log, logging.ERROR, "%s: the connection failed unforeseen", self.endpoint, exc_info=error)
            return ConnectionLost(format_address(self.endpoint.address), f"{type(error).__name__}: {error}")
        finally:
            if connection is not None:
                if connection.opened_at is not None:
                    retry.served(producer.clock.now() - connection.opened_at)
                connection.close(ConnectionLost(connection.address, "closed"))
            self._gone()
        raise ClosedError("a connection ended without a reason")

    def _make(self) -> Connection:
        """Raises what the user's address map does."""
        producer = self.producer
        target = Target(
            endpoint=self.endpoint,
            identify_extra=producer.settings.dialect.identify_extra("", self.endpoint),
            connect_to=mapped(producer.settings.address_map, self.endpoint),
        )
        options = producer.settings.connection
        if not self.shared:
            return Connection(producer.loop, target, options, self, producer.clock)
        self.pending = AnswerQueue()  # what a thread still reads of the last connection answers none of these
        settings = producer.settings
        most, retries = settings.max_body_size, settings.retries
        join = partial(gathered, producer.loop, most=most, retries=retries) if settings.coalesce else None
        return SharedConnection(producer.loop, target, options, self, producer.threads, self.pending, join)

    def _gone(self) -> None:
        self.connection = None
        self.producer.parted(self)

    def _after_loss(self, error: NSQError) -> None:
        """Settle or send again what the lost connection owed, in its order."""
        with self.producer.threads.lock:
            loss = self.pending.lose(error)
        unsent = self.tried.unsent_publishes(take=True) if isinstance(self.tried, SharedConnection) else ()
        waiting, self.waiting = self.waiting, deque()
        for publication in loss.unknown:
            why = f"the connection was lost before the answer came, so the outcome is unknown: {error}"
            self.producer.outcomes.settle(publication, error=OutcomeUnknown(why))
        self.producer.send_again([*loss.again, *unsent, *waiting])
        if loss.refused is not None and isinstance(error, NsqdError):
            self.producer.refused(loss.refused, error)

    def close(self) -> None:
        """Disconnect; what was sent and not answered is of unknown outcome."""
        if self.connection is not None:
            self.connection.close(ConnectionLost(self.connection.address, "the Writer was closed"))
        for publication in tuple(self.pending):
            self.producer.outcomes.settle(
                publication, error=OutcomeUnknown("the Writer was closed before the answer came")
            )
        if self.task is not None and self.task is not gevent.getcurrent():
            self.task.kill(block=False)

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's, whether its handshake is done or not."""
        if self.tried is not None:
            self.tried.abandon()
