"""One nsqd of a Writer: connects to it and reconnects (PUB-3, PUB-4, YZ-11)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import ConnectionLost, NsqdError, NSQError, OutcomeUnknown
from gnsq_lite.net.addresses import mapped
from gnsq_lite.net.connection import Connection
from gnsq_lite.net.link import Again, Link
from gnsq_lite.net.loop import Loop, current_greenlet
from gnsq_lite.net.target import Target
from gnsq_lite.net.user_hooks import LossLog
from gnsq_lite.policy.rng import Rng
from gnsq_lite.publish.answer_queue import AnswerQueue
from gnsq_lite.publish.outcomes import Outcomes
from gnsq_lite.publish.pipelined import MANY, Pipelined
from gnsq_lite.publish.publication import Publication
from gnsq_lite.publish.settings import ProducerSettings

log = logging.getLogger("gnsq_lite.writer")

#: Seconds between two warnings of a connection that was lost for the same reason.
_BETWEEN = 60.0


class DestinationOwner(Protocol):
    """Its owner, called in the loop's thread."""

    loop: Loop
    settings: ProducerSettings
    clock: Clock
    rng: Rng
    outcomes: Outcomes
    loss_log: LossLog

    def is_over(self, destination: Destination) -> bool:
        """Whether it is to connect no more."""

    def on_connected(self, destination: Destination) -> None:
        """Its handshake is done."""

    def on_disconnected(self, destination: Destination) -> None:
        """The connection has ended, or could not be made."""

    def on_lost(self, destination: Destination, error: NSQError, unsent: Iterable[Publication]) -> None:
        """It will be reconnected; *unsent*, in order, was not sent or may be sent again."""

    def on_retry(self) -> None:
        """It is connected again."""

    def on_refused(self, publication: Publication, error: NsqdError, endpoint: Endpoint) -> None:
        """nsqd refused it."""

    def goes_elsewhere(self, publication: Publication, endpoint: Endpoint) -> bool:
        """Whether another nsqd that is not silent may take it instead."""

    def flush(self, destination: Destination) -> None:
        """Send what waits for it."""

    def on_silent_answered(self, destination: Destination, in_time: bool) -> None:
        """It was silent, and has answered."""


