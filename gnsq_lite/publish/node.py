"""The nsqds of a Writer: for each a pipelined connection, and the publishes it has not answered; whose turn it is.

nsqd answers in the order it reads, so an answer belongs to the oldest publish (PUB-2).  Most reads hold nothing but
OKs; those are taken in the hub, without a switch to the greenlet that reads.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint, RoutedPublish, Router
from gnsq_lite.errors import (
    ConnectionLost,
    NotLeaderError,
    NotWritableError,
    NsqdError,
    NSQError,
    OutcomeUnknown,
    ProtocolError,
)
from gnsq_lite.net.connection import MOST_UNSENT, Connection, Target
from gnsq_lite.net.link import Again, Link
from gnsq_lite.net.loop import Loop, current_greenlet
from gnsq_lite.net.settings import mapped
from gnsq_lite.net.user_hooks import ErrorLog
from gnsq_lite.policy.rng import Rng
from gnsq_lite.publish.publication import Outcomes, Publish
from gnsq_lite.publish.settings import ProducerSettings
from gnsq_lite.wire.commands import PUBLISH_HEADS
from gnsq_lite.wire.constants import OK

log = logging.getLogger("gnsq_lite.writer")

#: With so many publishes unanswered, that many bytes of answers are waited for at once: nsqd answers one by one, and
#: each answer has 10 bytes or more.  A poll and a read for each would cost as much as the publish.
MANY = 32
_AT_ONCE = 160
#: Seconds without a read after which a connection is looked at before a publish is sent on it (PUB-3).
_STALE = 0.001
#: nsqd carries out the publishes behind one that it refused with these (YZ-8).
_REROUTED = (NotLeaderError, NotWritableError)
#: nsqd's OK to a publish, as a frame.
_OK_FRAME = b"\0\0\0\6\0\0\0\0OK"
#: Seconds between two warnings of a connection that was lost for the same reason.
_BETWEEN = 60.0


def count_oks(data: bytes) -> int:
    """Return how many OKs *data* consists of; 0 if it holds anything else."""
    if data == _OK_FRAME:
        return 1
    count = len(data) // len(_OK_FRAME)
    return count if data == _OK_FRAME * count else 0


class NodeOwner(Protocol):
    """The core of the Writer; called in the loop's thread."""

    loop: Loop
    settings: ProducerSettings
    clock: Clock
    rng: Rng
    outcomes: Outcomes
    error_log: ErrorLog
    router: Router
    #: Every node, and those whose handshake is done.
    nodes: dict[Endpoint, Node]
    connected: list[Node]
    #: All connections are closed for good.
    ended: bool
    reconnects: int

    def on_connected(self, node: Node) -> None:
        """The handshake is done."""

    def on_disconnected(self, node: Node) -> None:
        """The connection has ended, or could not be made."""

    def on_lost(self, node: Node, error: NSQError, unsent: Iterable[Publish]) -> None:
        """The node will be reconnected; *unsent*, in order, was not sent or may be sent again."""

    def on_refused(self, publish: Publish, error: NsqdError, endpoint: Endpoint) -> None:
        """nsqd refused a publish."""

    def on_silent_answered(self, node: Node, in_time: bool) -> None:
        """The node was silent, and has answered."""


