"""One timer for many deadlines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.errors import NSQError
from gnsq_lite.net.loop import Loop
from gnsq_lite.publish.publication import Publication

NEVER = float("inf")


def settle_expired(
    publications: Iterable[Publication],
    now: float,
    error: Callable[[Publication], NSQError],
    settle: Callable[..., None],
) -> float:
    """Settle each whose deadline has passed with its *error*; return the soonest deadline of the others."""
    soonest = NEVER
    for publication in publications:
        if publication.done():
            continue
        if publication.deadline <= now:
            settle(publication, error=error(publication))
        else:
            soonest = min(soonest, publication.deadline)
    return soonest


class DeadlineTimer:
    """Calls *act* once at ``at``, in seconds of *clock*, from the loop's hub: it must not block.

    Whoever has a deadline before ``at`` sets it; *act* checks all deadlines and returns the soonest that is left.
    """

    def __init__(self, loop: Loop, clock: Clock, act: Callable[[], float]) -> None:
        self.at = NEVER
        self._loop, self._clock, self._act = loop, clock, act
        self._timer: Any = None

    def set(self, at: float) -> None:
        """Act at that time, in place of the one set before; infinity: never."""
        self.at = at
        self.stop()
        if at < NEVER:
            self._timer = self._loop.timer(at - self._clock.now(), self.act)

    def act(self) -> None:
        """Act now."""
        self.set(NEVER)
        self.cover(self._act())  # unless something sooner was submitted meanwhile

    def cover(self, at: float) -> None:
        """Act at the latest then."""
        if at < self.at:
            self.set(at)

    def stop(self) -> None:
        """Act no more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()
