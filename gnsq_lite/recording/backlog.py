"""Detects the end of a backlog: every nsqd is connected, and no message of the backlog has arrived for a while."""

from __future__ import annotations

import logging
from typing import Protocol

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import ConnectError
from gnsq_lite.recording.options import RecorderOptions

log = logging.getLogger("gnsq_lite.recording")


#: MARGIN: a publish time that is more nanoseconds ahead of this clock shows that nsqd's clock is ahead.
#: ALLOWED: nanoseconds added to this lead, because publish times only show a lower bound of it.
MARGIN, ALLOWED = 10**9, 60 * 10**9


class BacklogCutoff:
    """Decides whether a message was published before the time *until_ns*, even if an nsqd's clock is ahead.

    A publish time in the future shows that nsqd's clock is ahead.  The publish times of new messages advance as fast as
    this clock.  So a backlog is arriving while publish times advance faster.
    """

    def __init__(self, until_ns: int = 0) -> None:
        self._until_ns = until_ns
        self._ahead: dict[str, int] = {}

    def __bool__(self) -> bool:
        return self._until_ns > 0

    def covers(self, nsqd: str, published_ns: int) -> bool:
        """Return whether a message is in the backlog, given the known lead of *nsqd*'s clock."""
        ahead = self._ahead.get(nsqd, 0)
        return published_ns <= self._until_ns + (ahead + ALLOWED if ahead > MARGIN else 0)

    def takes(self, nsqd: str, published_ns: int, now_ns: int) -> bool:
        """Return whether a message received at *now_ns* is in the backlog; update the lead of *nsqd*'s clock."""
        if self.covers(nsqd, published_ns):
            return True
        ahead = published_ns - now_ns
        known = self._ahead.get(nsqd)
        if known is not None and ahead < known + MARGIN:
            return False
        self._ahead[nsqd] = ahead
        return known is not None or ahead > MARGIN


class Collecting(Protocol):
    """The part of the collector that :class:`Backlog` uses."""

    #: Arrival of the backlog's last message, in seconds of the monotonic clock.
    backlog_seen: float

    def check(self) -> None: ...
    def is_connected(self) -> bool: ...
    def missing(self) -> list[str]: ...
    def holds_backlog(self) -> bool: ...
    def not_connected(self, seconds: float) -> ConnectError: ...


class Backlog:
    """Detects when a collector has read the backlog of AvailableNow."""

    def __init__(self, collector: Collecting, options: RecorderOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self._collector, self._clock = collector, clock
        self._idle, self._patience = options.idle_timeout, options.connect_timeout
        self._goes_without = options.on_missing_nsqd == "warn"
        self._lacking_since = clock.now()
        self._whole_since: float | None = None
        self._without: set[str] = set()

    def is_read(self) -> bool:
        """Return whether the whole backlog was received.

        Raises ConnectError if an nsqd was missing for connectTimeoutMs.  With onMissingNsqd=warn it logs a warning
        instead, unless all nsqds are missing.
        """
        self._collector.check()
        now = self._clock.now()
        if self.is_whole():
            self._whole_since = now if self._whole_since is None else self._whole_since
            if self._collector.holds_backlog():
                return False
            return now - max(self._whole_since, self._collector.backlog_seen) >= self._idle
        if self._whole_since is not None:
            self._whole_since, self._lacking_since = None, now
        if now - self._lacking_since >= self._patience:
            error = self._collector.not_connected(self._patience)
            if not (self._goes_without and self._collector.is_connected()):
                raise error
            log.warning("%s; onMissingNsqd=warn: continuing without it", error)
            self._without |= set(self._collector.missing())
        return False

    def is_whole(self) -> bool:
        """Return whether every nsqd that holds a part of the backlog is connected."""
        return self._collector.is_connected() and self._without.issuperset(self._collector.missing())