class Pipeline(Connection):
    """A connection of a :class:`Node`, with any number of publishes unanswered.  In the loop's thread."""

    outlives = _REROUTED

    def __init__(self, node: Node, owner: NodeOwner, target: Target) -> None:
        super().__init__(owner.loop, target, owner.settings.connection, node, owner.clock)
        self._node, self._unanswered, self._owner = node, node.unanswered, owner
        #: Whether a frame has come in part, or the bytes are no frames yet.
        self._partial = True
        #: Bytes that may be queued before :meth:`_has_room` has to look how many nsqd has not taken.
        self._room = MOST_UNSENT

    def run(self) -> None:
        """Read until the connection ends; waits.  Always ends with an exception, the reason."""
        if self._stream is not None:
            self._stream.reads_after_write_error = True
            self._stream.on_drained = self._regain_room
            if self._codec is None:
                self._stream.offer(partial(self.loop.deliver, self._take_oks))
        super().run()

    def send_publish(self, publish: Publish) -> bool:
        """Send a publish.

        Returns False, and sends nothing, if the connection turns out to have ended, or if nsqd has not taken the bytes
        before it: a publish that waits in the Writer is not sent after its deadline, and another node may get it.
        """
        unanswered = self._unanswered
        command = publish.command()
        stream: Any = self._stream
        if self._room < 0 and not self._has_room():
            return False
        if stream.closed is not None or (
            not unanswered and self.clock.now() - self.read_at > _STALE and stream.has_ended()
        ):
            self._node.on_disconnected(self)  # its greenlet will notice in a moment
            return False
        if not publish.mark_sent():
            return True
        unanswered.append(publish)
        if len(unanswered) > 1 or self._out:  # many that wait are joined, one is not
            if len(unanswered) == MANY:
                self.read_at_least(_AT_ONCE)
            self._room -= len(command)
            self._out.append(command)  # what send() does, without the call
            if not self._due:
                self._due = True
                self.loop.soon(self._flush)
        elif self._codec is None:
            stream.write(command)
        else:
            self._emit(command)
        return True

    def _has_room(self) -> bool:
        """Look whether nsqd has taken most of the bytes; if not, the node is full."""
        node = self._node
        if not node.full:
            self._room = MOST_UNSENT - self.unsent() - sum(map(len, self._out))
            node.full = self._room < 0
        return not node.full

    def _flush(self) -> None:
        super()._flush()
        if self._room < 0:
            self._regain_room()

    def _regain_room(self) -> None:
        """Have publishes sent that found no room, before any that come later; in the hub."""
        if self._node.full:
            self._node.full = False
            self._owner.router.on_room(self.endpoint)

    def _deliver(self, data: bytes) -> None:
        self._partial = True
        super()._deliver(data)
        self._partial = self._decoder.pending_bytes > 0

    def _take_oks(self, data: bytes) -> bool:
        """Settle the publishes that a read of OKs answers; False: the read is for the reader.  In the hub."""
        unanswered = self._unanswered
        before, count = len(unanswered), count_oks(data)
        if self._partial or self._node.silent or not 0 < count <= before:
            return False
        succeeded = self._node.succeeded
        for _ in range(count):
            succeeded(unanswered.popleft())
        self.read_at = self.clock.now()
        if before - count < MANY <= before:
            self.read_at_least(1)
        return True


