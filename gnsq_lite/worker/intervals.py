"""Computes the due times of scheduled messages.  Times are wall-clock times in seconds since 1970."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_number
from gnsq_lite.units import parse_duration

#: Seconds after which a missed due time is dropped.
_PAST = 86400.0


class Schedule(Protocol):
    """Due times of a scheduled message.  Every process must compute the same times."""

    def next_after(self, wall: float) -> float:
        """Return the first due time after *wall*."""


@dataclass(frozen=True)
class Every:
    """Schedule that is due at each multiple of *seconds* since 1970 UTC, such as :00, :05 and :10 for "5m"."""

    seconds: float

    def next_after(self, wall: float) -> float:
        """Return the first multiple after *wall*."""
        return (math.floor(wall / self.seconds + 1e-9) + 1) * self.seconds


def parse_every(text: str | float) -> Every:
    """Return the schedule for a duration such as "5m", or for a number of seconds.  Raises OptionError."""
    try:
        seconds = parse_duration(text) if isinstance(text, str) else text
    except ValueError:
        raise OptionError("every", text, "must be like '30s', '5m', '1h30m', or a number of seconds") from None
    return Every(float(check_number("every", seconds, 1.0, 366 * 86400.0)))


def as_schedule(when: Any) -> Schedule:
    """Return the schedule for a duration, a number of seconds, or an object with next_after().  Raises OptionError."""
    schedule: Any = parse_every(when) if isinstance(when, (str, int, float)) else when
    if not callable(getattr(schedule, "next_after", None)):
        raise OptionError("every", when, "must be like '30s' or '5m', a number of seconds, or have a next_after(wall)")
    return schedule  # type: ignore[no-any-return]


def next_after(schedule: Schedule, wall: float) -> float:
    """Return the schedule's first due time after *wall*.  Raises ValueError if the schedule returns no later time."""
    when = schedule.next_after(wall)
    if not when > wall:
        raise ValueError(f"next_after({wall!r}) returned {when!r}, which is not later")
    return when


def due(schedule: Schedule, last: float, now: float, waited: float = 0.0) -> tuple[float | None, int]:
    """Return the latest due time after *last* and up to *now*, or None, and the number of earlier missed due times.

    Only the latest of several missed due times counts, so a process that slept for an hour does not publish an hour's
    messages at once.  Due times more than a day ago are dropped.  *waited* is the time since *last* by the monotonic
    clock.  If *waited* is at least twice the interval, return the next due time, even if the wall clock was set back.
    Raises ValueError if the schedule returns a time that is not later.
    """
    found, missed = None, 0
    when = next_after(schedule, max(last, now - _PAST))
    if when > now and waited >= 2 * (when - last):
        return when, 0
    while when <= now:
        missed += found is not None
        found, when = when, next_after(schedule, when)
    return found, missed
