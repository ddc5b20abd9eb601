"""Due times of scheduled messages; arguments and results are wall-clock times in seconds since 1970."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_number

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
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


def parse_every(text: str | float) -> Every:
    """Parse ``"30s"``, ``"5m"``, ``"2h"``, ``"1d"`` or a number of seconds.  Raises OptionError."""
    try:
        seconds = float(text[:-1]) * _UNITS[text[-1:]] if isinstance(text, str) else text
    except (KeyError, ValueError):
        raise OptionError("every", text, "must be '30s', '5m', '2h', '1d' or a number of seconds") from None
    return Every(float(check_number("every", seconds, 1.0, 366 * 86400.0)))


def due(schedule: Schedule, last: float, now: float, waited: float = 0.0) -> tuple[float | None, int]:
    """Return the latest due time after *last* and up to *now*, or None, and the number of earlier missed times.

    Of several missed times only the latest is due: a process that slept for an hour does not publish an hour's
    messages at once.  A time more than a day ago is dropped.  *waited*: monotonic seconds since *last*; after twice the
    interval the next time is due, even if the clock was set back and does not show it yet.
    """
    found, missed = None, 0
    when = schedule.next_after(max(last, now - _PAST))
    if when > now and waited >= 2 * (when - last):
        return when, 0
    while when <= now:
        missed += found is not None
        found, when = when, schedule.next_after(when)
    return found, missed
