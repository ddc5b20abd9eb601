"""Sets the outcome of each publish once, counts them, and knows when all have one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.errors import NotSent, OutcomeUnknown
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.waiting import Event, wait_or_set
from gnsq_lite.publish.answer_queue import Taken
from gnsq_lite.publish.backlog import Backlog
from gnsq_lite.publish.publication import Publication

#: Seconds between two looks of who waits for all outcomes; it is told of most.
_LOOK = 0.1


class Outcomes:
    """A Writer's.  In the loop's thread.

    *everything* returns every publish that may have no outcome yet; *max_pending* is the Writer's.
    """

    def __init__(
        self, loop: Loop, clock: Clock, max_pending: int, everything: Callable[[], Iterable[Publication]]
    ) -> None:
        self._loop, self._clock, self._everything = loop, clock, everything
        #: What the reads of OKs have taken; the loop may not add to it.
        self.taken = Taken()
        self.backlog = Backlog(max_pending, self.taken)
        self.failed = self.unknown = 0
        self._published = 0  # of other answers
        self._drained: list[Event] = []
        #: Whether that is to be looked at, in a moment.
        self._due = False

    @property
    def published(self) -> int:
        """How many messages nsqd took."""
        return self._published + self.taken.messages

    def succeed(self, publication: Publication, receipt: Any) -> None:
        """nsqd has the message."""
        if publication.settle(receipt):
            self._published += publication.count
            if publication.cost:
                self.backlog.release(publication)
            self.taken.open.discard(publication)
            self._look_soon()

    def settle(self, publication: Publication, *, error: BaseException) -> None:
        """Give a publish its outcome, once, and count it."""
        if publication.settle(error=error):
            self.count_failure(publication, error)

    def reset(self, why: str) -> None:
        """Give each publish an outcome: an exception has cut into what would have done that."""
        self._due = False
        for publication in list(self.taken.open):
            if publication.decided:
                publication.conclude_again()
            else:
                unknown = OutcomeUnknown(f"{why}: its outcome is unknown") if publication.sent else NotSent(why)
                self.settle(publication, error=unknown)
        self.taken.open.clear()
        self._look_soon()

    def add(self, publication: Publication) -> None:
        """Note a publish that the loop carries out from now on."""
        self.taken.open.add(publication)

    def count_failure(self, publication: Publication, error: BaseException) -> None:
        """Count a publish that was settled with *error*."""
        self.backlog.release(publication)
        self.taken.open.discard(publication)
        if isinstance(error, OutcomeUnknown):
            self.unknown += publication.count
        else:
            self.failed += publication.count
        self._look_soon()

    def unsettled(self) -> int:
        """Publishes that have no outcome yet."""
        return sum(1 for publication in self._everything() if not publication.done())

    def _all_settled(self) -> bool:
        """Whether there are none: looked at in each turn of the loop while somebody waits for all."""
        return all(publication.done() for publication in self._everything())

    def _look_soon(self) -> None:
        """Have whoever waits for all told, if they have theirs: once for all that this turn of the loop settles."""
        if self._drained and not self._due:
            self._due = True
            self._loop.call_soon(self._tell_drained)

    def _tell_drained(self) -> None:
        self._due = False
        if self._all_settled():
            for event in self._drained:
                event.set()

    def drain(self, timeout: float) -> bool:
        """Wait until all that was submitted has an outcome; return whether it has."""
        deadline = self._clock.now() + timeout
        while not self._all_settled():
            left = deadline - self._clock.now()
            if left <= 0:
                return False
            woken = Event()
            try:
                self._drained.append(woken)
                self.taken.on_more = self._look_soon
                wait_or_set(woken, min(left, _LOOK))
            finally:
                self._drained.remove(woken)
                if not self._drained:
                    self.taken.on_more = None
        return True
