"""How long handlers have run, and which exceed a limit.  Pure: the clock and the running jobs are arguments.

Nothing is recorded when a handler begins or ends.  Each look sees the job of each worker, and the age of a job counts
from the first look that saw it.  So an age is too short by at most the time between two looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.options import HandlerOptions

#: Seconds that a handler has to end in which :class:`TimeLimitExceeded` was raised.
GRACE = 5.0
#: Seconds between two looks, at the most and at the least; in between a twentieth of the shortest limit.
_SELDOM, _OFTEN = 1.0, 0.01

#: A worker's list of itself and its job, or None; see :class:`gnsq_lite._core.Runner`.
Seat = list[Any]


class Act(Enum):
    """What to do about a handler."""

    WARN = "warn"
    """Its soft limit has passed."""
    INTERRUPT = "interrupt"
    """Its limit has passed, and it can be interrupted."""
    WRITE_OFF = "write off"
    """Its limit has passed, and nothing ends it: answer its messages, and give its place to another."""


@dataclass(eq=False)
class Running:
    """A handler that was seen running."""

    seat: Seat
    job: Any
    since: float
    done: Act | None = None

    def still_runs(self) -> bool:
        """Whether the worker still runs the same job."""
        return self.seat[1] is self.job


class HandlerTimes:
    """Watches the seats of one pool.

    Args:
        interruptible: Whether an exception can be raised in a handler: in a greenlet, not in a native thread.
    """

    def __init__(self, options: HandlerOptions, clock: Clock, *, interruptible: bool) -> None:
        self._clock, self._interruptible = clock, interruptible
        self._soft, self._hard = options.soft_time_limit, options.time_limit
        #: Those that run, by the id of their seat.
        self._running: dict[int, Running] = {}

    @property
    def look_every(self) -> float:
        """Seconds between two looks."""
        shortest = min((limit for limit in (self._soft, self._hard) if limit is not None), default=_SELDOM * 20)
        return min(_SELDOM, max(_OFTEN, shortest / 20))

    @property
    def overdue(self) -> int:
        """How many handlers still run after they were written off."""
        return sum(each.done is Act.WRITE_OFF and each.still_runs() for each in self._running.values())

    def oldest(self) -> float:
        """Return the age of the oldest running handler, seconds; 0.0 where none runs."""
        now = self._clock.now()
        return max((now - each.since for each in self._running.values() if each.still_runs()), default=0.0)

    def look(self, seats: Iterable[Seat]) -> list[tuple[Act, Running]]:
        """Take the workers' current jobs; return what to do about which."""
        now, before = self._clock.now(), self._running
        self._running = {}
        acts = []
        for seat in seats:
            job = seat[1]
            if job is None:
                continue
            run = before.get(id(seat))
            if run is None or run.seat is not seat or run.job is not job:
                run = Running(seat, job, now)
            self._running[id(seat)] = run
            act = self._due(run, now - run.since)
            if act is not None:
                run.done = act
                acts.append((act, run))
        return acts

    def _due(self, run: Running, age: float) -> Act | None:
        if self._hard is not None and age >= self._hard:
            if run.done is Act.WRITE_OFF:
                return None
            if not self._interruptible or (run.done is Act.INTERRUPT and age >= self._hard + GRACE):
                return Act.WRITE_OFF
            return None if run.done is Act.INTERRUPT else Act.INTERRUPT
        if self._soft is not None and age >= self._soft and run.done is None:
            return Act.WARN
        return None
