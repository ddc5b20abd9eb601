"""Publishes of one turn of the loop to one topic, joined into one MPUB; each keeps its own outcome.

A greenlet of the loop's own thread that waits for its publish costs a body in a list and a switch: no object of its
own, no callback, no timer.  All that wait for one MPUB are resumed in one callback of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.errors import BadBodyError, BadMessageError, NotSent
from gnsq_lite.net.loop import Loop, current_greenlet
from gnsq_lite.publish.publication import Outcomes, Publish
from gnsq_lite.publish.settings import ProducerSettings
from gnsq_lite.wire import commands

#: nsqd's errors for an MPUB, of which it then takes nothing, because of one of its bodies or of their sum.
ONE_OF_MANY = (BadMessageError, BadBodyError)


class Gathering(Publish):
    """An MPUB being gathered: the publishes of one turn with the same topic and timeout; a single one is a PUB."""

    __slots__ = ("_apart", "_mixed", "failed", "joined", "room", "waiters")

    bodies: list[bytes]

    def __init__(self, loop: Loop, topic: str, timeout: float, deadline: float, retries: int, most: int) -> None:
        commands.PUBLISH_HEADS[topic]  # raises for a bad name before anything is taken in
        super().__init__(loop, topic, [], timeout, deadline, retries)
        #: Until this is sent: the greenlet of the loop that waits, None where it gave up, or the publish of a handle or
        #: of another thread; and its body.  Adding both is one step, which needs no guard.
        self.joined: list[tuple[Any, bytes]] = []
        #: Then, the greenlet, None or publish of each body.
        self.waiters: list[Any] = []
        #: Whether publishes have joined, and not only greenlets that wait.
        self._mixed = False
        self._apart: dict[Any, Publish] = {}
        self.failed = False
        #: Bytes that one more body may have.
        self.room = most - 8

    def add(self, publish: Publish) -> None:
        """Add the publish of a handle or of another thread."""
        body = publish.bodies[0]
        self._mixed = True
        self.room -= len(body) + 4
        self.joined.append((publish, body))

    def drop_waiter(self, greenlet: Any) -> None:
        """Do not resume *greenlet*, which was killed or timed out; its message is sent all the same."""
        self.joined = [(None if each is greenlet else each, body) for each, body in self.joined]
        self.waiters = [None if each is greenlet else each for each in self.waiters]

    def raise_in(self, greenlet: Any) -> Any:
        """Raise the batch's error in *greenlet*; if its publish was sent again alone, wait for that outcome instead."""
        if greenlet in self._apart:
            return self._apart[greenlet].wait_in(greenlet)
        error: Any = self._error
        raise error.with_traceback(None)  # the callers share the error, but not a traceback

    def finish(self) -> None:
        """Accept no more publishes, and drop those that were given up."""
        self.room = -1
        if self._mixed:
            for who, _ in self.joined:
                if type(who) is Publish:
                    self.cost, who.cost = self.cost + who.cost, 0
            self.joined = [each for each in self.joined if type(each[0]) is not Publish or each[0].mark_sent()]
        if self.joined:
            self.waiters, self.bodies = map(list, zip(*self.joined, strict=True))
            self.joined = []
        self.count = len(self.bodies)
        self.batch = self.count > 1

    def announce(self) -> None:
        """Settle each publish that has joined, and resume the greenlets that wait."""
        if self.joined:
            self.finish()
        super().announce()
        self.failed = self._error is not None
        self.bodies = []
        if self._mixed:
            for publish in [who for who in self.waiters if type(who) is Publish]:
                publish.settle(self._value, self._error)
        greenlets = [who for who in self.waiters if who is not None and type(who) is not Publish]
        if greenlets:
            self.loop.resume_soon(greenlets)
        self.waiters = []

    def announce_again(self) -> None:
        """Do the same in the loop: an exception may have ended :meth:`announce`."""
        super().announce_again()
        self.failed = self._error is not None
        for who in self.waiters:
            if type(who) is Publish:
                who.settle(self._value, self._error)
                who.announce_again()
            elif who is not None:
                self.loop.resume_once(who)

    def come_apart(self, error: BaseException) -> list[Publish]:
        """Return the publishes without an outcome, to send each alone: nsqd refused all because of one of them."""
        apart = []
        for who, body in zip(self.waiters, self.bodies, strict=True):
            publish = who
            if type(who) is not Publish:
                publish = self._apart[who] = Publish(self.loop, self.topic, (body,), self.timeout, self.deadline)
            publish.retries = self.retries
            publish.data = publish.command()  # which is joined to no other again
            publish.sent = publish.in_doubt = self.in_doubt
            apart.append(publish)
        self.waiters = [who for who in self.waiters if type(who) is not Publish]
        self.settle(error=error)
        return [publish for publish in apart if not publish.done()]


