"""Publishes of one turn of the loop to one topic, gathered into one MPUB; each keeps its own outcome.

A greenlet of the loop's own thread that waits for its publish costs a body in a list and a switch: no object of its
own, no callback, no timer.  All that wait for one MPUB are resumed in one callback of the loop.
"""

from __future__ import annotations

from typing import Any

from gnsq_lite.errors import BadBodyError, BadMessageError
from gnsq_lite.net.publication import Publication
from gnsq_lite.net.runtime import Loop
from gnsq_lite.wire import commands

#: What nsqd says to an MPUB, of which it then takes nothing, because of one of its bodies or of their sum.
ONE_OF_MANY = (BadMessageError, BadBodyError)


class Gathering(Publication):
    """An MPUB in the making: the publishes of one turn that have one topic and one timeout; a PUB if it is but one."""

    __slots__ = ("_apart", "_head", "bodies", "failed", "members", "room", "waiters")

    def __init__(self, loop: Loop, topic: str, timeout: float, deadline: float, most: int) -> None:
        super().__init__(loop, topic, b"", 0, timeout, deadline)
        self._head = commands.multipublish_head(topic)  # a bad name shows before anything is taken in
        self.bodies: list[bytes] = []
        #: Greenlets of the loop that wait for the outcome, in the order of their bodies; None where one gave up.
        self.waiters: list[Any] = []
        #: Publishes that somebody holds, of publish_nowait or of other threads, and the places of their bodies.
        self.members: list[tuple[int, Publication]] = []
        self._apart: dict[Any, Publication] = {}
        self.failed = False
        #: Bytes that one more body may have.
        self.room = most - 8

    def add(self, publication: Publication, body: bytes) -> None:
        """Take a publish in that somebody holds."""
        self.members.append((len(self.bodies), publication))
        self.bodies.append(body)
        self.room -= len(body) + 4
        self.cost += publication.cost

    def give_up(self, greenlet: Any) -> None:
        """Do not resume *greenlet*, which was killed or is out of patience; its publish goes its way."""
        if not self._done:
            self.waiters[self.waiters.index(greenlet)] = None

    def raise_in(self, greenlet: Any) -> Any:
        """Raise the error in *greenlet*; or wait for the outcome of its own publish, where all came apart."""
        if greenlet in self._apart:
            return self._apart[greenlet].wait_in(greenlet)
        error: Any = self._error
        raise error.with_traceback(None)  # the same for all: none is to see how it came to the others

    def finish(self) -> None:
        """Make the command's bytes: nothing is added any more."""
        bodies = self.bodies
        self.count = len(bodies)
        if len(bodies) == 1:
            self.data = commands.publish(self.topic, bodies[0])
        else:
            self.data = commands.multipublish_packed(self._head, bodies)

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Settle each member, and resume whoever waits."""
        first = super().settle(value, error)
        if first:
            self.failed = error is not None
            self.bodies = []
            for _, member in self.members:
                member.settle(value, error)
            if self.waiters:
                self._loop.resume_soon(self.waiters)
        return first

    def come_apart(self, error: BaseException) -> list[Publication]:
        """Return its publishes, each to be sent alone: nsqd refused all because of one, and took none."""
        members, waiters, apart = dict(self.members), self.waiters[::-1], []
        for place, body in enumerate(self.bodies):
            publication = members.get(place)
            if publication is None:
                data = commands.publish(self.topic, body)
                publication = Publication(self._loop, self.topic, data, 1, self.timeout, self.deadline)
                self._apart[waiters.pop()] = publication
            publication.retries = self.retries
            publication.sent = publication.in_doubt = self.in_doubt
            apart.append(publication)
        self.members = []
        self.settle(error=error)
        return apart