class Node:
    """An nsqd, or one of its partitions: its connection, if any, and its unanswered publishes, in order."""

    def __init__(self, owner: NodeOwner, endpoint: Endpoint) -> None:
        self._owner, self.endpoint = owner, endpoint
        self.succeeded = owner.outcomes.succeeded
        self.link = Link[Connection](endpoint, self, owner.settings.reconnect, owner.rng, log)
        #: The connection, once its handshake is done; None before and after.
        self.connection: Any = None
        #: The publishes that were sent, the oldest first; an expired one keeps its place.
        self.unanswered: deque[Publish] = deque()
        self.error: NSQError | None = None
        self._last_logged, self._log_again_at = "", 0.0
        self.task: Any = None
        #: Left out of the turn until it answers, and its oldest publish at the last look (PUB-4).
        self.silent = False
        self.seen: Publish | None = None
        #: It is connected and takes no more for now.
        self.full = False

    def why_not(self) -> NSQError | str | None:
        """Return why the node gets no publishes now, as far as is known; from any thread."""
        if self.connection is None:
            return self.error or f"{self.endpoint}: no connection yet"
        return f"{self.endpoint}: connected, and takes no more bytes" if self.full else None

    # -- answers; the connection's owner

    def on_response(self, connection: Connection, body: bytes) -> None:
        """Settle the oldest publish.  Raises ProtocolError for what is no answer to it."""
        receipt = None
        if not self.unanswered:
            raise ProtocolError(f"an answer without a publish: {body[:50]!r}")
        if body != OK:
            request = self.unanswered[0].request
            if request is None:
                raise ProtocolError(f"not an OK: {body[:50]!r}")
            receipt = self._owner.settings.dialect.receipt(request, body)
        self.succeeded(self._answered(connection), receipt)

    def on_error_frame(self, connection: Connection, error: NsqdError) -> None:
        """Settle the oldest publish with an error that leaves the connection open; the last of a former leader ends it.

        Raises that error.
        """
        if not self.unanswered:
            self._owner.error_log.add(error)
            return
        self._owner.on_refused(self._answered(connection), error, self.endpoint)
        if error.closes_connection and not self.unanswered:
            raise error

    def _answered(self, connection: Connection) -> Publish:
        publish = self.unanswered.popleft()
        if len(self.unanswered) == MANY - 1:
            connection.read_at_least(1)
        if self.silent:
            self._owner.on_silent_answered(self, in_time=not publish.done())
        return publish

    def oldest(self) -> Publish | None:
        """Return its oldest unanswered publish, or None."""
        return self.unanswered[0] if self.unanswered else None

    def take_movable(self, may_move: Callable[[Publish], bool]) -> list[Publish]:
        """Remove and return, in order, what may be sent again and another node may get instead.

        A stand-in keeps the place of each that was sent, and takes its answer.
        """
        again: list[Publish] = []
        for place, publish in enumerate(self.unanswered):
            if publish.retries > 0 and not publish.done() and may_move(publish):
                _spend_retry(publish)
                self.unanswered[place] = publish.stand_in()
                again.append(publish)
        return again

    # -- life; the link's owner

    def make_connection(self) -> Connection:
        """Return a new connection.  Raises what the user's address map raises."""
        settings = self._owner.settings
        target = Target(
            endpoint=self.endpoint,
            identify_extra=settings.dialect.identify_extra("", self.endpoint),
            check_server=settings.dialect.check_server,
            connect_to=mapped(settings.address_map, self.endpoint),
        )
        return Pipeline(self, self._owner, target)

    def is_over(self) -> bool:
        """Return whether the Writer has ended, or has begun again without this node."""
        return self._owner.ended or self._owner.nodes.get(self.endpoint) is not self

    def on_connected(self, connection: Connection) -> None:
        """The handshake is done."""
        self.connection, self.error, self.full = connection, None, False
        self._owner.on_connected(self)

    def on_disconnected(self, connection: Connection) -> None:
        """The connection is gone."""
        self._owner.on_disconnected(self)
        self.connection = None

    def on_lost(self, reason: NSQError) -> Again:
        """Settle the unanswered publishes, or have them sent again in order.

        An error frame answers the oldest, and nsqd has read nothing after it.  After any other end nsqd may have read
        everything: publishes with a retry left are sent again, and the others have an unknown outcome.

        An nsqd that has closed because of a publish, with a full disk for one, may be tried again soon if no other can
        take the publish; if another can, its pauses grow.
        """
        again = str(reason) == str(self.error) or self._is_logged(str(reason))  # log a lasting loss once
        self.error = reason
        self._owner.error_log.add(reason, is_news=not again, extra={"nsqd": str(self.endpoint)})
        publishes = deque(self.unanswered)
        self.unanswered.clear()
        is_refusal = isinstance(reason, NsqdError)
        refused = publishes.popleft() if is_refusal and publishes else None
        unsent: list[Publish] = []
        for publish in publishes:
            if publish.done():
                continue
            if is_refusal:
                publish.sent = publish.in_doubt
                unsent.append(publish)
            elif publish.retries > 0:
                _spend_retry(publish)
                unsent.append(publish)
            else:
                why = f"the connection was lost before the answer came, so the outcome is unknown: {reason}"
                self._owner.outcomes.failed_with(publish, OutcomeUnknown(why))
        if refused is not None and isinstance(reason, NsqdError):
            self._owner.on_refused(refused, reason, self.endpoint)  # first: it was published before the others
        self._owner.on_lost(self, reason, unsent)
        is_soon = refused is not None and not self._owner.router.goes_elsewhere(refused, self.endpoint)
        return Again.SOON if is_soon else Again.LATER

    def _is_logged(self, why: str) -> bool:
        """Return whether that was logged within a minute; nsqd may close at each publish, and connect in between."""
        now = self._owner.clock.now()
        if why == self._last_logged and now < self._log_again_at:
            return True
        self._last_logged, self._log_again_at = why, now + _BETWEEN
        return False

    def start(self) -> None:
        """Begin to connect."""
        self.task = self._owner.loop.spawn(f"writer {self.endpoint}", self.link.run)

    def on_retry(self) -> None:
        """Count a reconnection."""
        self._owner.reconnects += 1

    def disconnect_if_silent(self) -> None:
        """Give the unanswered publishes an outcome: their partition has another leader."""
        if self.silent and self.connection is not None:
            self.connection.close(ConnectionLost(self.connection.address, "silent, and no longer the leader"))

    def close(self) -> None:
        """Disconnect; publishes sent and not answered have an unknown outcome."""
        if self.connection is not None:
            self.connection.close(ConnectionLost(self.connection.address, "the Writer was closed"))
        why = "the Writer was closed before the answer came"
        for publish in tuple(self.unanswered):
            self._owner.outcomes.failed_with(publish, OutcomeUnknown(why))
        if self.task is not None and self.task is not current_greenlet():
            self.task.kill(block=False)