class Coalescing:
    """The MPUBs that this turn's publishes are joined into.  In the loop's thread.

    Args:
        send: Sends each MPUB at the end of the turn.
    """

    def __init__(
        self, loop: Loop, settings: ProducerSettings, clock: Clock, outcomes: Outcomes, send: Callable[[Publish], None]
    ) -> None:
        self._loop, self._settings, self._clock, self._outcomes, self._send = loop, settings, clock, outcomes, send
        #: Whether send() is about to be called, and whether it runs.
        self._due = self._sends = False
        #: All MPUBs that are not sent, in order, and the last one of each topic.
        self.batches: deque[Gathering] = deque()
        self._open: dict[str, Gathering] = {}

    def publish(self, topic: str, body: bytes, timeout: float) -> Any:
        """Publish one message and wait; in a greenlet.  Raises InvalidName, NotSent, the publish's error."""
        greenlet = current_greenlet()
        gathering, size = self._open.get(topic), len(body)
        try:
            # The condition of _gathering(), without the call: most publishes join an MPUB that another one opened.
            if gathering is None or gathering.room < size or gathering.timeout != timeout:
                with self._loop.guard:
                    gathering = self._gathering(topic, timeout, size)
            gathering.room -= size + 4
            gathering.joined.append((greenlet, body))
            while not gathering._done:
                self._loop.park(greenlet)
        except BaseException:
            if gathering is not None:
                gathering.drop_waiter(greenlet)
            self._loop.forget(greenlet)
            raise
        return gathering.raise_in(greenlet) if gathering.failed else None

    def add(self, publish: Publish) -> None:
        """Add a plain publish of one message."""
        self._gathering(publish.topic, publish.timeout, len(publish.bodies[0])).add(publish)

    def _gathering(self, topic: str, timeout: float, size: int) -> Gathering:
        """Return the MPUB being gathered that a body of *size* bytes goes into."""
        gathering = self._open.get(topic)
        if gathering is None or gathering.room < size or gathering.timeout != timeout:
            settings = self._settings
            deadline = self._clock.now() + timeout
            gathering = Gathering(self._loop, topic, timeout, deadline, settings.retries, settings.max_body_size)
            if not self._due:
                self._due = True
                self._loop.soon(self.send)
            self._open[topic] = gathering
            self.batches.append(gathering)
            self._outcomes.add(gathering)
        return gathering

    def send(self) -> None:
        """Send what has been gathered; inside another such call, which goes on with the rest, do nothing."""
        self._due = False
        if self._sends:
            return
        self._open = {}
        self._sends = True
        while self.batches:
            gathering = self.batches[0]
            if not gathering._done:  # as it is when the Writer was closed meanwhile
                gathering.finish()
                if gathering.bodies:
                    self._send(gathering)
                else:
                    self._outcomes.failed_with(gathering, NotSent("every publish of it was given up"))
            self.batches.popleft()  # once it has its place: until then no publish may overtake it
        self._sends = False
