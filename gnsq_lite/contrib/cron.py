"""Cron expressions for :meth:`gnsq_lite.Worker.every`.  Needs the extra ``cron``.

::

    from gnsq_lite.contrib.cron import Cron

    worker.every(Cron("0 4 * * 1-5", "Europe/Berlin"), "reports", b"daily")

This module uses the library cronsim, which is typed, maintained and has no dependencies.  Like Debian's cron, cronsim
runs a job once when the clocks change.  The alternative, croniter, is larger.
"""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gnsq_lite.errors import MissingExtra, OptionError

try:
    from cronsim import CronSim, CronSimError
except ModuleNotFoundError as missing:
    raise MissingExtra("gnsq_lite.contrib.cron", "cron", "cronsim") from missing

__all__ = ["Cron"]


class Cron:
    """Schedule that is due when the five fields of *expression* match the time in *timezone* (crontab(5)).

    When the clocks change, a job in the skipped or the repeated hour runs once, as with Debian's cron.

    Raises:
        OptionError: the expression is invalid or never matches, or the timezone is unknown.
    """

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        self.expression, self.timezone = expression, timezone
        try:
            self._zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            raise OptionError("timezone", timezone, f"is unknown on this system: {error}") from error
        try:
            self.next_after(0.0)
        except (CronSimError, AttributeError, TypeError, StopIteration) as error:
            raise OptionError("cron", expression, f"is not a cron expression: {error or 'it never matches'}") from error

    def next_after(self, wall: float) -> float:
        """Return the first due time after *wall*.  Both times are in seconds since 1970."""
        times = CronSim(self.expression, datetime.fromtimestamp(wall, self._zone))
        return next(when for each in times if (when := each.timestamp()) > wall)  # in a repeated hour, some are earlier

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, {self.timezone!r})"
