"""Runs a recorder without a Spark query, for ``gnsq-lite record`` and for the tasks of ``gnsq_lite.spark.record``."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.recording.backlog import Backlog
from gnsq_lite.recording.options import RecorderOptions
from gnsq_lite.recording.receiver import Receiver
from gnsq_lite.recording.recorder import Recorder
from gnsq_lite.recording.recording import Recording
from gnsq_lite.recording.sealer import Sealer

#: Seconds between two removals of rows beyond the retention, and seconds between two checks whether to stop.
TRIM_EVERY, CHECK_EVERY = 30.0, 0.1
#: Seconds after which a recorder without any connection logs the reason, and seconds between two such lines.
REPORT_EVERY = 10.0
#: Threshold of the garbage collector in a recorder's process: many times the messages in flight.
UNCOLLECTED = 50_000

log = logging.getLogger("gnsq_lite.recording")


def collect_seldom() -> None:
    """Raise the thresholds of the garbage collector, in a process that does nothing but record.

    With the default thresholds, the collector scans all messages in flight after every 700 new messages.  That takes a
    tenth of the CPU for Youzan's messages, which are one object each; a read of plain NSQ is one object.
    """
    gc.freeze()
    gc.set_threshold(UNCOLLECTED, 10, 10)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Call :func:`collect_seldom`, and restore the garbage collector after the block."""
    before = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextmanager
def running_recorder(recording: Recording, options: RecorderOptions) -> Iterator[Recorder]:
    """Start a recorder on a log that has no writer, or on a new log.  After the block, stop the recorder gracefully.

    Creates the recording if it does not exist.  If the recording is sealed, or with ``options.parquet`` becomes sealed,
    also seals its logs.  Raises RecordingError.
    """

    def make_room() -> int:
        return recording.trim(options.retain, options.retain_bytes) if _retains(options) else 0

    is_sealed = recording.create(options.topic, options.channel).is_sealed or options.parquet
    if is_sealed:
        recording.begin_sealing(options.include_youzan)
    writer = recording.take()
    reader = recording.reader(writer.name)
    recorder = Recorder(writer, reader, Receiver(options), options, make_room=make_room)
    try:
        recorder.start()
        if is_sealed:
            sealer = Sealer(recording, recorder, options.seal, options.seal_after)
            recorder.before_close = sealer.stop
            sealer.start()
        yield recorder
    finally:
        recorder.stop()


def record(
    recorder: Recorder,
    recording: Recording,
    options: RecorderOptions,
    wait: Callable[[float], bool],
    *,
    until_empty: bool = False,
    show: Callable[[], None] = lambda: None,
) -> None:
    """Run until *wait* returns True or, if *until_empty* is true, until the present backlog is recorded.

    Calls *wait* with the seconds to wait, and then calls *show*.  Removes rows beyond the retention.  Raises the error
    that ended the recorder, and with *until_empty* ConnectError if an nsqd stays unreachable.
    """
    clock = SYSTEM_CLOCK
    if until_empty:
        recorder.expect(int(clock.wall() * 1e9))
    backlog = Backlog(recorder, options)
    trimmed = reported = clock.now()
    while not wait(CHECK_EVERY):
        recorder.check()
        show()
        if until_empty and backlog.is_read():
            return
        if clock.now() - reported >= REPORT_EVERY:
            reported = clock.now()
            if not recorder.is_connected() and (reason := recorder.trouble()):
                log.warning("log %s: not connected to any nsqd: %s", recorder.log.name, reason)
        if _retains(options) and clock.now() - trimmed >= TRIM_EVERY:
            trimmed = clock.now()
            recorder.index()
            recording.trim(options.retain, options.retain_bytes)


def _retains(options: RecorderOptions) -> bool:
    """Return whether the options limit the age or the size of rows."""
    return bool(options.retain) or options.retain_bytes is not None
