"""Errors of recordings."""

from __future__ import annotations

import logging

from gnsq_lite.errors import NSQError

log = logging.getLogger("gnsq_lite.recording")


class RecordingError(NSQError):
    """The recording cannot be used: another topic's, or its disk or store refuses."""


class RecordingInUse(RecordingError):
    """Another process writes the log."""


class RecordingFenced(RecordingError):
    """Another recorder took the log over; this one has finished no message since."""


class RecordingDamaged(RecordingError):
    """A pack or an object does not hold what its headers say."""


class DataLoss(RecordingError):
    """Rows that were finished at nsqd, and that a reader still needs, are gone."""


class RecordingNotVisible(RecordingError):
    """This process sees another recording, or none, at the place; no row is known to be lost."""


def report_loss(why: str, *, fails: bool) -> None:
    """Raise DataLoss where a loss *fails* the reader (failOnDataLoss), or log it."""
    if fails:
        raise DataLoss(f"{why}; set failOnDataLoss=false to go on without them")
    log.error("%s; failOnDataLoss=false: going on", why)
