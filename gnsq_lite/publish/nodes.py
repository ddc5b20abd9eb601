"""The nsqds of a Writer in the loop: a pipelined connection to each nsqd or partition, and turns over the nsqds.

nsqd answers publishes in the order in which it reads them.  Therefore each answer belongs to the oldest unanswered
publish (PUB-2).  Most reads contain only OKs, which the hub handles without a switch to the connection's greenlet.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from gnsq_lite.clock import Clock
from gnsq_lite.dialect import Endpoint, Router
from gnsq_lite.errors import (
    ConnectionLost,
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
from gnsq_lite.publish.nsqds import Nsqds
from gnsq_lite.publish.publication import Outcomes, Publish, after_loss
from gnsq_lite.publish.settings import REROUTED, ProducerSettings
from gnsq_lite.wire.constants import OK
from gnsq_lite.wire.frames import OK_BYTES, count_oks

log = logging.getLogger("gnsq_lite.writer")

#: If no publish is unanswered and nothing was read for this many seconds, send_publish() first checks for EOF (PUB-3).
_STALE = 0.001


class NodeOwner(Protocol):
    """The part of the Writer's core that a node uses.  A node calls the methods in the loop's thread."""

    loop: Loop
    settings: ProducerSettings
    clock: Clock
    rng: random.Random
    outcomes: Outcomes
    error_log: ErrorLog
    router: Router
    nodes: dict[Endpoint, Node]
    nsqds: Nsqds
    #: The nodes that have a connection after its handshake.
    connected: list[Node]
    #: Whether all connections are closed permanently.
    ended: bool
    reconnects: int

    def on_connected(self, node: Node) -> None:
        """Use *node*, which has just connected."""

    def on_disconnected(self, node: Node) -> None:
        """Stop using *node*, whose connection has ended.  The connection may have ended in its handshake."""

    def on_lost(self, node: Node, error: NSQError, unsent: Iterable[Publish]) -> None:
        """Handle the loss of a connection.  *unsent* are the publishes that must be sent again, in order."""

    def on_refused(self, publish: Publish, error: NsqdError, endpoint: Endpoint) -> None:
        """Handle the refusal of a publish."""

    def on_silent_answered(self, node: Node, in_time: bool) -> None:
        """Handle an answer of a silent node.  *in_time* is true if the answered publish had no outcome before."""

    def has_other(self, node: Node) -> bool:
        """Return whether another nsqd is connected and not silent."""


class Pipeline(Connection):
    """A connection with any number of unanswered publishes.  Call all methods in the loop's thread."""

    outlives = REROUTED

    def __init__(self, node: Node, owner: NodeOwner, target: Target) -> None:
        super().__init__(owner.loop, target, owner.settings.connection, node, owner.clock)
        self._node, self._unanswered, self._owner, self._silent = node, node.unanswered, owner, node.nsqd.silent
        #: Whether a frame is incomplete, or :meth:`run` has not begun.
        self._partial = True
        #: Number of bytes that may be sent before :meth:`_has_room` counts the unsent bytes again.
        self._room = MOST_UNSENT

    def run(self) -> None:
        """Read until the connection ends, and raise the reason, an NSQError.  Blocks the greenlet."""
        if self._stream is not None:
            self._stream.reads_after_write_error = True
            self._stream.on_drained = self._regain_room
            if self._codec is None:
                self._stream.offer(self._take_oks)
        super().run()

    def send_publish(self, publish: Publish) -> bool:
        """Send a publish, unless it already has its outcome.

        Return False and send nothing if the connection has ended or has too many unsent bytes.  The router then sends
        the publish to another node, or holds it.
        """
        unanswered = self._unanswered
        command = publish.data or publish.command()
        stream: Any = self._stream
        if self._room < 0 and not self._has_room():
            return False
        if stream.closed is not None or (
            not unanswered and self.clock.now() - self.read_at > _STALE and stream.has_ended()
        ):
            self._node.on_disconnected(self)  # the greenlet of the connection will detect the end later
            return False
        publish.sent = True  # before the read of _done: a thread that gives up sets _done and then reads sent
        if publish._done:
            return True
        unanswered.append(publish)
        if len(unanswered) > 1 or self._out:  # write several commands together, but a single command at once
            self._room -= len(command)
            self._out.append(command)  # inlined from send(), for speed
            if not self._due:
                self._due = True
                self.loop.soon(self._flush)
        elif self._codec is None:
            stream.write(command)
        else:
            self._emit(command)
        return True

    def _has_room(self) -> bool:
        """Return whether the node may take more bytes.  Mark it as full if its unsent bytes exceed the limit."""
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
        """If the node was full, let the router send held publishes.  Call this method in the hub."""
        if self._node.full:
            self._node.full = False
            self._owner.router.on_room(self.endpoint)

    def _deliver(self, data: bytes) -> None:
        self._partial = True
        super()._deliver(data)
        self._partial = self._decoder.pending_bytes > 0

    def _take_oks(self, data: bytes) -> bool:
        """Settle a publish for each OK in *data*, in the hub.  Return False if the greenlet must handle *data*."""
        unanswered = self._unanswered
        count = 1 if data == OK_BYTES else count_oks(data)
        if self._partial or self._silent or not 0 < count <= len(unanswered):
            return False
        succeeded = self._node.succeeded
        for _ in range(count):
            succeeded(unanswered.popleft())
        self.read_at = self.clock.now()
        return True


