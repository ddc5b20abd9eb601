"""Publishes of one turn of the loop to one topic, gathered into one MPUB; each keeps its own outcome.

It is a queue in front of the path that every publish takes.  A greenlet of the loop's own thread that waits for its
publish costs a body in a list and a switch: no object of its own, no callback, no timer.  All that wait for one MPUB
are resumed in one callback of the loop.

A signal handler may come at any call, and may wait: meanwhile the loop turns, and sends what the interrupted publish
was about to join.  So joining is one step, with no call between the look whether that can be joined and the wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from gnsq_lite.clock import Clock
from gnsq_lite.errors import BadBodyError, BadMessageError, NotSent
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.nested import WHY, holding, holds, is_nested
from gnsq_lite.publish.deadline_timer import DeadlineTimer
from gnsq_lite.publish.publication import Publication
from gnsq_lite.wire import commands

#: What nsqd says to an MPUB, of which it then takes nothing, because of one of its bodies or of their sum.
ONE_OF_MANY = (BadMessageError, BadBodyError)


class Gathering(Publication):
    """An MPUB being gathered: the publishes of one turn with the same topic and timeout; a single one is a PUB."""

    __slots__ = ("_apart", "_mixed", "closed", "failed", "joined", "members", "room", "waiters")

    bodies: list[bytes]

    def __init__(self, loop: Loop, topic: str, timeout: float, deadline: float, retries: int, most: int) -> None:
        commands.PUBLISH_HEADS[topic]  # a bad name shows before anything is taken in
        super().__init__(loop, topic, [], timeout, deadline, retries)
        #: Until it is closed, for each that joined: whose body it is, and the body.  It is the greenlet's of the loop
        #: that waits for the outcome, None where it gave up; or the publish's that somebody holds, of publish_nowait
        #: or of another thread.
        self.joined: list[Any] = []
        #: Then, the greenlet that waits for each body.
        self.waiters: list[Any] = []
        #: Whether no more may join, and whether others than greenlets that wait have.
        self.closed = self._mixed = False
        #: And the publishes that somebody holds, with the places of their bodies.
        self.members: list[tuple[int, Publication]] = []
        self._apart: dict[Any, Publication] = {}
        self.failed = False
        #: Bytes that one more body may have.
        self.room = most - 8

    def add(self, publication: Publication) -> bool:
        """Add a publish that somebody holds; False: it is closed."""
        body = publication.bodies[0]
        self.room -= len(body) + 4
        self._mixed = True
        if self.closed:
            return False
        self.joined += (publication, body)  # not extend(), which is a call
        return True

    def give_up(self, greenlet: Any) -> None:
        """Do not resume *greenlet*, which was killed or timed out; its publish is sent all the same."""
        for waiters in (self.joined, self.waiters):
            if greenlet in waiters:
                waiters[waiters.index(greenlet)] = None

    def raise_in(self, greenlet: Any) -> Any:
        """Raise the error in *greenlet*; or wait for the outcome of its own publish, where all came apart."""
        if greenlet in self._apart:
            return self._apart[greenlet].wait_in(greenlet)
        error: Any = self._error
        raise error.with_traceback(None)  # the same for all: none is to see how it came to the others

    def finish(self) -> None:
        """Accept no more publishes, and drop those that were given up."""
        self.closed, self.room = True, -1
        if self.joined:  # at once: there is no call in which a signal handler may come
            self.waiters, self.bodies, self.joined = self.joined[::2], self.joined[1::2], []
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

    def _conclude(self, *, again: bool = False) -> None:
        """Settle each member too."""
        if self._mixed or not self.closed:
            self.finish()
        super()._conclude(again=again)
        self.failed = self._error is not None
        self.bodies = []
        for _, member in self.members:
            member.settle(self._value, self._error)
        if self.waiters:
            if again:
                self.waiters = [each for each in self.waiters if not self._loop.is_due(each)]
            self._loop.resume_soon(self.waiters)

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
    ) -> None:
        self._loop, self._clock, self._most, self._retries = loop, clock, most, retries
        self._deadline_timer, self._publish_alone = deadline_timer, publish_alone
        #: Gets each at the turn's end; the Writer's to say.
        self.carry: Callable[[Publication], None]
        self._hub = loop.hub
        #: Whether send() is about to be called, whether it is being carried out, and how often it was called.
        self._due = self._sends = False
        self._turn = 0
        #: All of them, in order, always the same queue; and the last one of each topic.
        self.batches: deque[Gathering] = deque()
        self._open: dict[str, Gathering] = {}

    def publish(self, topic: str, body: bytes, timeout: float) -> Any:
        """Publish one message and wait; from any thread.  Raises InvalidName, NotSent, the publish's error."""
        greenlet = getcurrent()
        if not (greenlet.parent is self._hub or greenlet is self._hub.parent):
            return self._publish_alone(topic, body, timeout)
        gathering, size = self._open.get(topic), len(body)
        # What _gathering() asks first, without the call: most publishes join one that others opened.
        if gathering is None or gathering.room < size or gathering.timeout != timeout:
            if holding and is_nested():  # in the middle of send(), which has closed all that could be joined
                raise NotSent(WHY)
            gathering = self._gathering(topic, timeout, size)
        gathering.room -= size + 4
        try:
            joined = self._loop.park(greenlet, gathering, body)
        except BaseException:
            gathering.give_up(greenlet)
            raise
        if not joined:
            return self.publish(topic, body, timeout)
        return gathering.raise_in(greenlet) if gathering.failed else None

    def add(self, publication: Publication) -> None:
        """Add a plain publish of one message that somebody holds."""
        size = len(publication.bodies[0])
        while not self._gathering(publication.topic, publication.timeout, size).add(publication):
            pass

    def _gathering(self, topic: str, timeout: float, size: int) -> Gathering:
        """Return the MPUB being gathered that a body of *size* bytes goes into."""
        gathering = self._open.get(topic)
        if gathering is None or gathering.room < size or gathering.timeout != timeout:
            deadline = self._clock.now() + timeout
            gathering = Gathering(self._loop, topic, timeout, deadline, self._retries, self._most)
            if deadline < self._deadline_timer.at:
                self._deadline_timer.set(deadline)
            while not self._due:  # again where the loop has turned in the call
                turn = self._turn
                self._loop.soon(self.send)
                self._due = self._turn == turn
            self._open[topic] = gathering
            self.batches += (gathering,)
        return gathering

    @holds
    def send(self) -> None:
        """Send what has been gathered; in the middle of another such call that goes on with the rest."""
        self._due = False
        self._turn += 1
        if self._sends:
            return
        try:
            self._open = {}  # first: what comes in between joins nothing that waits for this
            holding.add(self._loop.ident)
            self._sends = True
            while self.batches:
                holding.add(self._loop.ident)  # what sends has held something itself
                gathering = self.batches[0]
                if not gathering.decided:  # as it is when the Writer was closed meanwhile
                    gathering.finish()
                    if gathering.bodies:
                        self.carry(gathering)
                self.batches.popleft()  # once it has its place: until then no thread may overtake it
        finally:
            self._sends = False
            holding.discard(self._loop.ident)
            if self.batches:  # interrupted
                self._loop.soon(self.send)
