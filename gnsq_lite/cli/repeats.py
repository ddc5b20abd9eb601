"""Repeated warnings: one line a minute, with a count."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from gnsq_lite.errors import NSQError

#: Seconds between two lines about the same problem.
EVERY = 60.0


class Once(logging.Filter):
    """Lets a warning through unless the same one appeared within *every* seconds; counts the others.

    The same are those of one logger whose error is the same, or, without one, whose words are.
    """

    def __init__(self, every: float = EVERY, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every, self._now = every, now
        self._lock = threading.Lock()
        #: Problem -> (when it was reported, how often it came since).
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to report the record; if so, add the count of suppressed ones to it."""
        error = record.exc_info[1] if record.exc_info else None
        known = isinstance(error, (NSQError, OSError))
        about = (record.name, f"{type(error).__name__}: {error}" if known else record.getMessage())
        with self._lock:
            now = self._now()
            told, more = self._told.get(about, (None, 0))
            if told is not None and now - told < self._every:
                self._told[about] = (told, more + 1)
                return False
            self._told = {k: v for k, v in self._told.items() if v[1] or now - v[0] < self._every}
            self._told[about] = (now, 0)
        if more:
            record.msg, record.args = f"{record.getMessage()} ({_times(more)} since)", ()
        return True

    def rest(self) -> list[str]:
        """Return a line for each problem with suppressed repetitions; for the end of the program."""
        with self._lock:
            told, self._told = self._told, {}
        return [f"{_times(more)}: {about}" for (_, about), (_, more) in told.items() if more]


def _times(more: int) -> str:
    return f"{more} more like it"
