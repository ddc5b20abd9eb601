"""Errors of recordings."""

from __future__ import annotations

import logging

from gnsq_lite.errors import NSQError

log = logging.getLogger("gnsq_lite.recording")


class RecordingError(NSQError):
    """The recording cannot be used.  For example, it records another topic, or its disk or store fails."""


class RecordingInUse(RecordingError):
    """Another process writes the log."""


class RecordingFenced(RecordingError):
    """Another recorder took over the log.  This recorder has finished no message since then."""


class RecordingDamaged(RecordingError):
    """The content of a file or an object does not match its headers."""


class DataLoss(RecordingError):
    """Rows that a reader still needs are gone, and nsqd does not have their messages any more."""


class RecordingNotVisible(RecordingError):
    """This process sees no recording, or another recording, at the path or URL.  No row is known to be lost."""


def report_loss(why: str, *, fails: bool) -> None:
    """Raise DataLoss if *fails* (failOnDataLoss) is true, or else log the loss."""
    if fails:
        raise DataLoss(f"{why}; set failOnDataLoss=false to skip the lost rows")
    log.error("%s; continuing without these rows, because failOnDataLoss=false", why)
