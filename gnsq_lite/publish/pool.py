"""Publishes from plain threads, with blocking connections from a pool.

A plain thread is a native thread without a gevent hub in a process that is not monkey-patched.  It takes a connection
from the pool, sends the command, reads the answer, and puts the connection back.  The pool changes its tables under a
lock, but connects, sends, reads and closes without the lock.  An exception during a publish closes the connection.  The
pool refers to a connection in use only weakly, so a connection that an exception has leaked does not count.

The pool neither waits for a node nor retries.  The loop does the publish if no node can be used, if the chosen node has
``max_connections`` connections and none is idle, or if the publish must be sent again.
"""

from __future__ import annotations

import atexit
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import (
    ClosedError,
    NsqdError,
    NSQError,
    OutcomeUnknown,
    PublishTimeout,
)
from gnsq_lite.net.at_exit import TIME_LIMIT
from gnsq_lite.net.blocking_connection import BlockingConnection, DeadlinePassed
from gnsq_lite.net.connection import connection_stats
from gnsq_lite.net.dialing import is_local
from gnsq_lite.net.io_thread import look_for_fork, on_fork
from gnsq_lite.net.os_threads import native_lock, start_native_thread
from gnsq_lite.net.settings import mapped
from gnsq_lite.net.waiting import Completion
from gnsq_lite.options import Address
from gnsq_lite.publish.publication import Publish, not_reached
from gnsq_lite.publish.settings import ProducerSettings
from gnsq_lite.stats import WriterStats
from gnsq_lite.wire.constants import OK

#: Seconds after which an idle connection is closed.  The pool checks this when a publish returns its connection.
IDLE = 60.0
#: Seconds after which a node with an unanswered publish is silent.  If there are other nodes, connecting to a node
#: takes at most the same time.
SILENT_AFTER = 1.0
#: Seconds for which the pool does not use a node after a failure.  The loop tries to connect more often.
RETRY_AFTER = 5.0
#: Seconds between two checks whether a node is silent.
_CHECK_EVERY = 0.1
#: Seconds between two checks whether all publishes have an outcome.
_POLL = 0.005


@dataclass(slots=True)
class ForLoop:
    """Result of the pool for a publish that the loop must do."""

    #: How many more times the publish may be sent again after an unknown outcome.
    retries: int
    #: Whether the pool sent the publish and got no answer.
    in_doubt: bool = False


