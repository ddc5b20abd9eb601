"""A Writer's core in its loop: a node for each nsqd, publishes pipelined and answered in order.

A publish is settled exactly once.  An error frame settles the publish it answers.  If it also ends the connection, nsqd
has not read the publishes after it, so they are sent again elsewhere.  If a connection is lost without an error frame,
what was sent has an unknown outcome and is sent again only if the caller asked for retries (PUB-2).

A node that leaves its oldest publish unanswered past its deadline, or for a second or two, is *silent*: until it
answers again, it gets no publish that another node can take (PUB-4).  Deadlines and the ticker notice that, so that a
publish need not look.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
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
from gnsq_lite.net.loop import PAUSE, Loop, after_io, sleep
from gnsq_lite.net.user_hooks import ErrorLog
from gnsq_lite.net.waiting import in_hub
from gnsq_lite.policy.rng import Rng
from gnsq_lite.policy.shunned import Shunned
from gnsq_lite.publish.coalescing import ONE_OF_MANY, Coalescing, Gathering
from gnsq_lite.publish.node import Node, Rotation
from gnsq_lite.publish.pool import Left, Pool
from gnsq_lite.publish.publication import Outcomes, Publication, Publish, not_reached, of_the_parent
from gnsq_lite.publish.settings import ProducerSettings, hopeless
from gnsq_lite.stats import WriterStats

_CHECK_EVERY = 1.0
#: Most publishes of other threads that are carried out in one turn of the loop.
_AT_ONCE = 1000
#: Why connections ended, and publishes have no other outcome.
_RESET = "an unexpected exception has ended all connections"


class WriterCore:
    """Carries out the publishes that the pool does not.  Made in the loop's thread, where everything runs but for

    * ``carry_and_wait``, ``carry``, ``carry_nowait``: a Writer's ways to publish;
    * ``publish_to_leader``: a plain thread's way to the endpoint that the router chooses;
    * ``has_backlog``: whether a ``publish_nowait`` has no outcome yet.
    """

    def __init__(
        self, loop: Loop, settings: ProducerSettings, clock: Clock = SYSTEM_CLOCK, pool: Pool | None = None
    ) -> None:
        self.loop, self.settings, self.clock, self.hub = loop, settings, clock, loop.hub
        #: The blocking connections of plain threads; the core adds and removes their nodes.
        self.pool = pool or Pool(settings, clock)
        self.rng: Rng = random.Random()
        self.error_log = ErrorLog(logging.getLogger("gnsq_lite.writer"), clock)
        #: New publishes are refused; earlier ones may have no outcome yet.
        self.closing = False
        #: All connections are closed for good.
        self.ended = False
        self.reconnects = 0
        self.outcomes = Outcomes(loop, clock, settings.max_pending, self._expired, self._on_expired)
        #: Publishes of other threads that the loop has not begun, and whether it begins more after its I/O.
        self._entering: deque[Publish] = deque()
        self._rests = False
        self._greenlets: list[Any] = []
        self._started = False
        self._set_up()
        close_at_exit(self)

    def _set_up(self) -> None:
        """Make the parts that a reset makes again: the nodes, the router, the lookups and the MPUBs being joined."""
        self.nodes: dict[Endpoint, Node] = {}
        #: The nodes whose handshake is done.
        self.connected: list[Node] = []
        #: The endpoints that get nothing that another one can take.
        self._shunned = Shunned()
        #: Whether any handshake was ever done: the settings are right.
        self._proven = False
        self._discoveries: list[Discovery] = []
        rotation = Rotation(self)
        #: Chooses where each publish goes: the nodes in turn, or the leader of a partition.
        self.router: Router = self.settings.dialect.router(self, self.settings.endpoints) or rotation
        self._takes_turns = self.router is rotation
        self._coalescing: Coalescing | None = None
        #: Publishes one message to any node, and waits; of (topic, body, timeout).  In a greenlet of the loop's thread.
        self.publish: Callable[[str, bytes, float], Any] = rotation.publish
        if self.settings.coalesce and self._takes_turns:
            self._coalescing = Coalescing(self.loop, self.settings, self.clock, self.outcomes, rotation.send)
            self.publish = self._coalescing.publish

    def reset(self) -> None:
        """Close all connections, give each publish an outcome, and begin again with fresh state (see Loop)."""
        if self.ended:
            return
        for node in list(self.nodes.values()):
            node.link.close(ConnectionLost(str(node.endpoint), _RESET))
        self._stop()
        self._greenlets = []
        self._set_up()
        self.outcomes.reset(_RESET)
        self._rests = False
        self.loop.soon(self._begin_some)
        if self._started:
            self._greenlets.append(self.loop.spawn("begin again", self._begin_again))

    def _begin_again(self) -> None:
        sleep(PAUSE)
        self._greenlets.clear()
        self._started = False
        self.start()

    def start(self) -> None:
        """Start the ticker; in plain NSQ, connect to the nodes and look up others."""
        if self._started or self.closing:
            return
        self._started = True
        if self._takes_turns:
            self._connect(self.settings.endpoints)
            if self.settings.lookupds:
                waits = {"publish_waits": lambda: bool(self.router.waiting())}
                self._discover("", on_found=self._connect, on_forget=self._forget, **waits)
        self._greenlets.append(self.loop.spawn("writer-ticker", self._tick))

    def _tick(self) -> None:
        while True:
            sleep(_CHECK_EVERY)
            self.check_nodes()

    def _discover(self, topic: str, **called: Callable[..., Any]) -> Discovery:
        """Look up the nsqds of a topic, or all of them, from now on."""
        discovery = Discovery(self.settings, topic, "write", self.rng, self.clock, **called)
        self._discoveries.append(discovery)
        self._greenlets.append(self.loop.spawn(f"discovery {topic}", discovery.run))
        return discovery

    # -- publishing, from any thread

    def carry_and_wait(self, publish: Publish) -> Any:
        """Carry out a publish, wait, and return its receipt.  Raises its error; NotSent in gevent's hub."""
        if in_hub():
            raise NotSent("a publish would wait in gevent's hub: use publish_nowait()")
        self.carry(publish)
        return publish.result()

    def carry_nowait(self, publish: Publish) -> Publication:
        """Start a publish in the background; return its handle.  Raises BacklogFull, ClosedError."""
        try:
            with self.loop.guard:
                self.outcomes.reserve(publish, len(publish.bodies[0]))
                self.carry(publish)
        except BaseException:
            self.loop.call_soon(lambda: self.outcomes.release(publish))
            raise
        return Publication(publish)

    def has_backlog(self) -> bool:
        """Return whether a ``publish_nowait`` has no outcome yet: then all publishes go behind it through the loop."""
        return self.outcomes.backlog > 0

    def carry(self, publish: Publish) -> None:
        """Carry out a publish, now or as soon as a node can be reached.  Raises ClosedError at the exit of Python."""
        if self.loop.is_here():
            with self.loop.guard:
                self.submit(publish)
            return
        self.loop.check()
        self._entering.append(publish)
        self.loop.call_soon(self._begin_some)

    def publish_to_leader(self, publish: Publish) -> Any:
        """Publish, in a plain thread, to the leader that the router chooses; return the receipt, or a Left.

        Left: the loop has to do it, because there is no leader, or it cannot be reached.
        """
        leader = self.router.leader(publish)
        outcome: Any = Left(publish.retries)
        if leader is not None:
            topic, timeout, count, request = publish.topic, publish.timeout, publish.count, publish.request
            try:
                outcome = self.pool.publish(
                    topic, publish.data, timeout, count, request, leader=leader, deadline=publish.deadline
                )
            except OutcomeUnknown:
                self.loop.call_soon(lambda: self.router.look_again(leader))
                raise
            if type(outcome) is not Left:
                return outcome
            self.loop.call_soon(lambda: self.router.look_again(leader))
        publish.data = b""
        return outcome

    # -- publishing, in the loop

    def _begin_some(self) -> None:
        """Begin some publishes of other threads, and the rest after the loop's I/O: threads may be quicker than it."""
        if not self._rests:
            self._begin(_AT_ONCE)
            if self._entering:
                self._rests = True
                after_io(self.loop, self._go_on)

    def _go_on(self) -> None:
        self._rests = False
        self._begin_some()

    def _begin(self, most: int | None = None) -> None:
        for _ in range(len(self._entering))[:most]:
            publish = self._entering[0]
            if not publish._done:
                self.submit(publish)
            elif publish._error is not None:  # its thread has given it up
                self.outcomes.count_failure(publish, publish._error)
            if self._entering and self._entering[0] is publish:  # it may have been begun meanwhile
                self._entering.popleft()

    def submit(self, publish: Publish) -> None:
        """Carry out a publish."""
        if self.closing:
            self.outcomes.failed_with(publish, ClosedError("the Writer was closed"))
            return
        coalescing = self._coalescing
        if coalescing is not None:
            if not publish.batch and publish.request is None:
                coalescing.add(publish)
                return
            coalescing.send()  # publishes keep the order they were made in
        self.outcomes.add(publish)
        self.router.send(publish)

    # -- the router's host

    def send_to(self, endpoint: Endpoint, publish: Publish) -> bool:
        """Send a publish; return False if the endpoint, which is connected from now on, takes none for now."""
        connection = self._node(endpoint).connection
        return connection is not None and bool(connection.send_publish(publish))

    def fail(self, publish: Publish, error: NSQError) -> None:
        """Settle a publish with an error."""
        self.outcomes.failed_with(publish, error)

    def look_up(
        self, topic: str, on_lookup: Callable[[Lookup], None], on_outage: Callable[[], None]
    ) -> Discovery | None:
        """Look a topic up from now on; return None without nsqlookupds."""
        if not self.settings.lookupds:
            return None
        return self._discover(topic, on_lookup=lambda address, lookup: on_lookup(lookup), on_outage=on_outage)

    def call_later(self, seconds: float, act: Callable[[], None]) -> Any:
        """Call *act* once, in the hub; return the timer."""
        return self.loop.timer(seconds, act)

    def avoids(self, endpoint: Endpoint) -> bool:
        """Return whether the endpoint is silent or cannot be reached; from any thread."""
        return self._shunned.has(endpoint) or self.pool.avoids(endpoint)

    def load(self, endpoint: Endpoint) -> int:
        """Return how many publishes the endpoint has not answered; from any thread."""
        node = self.nodes.get(endpoint)
        return self.pool.busy_at(endpoint) + (0 if node is None else len(node.unanswered))

    def owes(self, topic: str, partition: int) -> bool:
        """Return whether a publish to a partition is unanswered; a silent node is disconnected."""
        nodes = [node for node in self.nodes.values() if node.endpoint.partition == partition]
        owing = [node for node in nodes if any(each.topic == topic and not each._done for each in node.unanswered)]
        for node in owing:
            node.disconnect_if_silent()
        return bool(owing)

    # -- nodes

    def _connect(self, endpoints: Sequence[Endpoint]) -> None:
        """Connect to nsqds that any publish may go to."""
        self.pool.add(endpoints)
        for endpoint in endpoints:
            self._node(endpoint)

    def _forget(self, endpoints: Sequence[Endpoint]) -> None:
        self.pool.remove(endpoints)
        for endpoint in endpoints:
            node = self.nodes.pop(endpoint, None)
            if node is not None:
                self._shunned.discard(endpoint)
                node.close()

    def _node(self, endpoint: Endpoint) -> Node:
        """Return the node at an endpoint, which is connected from now on."""
        node = self.nodes.get(endpoint)
        if node is None:
            node = self.nodes[endpoint] = Node(self, endpoint)
            node.start()
        return node

    def on_connected(self, node: Node) -> None:
        """Give the node its turns, and send what waited for it."""
        self._proven, node.silent = True, False
        self.connected.append(node)
        self._shunned.discard(node.endpoint)
        for discovery in self._discoveries:
            discovery.connected(node.endpoint)
        self.router.on_room(node.endpoint)

    def on_disconnected(self, node: Node) -> None:
        """Give no turns to the node, and let discovery find it again."""
        if node in self.connected:
            self.connected.remove(node)
            for discovery in self._discoveries:
                discovery.disconnected(node.endpoint)

    def on_lost(self, node: Node, error: NSQError, unsent: Iterable[Publish]) -> None:
        """Send *unsent* again, in order; or fail what waits, if no nsqd was ever reached and waiting cannot help."""
        self._shunned.add(node.endpoint, whole_node=isinstance(error, NSQConnectionError))
        self.router.put_back(unsent, node.endpoint)
        why = None if self._proven else hopeless([each.error for each in self.nodes.values()])
        if why is not None:
            for publish in self.router.waiting():
                self.outcomes.failed_with(publish, why)
            self.router.forget_done()

    def on_refused(self, publish: Publish, error: NsqdError, endpoint: Endpoint) -> None:
        """Settle a publish that nsqd refused, or send it again: to another leader, or each message of an MPUB alone."""
        if not publish._done and self.settings.dialect.should_reroute(error):
            self.router.refused(publish, error, endpoint)
        elif publish.count > 1 and isinstance(publish, Gathering) and isinstance(error, ONE_OF_MANY):
            for each in publish.come_apart(error):  # one bad publish harms no other
                self.outcomes.add(each)
                self.router.send(each)
            self.outcomes.forget(publish)
        else:
            self.outcomes.failed_with(publish, error)

    # -- silent nodes

    def check_nodes(self) -> None:
        """Mark as silent each node with the same oldest publish as at the last call; called about once a second."""
        now = self.clock.now()
        for node in list(self.nodes.values()):
            if node.connection is not None:
                node.connection.check(now)
            owed = node.oldest()
            if owed is not None and owed is node.seen:
                self._mark_silent(node)
            node.seen = owed

    def _mark_silent(self, node: Node) -> None:
        """Mark a node as silent until it answers, and send elsewhere what may be sent again."""
        node.silent = True
        self._shunned.add(node.endpoint, whole_node=True)
        self.router.look_again(node.endpoint)
        movable = node.take_movable(lambda publish: self.router.goes_elsewhere(publish, node.endpoint))
        self.router.put_back(movable, None)

    def on_silent_answered(self, node: Node, in_time: bool) -> None:
        """Give the node its turn again if it has answered in time, or its last publish."""
        if node in self.connected and (in_time or not node.unanswered):
            node.silent = False
            self._shunned.discard(node.endpoint)
            self.router.on_room(node.endpoint)

    # -- deadlines

    def _expired(self, publish: Publish) -> NSQError:
        """Return the error of a publish whose deadline has passed."""
        if publish.sent:
            return publish.timed_out()
        error = publish.last_error or self.router.unavailable(publish)
        reasons = self._reasons() if error is None else [error]
        return self.router.not_sent(publish, not_reached(publish.topic, publish.timeout, reasons))

    def _reasons(self) -> list[NSQError | str]:
        """Return the known reasons why a publish was not sent."""
        known = [why for each in self.nodes.values() if (why := each.why_not()) is not None]
        for discovery in () if known else self._discoveries:
            for address, each in discovery.health().items():
                if not each.ok:
                    known.append(each.error or f"nsqlookupd {address} has not answered")
        return known

    def _on_expired(self) -> None:
        """Drop waiting publishes that have their outcome, and mark silent nodes."""
        self.router.forget_done()
        for node in list(self.connected):
            owed = node.oldest()
            if owed is not None and owed._done and not node.silent:
                self._mark_silent(node)

    # -- the end

    def stats(self) -> WriterStats:
        """Return the state of the loop's part of the Writer."""
        now = self.clock.now()
        return WriterStats(
            connections=tuple(connection_stats(each.connection, now) for each in self.connected),
            pending=len(self.unsettled()),
            published=self.outcomes.published,
            failed=self.outcomes.failed,
            unknown=self.outcomes.unknown,
            reconnects=self.reconnects,
        )

    def unsettled(self) -> list[Publish]:
        """Return the publishes without an outcome."""
        return [*self.outcomes.open(), *(each for each in list(self._entering) if not each._done)]

    def drain(self, timeout: float) -> bool:
        """Wait until every publish has its outcome; return whether it has."""
        return self.outcomes.drain(timeout, lambda: not self._entering)

    def close(self, timeout: float) -> int:
        """Accept no more publishes, wait up to *timeout* seconds for outcomes, and disconnect.

        Return how many messages had no outcome by then.
        """
        self._begin()  # what was published before
        self.closing = True  # before the wait: callers that go on publishing would make it last
        self.drain(timeout)
        left = sum(each.count for each in self.unsettled())
        if not self.ended:  # closed by another caller meanwhile
            self.ended = True
            for node in self.nodes.values():
                node.close()
            for publish in self.unsettled():
                self.outcomes.failed_with(publish, NotSent("the Writer was closed before an nsqd could be reached"))
            self._stop()
        return left

    def _stop(self) -> None:
        """End the timers, lookups and greenlets."""
        self.outcomes.stop()
        self.router.close()
        for discovery in self._discoveries:
            discovery.stop()
        self.loop.kill(self._greenlets)

    def close_for_exit(self, timeout: float) -> int:
        """Close at the exit of Python; return how many messages had no outcome by then."""
        return self.close(timeout)

    def abandon(self) -> None:
        """In a forked child: connections and outcomes are the parent's."""
        self.closing = self.ended = True
        for node in self.nodes.values():
            node.link.abandon()
        if not self.loop.gone:  # monkey-patched: the loop came along, with all its greenlets
            for publish in self.unsettled():
                publish.settle(error=of_the_parent())
            self.router.close()
            for discovery in self._discoveries:
                discovery.abandon()
            self.loop.kill((*(node.task for node in self.nodes.values()), *self._greenlets))
