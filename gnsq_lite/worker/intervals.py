"""Due times of scheduled messages; arguments and results are wall-clock times in seconds since 1970."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Protocol

from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_number

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(us|ms|s|m|h|d)", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
#: Seconds after which a missed time is dropped.
_PAST = 86400.0


class Schedule(Protocol):
    """Due times of a message; every process must compute the same times."""

    def next_after(self, wall: float) -> float:
        """Return the first time later than *wall*."""


@dataclass(frozen=True)
class Every:
    """Each whole multiple of *seconds* since 1970: "5m" is due at :00, :05, :10 ... in UTC."""

    seconds: float

    def next_after(self, wall: float) -> float:
        """Return the next multiple."""
        return (math.floor(wall / self.seconds + 1e-9) + 1) * self.seconds


def parse_duration(text: str) -> float:
    """Convert ``1h30m``, ``250ms`` or a number to seconds.  Raises ValueError."""
    if _WHOLE.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", text, re.ASCII):
        raise ValueError(f"{text!r} is not a duration: write 5m, 250ms, 1h30m or a number of seconds")
    return float(text)


def parse_every(text: str | float) -> Every:
    """Parse a duration, or a number of seconds.  Raises OptionError."""
    try:
        seconds = parse_duration(text) if isinstance(text, str) else text
    except ValueError:
        raise OptionError("every", text, "must be like '30s', '5m', '1h30m', or a number of seconds") from None
    return Every(float(check_number("every", seconds, 1.0, 366 * 86400.0)))


def due(schedule: Schedule, last: float, now: float, waited: float = 0.0) -> tuple[float | None, int]:
    """Return the latest due time after *last* and up to *now*, or None, and the number of earlier missed times.

    Of several missed times only the latest is due: a process that slept for an hour does not publish an hour's
    messages at once.  A time more than a day ago is dropped.  *waited*: monotonic seconds since *last*; after twice the
    interval the next time is due, even if the wall clock was set back to before it.
    """
    found, missed = None, 0
    when = schedule.next_after(max(last, now - _PAST))
    if when > now and waited >= 2 * (when - last):
        return when, 0
    while when <= now:
        missed += found is not None
        found, when = when, schedule.next_after(when)
    return found, missed