class Rotation(Router):
    """Sends each publish to the next nsqd in turn that is not silent (PUB-4).  In the loop's thread.

    If all connected nsqds are silent, the one with the fewest unanswered publishes gets it.
    """

    def __init__(self, owner: NodeOwner) -> None:
        self._owner, self._settings, self._outcomes = owner, owner.settings, owner.outcomes
        self._loop, self._now, self._connected = owner.loop, owner.clock.now, owner.connected
        #: Publishes in order, while no node takes any.
        self._waiting: deque[Publish] = deque()
        self._turn = 0

    def publish(self, topic: str, body: bytes, timeout: float) -> Any:
        """Publish one message, whose body was checked, and wait; in a greenlet of the loop's thread.

        Raises InvalidName before anything is sent, and the publish's own error.
        """
        PUBLISH_HEADS[topic]  # raises InvalidName
        publish = Publish(self._loop, topic, (body,), timeout, self._now() + timeout, self._settings.retries)
        with self._loop.guard:
            self._outcomes.add(publish)
            self.send(publish)
        return publish.wait_in(current_greenlet())

    def send(self, publish: Any) -> None:
        """Send a publish to the node whose turn it is, or keep it until a node takes it."""
        if not self._send_now(publish):
            self._waiting.append(publish)

    def _send_now(self, publish: Publish) -> bool:
        while (node := self._next_node()) is not None:
            if node.connection.send_publish(publish):
                return True
        return False

    def _next_node(self) -> Node | None:
        self._turn = turn = self._turn + 1
        connected = self._connected
        if connected:
            node = connected[turn % len(connected)]
            if not (node.silent or node.full):
                return node
        with_room = [each for each in connected if not each.full]
        answering = [each for each in with_room if not each.silent]
        if answering:
            return answering[turn % len(answering)]
        if any(not each.silent for each in connected):
            return None  # it answers, and will have room
        return min(with_room, key=lambda each: len(each.unanswered), default=None)

    def put_back(self, publishes: Iterable[Any], lost: Endpoint | None) -> None:
        """Send again, in order, what a lost or silent nsqd did not take."""
        for publish in publishes:
            self.send(publish)

    def on_room(self, endpoint: Endpoint) -> None:
        """Send the publishes that wait, in order, as long as a node takes them."""
        waiting = self._waiting
        while waiting and (waiting[0].done() or self._send_now(waiting[0])):
            waiting.popleft()

    def goes_elsewhere(self, publish: RoutedPublish, endpoint: Endpoint) -> bool:
        """Return whether a node is connected and not silent."""
        return any(not node.silent for node in self._connected)

    def waiting(self) -> list[Publish]:
        """Return the publishes that wait."""
        return list(self._waiting)

    def forget_done(self) -> None:
        """Drop waiting publishes that have their outcome."""
        waiting = [publish for publish in self._waiting if not publish.done()]
        self._waiting.clear()
        self._waiting.extend(waiting)


def _spend_retry(publish: Publish) -> None:
    publish.retries -= 1
    publish.sent = publish.in_doubt = True