class Destination:
    """An nsqd or one of its partitions: its connection, if any, and its unanswered publishes, in order."""

    def __init__(self, owner: DestinationOwner, endpoint: Endpoint) -> None:
        self._owner, self.endpoint = owner, endpoint
        self._succeed = owner.outcomes.succeed
        self.link = Link[Connection](endpoint, self, owner.settings.reconnect, owner.rng, log)
        #: The connection, once its handshake is done; None before and after.
        self.connection: Any = None
        self.pending: AnswerQueue[Publication] = AnswerQueue(read=owner.settings.dialect.receipt)
        #: Routed publishes, which may go nowhere else, until the connection is there.
        self.waiting: deque[Publication] = deque()
        self.error: NSQError | None = None
        self._told, self._told_until = "", 0.0
        self.task: Any = None
        #: Left out of the turn until it answers, and what it owed at the last look (PUB-4).
        self.silent = False
        self.seen: Publication | None = None
        #: It is connected and takes no more for now.
        self.full = False

    def send(self, publication: Publication) -> bool:
        """Send it; False, and nothing was sent, where there is no connection, or none that takes it."""
        return self.connection is not None and self.connection.send_publish(publication)

    def why_not(self) -> NSQError | str | None:
        """Return why it gets no publishes now, as far as is known; from any thread."""
        if self.connection is None:
            return self.error or f"{self.endpoint}: no connection yet"
        return f"{self.endpoint}: connected, and takes no more bytes" if self.full else None

    # -- answers; the connection's owner

    def on_response(self, connection: Connection, body: bytes) -> None:
        """An OK settles the oldest unanswered publish."""
        receipt = self.pending.receipt(body)
        self._succeed(self._answered(connection), receipt)

    def on_error_frame(self, connection: Connection, error: NsqdError) -> None:
        """A refusal that leaves the connection open answers the oldest publish; the last of a former leader ends it."""
        if not self.pending:
            connection.complaints.add(log, error)
            return
        self._owner.on_refused(self._answered(connection), error, self.endpoint)
        if error.closes_connection and not self.owes():
            raise error

    def _answered(self, connection: Connection) -> Publication:
        """Take the oldest unanswered publish away."""
        publication = self.pending.popleft()
        if len(self.pending) == MANY - 1:
            connection.read_at_least(1)
        if self.silent:
            self._owner.on_silent_answered(self, in_time=not publication.done())
        return publication

    def owes(self) -> list[Publication]:
        """Return its unanswered publishes, with those not sent yet."""
        return [*self.pending, *self.waiting]

    def oldest(self) -> Publication | None:
        """Return its oldest unanswered publish, or None."""
        return next(iter(self.owes()), None)

    def take_movable(self, may_move: Callable[[Publication], bool]) -> list[Publication]:
        """Remove and return, in order, what another nsqd may get instead: what was not sent or may be sent again."""
        again = self.pending.take_repeatable(may_move)
        waiting, self.waiting = self.waiting, deque()
        for publication in waiting:
            if not publication.done():
                (again if may_move(publication) else self.waiting).append(publication)
        return again

    def forget_done(self) -> None:
        """Drop what has an outcome and was not sent."""
        self.waiting = deque(each for each in self.waiting if not each.done())

    # -- life; the link's owner

    def make_connection(self) -> Connection:
        """Return a new connection.  Raises what the user's address map does."""
        owner, settings = self._owner, self._owner.settings
        target = Target(
            endpoint=self.endpoint,
            identify_extra=settings.dialect.identify_extra("", self.endpoint),
            check_server=settings.dialect.check_server,
            connect_to=mapped(settings.address_map, self.endpoint),
        )
        return Pipelined(owner.loop, target, settings.connection, self, owner.clock, self.pending, owner.outcomes.taken)

    def is_over(self) -> bool:
        """Whether the Writer has ended, or has begun again without this one."""
        return self._owner.is_over(self)

    def on_connected(self, connection: Connection) -> None:
        """Its handshake is done."""
        self.connection, self.error, self.full = connection, None, False
        self._owner.on_connected(self)

    def on_disconnected(self, connection: Connection) -> None:
        """It is gone."""
        self._owner.on_disconnected(self)
        self.connection = None

    def on_room(self) -> None:
        """It takes publishes again."""
        self._owner.flush(self)

    def on_lost(self, reason: NSQError) -> Again:
        """Settle its unanswered publishes, or have them sent again in order.

        An nsqd that has closed because of a publish, with a full disk for one, is well enough to be asked again soon
        where nobody else is; where another may take the publishes, its pauses grow.
        """
        again = str(reason) == str(self.error) or self._is_told(str(reason))  # an nsqd that stays away is told of once
        self.error = reason
        self._owner.loss_log.add(reason, is_news=not again, extra={"nsqd": str(self.endpoint)})
        loss = self.pending.lose(reason)
        unsent = [*loss.again, *self.waiting]
        self.waiting = deque()
        for publication in loss.unknown:
            why = f"the connection was lost before the answer came, so the outcome is unknown: {reason}"
            self._owner.outcomes.settle(publication, error=OutcomeUnknown(why))
        if loss.refused is None or not isinstance(reason, NsqdError):
            self._owner.on_lost(self, reason, unsent)
            return Again.LATER
        self._owner.on_refused(loss.refused, reason, self.endpoint)  # first: it was published before the others
        self._owner.on_lost(self, reason, unsent)
        return Again.LATER if self._owner.goes_elsewhere(loss.refused, self.endpoint) else Again.SOON

    def _is_told(self, why: str) -> bool:
        """Whether that was logged within a minute: an nsqd that closes at each publish is connected in between."""
        now = self._owner.clock.now()
        if why == self._told and now < self._told_until:
            return True
        self._told, self._told_until = why, now + _BETWEEN
        return False

    def start(self) -> None:
        """Begin to connect."""
        self.task = self._owner.loop.spawn(f"writer {self.endpoint}", self.link.run)

    def check(self, now: float) -> None:
        """Close a silent connection; called about once a second."""
        if self.connection is not None:
            self.connection.check(now)

    def on_retry(self) -> None:
        """Count it."""
        self._owner.on_retry()

    def disconnect_if_silent(self) -> None:
        """Give what it does not answer an outcome: its partition has another leader."""
        if self.silent and self.connection is not None:
            self.connection.close(ConnectionLost(self.connection.address, "silent, and no longer the leader"))

    def close(self) -> None:
        """Disconnect; publishes sent and not answered have an unknown outcome."""
        if self.connection is not None:
            self.connection.close(ConnectionLost(self.connection.address, "the Writer was closed"))
        why = "the Writer was closed before the answer came"
        for publication in tuple(self.pending):
            self._owner.outcomes.settle(publication, error=OutcomeUnknown(why))
        if self.task is not None and self.task is not current_greenlet():
            self.task.kill(block=False)

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's."""
        self.link.abandon()
