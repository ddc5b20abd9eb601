"""Errors of recordings."""

from __future__ import annotations

import logging

from gnsq_lite.errors import NSQError

log = logging.getLogger("gnsq_lite.recording")


class RecordingError(NSQError):
    """The recording cannot be used: it is of another topic, or its disk or store fails."""


class RecordingInUse(RecordingError):
    """Another process writes the log."""


class RecordingFenced(RecordingError):
    """Another recorder took over the log; this recorder has finished no message since then."""


class RecordingDamaged(RecordingError):
    """The content of a file or an object does not match its headers."""


class DataLoss(RecordingError):
    """Rows that a reader still needs are gone, and nsqd has no copy."""


class RecordingNotVisible(RecordingError):
    """At its path or URL this process sees another recording or none; no row is known to be lost."""


def report_loss(why: str, *, fails: bool) -> None:
    """Raise DataLoss if a loss *fails* the reader (failOnDataLoss); otherwise log it."""
    if fails:
        raise DataLoss(f"{why}; set failOnDataLoss=false to continue without them")
    log.error("%s; failOnDataLoss=false: continuing", why)