class Node:
    """An nsqd, or one partition of an nsqd, with at most one connection."""

    def __init__(self, owner: NodeOwner, endpoint: Endpoint) -> None:
        self._owner, self.endpoint = owner, endpoint
        self.succeeded = owner.outcomes.succeeded
        self.link = Link[Connection](endpoint, self, owner.settings.reconnect, owner.rng, log)
        #: The connection, from the end of its handshake until it ends; otherwise None.
        self.connection: Any = None
        #: Publishes that nsqd has not answered, the oldest first.  They stay here even after their deadline.
        self.unanswered: deque[Publish] = deque()
        self.error: NSQError | None = None
        self.task: Any = None
        #: What the Writer knows of the nsqd.
        self.nsqd = owner.nsqds.get(endpoint)
        #: The oldest unanswered publish at the last call of ``check_nodes()``.
        self.seen: Publish | None = None
        #: Whether the connection has too many unsent bytes.
        self.full = False

    def is_silent(self) -> bool:
        """Return whether the oldest publish of this node is unanswered for too long (PUB-4)."""
        return self in self.nsqd.silent

    def why_not(self) -> NSQError | str | None:
        """Return the known reason why the node accepts no publishes now, or None."""
        if self.connection is None:
            return self.error or f"{self.endpoint}: no connection yet"
        return f"{self.endpoint}: connected, and accepts no more bytes" if self.full else None

    # -- called by the connection

    def on_response(self, connection: Connection, body: bytes) -> None:
        """Settle the oldest publish: *body* is OK or a receipt.  Raises ProtocolError for an unexpected response."""
        if not self.unanswered:
            raise ProtocolError(f"an answer without a publish: {body[:50]!r}")
        receipt = None if body == OK else self._owner.settings.dialect.receipt(body)
        self.succeeded(self._answered(), receipt)

    def on_error_frame(self, connection: Connection, error: NsqdError) -> None:
        """Handle the refusal of the oldest publish.  If no other is due and *error* closes connections, raise it."""
        if not self.unanswered:
            self._owner.error_log.add(error)
            return
        publish = self._answered()
        if error.is_exiting:  # nsqd closes the connection, and may not read what is sent from now on
            self.on_disconnected(connection)
        self._owner.on_refused(publish, error, self.endpoint)
        if error.closes_connection and not self.unanswered:
            raise error

    def _answered(self) -> Publish:
        publish = self.unanswered.popleft()
        if self.is_silent():
            self._owner.on_silent_answered(self, in_time=not publish.done())
        return publish

    # -- called by the link

    def make_connection(self) -> Connection:
        """Return a new connection.  Raises NSQError if the user's address map fails."""
        settings = self._owner.settings
        target = Target(
            endpoint=self.endpoint,
            identify_extra=settings.dialect.identify_extra("", self.endpoint),
            check_server=settings.dialect.check_server,
            connect_to=mapped(settings.address_map, self.endpoint),
        )
        return Pipeline(self, self._owner, target)

    def is_over(self) -> bool:
        """Return whether the Writer was closed or reset, or does not use this node any more."""
        return self._owner.ended or self._owner.nodes.get(self.endpoint) is not self

    def on_connected(self, connection: Connection) -> None:
        """Use *connection*, whose handshake has ended."""
        self.connection, self.error, self.full = connection, None, False
        self._owner.on_connected(self)

    def on_disconnected(self, connection: Connection) -> None:
        """Drop *connection*, which has ended."""
        self._owner.on_disconnected(self)
        self.connection = None

    def on_lost(self, reason: NSQError) -> Again:
        """Settle the unanswered publishes, or let the router send them again, in order.

        An error frame as *reason* answers the oldest publish, and nsqd has not read the later publishes.  If *reason*
        is another error, nsqd may have read all publishes.  The pauses before reconnections grow, unless *reason*
        refused a publish (for example because the disk is full) and no other nsqd can be used.
        """
        is_news = str(reason) != str(self.error)
        self.error = reason
        self._owner.error_log.add(reason, is_news=is_news, extra={"nsqd": str(self.endpoint)})
        publishes = deque(self.unanswered)
        self.unanswered.clear()
        is_refusal = isinstance(reason, NsqdError)
        refused = publishes.popleft() if is_refusal and publishes else None
        unsent: list[Publish] = []
        for publish in publishes:
            if not publish.done():
                error = after_loss(publish, reason, is_unread=is_refusal)
                if error is None:
                    unsent.append(publish)
                else:
                    self._owner.outcomes.failed_with(publish, error)
        if refused is not None and isinstance(reason, NsqdError):
            self._owner.on_refused(refused, reason, self.endpoint)  # first, because it is the oldest publish
        self._owner.on_lost(self, reason, unsent)
        return Again.SOON if refused is not None and not self._owner.has_other(self) else Again.LATER

    def on_retry(self) -> None:
        """Count the reconnection that follows."""
        self._owner.reconnects += 1

    def disconnect_if_silent(self) -> None:
        """Close the connection if the node is silent.  :meth:`on_lost` then settles or resends the publishes."""
        if self.is_silent() and self.connection is not None:
            self.connection.close(ConnectionLost(self.connection.address, "silent, but another nsqd can be used"))

    def close(self) -> None:
        """Disconnect permanently, and fail the unanswered publishes with OutcomeUnknown."""
        if self.connection is not None:
            self.connection.close(ConnectionLost(self.connection.address, "the Writer was closed"))
        why = "the Writer was closed before the answer came"
        for publish in tuple(self.unanswered):
            self._owner.outcomes.failed_with(publish, OutcomeUnknown(why))
        if self.task is not None and self.task is not current_greenlet():
            self.task.kill(block=False)


