"""Joins the publishes to one topic in one loop iteration into one MPUB.  Each publish keeps its own outcome.

For a publish in a greenlet of the loop's thread, the module makes no object, callback or timer, only a list item.  One
callback of the loop resumes all greenlets that wait for one MPUB.
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

#: Errors with which nsqd refuses a whole MPUB because of one body or the total size.
ONE_OF_MANY = (BadMessageError, BadBodyError)


class Gathering(Publish):
    """The publishes of one loop iteration with the same topic and timeout, sent as one MPUB (one publish: as a PUB)."""

    __slots__ = ("_mixed", "_separate", "joined", "room")

    bodies: list[bytes]

    def __init__(self, loop: Loop, topic: str, timeout: float, deadline: float, retries: int, most: int) -> None:
        commands.PUBLISH_HEADS[topic]  # raises InvalidName before any publish is added
        super().__init__(loop, topic, [], timeout, deadline, retries)
        #: Pairs of a waiter and a body.  The waiter is a greenlet of the loop (None after it was killed or timed out),
        #: or the Publish of ``publish_nowait`` or of another thread.  Appending is atomic and needs no guard.
        self.joined: list[tuple[Any, bytes]] = []
        #: Whether a Publish object was added.
        self._mixed = False
        #: After the MPUB was split: the publish that replaces each greenlet's message.
        self._separate: dict[Any, Publish] = {}
        #: Maximum bytes of the next body.
        self.room = most - 8

    def add(self, publish: Publish) -> None:
        """Add the Publish of ``publish_nowait`` or of another thread."""
        body = publish.bodies[0]
        self._mixed = True
        self.cost, publish.cost = self.cost + publish.cost, 0
        self.room -= len(body) + 4
        self.joined.append((publish, body))

    def drop_waiter(self, greenlet: Any) -> None:
        """Remove *greenlet*, which was killed or timed out, from the waiters.  Its message is still sent."""
        self.joined = [(None if each is greenlet else each, body) for each, body in self.joined]

    def raise_in(self, greenlet: Any) -> Any:
        """Raise the MPUB's error in *greenlet*, or wait for the PUB that sent the greenlet's message again."""
        if greenlet in self._separate:
            return self._separate[greenlet].wait_in(greenlet)
        error: Any = self._error
        raise error.with_traceback(None)  # the callers share the error object, so drop another caller's traceback

    def finish(self) -> None:
        """Accept no more publishes, and drop the publishes whose threads have timed out."""
        self.room = -1
        if self._mixed:
            self.joined = [each for each in self.joined if type(each[0]) is not Publish or each[0].mark_sent()]
        self.bodies = [body for _, body in self.joined]
        self.count = len(self.bodies)
        self.batch = self.count > 1

    def announce(self) -> None:
        """Settle the Publish objects, and resume the waiting greenlets."""
        if not self.count:  # the MPUB was not sent
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

    def split(self, error: BaseException) -> list[Publish]:
        """Split the MPUB, which nsqd refused because of one message.  Return the unsettled publishes, to send alone."""
        separate = []
        for waiter, body in self.joined:
            publish = waiter
            if type(waiter) is not Publish:
                publish = self._separate[waiter] = Publish(self.loop, self.topic, (body,), self.timeout, self.deadline)
            publish.retries = self.retries
            publish.data = publish.command()
            publish.sent = publish.in_doubt = self.in_doubt
            separate.append(publish)
        self.joined = [each for each in self.joined if type(each[0]) is not Publish]
        self.settle(error=error)
        return [publish for publish in separate if not publish.done()]


class Coalescing:
    """Collects the publishes of the current loop iteration in MPUBs.  Call it in the loop's thread.

    Args:
        send: Function that is called with each MPUB at the end of the iteration.
    """

    def __init__(
        self, loop: Loop, settings: ProducerSettings, clock: Clock, outcomes: Outcomes, send: Callable[[Publish], None]
    ) -> None:
        self._loop, self._settings, self._clock, self._outcomes, self._send = loop, settings, clock, outcomes, send
        #: Whether send() is scheduled, and whether it runs.
        self._due = self._sends = False
        #: All unsent MPUBs in order; the last MPUB of each topic.
        self.batches: deque[Gathering] = deque()
        self._open: dict[str, Gathering] = {}

    def publish(self, topic: str, body: bytes, timeout: float) -> Any:
        """Publish one message, and wait in the current greenlet.  Raises InvalidName and the error of the publish."""
        greenlet = current_greenlet()
        gathering, size = self._open.get(topic), len(body)
        try:
            # Same condition as in _gathering(): most publishes join an existing MPUB, and need no call.
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
        """Return the topic's unsent MPUB with room for *size* bytes; make an MPUB if there is none."""
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
                    self._outcomes.failed_with(gathering, NotSent("all publishes of the MPUB have timed out"))
            self.batches.popleft()  # only after the send: no other publish may overtake the MPUB
        self._sends = False
