"""Publishes that other threads hand over to the loop, which carries them out in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from gnsq_lite.clock import Clock
from gnsq_lite.errors import NSQError
from gnsq_lite.net.loop import Loop, after_io
from gnsq_lite.net.os_threads import native_lock
from gnsq_lite.publish.publication import Publication

#: Most publishes that are carried out in one turn of the loop.
_AT_ONCE = 1000


class HandOver:
    """The queue between other threads and the loop.

    Args:
        submit: Carries a publish out; called in the loop.
        given_up: Called in the loop for a publish whose thread has settled it at its deadline.
        reasons: Returns why no nsqd can be reached; called in any thread.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        submit: Callable[[Publication], None],
        given_up: Callable[[Publication, NSQError], None],
        reasons: Callable[[], Iterable[NSQError | str]],
    ) -> None:
        self._loop, self.clock = loop, clock
        self._submit, self._given_up, self._reasons = submit, given_up, reasons
        #: Held where a publish is marked as sent, and where its thread gives it up.
        self.lock = native_lock()
        #: What was handed over, until the loop has carried it out.
        self._entering: deque[Publication] = deque()
        #: Whether the rest of that waits until the loop has done its I/O.
        self._rests = False

    def put(self, publication: Publication) -> None:
        """Hand over *publication*, behind earlier ones.  Raises ClosedError at the interpreter's exit."""
        self._loop.check()
        publication.ask()
        self._entering.append(publication)
        publication.carrier = self
        self._loop.call_soon(self.enter_some)

    def entering(self) -> tuple[Publication, ...]:
        """Return what was handed over and is not in the loop's queues."""
        return tuple(self._entering)

    def enter_some(self) -> None:
        """Carry out some of what was handed over, and the rest after the loop's I/O: threads may be quicker than it.

        Called in the loop.
        """
        if not self._rests:
            self.forget_done()
            self.enter(_AT_ONCE)
            if self._entering:
                self._rests = True
                after_io(self._loop, self._go_on)

    def _go_on(self) -> None:
        self._rests = False
        self.enter_some()

    def enter(self, most: int | None = None) -> None:
        """Carry out what was handed over until now, at most *most* publishes; in the loop."""
        for _ in range(len(self._entering))[:most]:
            publication = self._entering[0]
            if not publication.done():
                self._submit(publication)
            if self._entering and self._entering[0] is publication:  # it may have been forgotten meanwhile
                self._entering.popleft()

    def reset(self) -> None:
        """Carry out what was handed over, after an exception that may have ended that; in the loop."""
        self._rests = False
        self._loop.soon(self.enter_some)

    def forget_done(self) -> None:
        """Drop from the front what has its outcome; in the loop."""
        while self._entering and self._entering[0].done():
            self._entering.popleft()

    def give_up(self, publication: Publication) -> None:
        """Settle a publish whose deadline has passed, unless the loop just has; in the thread that waits for it."""
        with self.lock:
            error = publication.expired(() if publication.sent else list(self._reasons()))
            first = publication.settle(error=error)
        if first:
            self._loop.call_soon(lambda: self._given_up(publication, error))
