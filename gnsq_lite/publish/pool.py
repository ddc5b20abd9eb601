"""Publishes from plain threads: a publish takes a connection from the pool, sends, reads the answer, and puts it back.

A plain thread is a native thread without a gevent hub in a process that is not monkey-patched.  The pool decides under
its lock, and connects, sends, reads and closes without the lock.  An exception during a publish closes the connection
of this publish.  Either a thread or the idle queue holds a connection.  The node counts connections by weak references,
so it does not count a connection that an exception left behind.

The pool never waits for a node and never retries.  If no node is usable, if no connection is free, or if a publish must
be sent again, the pool returns the publish to the loop, which waits and retries.
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
from gnsq_lite.net.at_exit import PATIENCE
from gnsq_lite.net.blocking_connection import BlockingConnection, DeadlinePassed
from gnsq_lite.net.connection import connection_stats
from gnsq_lite.net.io_thread import look_for_fork, on_fork
from gnsq_lite.net.os_threads import native_lock, start_native_thread
from gnsq_lite.net.settings import mapped
from gnsq_lite.net.waiting import Completion
from gnsq_lite.options import Address
from gnsq_lite.publish.publication import Publish, not_reached
from gnsq_lite.publish.settings import ProducerSettings
from gnsq_lite.stats import WriterStats
from gnsq_lite.wire.constants import OK

#: Seconds after which an idle connection is closed.  The pool checks when a publish returns another connection.
IDLE = 60.0
#: Seconds without an answer after which a node is silent.  Also the time limit to connect if there are other nodes.
SILENT_AFTER = 1.0
#: Seconds for which the pool does not use a node after a failure.  The loop tries the node more often.
REST = 5.0
#: Seconds between two checks whether a node is silent.
_LOOK_AGAIN = 0.1
#: Seconds between two checks whether all publishes have an outcome.
_POLL = 0.005


@dataclass(slots=True)
class Left:
    """Result of the pool for a publish that the loop must do."""

    #: Number of retries left after an unknown outcome; whether nsqd may have the publish from the pool's attempt.
    retries: int
    in_doubt: bool = False


class PoolNode:
    """An nsqd of the pool with its blocking connections.  ``idle`` ends with the connection that was used last."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        #: Connections that are idle, in use, or being opened.
        self.connections: WeakSet[BlockingConnection] = WeakSet()
        self.idle: deque[BlockingConnection] = deque()
        #: Time until which the pool does not use the node after a failure; 0.0: no failure.
        self.rests_until = 0.0
        #: Whether the oldest publish is unanswered for too long; time of the next check.
        self.is_silent, self.look_at = False, 0.0
        self.is_removed = False

    def busy(self) -> list[BlockingConnection]:
        """Return the connections in use by a publish."""
        return [each for each in self.connections if each.busy_since]

    def is_usable(self, now: float) -> bool:
        """Return whether to prefer this node: it does not rest after a failure, and is not silent."""
        if now >= self.look_at:
            self.look_at = now + _LOOK_AGAIN
            oldest = min((each.busy_since for each in self.busy()), default=now)
            self.is_silent = now - oldest > SILENT_AFTER
        return now >= self.rests_until and not self.is_silent


