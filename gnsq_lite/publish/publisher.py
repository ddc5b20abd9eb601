"""The part of a Writer that runs in the loop.  A node pipelines publishes to one nsqd, or to one partition of an nsqd.

Each publish gets exactly one outcome.  An error frame answers the oldest publish, which fails or is sent again.  If
nsqd then closes the connection, nsqd has not read the later publishes, so the core sends them again.  If a connection
is lost without an error frame, the outcome of the unanswered publishes is unknown.  The core sends only those publishes
again that have retries left (PUB-2).

A node is *silent* if its oldest publish has passed its deadline, or has been unanswered for one to two seconds.  A
silent node gets no publish that another node can accept, until the node answers a publish in time, has answered all its
publishes, or reconnects (PUB-4).  The deadline timer and a check each second find silent nodes.  What the loop learns
of an nsqd is in :mod:`gnsq_lite.publish.nsqds`, where the threads read it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint, Lookup, Router
from gnsq_lite.errors import (
    ClosedError,
    ConnectionLost,
    NotSent,
    NSQConnectionError,
    NsqdError,
    NSQError,
    OutcomeUnknown,
)
from gnsq_lite.net.at_exit import close_at_exit
from gnsq_lite.net.connection import connection_stats
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.net.loop import Loop, NoPublishTask, current_greenlet, sleep
from gnsq_lite.net.user_hooks import ErrorLog
from gnsq_lite.net.waiting import in_hub
from gnsq_lite.policy.reconnect import why_hopeless
from gnsq_lite.publish.coalescing import REFUSED_MPUB, CoalescedPublish, Coalescing
from gnsq_lite.publish.nodes import Node, Rotation
from gnsq_lite.publish.nsqds import Nsqds
from gnsq_lite.publish.publication import Counts, Outcomes, Publication, Publish, not_reached, of_the_parent
from gnsq_lite.publish.settings import ProducerSettings
from gnsq_lite.publish.shared import SharedConnections
from gnsq_lite.stats import WriterStats

_CHECK_EVERY = 1.0
#: Error text of the connections and publishes that a reset ends.
_RESET = "an unexpected exception has ended all connections"


class WriterCore:
    """Publishes in the loop.  For plain threads it publishes only what they cannot send (:mod:`~.publish.shared`).

    Only ``carry_and_wait``, ``carry``, ``carry_nowait``, ``avoids`` and ``publish_to_leader`` are thread-safe.  Make
    the object in the loop's thread, and call all other methods there.
    """

    def __init__(
        self,
        loop: Loop,
        settings: ProducerSettings,
        nsqds: Nsqds,
        counts: Counts,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.loop, self.settings, self.clock, self.hub = loop, settings, clock, loop.hub
        #: What the loop and the threads know of the nsqds.
        self.nsqds = nsqds
        self.rng = random.Random()
        self.error_log = ErrorLog(logging.getLogger("gnsq_lite.writer"), clock)
        #: Whether the core refuses new publishes.  Earlier publishes may have no outcome yet.
        self.closing = False
        #: Whether all connections are closed permanently.
        self.ended = False
        self.reconnects = 0
        self.outcomes = Outcomes(loop, clock, settings.max_pending, self._expired, self._on_expired, counts)
        self._greenlets: list[Any] = []
        self._started = False
        self._set_up()
        close_at_exit(self)

    def _set_up(self) -> None:
        """Set the state that a reset replaces: nodes, router, discovery and coalescing."""
        self.nodes: dict[Endpoint, Node] = {}
        #: Nodes with an open connection, after its handshake.
        self.connected: list[Node] = []
        self._discoveries: list[Discovery] = []
        rotation = Rotation(self)
        #: Chooses the endpoint of each publish: the next node in turn, or the leader of a partition.
        self.router: Router = self.settings.dialect.router(self, self.settings.endpoints) or rotation
        self._takes_turns = self.router is rotation
        self._coalescing: Coalescing | None = None
        #: Called as publish(topic, body, timeout) in a greenlet of the loop's thread: sends to any node, and waits.
        self.publish: Callable[[str, bytes, float], Any] = rotation.publish
        if self.settings.coalesce and self._takes_turns:
            self._coalescing = Coalescing(self.loop, self.settings, self.clock, self.outcomes, rotation.send)
            self.publish = self._coalescing.publish

    def reset(self) -> None:
        """Close all connections, settle all publishes, and start again with new state (see ``Core`` in ``loop.py``)."""
        if self.ended:
            return
        for node in list(self.nodes.values()):
            node.link.close(ConnectionLost(str(node.endpoint), _RESET))
        self._stop()
        self._greenlets = []
        self._set_up()
        self.outcomes.reset(_RESET)
        if self._started:
            self._greenlets.append(self.loop.spawn("begin again", self._begin_again, kind=NoPublishTask))

    def _begin_again(self) -> None:
        self.loop.wait_after_reset()
        self._greenlets.clear()
        self._started = False
        self.start()

    def start(self) -> None:
        """Start to check the nodes each second.  With plain NSQ, connect to the given nsqds, and start discovery."""
        if self._started or self.closing:
            return
        self._started = True
        if self._takes_turns:
            self._connect(self.settings.endpoints)
            if self.settings.lookupds:
                waits = {"publish_waits": lambda: bool(self.router.waiting())}
                self._discover("", on_found=self._connect, on_forget=self._forget, **waits)
        self._greenlets.append(self.loop.spawn("writer-ticker", self._tick, kind=NoPublishTask))

    def _tick(self) -> None:
        while True:
            sleep(_CHECK_EVERY)
            self.check_nodes()

    def _discover(self, topic: str, **called: Callable[..., Any]) -> Discovery:
        """Start discovery of the nsqds of *topic*, or of all nsqds if *topic* is empty."""
        discovery = Discovery(self.settings, topic, "write", self.rng, self.clock, **called)
        self._discoveries.append(discovery)
        self._greenlets.append(self.loop.spawn(f"discovery {topic}", discovery.run, kind=NoPublishTask))
        return discovery

    # -- publishing, from any thread

    def carry_and_wait(self, publish: Publish) -> Any:
        """Publish, wait, and return the receipt.

        Raises ClosedError, the publish's error, and NotSent in the hub and in a NoPublishTask.
        """
        if in_hub() or isinstance(current_greenlet(), NoPublishTask):
            raise NotSent("a publish would block gevent's hub, or a greenlet that connects: use publish_nowait()")
        self.carry(publish)
        return publish.result()

    def carry_nowait(self, publish: Publish) -> Publication:
        """Start a publish in the background, and return a Publication.  Raises BacklogFull, ClosedError."""
        try:
            with self.loop.guard:
                self.outcomes.reserve(publish, len(publish.bodies[0]))
                self.carry(publish)
        except BaseException:
            self.loop.call_soon(lambda: self.outcomes.release(publish))
            raise
        return Publication(publish)

    def carry(self, publish: Publish) -> None:
        """Start a publish.  The loop sends it as soon as a node accepts it.

        Raises ClosedError after a call of close(), while Python exits, and if the loop belongs to the parent process.
        """
        if self.closing:
            raise ClosedError("the Writer was closed")
        publish.loop = self.loop
        if self.loop.is_here():
            with self.loop.guard:
                self.submit(publish)
            return
        self.loop.check()
        self.loop.call_behind(partial(self.submit, publish))

    def publish_to_leader(self, publish: Publish, threads: SharedConnections) -> bool:
        """Publish in a plain thread to the leader that the router chooses.

        Return False if the loop must do the publish, for example because no leader is known.
        """
        leader = self.router.leader(publish)
        if leader is not None:
            is_settled = threads.publish(publish, leader)
            if not is_settled or isinstance(publish._error, OutcomeUnknown):
                self.loop.call_soon(partial(self.router.look_again, leader))
            if is_settled:
                return True
        publish.data = b""
        return False

    # -- publishing, in the loop

    def submit(self, publish: Publish) -> None:
        """Send a publish, or hold it until a node accepts it."""
        if publish._done:  # the publishing thread has timed out
            self.outcomes.count_failure(publish)
            return
        if self.ended:
            self.outcomes.failed_with(publish, ClosedError("the Writer was closed"))
            return
        coalescing = self._coalescing
        if coalescing is not None:
            if not publish.batch and publish.request is None:
                coalescing.add(publish)
                return
            coalescing.send()  # earlier publishes go first
        self.outcomes.add(publish)
        self.router.send(publish)

    # -- the router's host

    def send_to(self, endpoint: Endpoint, publish: Publish) -> bool:
        """Send a publish, or return False if *endpoint* cannot accept the publish yet."""
        connection = self._node(endpoint).connection  # the first call for an endpoint starts to connect
        return connection is not None and bool(connection.send_publish(publish))

    def fail(self, publish: Publish, error: NSQError) -> None:
        """Settle a publish with an error."""
        self.outcomes.failed_with(publish, error)

    def look_up(
        self, topic: str, on_lookup: Callable[[Lookup], None], on_outage: Callable[[], None]
    ) -> Discovery | None:
        """Start discovery of *topic*, or return None if the Writer has no nsqlookupds."""
        if not self.settings.lookupds:
            return None
        return self._discover(topic, on_lookup=lambda address, lookup: on_lookup(lookup), on_outage=on_outage)

    def call_later(self, seconds: float, act: Callable[[], None]) -> Any:
        """Call *act* in the hub after *seconds*, and return the timer."""
        return self.loop.timer(seconds, act)

    def avoids(self, endpoint: Endpoint) -> bool:
        """Return whether the nsqd of *endpoint* is silent or has failed.  Thread-safe."""
        return self.nsqds.get(endpoint).is_avoided(self.clock.now())

    def owes(self, topic: str, partition: int) -> bool:
        """Return whether any publish to a partition is unanswered.  Disconnect each silent node with such a publish."""
        nodes = [node for node in list(self.nodes.values()) if node.endpoint.partition == partition]
        owing = [node for node in nodes if any(each.topic == topic and not each._done for each in node.unanswered)]
        for node in owing:
            node.disconnect_if_silent()
        return bool(owing)

    # -- nodes

    def _connect(self, endpoints: Sequence[Endpoint]) -> None:
        """Connect to nsqds, and use them for publishes in turn."""
        self.nsqds.add(endpoints)
        for endpoint in endpoints:
            self._node(endpoint)

    def _forget(self, endpoints: Sequence[Endpoint]) -> None:
        for nsqd in self.nsqds.remove(endpoints):
            nsqd.close_idle()
        for endpoint in endpoints:
            node = self.nodes.pop(endpoint, None)
            if node is not None:
                node.close()

    def _node(self, endpoint: Endpoint) -> Node:
        """Return the node of an endpoint.  If there is none, make a node and start to connect."""
        node = self.nodes.get(endpoint)
        if node is None:
            node = self.nodes[endpoint] = Node(self, endpoint)
            node.task = self.loop.spawn(f"writer {endpoint}", node.link.run, kind=NoPublishTask)
        return node

    def on_connected(self, node: Node) -> None:
        """Use the node for publishes, and send the held publishes."""
        self.nsqds.proven, node.nsqd.failed_until = True, 0.0
        node.nsqd.silent.discard(node)
        self.connected.append(node)
        for discovery in self._discoveries:
            discovery.connected(node.endpoint)
        self.router.on_room(node.endpoint)

    def on_disconnected(self, node: Node) -> None:
        """Stop sending publishes to the node, and notify discovery."""
        if node in self.connected:
            self.connected.remove(node)
            for discovery in self._discoveries:
                discovery.disconnected(node.endpoint)

    def on_lost(self, node: Node, error: NSQError, unsent: Iterable[Publish]) -> None:
        """Send *unsent* again, in order.  If no handshake ever succeeded or can succeed, fail the held publishes."""
        node.nsqd.silent.discard(node)
        if isinstance(error, NSQConnectionError):  # all partitions of the nsqd are unreachable
            node.nsqd.fail(self.clock.now())
        self.router.put_back(unsent, node.endpoint)
        why = None if self.nsqds.proven else why_hopeless([each.error for each in list(self.nodes.values())])
        if why is not None:
            for publish in self.router.waiting():
                self.outcomes.failed_with(publish, why)
            self.router.forget_done()

    def on_refused(self, publish: Publish, error: NsqdError, endpoint: Endpoint) -> None:
        """Fail a refused publish, send it to another nsqd, or send the messages of a coalesced MPUB one by one."""
        if error.is_nsqds_fault:
            self.nsqds.get(endpoint).fail(self.clock.now())
        moves = self.settings.lookupds and self.settings.dialect.should_reroute(error)
        if not publish._done and (error.is_exiting or moves):
            publish.last_error, publish.sent = error, publish.in_doubt
            self.router.put_back([publish], endpoint)
        elif publish.count > 1 and isinstance(publish, CoalescedPublish) and isinstance(error, REFUSED_MPUB):
            for each in publish.split(error):  # one bad message must not fail the others
                self.outcomes.add(each)
                self.router.send(each)
            self.outcomes.forget(publish)
        else:
            self.outcomes.failed_with(publish, error)

    # -- silent nodes

    def has_other(self, node: Node) -> bool:
        """Return whether another nsqd is connected and not silent."""
        return any(not each.nsqd.silent and each.nsqd is not node.nsqd for each in self.connected)

    def check_nodes(self) -> None:
        """Check each connection.  Mark a node as silent if its oldest publish is the same as a second ago."""
        now = self.clock.now()
        for node in list(self.nodes.values()):
            node.nsqd.is_avoided(now)  # the threads' connections may have answered
            if node.connection is not None:
                node.connection.close_if_dead(now)
            owed = node.unanswered[0] if node.unanswered else None
            if owed is not None and owed is node.seen:
                self._mark_silent(node)
            node.seen = owed

    def _mark_silent(self, node: Node) -> None:
        """Mark a node as silent.  With plain NSQ and retries, move its publishes to another nsqd that can be used."""
        node.nsqd.silent.add(node)
        self.router.look_again(node.endpoint)
        if self._takes_turns and self.settings.retries and self.has_other(node):
            node.disconnect_if_silent()

    def on_silent_answered(self, node: Node, in_time: bool) -> None:
        """Use a silent node again if it answered a publish in time, or has now answered all its publishes."""
        if node in self.connected and (in_time or not node.unanswered):
            node.nsqd.silent.discard(node)
            self.router.on_room(node.endpoint)

    # -- deadlines

    def _expired(self, publish: Publish) -> NSQError:
        """Return the error for a publish whose deadline has passed."""
        if publish.sent:
            return publish.timed_out()
        error = publish.last_error or self.router.unavailable(publish)
        reasons = self._reasons() if error is None else [error]
        return self.router.not_sent(publish, not_reached(publish.topic, publish.timeout, reasons))

    def _reasons(self) -> list[NSQError | str]:
        """Return the known reasons why no node accepts publishes."""
        known = [why for each in list(self.nodes.values()) if (why := each.why_not()) is not None]
        for discovery in () if known else self._discoveries:
            for address, each in discovery.health().items():
                if not each.ok:
                    known.append(each.error or f"nsqlookupd {address} has not answered")
        return known

    def _on_expired(self) -> None:
        """Drop the settled publishes from the queues, and mark each node as silent if its oldest publish is overdue."""
        self.router.forget_done()
        for node in list(self.connected):
            owed = node.unanswered[0] if node.unanswered else None
            if owed is not None and owed._done and not node.is_silent():
                self._mark_silent(node)

    # -- the end

    def stats(self) -> WriterStats:
        """Return the statistics of the loop's connections and publishes."""
        now = self.clock.now()
        return WriterStats(
            connections=tuple(connection_stats(each.connection, now) for each in self.connected),
            pending=len(self.outcomes.open()),
            reconnects=self.reconnects,
        )

    def close(self, timeout: float) -> int:
        """Refuse new publishes, wait at most *timeout* seconds for outcomes, and disconnect.

        Return the number of messages that had no outcome at the end of the wait.
        """
        self.closing = True
        self.outcomes.drain(timeout)
        left = sum(each.count for each in self.outcomes.open())
        if not self.ended:  # another caller may have closed the Writer during the wait
            self.ended = True
            for node in list(self.nodes.values()):
                node.close()
            for publish in self.outcomes.open():
                self.outcomes.failed_with(publish, NotSent("the Writer was closed before an nsqd accepted the publish"))
            self._stop()
        return left

    def _stop(self) -> None:
        """Stop all timers, lookups and greenlets, except the greenlets of the nodes."""
        self.outcomes.stop()
        self.router.close()
        for discovery in self._discoveries:
            discovery.stop()
        self.loop.kill(self._greenlets)

    close_for_exit = close

    def abandon(self) -> None:
        """In a forked child, drop the connections and publishes of the parent."""
        self.closing = self.ended = True
        for node in list(self.nodes.values()):
            node.link.abandon()
        if not self.loop.gone:  # in a monkey-patched process the child has a copy of the loop and its greenlets
            for publish in self.outcomes.open():
                publish.settle(error=of_the_parent())
            self.router.close()
            for discovery in self._discoveries:
                discovery.abandon()
            self.loop.kill((*(node.task for node in list(self.nodes.values())), *self._greenlets))
