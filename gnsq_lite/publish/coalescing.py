"""Sends the publishes without options to one topic in one loop iteration as one MPUB, each with its own outcome.

The publish of a greenlet in the loop's thread adds one list item, and makes no Publish, callback or timer.  One
callback of the loop resumes all greenlets that wait for an MPUB.
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

#: Errors with which nsqd refuses an MPUB because one body, or the whole MPUB, is too large.
REFUSED_MPUB = (BadMessageError, BadBodyError)


class CoalescedPublish(Publish):
    """An MPUB for the publishes of one loop iteration with the same topic and timeout, or the PUB of a single one."""

    __slots__ = ("_mixed", "_separate", "members", "room")

    bodies: list[bytes]

    def __init__(self, loop: Loop, topic: str, timeout: float, deadline: float, retries: int, most: int) -> None:
        commands.PUBLISH_HEADS[topic]  # raises InvalidName before any publish is added
        super().__init__(topic, [], timeout, deadline, retries)
        self.loop = loop
        #: Pairs of a waiter and a body.  The waiter is the Publish of ``publish_nowait`` or of another thread, or a
        #: greenlet of the loop.  None replaces a greenlet that was killed or timed out.
        self.members: list[tuple[Any, bytes]] = []
        #: Whether any waiter is a Publish.
        self._mixed = False
        #: After nsqd refused the MPUB: for each greenlet, the PUB that sends its message again.
        self._separate: dict[Any, Publish] = {}
        #: Maximum bytes of the next body.
        self.room = most - 8

    def add(self, publish: Publish) -> None:
        """Add the Publish of ``publish_nowait`` or of another thread."""
        body = publish.bodies[0]
        self._mixed = True
        self.cost, publish.cost = self.cost + publish.cost, 0
        self.room -= len(body) + 4
        self.members.append((publish, body))

    def drop_waiter(self, greenlet: Any) -> None:
        """Remove *greenlet*, which was killed or timed out, from the waiters.  The message is still sent."""
        self.members = [(None if each is greenlet else each, body) for each, body in self.members]

    def raise_in(self, greenlet: Any) -> Any:
        """Raise the MPUB's error, or wait in *greenlet* for the PUB that sends its message again."""
        if greenlet in self._separate:
            return self._separate[greenlet].wait_in(greenlet)
        error: Any = self._error
        raise error.with_traceback(None)  # several callers raise the same object: drop the traceback of another caller

    def close_batch(self) -> None:
        """Set the bodies of the MPUB, and accept no more.  Publishes whose threads have timed out are dropped."""
        self.room = -1
        if self._mixed:
            self.members = [each for each in self.members if type(each[0]) is not Publish or each[0].mark_sent()]
        self.bodies = [body for _, body in self.members]
        self.count = len(self.bodies)
        self.batch = self.count > 1

    def announce(self) -> None:
        """Settle the Publish objects, and resume the waiting greenlets."""
        if not self.count:  # the MPUB was not sent
            self.close_batch()
        super().announce()
        self.bodies = []
        if self._mixed:
            for publish in [waiter for waiter, _ in self.members if type(waiter) is Publish]:
                publish.settle(self._value, self._error)
        greenlets = [waiter for waiter, _ in self.members if waiter is not None and type(waiter) is not Publish]
        if greenlets:
            self.loop.resume_soon(greenlets)
        self.members = []

    def split(self, error: BaseException) -> list[Publish]:
        """Settle an MPUB that nsqd refused with *error*, and return a PUB for each message without an outcome."""
        separate = []
        for waiter, body in self.members:
            publish = waiter
            if type(waiter) is not Publish:
                publish = self._separate[waiter] = Publish(self.topic, (body,), self.timeout, self.deadline)
                publish.loop = self.loop
            publish.retries = self.retries
            publish.data = publish.command()
            publish.sent = publish.in_doubt = self.in_doubt
            separate.append(publish)
        self.members = [each for each in self.members if type(each[0]) is not Publish]
        self.settle(error=error)
        return [publish for publish in separate if not publish.done()]


class Coalescing:
    """Collects the publishes of the current loop iteration in MPUBs.  Call all methods in the loop's thread.

    Args:
        send: Called with each MPUB at the end of the iteration.
    """

    def __init__(
        self, loop: Loop, settings: ProducerSettings, clock: Clock, outcomes: Outcomes, send: Callable[[Publish], None]
    ) -> None:
        self._loop, self._settings, self._clock, self._outcomes, self._send = loop, settings, clock, outcomes, send
        #: ``_due``: the loop will call send().  ``_sends``: send() runs now.
        self._due = self._sends = False
        #: The unsent MPUBs, in order.
        self.batches: deque[CoalescedPublish] = deque()
        #: For each topic, the unsent MPUB to which publishes are added.
        self._open: dict[str, CoalescedPublish] = {}

    def publish(self, topic: str, body: bytes, timeout: float) -> Any:
        """Publish one message, and wait in the current greenlet.  Raises the publish's error, and InvalidName."""
        greenlet = current_greenlet()
        batch, size = self._open.get(topic), len(body)
        try:
            # The condition of _open_batch() is repeated here, so that most publishes do not call it.
            if batch is None or batch.room < size or batch.timeout != timeout:
                with self._loop.guard:
                    batch = self._open_batch(topic, timeout, size)
            batch.room -= size + 4
            batch.members.append((greenlet, body))
            while not batch._done:
                self._loop.park(greenlet)
        except BaseException:
            if batch is not None:
                batch.drop_waiter(greenlet)
            raise
        return batch.raise_in(greenlet) if batch._error is not None else None

    def add(self, publish: Publish) -> None:
        """Add the publish of one message, which must have no options."""
        self._open_batch(publish.topic, publish.timeout, len(publish.bodies[0])).add(publish)

    def _open_batch(self, topic: str, timeout: float, size: int) -> CoalescedPublish:
        """Return an unsent MPUB of the topic with room for *size* bytes.  If there is none, start a new MPUB."""
        batch = self._open.get(topic)
        if batch is None or batch.room < size or batch.timeout != timeout:
            settings = self._settings
            deadline = self._clock.now() + timeout
            batch = CoalescedPublish(self._loop, topic, timeout, deadline, settings.retries, settings.max_body_size)
            if not self._due:
                self._due = True
                self._loop.soon(self.send)
            self._open[topic] = batch
            self.batches.append(batch)
            self._outcomes.add(batch)
        return batch

    def send(self) -> None:
        """Send all unsent MPUBs.  If send() is running already, the running call sends them."""
        self._due = False
        if self._sends:
            return
        self._open = {}
        self._sends = True
        while self.batches:
            batch = self.batches[0]
            if not batch._done:  # close() of the Writer settles unsent MPUBs
                batch.close_batch()
                if batch.bodies:
                    self._send(batch)
                else:
                    self._outcomes.failed_with(batch, NotSent("all publishes of the MPUB have timed out"))
            self.batches.popleft()
        self._sends = False
