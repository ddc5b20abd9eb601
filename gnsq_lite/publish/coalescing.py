"""Publishes of one turn of the loop to one topic, gathered into one MPUB; each keeps its own outcome.

It is a queue in front of the path that every publish takes.  A greenlet of the loop's own thread that waits for its
publish costs a body in a list and a switch: no object of its own, no callback, no timer.  All that wait for one MPUB
are resumed in one callback of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.errors import BadBodyError, BadMessageError
from gnsq_lite.net.loop import Loop, current_greenlet
from gnsq_lite.publish.deadline_timer import DeadlineTimer
from gnsq_lite.publish.publication import Publication
from gnsq_lite.wire import commands

#: What nsqd says to an MPUB, of which it then takes nothing, because of one of its bodies or of their sum.
ONE_OF_MANY = (BadMessageError, BadBodyError)


class Gathering(Publication):
    """An MPUB being gathered: the publishes of one turn with the same topic and timeout; a single one is a PUB."""

    __slots__ = ("_apart", "_mixed", "failed", "joined", "members", "room", "waiters")

    bodies: list[bytes]

    def __init__(self, loop: Loop, topic: str, timeout: float, deadline: float, retries: int, most: int) -> None:
        commands.PUBLISH_HEADS[topic]  # a bad name shows before anything is taken in
        super().__init__(loop, topic, [], timeout, deadline, retries)
        #: Until this is sent: the greenlet of the loop that waits, None where it gave up, or the publish that somebody
        #: holds, of publish_nowait or of another thread; and its body.  Adding both is one step, which needs no guard.
        self.joined: list[tuple[Any, bytes]] = []
        #: Then, the greenlet that waits for each body.
        self.waiters: list[Any] = []
        #: Whether others than greenlets that wait have joined.
        self._mixed = False
        #: And the publishes that somebody holds, with the places of their bodies.
        self.members: list[tuple[int, Publication]] = []
        self._apart: dict[Any, Publication] = {}
        self.failed = False
        #: Bytes that one more body may have.
        self.room = most - 8

    def add(self, publication: Publication) -> None:
        """Add a publish that somebody holds."""
        body = publication.bodies[0]
        self._mixed = True
        self.room -= len(body) + 4
        self.joined.append((publication, body))

    def give_up(self, greenlet: Any) -> None:
        """Do not resume *greenlet*, which was killed or timed out; its publish is sent all the same."""
        self.joined = [(None if each is greenlet else each, body) for each, body in self.joined]
        self.waiters = [None if each is greenlet else each for each in self.waiters]

    def raise_in(self, greenlet: Any) -> Any:
        """Raise the error in *greenlet*; or wait for the outcome of its own publish, where all came apart."""
        if greenlet in self._apart:
            return self._apart[greenlet].wait_in(greenlet)
        error: Any = self._error
        raise error.with_traceback(None)  # the same for all: none is to see how it came to the others

    def finish(self) -> None:
        """Accept no more publishes, and drop those that were given up."""
        self.room = -1
        if self.joined:
            self.waiters, self.bodies = map(list, zip(*self.joined, strict=True))
            self.joined = []
        if self._mixed:
            self._sort()
        self.count = len(self.bodies)
        self.batch = self.count > 1

    def _sort(self) -> None:
        """Tell the publishes that somebody holds from the greenlets that wait."""
        joined = zip(self.waiters, self.bodies, strict=True)
        sent = [(whose, body) for whose, body in joined if type(whose) is not Publication or whose.mark_sent()]
        waiters = [None if type(whose) is Publication else whose for whose, _ in sent]
        self.members = [(place, whose) for place, (whose, _) in enumerate(sent) if type(whose) is Publication]
        for _, member in self.members:
            self.cost += member.cost
            member.cost = 0
        self.bodies, self.waiters, self._mixed = [body for _, body in sent], waiters, False

    def _conclude(self) -> None:
        """Settle each member too."""
        if self.joined or self._mixed:
            self.finish()
        super()._conclude()
        self.failed = self._error is not None
        self.bodies = []
        for _, member in self.members:
            member.settle(self._value, self._error)
        if self.waiters:
            self._loop.resume_soon(greenlet for greenlet in self.waiters if greenlet is not None)
            self.waiters = []

    def conclude_again(self) -> None:
        """Do it once more."""
        super().conclude_again()
        self.failed = self._error is not None
        for _, member in self.members:
            member.settle(self._value, self._error)
            member.conclude_again()
        for greenlet in self.waiters:
            if greenlet is not None:
                self._loop.resume_once(greenlet)

    def come_apart(self, error: BaseException) -> list[Publication]:
        """Return what has no outcome, each to be sent alone: nsqd refused all because of one, and took none."""
        members, apart = dict(self.members), []
        for place, body in enumerate(self.bodies):
            publication = members.get(place)
            if publication is None:
                publication = Publication(self._loop, self.topic, (body,), self.timeout, self.deadline)
                self._apart[self.waiters[place]] = publication
            publication.retries = self.retries
            publication.data = publication.command()  # which is joined to no other again
            publication.sent = publication.in_doubt = self.in_doubt
            apart.append(publication)
        self.members = []
        self.settle(error=error)
        return [publication for publication in apart if not publication.done()]


class Gathered:
    """What this turn's publishes are gathered in.  In the loop's thread.

    Args:
        most: Bytes of an MPUB.
        deadline_timer: Set to the deadline of each.
        publish_alone: Publishes for whoever is not of the loop's thread, and waits.
        opened: Called with each MPUB that is being gathered from now on.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        *,
        most: int,
        retries: int,
        deadline_timer: DeadlineTimer,
        publish_alone: Callable[[str, bytes, float], Any],
        opened: Callable[[Publication], None],
    ) -> None:
        self._opened = opened
        self._loop, self._clock, self._most, self._retries = loop, clock, most, retries
        self._deadline_timer, self._publish_alone = deadline_timer, publish_alone
        #: Gets each at the turn's end; the Writer's to say.
        self.carry: Callable[[Publication], None]
        self._hub = loop.hub
        #: Whether send() is about to be called, and whether it is being carried out.
        self._due = self._sends = False
        #: All of them, in order, always the same queue; and the last one of each topic.
        self.batches: deque[Gathering] = deque()
        self._open: dict[str, Gathering] = {}

    def publish(self, topic: str, body: bytes, timeout: float) -> Any:
        """Publish one message and wait; from any thread.  Raises InvalidName, NotSent, the publish's error."""
        greenlet = current_greenlet()
        if not (greenlet.parent is self._hub or greenlet is self._hub.parent):
            return self._publish_alone(topic, body, timeout)
        gathering, size = self._open.get(topic), len(body)
        try:
            # What _gathering() asks first, without the call: most publishes join one that others opened.
            if gathering is None or gathering.room < size or gathering.timeout != timeout:
                with self._loop.guard:
                    gathering = self._gathering(topic, timeout, size)
            gathering.room -= size + 4
            gathering.joined.append((greenlet, body))
            while not gathering._done:
                self._loop.park(greenlet)
        except BaseException:
            if gathering is not None:
                gathering.give_up(greenlet)
            self._loop.forget(greenlet)
            raise
        return gathering.raise_in(greenlet) if gathering.failed else None

    def add(self, publication: Publication) -> None:
        """Add a plain publish of one message that somebody holds."""
        self._gathering(publication.topic, publication.timeout, len(publication.bodies[0])).add(publication)

    def _gathering(self, topic: str, timeout: float, size: int) -> Gathering:
        """Return the MPUB being gathered that a body of *size* bytes goes into."""
        gathering = self._open.get(topic)
        if gathering is None or gathering.room < size or gathering.timeout != timeout:
            deadline = self._clock.now() + timeout
            gathering = Gathering(self._loop, topic, timeout, deadline, self._retries, self._most)
            if deadline < self._deadline_timer.at:
                self._deadline_timer.set(deadline)
            if not self._due:
                self._due = True
                self._loop.soon(self.send)
            self._open[topic] = gathering
            self.batches.append(gathering)
            self._opened(gathering)
        return gathering

    def send(self) -> None:
        """Send what has been gathered; in the middle of another such call that goes on with the rest."""
        self._due = False
        if self._sends:
            return
        self._open = {}
        self._sends = True
        while self.batches:
            gathering = self.batches[0]
            if not gathering.decided:  # as it is when the Writer was closed meanwhile
                gathering.finish()
                if gathering.bodies:
                    self.carry(gathering)
            self.batches.popleft()  # once it has its place: until then no thread may overtake it
        self._sends = False