class PoolNode:
    """One nsqd, and the pool's blocking connections to it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        #: Connections that are idle, in use, or being opened.
        self.connections: WeakSet[BlockingConnection] = WeakSet()
        #: The idle connections.  The last one was used most recently and is used next.
        self.idle: deque[BlockingConnection] = deque()
        #: After a failure, the time until which the pool does not use the node; otherwise 0.0.
        self.retry_at = 0.0
        #: Whether the oldest publish is unanswered for too long, and the time of the next check.
        self.is_silent, self.check_at = False, 0.0
        self.is_removed = False

    def busy(self) -> list[BlockingConnection]:
        """Return the connections that publishes use now."""
        return [each for each in self.connections if each.busy_since]

    def is_usable(self, now: float) -> bool:
        """Return whether the node is not silent, and had no failure in the last RETRY_AFTER seconds."""
        if now >= self.check_at:
            self.check_at = now + _CHECK_EVERY
            oldest = min((each.busy_since for each in self.busy()), default=now)
            self.is_silent = now - oldest > SILENT_AFTER
        return now >= self.retry_at and not self.is_silent


class Pool:
    """A Writer's blocking connections.

    Args:
        connect: Makes a connection to an endpoint, but does not open it.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        clock: Clock = SYSTEM_CLOCK,
        connect: Callable[[Endpoint], BlockingConnection] | None = None,
    ) -> None:
        self._settings, self._clock, self._now = settings, clock, clock.now
        check = settings.dialect.check_server
        self._connect = connect or (lambda endpoint: BlockingConnection(endpoint, settings.connection, clock, check))
        #: Maximum connections to one node.
        self.max_connections = settings.max_connections
        self._lock = native_lock()
        self._nodes: dict[Address, PoolNode] = {}
        #: Nodes that get publishes in turn.  All other nodes get only publishes to the partitions that they lead.
        self._in_turn: list[PoolNode] = []
        self._turn = 0
        _pools.add(self)
        #: Whether the pool has ever tried to open a connection.
        self.is_used = False
        #: ``closing``: the pool refuses new publishes.  ``_closed``: the pool closes each connection after its publish.
        self.closing = self._closed = False
        self._published = self.failed = self.unknown = self.reconnects = 0

    # -- nodes

    def add(self, endpoints: Iterable[Endpoint]) -> None:
        """Use *endpoints* in turn for publishes, in addition to the earlier endpoints."""
        with self._lock:
            for endpoint in endpoints:
                node = self._node(endpoint)
                if node not in self._in_turn:
                    self._in_turn = [*self._in_turn, node]

    def remove(self, endpoints: Iterable[Endpoint]) -> None:
        """Stop using *endpoints*, and close their idle connections."""
        with self._lock:
            nodes = [node for each in endpoints if (node := self._nodes.pop(each.address, None)) is not None]
            self._in_turn = [each for each in self._in_turn if each not in nodes]
        for node in nodes:
            node.is_removed = True
            self._close(node, self._take_idle(node))

    def _node(self, endpoint: Endpoint) -> PoolNode:
        node = self._nodes.get(endpoint.address)
        if node is None:
            node = self._nodes[endpoint.address] = PoolNode(Endpoint(endpoint.host, endpoint.port))
        return node

    def avoids(self, endpoint: Endpoint) -> bool:
        """Return whether the node of *endpoint* is silent, or had a failure in the last RETRY_AFTER seconds."""
        node = self._nodes.get(endpoint.address)
        if node is None:
            return False
        with self._lock:
            return not node.is_usable(self._now())

    # -- publishing

    def carry(self, publish: Publish, leader: Endpoint | None = None) -> Any:
        """Send the command of *publish*, and return the result of :meth:`publish`."""
        topic, timeout, count, deadline = publish.topic, publish.timeout, publish.count, publish.deadline
        return self.publish(topic, publish.command(), timeout, count, leader=leader, deadline=deadline)

    def publish(
        self,
        topic: str,
        command: bytes,
        timeout: float,
        count: int = 1,
        *,
        leader: Endpoint | None = None,
        deadline: float | None = None,
    ) -> Any:
        """Send *command*, which has *count* messages, and return the receipt, or a ForLoop if the loop must publish.

        Args:
            leader: The only node that can accept the publish, or None if any node can.
            deadline: Monotonic time of the deadline, or None for *timeout* seconds from now.
        Raises:
            ClosedError, NotSent, OutcomeUnknown, PublishTimeout, NsqdError: See ``Writer.publish()``.
        """
        if self.closing:
            raise ClosedError("the Writer was closed")
        now = self._now()
        seconds = timeout if deadline is None else deadline - now
        deadline = now + seconds
        retries = self._settings.retries
        try:
            found = self._check_out(leader, now, deadline)
        except NSQError as error:  # no connection could be opened before the deadline
            raise self._count_failure(not_reached(topic, timeout, [error]), count) from error
        if found is None:
            return ForLoop(retries)
        node, connection = found
        try:
            body = connection.exchange(command, seconds, deadline)
            receipt = None if body == OK else self._settings.dialect.receipt(body)
        except NsqdError as error:
            if error.closes_connection:
                self._discard(node, connection)
                self._retry_later(node)  # nsqd's disk may be full
            else:
                self._check_in(node, connection)
            if leader is not None and self._settings.dialect.should_reroute(error):
                return ForLoop(retries)
            raise self._count_failure(error, count) from None
        except DeadlinePassed as error:
            if self._now() - connection.busy_since > SILENT_AFTER:
                self._retry_later(node)
            self._discard(node, connection)
            why = f"no answer to the publish to {topic} within {timeout:g} s"
            unsent = not_reached(topic, timeout, [f"{node.endpoint}: connected, and accepts no more bytes"])
            raise self._count_failure(PublishTimeout(why) if connection.is_sent else unsent, count) from error
        except NSQError as error:
            self._discard(node, connection)
            self._close_ended(node)
            if not connection.is_sent:
                return ForLoop(retries)
            if retries > 0:
                return ForLoop(retries - 1, in_doubt=True)
            why = "the Writer was closed" if self._closed else f"the connection was lost: {error}"
            unknown = OutcomeUnknown(f"no answer came, so the outcome is unknown: {why}")
            raise self._count_failure(unknown, count) from error
        except BaseException:
            self._discard(node, connection)
            self._count_failure(OutcomeUnknown(""), count)
            raise
        self._check_in(node, connection, count)
        return receipt

    # -- checkout

    def _check_out(
        self, leader: Endpoint | None, now: float, deadline: float
    ) -> tuple[PoolNode, BlockingConnection] | None:
        """Return a node and an open connection without unread bytes, or None if the loop must do the publish.

        Raises NSQError if the pool could not open a connection before the deadline.
        """
        node = self._next_node(now) if leader is None else self._leading(leader, now)
        if node is None:
            return None
        while node.idle:
            try:
                connection = node.idle.pop()
            except IndexError:  # another thread has taken the last connection
                break
            connection.busy_since = connection.read_at = now
            if connection.is_quiet():
                return node, connection
            self.reconnects += 1
            self._discard(node, connection)
            self._close_ended(node)
        opened = self._open(node, now, deadline)
        return None if opened is None else (node, opened)

    def _next_node(self, now: float) -> PoolNode | None:
        """Return the next node in turn, or None if the pool can use no node now."""
        nodes = self._in_turn
        self._turn = turn = self._turn + 1
        if nodes:
            node = nodes[turn % len(nodes)]
            if now >= node.retry_at and (len(nodes) == 1 or (now < node.check_at and not node.is_silent)):
                return node  # the most common case needs no lock
        with self._lock:
            usable = [each for each in nodes if each.is_usable(now)]
        usable = usable or [each for each in nodes if now >= each.retry_at]  # if all nodes are silent, use silent nodes
        return usable[turn % len(usable)] if usable else None

    def _leading(self, leader: Endpoint, now: float) -> PoolNode | None:
        with self._lock:
            node = self._node(leader)
        return node if now >= node.retry_at else None

    def _open(self, node: PoolNode, now: float, deadline: float) -> BlockingConnection | None:
        """Open a connection, or return None if the node has too many connections or failed before the deadline.

        Raises NSQError if the node failed and the deadline has passed.
        """
        _warn_in_asyncio()  # only here, because most publishes open no connection
        with self._lock:
            if now < node.retry_at or len(node.connections) >= self.max_connections:
                return None
            if node.retry_at:  # after a failure only one thread tries the node
                node.retry_at = now + RETRY_AFTER
                self.reconnects += 1
            connection = self._connect(node.endpoint)
            connection.busy_since = connection.read_at = now
            node.connections.add(connection)
        self.is_used = True
        limit = deadline - now
        if len(self._in_turn) > 1:
            limit = min(limit / 2, SILENT_AFTER)
        try:
            address = mapped(self._settings.address_map, node.endpoint) or node.endpoint.address
            connection.open(address, limit, self._settings.dialect.identify_extra("", node.endpoint))
        except NSQError as error:
            if not is_local(error):  # without a free descriptor, the node's other connections can still be used
                self._retry_later(node)
            self._discard(node, connection)
            if self._now() < deadline:
                return None
            raise
        except BaseException:
            self._discard(node, connection)
            raise
        node.retry_at = 0.0
        return connection

    def _retry_later(self, node: PoolNode) -> None:
        node.retry_at = self._now() + RETRY_AFTER
        self._close(node, self._take_idle(node))

    # -- return

    def _check_in(self, node: PoolNode, connection: BlockingConnection, count: int = 0) -> None:
        """Make *connection* idle after nsqd's answer.  If another connection was idle for too long, close it."""
        connection.published += count
        connection.busy_since = 0.0
        node.idle.append(connection)
        if self._closed or node.is_removed or node.retry_at:
            self._close(node, self._take_idle(node))
            return
        try:
            if node.idle[0].read_at < connection.read_at - IDLE:
                self._close(node, [node.idle.popleft()])
        except IndexError:  # another thread has taken the last connection
            pass

    def _close_ended(self, node: PoolNode) -> None:
        """Close the idle connections that have ended or have unread bytes."""
        for connection in self._take_idle(node):
            if connection.is_quiet():
                node.idle.append(connection)
            else:
                self._close(node, [connection])

    def _take_idle(self, node: PoolNode) -> list[BlockingConnection]:
        """Remove and return all idle connections, in order of use.  Other threads may take some at the same time."""
        taken: list[BlockingConnection] = []
        while node.idle:
            try:
                taken.append(node.idle.popleft())
            except IndexError:
                break
        return taken

    def _close(self, node: PoolNode, connections: Iterable[BlockingConnection]) -> None:
        """Close idle connections."""
        for connection in connections:
            self._forget(node, connection)
            connection.close(close_notify=True)

    def _discard(self, node: PoolNode, connection: BlockingConnection) -> None:
        """Close a connection that no publish can use again."""
        self._forget(node, connection)
        connection.busy_since = 0.0
        connection.close()

    def _forget(self, node: PoolNode, connection: BlockingConnection) -> None:
        with self._lock:
            if connection in node.connections:
                node.connections.discard(connection)
                self._published += connection.published

    def _count_failure(self, error: NSQError, count: int) -> NSQError:
        with self._lock:
            if isinstance(error, OutcomeUnknown):
                self.unknown += count
            else:
                self.failed += count
        return error

    # -- statistics, and the end

    def connections(self) -> list[BlockingConnection]:
        """Close the idle connections that have ended, and return all open connections."""
        for node in list(self._nodes.values()):
            self._close_ended(node)
        with self._lock:
            return [each for node in self._nodes.values() for each in node.connections if each.opened_at]

    def stats(self, loop: WriterStats, state: str | None) -> WriterStats:
        """Add the pool's statistics to *loop*, the loop's statistics.  If *state* is None, derive the state."""
        now = self._now()
        connections = (*loop.connections, *(connection_stats(each, now) for each in self.connections()))
        with self._lock:
            used = [each for node in self._nodes.values() for each in node.connections]
            published = self._published + sum(each.published for each in used)
        return WriterStats(
            state=state or ("connected" if connections else "connecting"),
            connections=connections,
            pending=loop.pending + self.pending(),
            published=loop.published + published,
            failed=loop.failed + self.failed,
            unknown=loop.unknown + self.unknown,
            reconnects=loop.reconnects + self.reconnects,
            max_connections=self.max_connections,
        )

    def pending(self) -> int:
        """Return the number of publishes that use a connection of the pool now."""
        with self._lock:
            return sum(len(node.busy()) for node in self._nodes.values())

    def drain(self, seconds: float) -> bool:
        """Wait at most *seconds* until no publish uses a connection of the pool; return whether this is so."""
        ends = self._now() + seconds
        while self.pending():
            if self._now() >= ends:
                return False
            Completion().wait(_POLL)
        return True

    def close(self, seconds: float, *, wait: bool = True) -> None:
        """Refuse new publishes, wait at most *seconds* for running publishes, and close all connections.

        With ``wait=False`` a new thread waits and closes.  Signal handlers may do that, because the call takes no lock.
        """
        self.closing = True
        if not wait:
            if self.is_used:
                start_native_thread("gnsq_lite-close", lambda: self.close(seconds))
            return
        self.drain(seconds)
        with self._lock:
            self._closed = True
            nodes = list(self._nodes.values())
        for node in nodes:
            self._close(node, self._take_idle(node))
        with self._lock:
            busy = [each for node in nodes for each in node.connections]
        for connection in busy:  # each publishing thread then closes its connection
            connection.shut_down()

    def abandon(self) -> None:
        """Close the connections in a forked child without sending anything, because the parent still uses them."""
        for node in self._nodes.values():
            for connection in list(node.connections):
                connection.close()


_pools: WeakSet[Pool] = WeakSet()


@atexit.register
def _close_pools() -> None:
    """Close all pools when Python exits, because daemon threads may be publishing."""
    look_for_fork()
    ends = SYSTEM_CLOCK.now() + TIME_LIMIT
    for pool in list(_pools):
        pool.close(max(0.0, ends - SYSTEM_CLOCK.now()))


on_fork(_pools.clear)


def _warn_in_asyncio() -> None:
    """Warn if the calling thread runs an asyncio event loop, because a publish blocks all tasks of that loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        said = (
            "a publish blocks the asyncio event loop of this thread: use await asyncio.to_thread(writer.publish, ...)"
        )
        warnings.warn(said, RuntimeWarning, stacklevel=2)
