"""A Writer's core in its loop: a connection per nsqd, publishes pipelined and answered in order.

A publish is settled exactly once.  An error frame settles the publish it answers.  If it also ends the connection, nsqd
has not read the publishes after it, so they are sent again elsewhere.  If a connection is lost without an error frame,
what was sent has an unknown outcome and is sent again only if the caller asked for retries (PUB-2).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import ClosedError, ConnectionLost, NotSent, NsqdError, NSQError, OutcomeUnknown
from gnsq_lite.net.at_exit import close_at_exit
from gnsq_lite.net.discovery import Discovery
from gnsq_lite.net.loop import PAUSE, Loop, current_greenlet, sleep
from gnsq_lite.net.user_hooks import LossLog
from gnsq_lite.net.waiting import in_hub
from gnsq_lite.policy.rng import Rng
from gnsq_lite.policy.shunned import Shunned
from gnsq_lite.publish.coalescing import ONE_OF_MANY, Gathered, Gathering
from gnsq_lite.publish.deadline_timer import DeadlineTimer, settle_expired
from gnsq_lite.publish.destination import Destination
from gnsq_lite.publish.hand_over import HandOver
from gnsq_lite.publish.outcomes import Outcomes
from gnsq_lite.publish.partition_leaders import PartitionLeaders
from gnsq_lite.publish.pool import Left, Pool
from gnsq_lite.publish.publication import Publication, of_the_parent
from gnsq_lite.publish.rotation import Rotation
from gnsq_lite.publish.settings import ProducerSettings
from gnsq_lite.wire import commands

_CHECK_EVERY = 1.0
#: Why connections ended, and publishes have no other outcome.
_RESET = "an unexpected exception has ended all connections"


class Producer:
    """Carries publishes out.  Made and used in the loop's thread."""

    def __init__(
        self, loop: Loop, settings: ProducerSettings, clock: Clock = SYSTEM_CLOCK, pool: Pool | None = None
    ) -> None:
        self.loop, self.settings, self.clock = loop, settings, clock
        #: The blocking connections of plain threads; the Producer adds and removes their nodes.
        self.pool = pool or Pool(settings, clock)
        self.rng: Rng = random.Random()
        self.loss_log = LossLog(logging.getLogger("gnsq_lite.writer"), clock)
        #: Nothing more is taken; what was taken may still have its outcome to come.
        self.closing = False
        #: Disconnected for good.
        self.ended = False
        self.reconnects = 0
        self._hub = loop.hub
        self.outcomes = Outcomes(loop, clock, settings.max_pending, self._everything)
        self.threads = HandOver(loop, clock, self.submit, self._given_up, self._reasons)
        self._greenlets: list[Any] = []
        self._started = False
        self._set_up()
        loop.cores.add(self)
        close_at_exit(self)

    def _set_up(self) -> None:
        """Make what a reset makes again: the nsqds, their connections, and what waits for them."""
        settings, clock = self.settings, self.clock
        shunned: Shunned[Endpoint] = Shunned()
        self.leaders = PartitionLeaders(
            self.loop,
            settings,
            clock,
            self.rng,
            shunned=shunned,
            destinations=lambda: list(self.destinations.values()),
            load=self._load,
            avoids=self.pool.avoids,
            send_to=self._send_to,
            fail=lambda publication, error: self.outcomes.settle(publication, error=error),
            keep=self.keep,
        )
        self.rotation = Rotation(
            shunned,
            goes_elsewhere=self.goes_elsewhere,
            on_silent=self.leaders.refresh,
            send_again=self._send_again,
        )
        self.destinations = self.rotation.destinations
        self._deadline_timer = DeadlineTimer(self.loop, clock, self._expire)
        self._gathered = Gathered(
            self.loop,
            clock,
            most=settings.max_body_size,
            retries=settings.retries,
            deadline_timer=self._deadline_timer,
            publish_alone=self.publish_alone,
            opened=self.outcomes.add,
        )
        #: Publishes one message, whose body was checked, and waits; of (topic, body, timeout).  From any thread.
        #: Raises InvalidName before anything is sent, and the publish's own error.
        self.publish = self._gathered.publish if settings.coalesce else self.publish_alone
        #: Whether every publish goes to an endpoint that the dialect chooses.
        self.routed = settings.dialect.needs_route("")
        self._send = self._gathered.carry = self.leaders.send if self.routed else self.rotation.send
        self._discovery: Discovery | None = None

    def reset(self) -> None:
        """Close all connections, give each publish an outcome, and begin again with fresh state (see Loop)."""
        if self.ended:
            return
        for destination in list(self.destinations.values()):
            destination.link.close(ConnectionLost(str(destination.endpoint), _RESET))
        self._deadline_timer.stop()
        self.leaders.close()
        if self._discovery is not None:
            self._discovery.stop()
        self.loop.kill(self._greenlets)
        self._greenlets = []
        self._set_up()
        self.outcomes.reset(_RESET)
        self.threads.reset()
        if self._started:
            self.keep(self.loop.spawn("begin again", self._begin_again))

    def _begin_again(self) -> None:
        sleep(PAUSE)
        self._greenlets.clear()
        self._started = False
        self.start()

    def is_over(self, destination: Destination) -> bool:
        """Whether it is to connect no more."""
        return self.ended or self.destinations.get(destination.endpoint) is not destination

    def start(self) -> None:
        """Begin to connect."""
        if self._started or self.closing:
            return
        self._started = True
        if not self.routed:
            self._connect(self.settings.endpoints)
            if self.settings.lookupds:
                told: dict[str, Any] = {"on_found": self._connect, "on_forget": self._forget}
                told["publish_waits"] = lambda: bool(self.rotation.waiting)
                self._discovery = Discovery.of(self.settings, "", "write", self.rng, self.clock, **told)
                self.keep(self.loop.spawn("discovery", self._discovery.run))
        self.keep(self.loop.spawn("writer-ticker", self._tick))

    def _load(self, endpoint: Endpoint) -> int:
        destination = self.destinations.get(endpoint)
        return self.pool.busy_at(endpoint) + (0 if destination is None else len(destination.owes()))

    def _connect(self, endpoints: Sequence[Endpoint]) -> None:
        """Connect to nsqds that any publish may go to."""
        self.pool.add(endpoints)
        for endpoint in endpoints:
            self._destination(endpoint)

    def _forget(self, endpoints: Sequence[Endpoint]) -> None:
        self.pool.remove(endpoints)
        for endpoint in endpoints:
            destination = self.destinations.pop(endpoint, None)
            if destination is not None:
                self.rotation.shunned.discard(endpoint)
                destination.close()

    def keep(self, greenlet: Any) -> None:
        """Have *greenlet* killed at close."""
        self._greenlets.append(greenlet)

    def _destination(self, endpoint: Endpoint) -> Destination:
        """Return the destination at an endpoint, which is connected from now on."""
        destination = self.destinations.get(endpoint)
        if destination is None:
            destination = self.destinations[endpoint] = Destination(self, endpoint)
            destination.start()
        return destination

    # -- what comes of the destinations

    def on_connected(self, destination: Destination) -> None:
        """Its handshake is done."""
        self.rotation.join(destination)
        if self._discovery is not None:
            self._discovery.connected(destination.endpoint)
        self.flush(destination)

    def flush(self, destination: Destination) -> None:
        """Send what waited for this one, or for any."""
        waiting = destination.waiting
        while waiting and (waiting[0].done() or destination.send(waiting[0])):
            waiting.popleft()  # once it has its place
        if self.routed:
            self.rotation.relieve()
        else:
            self.rotation.send_waiting()

    def on_disconnected(self, destination: Destination) -> None:
        """Its connection is gone."""
        if self.rotation.part(destination) and self._discovery is not None:
            self._discovery.disconnected(destination.endpoint)

    def on_lost(self, destination: Destination, error: NSQError, unsent: Iterable[Publication]) -> None:
        """Send *unsent* again, in order; or fail what waits, if no nsqd was ever reached and waiting cannot help."""
        self.rotation.failed(destination, error)
        self._send_again(unsent, destination.endpoint)
        hopeless = self.rotation.hopeless()
        if hopeless is not None:
            for publication in (*self.rotation.waiting, *self.leaders.waiting()):
                self.outcomes.settle(publication, error=hopeless)
            self.rotation.forget_done()

    def on_retry(self) -> None:
        """Count it."""
        self.reconnects += 1

    def on_silent_answered(self, destination: Destination, in_time: bool) -> None:
        """Give it its turn again, now that it is no longer silent."""
        if self.rotation.answered(destination, in_time):
            self.flush(destination)

    def on_refused(self, publication: Publication, error: NsqdError, endpoint: Endpoint) -> None:
        """nsqd refused it; where its leader has moved, it follows."""
        if self.routed and not publication.done() and self.settings.dialect.should_reroute(error):
            self.leaders.retry(publication, error, endpoint)
        elif publication.count > 1 and isinstance(publication, Gathering) and isinstance(error, ONE_OF_MANY):
            for each in publication.come_apart(error):  # one bad publish hurts nobody else
                self.outcomes.add(each)
                self._send(each)
            self.outcomes.taken.open.discard(publication)
        else:
            self.outcomes.settle(publication, error=error)

    def goes_elsewhere(self, publication: Publication, endpoint: Endpoint) -> bool:
        """Whether another nsqd that is not silent may take it instead of *endpoint*."""
        return self.leaders.goes_elsewhere(publication, endpoint) if self.routed else self.rotation.any_answers()

    # -- publishing

    def publish_alone(self, topic: str, body: bytes, timeout: float, key: Any = None, partition: Any = None) -> Any:
        """Publish one message without coalescing it, and wait; from any thread."""
        greenlet = current_greenlet()
        # A greenlet below the hub, or the thread's first one above it; else it is another thread's.
        here = greenlet.parent is self._hub or greenlet is self._hub.parent
        commands.PUBLISH_HEADS[topic]  # a bad name is refused here
        deadline = self.clock.now() + timeout
        publication = Publication(self.loop, topic, (body,), timeout, deadline, self.settings.retries)
        publication.key, publication.partition = key, partition
        if here:
            with self.loop.guard:
                self.submit(publication)
            return publication.wait_in(greenlet)
        return self.carry_and_wait(publication)

    def carry(self, publication: Publication) -> None:
        """Send it, now or as soon as an nsqd can be reached; from any thread."""
        if self.loop.is_here():
            with self.loop.guard:
                self.submit(publication)
        else:
            self.threads.put(publication)

    def carry_and_wait(self, publication: Publication) -> Any:
        """Do the same, wait, and return its receipt.  Raises its error; NotSent in gevent's hub."""
        if in_hub():
            raise NotSent("a publish would wait in gevent's hub: use publish_nowait()")
        self.carry(publication)
        return publication.result()

    def publish_to_leader(self, leader: Endpoint, publication: Publication) -> Any:
        """Publish, in a plain thread, what was made for *leader*; return its receipt, or a Left: the loop has to do it.

        A leader that cannot be reached, or does not answer, is looked up again (YZ-18).
        """
        outcome: Any = None
        try:
            outcome = self.pool.publish(
                publication.topic,
                publication.data,
                publication.timeout,
                publication.count,
                publication.request,
                leader=leader,
                deadline=publication.deadline,
            )
        except OutcomeUnknown:
            self.loop.call_soon(lambda: self.leaders.refresh(leader))
            raise
        if type(outcome) is Left:
            publication.data = b""
            self.loop.call_soon(lambda: self.leaders.refresh(leader))
        return outcome

    def submit(self, publication: Publication) -> None:
        """Carry it out, in the loop's thread."""
        if self.closing:
            self.outcomes.settle(publication, error=ClosedError("the Writer was closed"))
            return
        if publication.deadline < self._deadline_timer.at:
            self._deadline_timer.set(publication.deadline)
        if self.settings.coalesce and not (publication.batch or publication.request is not None or self.routed):
            self._gathered.add(publication)
            return
        self.outcomes.add(publication)
        if self._gathered.batches:  # publishes keep the order they were made in
            self._gathered.send()
        self._send(publication)

    def _send_to(self, endpoint: Endpoint, publication: Publication) -> None:
        """Send it to that endpoint, and to no other, once it is connected."""
        destination = self._destination(endpoint)
        if destination.waiting or not destination.send(publication):
            destination.waiting.append(publication)

    def _send_again(self, publications: Iterable[Publication], lost: Endpoint | None = None) -> None:
        """Send, in order, what a lost connection did not take; deadlines are watched already."""
        if self.routed:
            self.leaders.put_back(publications, lost)
        else:
            for publication in publications:
                self._send(publication)

    # -- deadlines

    def _given_up(self, publication: Publication, error: NSQError) -> None:
        self.outcomes.count_failure(publication, error)
        self.rotation.overdue()

    def _everything(self) -> Iterable[Publication]:
        """Every publish that may have no outcome yet."""
        for queue in (self.threads.entering(), self.rotation.waiting, self.leaders.waiting(), self._gathered.batches):
            yield from queue
        for destination in self.destinations.values():
            yield from destination.owes()

    def _expire(self) -> float:
        """Settle what is overdue; return the soonest deadline of what is left."""
        soonest = settle_expired(
            list(self._everything()),
            self.clock.now(),
            lambda publication: publication.expired(self._reasons()),
            self.outcomes.settle,
        )
        self.threads.forget_done()
        self.rotation.forget_done()
        self.leaders.forget(Publication.done)
        self.rotation.overdue()
        return soonest

    def _reasons(self) -> list[NSQError | str]:
        """Return the known reasons why no nsqd can be reached; from any thread, while the loop connects to others."""
        known = [why for each in list(self.destinations.values()) if (why := each.why_not()) is not None]
        for discovery in () if known else (self._discovery, *self.leaders.discoveries()):
            known += [each.error for each in discovery.health().values() if each.error] if discovery else []
        return known

    def _tick(self) -> None:
        while True:
            sleep(_CHECK_EVERY)
            for destination in list(self.destinations.values()):
                destination.check(self.clock.now())
            self.rotation.look_again()

    # -- the end

    def close(self, timeout: float) -> int:
        """Accept no more publishes, wait up to *timeout* seconds for outcomes, and disconnect.

        Return how many messages had no outcome by then.
        """
        self.threads.enter()  # what was published before
        self.closing = True  # before the wait: callers that go on publishing would make it last
        self.outcomes.drain(timeout)
        left = sum(each.count for each in self._everything() if not each.done())
        if not self.ended:  # closed by somebody else meanwhile
            self.ended = True
            self._end()
        return left

    def _end(self) -> None:
        for destination in self.destinations.values():
            destination.close()
        for publication in list(self._everything()):
            self.outcomes.settle(publication, error=NotSent("the Writer was closed before an nsqd could be reached"))
        self._deadline_timer.stop()
        self.leaders.close()
        if self._discovery is not None:
            self._discovery.stop()
        self.loop.kill(self._greenlets)

    def close_for_exit(self, timeout: float) -> int:
        """Do the same."""
        return self.close(timeout)

    def abandon(self) -> None:
        """In a forked child: connections and outcomes are the parent's."""
        self.closing = self.ended = True
        for destination in self.destinations.values():
            destination.abandon()
        if not self.loop.gone:  # monkey-patched: the loop came along, with all its greenlets
            for publication in list(self._everything()):
                publication.settle(error=of_the_parent())
            self.leaders.abandon()
            if self._discovery is not None:
                self._discovery.abandon()
            self.loop.kill((*(destination.task for destination in self.destinations.values()), *self._greenlets))
