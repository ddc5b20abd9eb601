"""Joins the publishes of one loop iteration to one topic into one MPUB; each publish keeps its own outcome.

A greenlet of the loop's thread that waits for its publish costs a list item and a switch: it needs no object, callback
or timer.  One callback of the loop resumes all greenlets that wait for one MPUB.
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

#: Errors with which nsqd refuses a whole MPUB because of one body or of the total size.
ONE_OF_MANY = (BadMessageError, BadBodyError)


class Gathering(Publish):
    """An MPUB of the publishes of one loop iteration with the same topic and timeout; a single publish is a PUB."""

    __slots__ = ("_apart", "_mixed", "joined", "room")

    bodies: list[bytes]

    def __init__(self, loop: Loop, topic: str, timeout: float, deadline: float, retries: int, most: int) -> None:
        commands.PUBLISH_HEADS[topic]  # raises InvalidName before any publish is added
        super().__init__(loop, topic, [], timeout, deadline, retries)
        #: Pairs of a waiter and a body.  The waiter is a greenlet of the loop, None if the greenlet gave up, or a
        #: Publish of a handle or of another thread.  Adding a pair is atomic and needs no guard.
        self.joined: list[tuple[Any, bytes]] = []
        #: Whether Publish objects were added, and not only greenlets.
        self._mixed = False
        #: After the MPUB came apart: the publish that replaces each greenlet's message.
        self._apart: dict[Any, Publish] = {}
        #: Maximum bytes of another body.
        self.room = most - 8

    def add(self, publish: Publish) -> None:
        """Add a Publish of a handle or of another thread."""
        body = publish.bodies[0]
        self._mixed = True
        self.cost, publish.cost = self.cost + publish.cost, 0
        self.room -= len(body) + 4
        self.joined.append((publish, body))

    def drop_waiter(self, greenlet: Any) -> None:
        """Do not resume *greenlet*, which was killed or timed out.  Its message is still sent."""
        self.joined = [(None if each is greenlet else each, body) for each, body in self.joined]

    def raise_in(self, greenlet: Any) -> Any:
        """Raise the error of the MPUB in *greenlet*; if its message was sent again alone, wait for that outcome."""
        if greenlet in self._apart:
            return self._apart[greenlet].wait_in(greenlet)
        error: Any = self._error
        raise error.with_traceback(None)  # the callers share the error, but not a traceback

    def finish(self) -> None:
        """Accept no more publishes, and drop the publishes that their threads gave up."""
        self.room = -1
        if self._mixed:
            self.joined = [each for each in self.joined if type(each[0]) is not Publish or each[0].mark_sent()]
        self.bodies = [body for _, body in self.joined]
        self.count = len(self.bodies)
        self.batch = self.count > 1

    def announce(self) -> None:
        """Settle the Publish objects, and resume the greenlets that wait."""
        if not self.count:  # it was not sent
            self.finish()
        super().announce()
        self.bodies = []
        if self._mixed:
            for publish in [waiter for waiter, _ in self.joined if type(waiter) is Publish]:
                publish.settle(self._value, self._error)
        greenlets = [waiter for waiter, _ in self.joined if waiter is not None and type(waiter) is not Publish]
        if greenlets:
            self.loop.resume_soon(greenlets)
        self.joined = []

    def come_apart(self, error: BaseException) -> list[Publish]:
        """Split the MPUB into publishes to send alone, because nsqd refused all for one of them; skip settled ones."""
        apart = []
        for waiter, body in self.joined:
            publish = waiter
            if type(waiter) is not Publish:
                publish = self._apart[waiter] = Publish(self.loop, self.topic, (body,), self.timeout, self.deadline)
            publish.retries = self.retries
            publish.data = publish.command()
            publish.sent = publish.in_doubt = self.in_doubt
            apart.append(publish)
        self.joined = [each for each in self.joined if type(each[0]) is not Publish]
        self.settle(error=error)
        return [publish for publish in apart if not publish.done()]


class Coalescing:
    """The MPUBs of the current loop iteration.  Call it in the loop's thread.

    Args:
        send: Called with each MPUB at the end of the iteration.
    """

    def __init__(
        self, loop: Loop, settings: ProducerSettings, clock: Clock, outcomes: Outcomes, send: Callable[[Publish], None]
    ) -> None:
        self._loop, self._settings, self._clock, self._outcomes, self._send = loop, settings, clock, outcomes, send
        #: Whether send() is scheduled, and whether it runs.
        self._due = self._sends = False
        #: All unsent MPUBs in order, and the last MPUB of each topic.
        self.batches: deque[Gathering] = deque()
        self._open: dict[str, Gathering] = {}

    def publish(self, topic: str, body: bytes, timeout: float) -> Any:
        """Publish one message and wait, in a greenlet.  Raises InvalidName, NotSent, and the error of the publish."""
        greenlet = current_greenlet()
        gathering, size = self._open.get(topic), len(body)
        try:
            # The condition of _gathering() without the call, because most publishes join an existing MPUB.
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
            raise
        return gathering.raise_in(greenlet) if gathering._error is not None else None

    def add(self, publish: Publish) -> None:
        """Add a publish of one message without options."""
        self._gathering(publish.topic, publish.timeout, len(publish.bodies[0])).add(publish)

    def _gathering(self, topic: str, timeout: float, size: int) -> Gathering:
        """Return the unsent MPUB for a body of *size* bytes; make one if needed."""
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
        """Send all unsent MPUBs.  A nested call does nothing, because the outer call sends the rest."""
        self._due = False
        if self._sends:
            return
        self._open = {}
        self._sends = True
        while self.batches:
            gathering = self.batches[0]
            if not gathering._done:  # done if the Writer was closed meanwhile
                gathering.finish()
                if gathering.bodies:
                    self._send(gathering)
                else:
                    self._outcomes.failed_with(gathering, NotSent("every publish of it was given up"))
            self.batches.popleft()  # only after it was sent: no other publish may overtake it
        self._sends = False