class Pool:
    """A Writer's blocking connections.

    Args:
        connect: Function that makes a connection to an endpoint, without opening the connection.
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
        #: Nodes that get any publish, in turn.  The pool's other nodes get only publishes to partitions that they lead.
        self._in_turn: list[PoolNode] = []
        self._turn = 0
        _pools.add(self)
        #: Whether the pool ever began to open a connection.
        self.is_used = False
        #: New publishes are refused.
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
        """Return whether to prefer other nodes for a publish that another node can accept too."""
        node = self._nodes.get(endpoint.address)
        if node is None:
            return False
        with self._lock:
            return not node.is_usable(self._now())

    # -- publishing

    def carry(self, publish: Publish, leader: Endpoint | None = None) -> Any:
        """Call :meth:`publish` with the fields of a Publish object."""
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
        """Send *command* with *count* messages, and wait; return the receipt, or a Left if the loop must publish.

        Args:
            leader: The only node that can accept the publish; None: any node can.
            deadline: Monotonic time at which the *timeout* ends; None: *timeout* seconds from now.
        Raises:
            ClosedError, NotSent, OutcomeUnknown, PublishTimeout, NsqdError: as ``Writer.publish()``.
        """
        if self.closing:
            raise ClosedError("the Writer was closed")
        now = self._now()
        seconds = timeout if deadline is None else deadline - now
        deadline = now + seconds
        retries = self._settings.retries
        try:
            found = self._check_out(leader, now, deadline)
        except NSQError as error:  # the deadline has passed
            raise self._count_failure(not_reached(topic, timeout, [error]), count) from error
        if found is None:
            return Left(retries)
        node, connection = found
        try:
            body = connection.exchange(command, seconds, deadline)
            receipt = None if body == OK else self._settings.dialect.receipt(body)
        except NsqdError as error:
            if error.closes_connection:
                self._discard(node, connection)
                self._let_rest(node)  # nsqd's disk may be full
            else:
                self._check_in(node, connection)
            if leader is not None and self._settings.dialect.should_reroute(error):
                return Left(retries)
            raise self._count_failure(error, count) from None
        except DeadlinePassed as error:
            if self._now() - connection.busy_since > SILENT_AFTER:
                self._let_rest(node)
            self._discard(node, connection)
            why = f"no answer to the publish to {topic} within {timeout:g} s"
            unsent = not_reached(topic, timeout, [f"{node.endpoint}: accepts no bytes"])
            raise self._count_failure(PublishTimeout(why) if connection.is_sent else unsent, count) from error
        except NSQError as error:
            self._discard(node, connection)
            self._close_ended(node)
            if not connection.is_sent:
                return Left(retries)
            if retries > 0:
                return Left(retries - 1, in_doubt=True)
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
        """Return a node and an open connection to it without unread bytes; None if the loop must do the publish.

        Raises NSQError if opening the connection failed and the deadline has passed.
        """
        node = self._next_node(now) if leader is None else self._leading(leader, now)
        if node is None:
            return None
        while node.idle:
            try:
                connection = node.idle.pop()
            except IndexError:  # another thread was faster
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
        """Return the next node in turn; None if no node is usable now."""
        nodes = self._in_turn
        self._turn = turn = self._turn + 1
        if nodes:
            node = nodes[turn % len(nodes)]
            if now >= node.rests_until and (len(nodes) == 1 or (now < node.look_at and not node.is_silent)):
                return node  # without the lock: this is the most common case
        with self._lock:
            usable = [each for each in nodes if each.is_usable(now)]
        usable = usable or [each for each in nodes if now >= each.rests_until]  # use silent nodes if there is no other
        return usable[turn % len(usable)] if usable else None

    def _leading(self, leader: Endpoint, now: float) -> PoolNode | None:
        with self._lock:
            node = self._node(leader)
        return node if now >= node.rests_until else None

    def _open(self, node: PoolNode, now: float, deadline: float) -> BlockingConnection | None:
        """Open a connection.  If this fails, let the node rest and return None.

        If it fails after the deadline, raise the NSQError of the failure.
        """
        _warn_in_asyncio()  # here, because publishes seldom open a connection
        with self._lock:
            if now < node.rests_until or len(node.connections) >= self.max_connections:
                return None
            if node.rests_until:  # after a failure only one thread tries the node
                node.rests_until = now + REST
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
        except NSQError:
            self._let_rest(node)
            self._discard(node, connection)
            if self._now() < deadline:
                return None
            raise
        except BaseException:
            self._discard(node, connection)
            raise
        node.rests_until = 0.0
        return connection

    def _let_rest(self, node: PoolNode) -> None:
        node.rests_until = self._now() + REST
        self._close(node, self._take_idle(node))

    # -- return

    def _check_in(self, node: PoolNode, connection: BlockingConnection, count: int = 0) -> None:
        """Put *connection* into the idle queue after nsqd's answer; close one connection that was idle too long."""
        connection.published += count
        connection.busy_since = 0.0
        node.idle.append(connection)
        if self._closed or node.is_removed or node.rests_until:
            self._close(node, self._take_idle(node))
            return
        try:
            if node.idle[0].read_at < connection.read_at - IDLE:
                self._close(node, [node.idle.popleft()])
        except IndexError:  # another thread was faster
            pass

    def _close_ended(self, node: PoolNode) -> None:
        """Close the idle connections that have ended or have unread bytes."""
        for connection in self._take_idle(node):
            if connection.is_quiet():
                node.idle.append(connection)
            else:
                self._close(node, [connection])

    def _take_idle(self, node: PoolNode) -> list[BlockingConnection]:
        """Remove and return all idle connections, in order of use.  Other threads may add connections meanwhile."""
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
            connection.close(goodbye=True)

    def _discard(self, node: PoolNode, connection: BlockingConnection) -> None:
        """Close a connection that has ended, or on which an answer may still arrive."""
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

    # -- the whole

    def connections(self) -> list[BlockingConnection]:
        """Close idle connections that have ended; return all open connections."""
        for node in list(self._nodes.values()):
            self._close_ended(node)
        with self._lock:
            return [each for node in self._nodes.values() for each in node.connections if each.opened_at]

    def stats(self, loop: WriterStats, state: str | None) -> WriterStats:
        """Add the pool's statistics to the loop's statistics *loop*.  *state* is "idle", "closed" or None."""
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
        """Return the number of publishes without an outcome."""
        with self._lock:
            return sum(len(node.busy()) for node in self._nodes.values())

    def drain(self, seconds: float) -> bool:
        """Wait at most *seconds* until all publishes have an outcome; return whether all have an outcome."""
        ends = self._now() + seconds
        while self.pending():
            if self._now() >= ends:
                return False
            Completion().wait(_POLL)
        return True

    def close(self, seconds: float, *, wait: bool = True) -> None:
        """Refuse new publishes, wait at most *seconds* for running publishes, and close all connections.

        With ``wait=False`` a new thread waits and closes, and this call takes no lock: it is safe in a signal handler.
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
        for connection in busy:  # the publishing thread closes the connection
            connection.shut_down()

    def abandon(self) -> None:
        """Close the descriptors in a forked child, because the parent still uses the connections."""
        for node in self._nodes.values():
            for connection in list(node.connections):
                connection.close()


_pools: WeakSet[Pool] = WeakSet()


@atexit.register
def _close_pools() -> None:
    """When Python exits, wait for the outcomes of publishes in daemon threads."""
    look_for_fork()
    ends = SYSTEM_CLOCK.now() + PATIENCE
    for pool in list(_pools):
        pool.close(max(0.0, ends - SYSTEM_CLOCK.now()))


on_fork(_pools.clear)


def _warn_in_asyncio() -> None:
    """Warn if the calling thread runs an asyncio event loop, because a publish blocks all tasks of the event loop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        said = (
            "a publish blocks the asyncio event loop of this thread: use await asyncio.to_thread(writer.publish, ...)"
        )
        warnings.warn(said, RuntimeWarning, stacklevel=2)
