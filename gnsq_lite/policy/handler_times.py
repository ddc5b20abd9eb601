"""How long handlers have run, and whose time is over.  Pure: the clock is given, and what runs is looked at.

Nothing is counted when a handler begins or ends: who looks, sees what each worker is at, and a job that was there
before is as old as its first sight.  So an age is short by at most the time between two looks.
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

#: A worker's list of itself and its job, or None; see :class:`gnsq_lite.speed.PureRunner`.
Seat = list[Any]


class Act(Enum):
    """What is to be done about a handler."""

    WARN = "warn"
    """Its soft limit has passed."""
    INTERRUPT = "interrupt"
    """Its time is over, and it can be told."""
    WRITE_OFF = "write off"
    """Its time is over, and nothing ends it: its messages are answered, and its place goes to another."""


@dataclass(eq=False)
class Running:
    """A handler that was seen to run."""

    seat: Seat
    job: Any
    since: float
    done: Act | None = None

    def still_runs(self) -> bool:
        """Whether the same worker is at the same job."""
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
        """Handlers that run on though they were written off."""
        return sum(each.done is Act.WRITE_OFF and each.still_runs() for each in self._running.values())

    def oldest(self) -> float:
        """Return the seconds for which the handler that has run longest has run; 0.0: none runs."""
        now = self._clock.now()
        return max((now - each.since for each in self._running.values() if each.still_runs()), default=0.0)

    def look(self, seats: Iterable[Seat]) -> list[tuple[Act, Running]]:
        """Take what the workers are at; return what is to be done about whom."""
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