class Rotation(Router):
    """A router that sends publishes to the nsqds in turn.  Call all methods in the loop's thread.

    The router skips silent and failed nsqds (PUB-4), and nsqds with too many unsent bytes.  If all connected nsqds are
    silent or have failed, the router chooses the nsqd with the fewest unanswered publishes.
    """

    def __init__(self, owner: NodeOwner) -> None:
        self._owner, self._settings, self._outcomes = owner, owner.settings, owner.outcomes
        self._loop, self._now, self._connected = owner.loop, owner.clock.now, owner.connected
        #: The held publishes, which no node could accept yet, in order.
        self._waiting: deque[Publish] = deque()
        self._turn = 0

    def publish(self, topic: str, body: bytes, timeout: float) -> Any:
        """Publish one message and wait.  Call this method in a greenlet of the loop's thread, with a checked body.

        Raises the publish's error, and InvalidName.
        """
        with self._loop.guard:
            publish = self._outcomes.begin(topic, body, timeout, self._settings.retries)
            self.send(publish)
        return publish.wait_in(current_greenlet())

    def send(self, publish: Any) -> None:
        """Send a publish to the next node, or hold it until a node accepts it."""
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
            if not (node.nsqd.silent or node.full or node.nsqd.failed_until):
                return node
        now = self._now()
        with_room = [each for each in connected if not each.full]
        answering = [each for each in with_room if not each.nsqd.is_avoided(now)]
        if answering:
            return answering[turn % len(answering)]
        if any(not each.nsqd.is_avoided(now) for each in connected):
            return None  # wait for a node that is full, and neither silent nor failed
        return min(with_room, key=lambda each: len(each.unanswered), default=None)

    def put_back(self, publishes: Iterable[Any], lost: Endpoint) -> None:
        """Send *publishes* again, in order.  The lost nsqd has not confirmed them."""
        for publish in publishes:
            self.send(publish)

    def on_room(self, endpoint: Endpoint) -> None:
        """Send the held publishes, in order, as long as a node accepts them."""
        waiting = self._waiting
        while waiting and (waiting[0].done() or self._send_now(waiting[0])):
            waiting.popleft()

    def waiting(self) -> list[Publish]:
        """Return the held publishes."""
        return list(self._waiting)

    def forget_done(self) -> None:
        """Drop the held publishes that have an outcome."""
        waiting = [publish for publish in self._waiting if not publish.done()]
        self._waiting.clear()
        self._waiting.extend(waiting)
