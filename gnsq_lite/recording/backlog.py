"""Detects a backlog's end: for ``idle_timeout`` all nsqds were connected, and no message of the backlog arrived."""

from __future__ import annotations

import logging
from typing import Protocol

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import ConnectError
from gnsq_lite.recording.options import RecorderOptions

log = logging.getLogger("gnsq_lite.recording")


#: A publish time more than MARGIN nanoseconds after the message's receipt shows that the nsqd's clock is ahead.
#: ALLOWED nanoseconds are added to the measured lead of the clock, because the real lead may be longer.
MARGIN, ALLOWED = 10**9, 60 * 10**9


class BacklogCutoff:
    """Decides whether a message was published before the time *until_ns*, even if an nsqd's clock is ahead.

    A publish time in the future shows that nsqd's clock is ahead.  If publish times then advance faster than the
    recorder's clock, the messages belong to a backlog.  Publish times of new messages advance as fast as this clock.
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
        """Update the lead of *nsqd*'s clock; return whether a message received at *now_ns* is in the backlog."""
        if self.covers(nsqd, published_ns):
            return True
        ahead = published_ns - now_ns
        known = self._ahead.get(nsqd)
        if known is not None and ahead < known + MARGIN:
            return False
        self._ahead[nsqd] = ahead
        return known is not None or ahead > MARGIN


class BacklogRecorder(Protocol):
    """The methods of a Recorder that :class:`Backlog` uses."""

    #: Monotonic time when expect() was called, or when a message of the backlog last arrived or was stored.
    backlog_seen: float

    def check(self) -> None: ...
    def is_connected(self) -> bool: ...
    def missing(self) -> list[str]: ...
    def holds_backlog(self) -> bool: ...
    def not_connected(self, seconds: float) -> ConnectError: ...


class Backlog:
    """Detects when a recorder has stored its backlog, for AvailableNow and ``--until-empty``."""

    def __init__(self, recorder: BacklogRecorder, options: RecorderOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        self._recorder, self._clock = recorder, clock
        self._idle, self._patience = options.idle_timeout, options.connect_timeout
        self._skips_missing, self._warns = options.on_missing_nsqd != "error", options.on_missing_nsqd == "warn"
        self._missing_since = clock.now()
        self._connected_since: float | None = None
        self._skipped: set[str] = set()

    def is_read(self) -> bool:
        """Return whether the whole backlog is stored.  Raises the error that ended the recorder.

        Raises ConnectError if an nsqd was unreachable for connectTimeoutMs.  With onMissingNsqd=warn, logs a warning
        and skips this nsqd instead, unless all nsqds are unreachable.  With "last", raises the error when the backlog
        of the other nsqds is read.
        """
        self._recorder.check()
        now = self._clock.now()
        if self.watch():
            if self._recorder.holds_backlog():
                return False
            is_quiet = now - max(self._connected_since or now, self._recorder.backlog_seen) >= self._idle
            if is_quiet and self._skipped and not self._warns:
                raise self._recorder.not_connected(self._patience)
            return is_quiet
        if self._connected_since is not None:
            self._connected_since, self._missing_since = None, now
        if now - self._missing_since >= self._patience:
            error = self._recorder.not_connected(self._patience)
            if not (self._skips_missing and self._recorder.is_connected()):
                raise error
            if self._warns:
                log.warning("%s; onMissingNsqd=warn: continuing without these nsqds", error)
            self._skipped |= set(self._recorder.missing())
        return False

    def watch(self) -> bool:
        """Note the time of the first call since which all nsqds are connected.  Return whether they are connected."""
        is_connected = self.is_connected()
        if is_connected and self._connected_since is None:
            self._connected_since = self._clock.now()
        return is_connected

    def is_connected(self) -> bool:
        """Return whether all nsqds are connected, except those that onMissingNsqd=warn has skipped."""
        return self._recorder.is_connected() and self._skipped.issuperset(self._recorder.missing())
