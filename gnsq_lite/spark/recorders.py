"""Runs recorders on Spark's executors.  A job with one task per recorder runs until the driver stops the job."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.errors import OptionError
from gnsq_lite.recording import daemon
from gnsq_lite.recording.options import SEAL, SEAL_AFTER, RecorderOptions
from gnsq_lite.recording.recording import Recording
from gnsq_lite.spark.options import SourceOptions, parse
from gnsq_lite.spark.reading import settle_worker

log = logging.getLogger("gnsq_lite.spark")

#: Seconds between two checks whether stop() has removed the job's marker.
LOOK_EVERY = 1.0


class Recorders:
    """A running job of recorders, returned by :func:`record`."""

    def __init__(self, run: Callable[[], object], recording: Recording, job: str) -> None:
        self._run, self._recording, self._job = run, recording, job
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="gnsq_lite-recorders", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._run()
        except Exception as error:
            self._error = error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most *timeout* seconds for the job's end; return whether the job ended.  Raises the job's error."""
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self, timeout: float = 60.0) -> None:
        """Stop the recorders after they have stored and finished every received message.

        Raises the job's error, and TimeoutError if a recorder still runs after *timeout* seconds.
        """
        self._recording.jobs.remove(self._job)
        if not self.wait(timeout):
            raise TimeoutError(f"the recorders of {self._recording.url} did not stop within {timeout:g} s")


def record(
    spark: Any,
    topic: str,
    channel: str,
    url: str,
    *,
    recorders: int = 1,
    retain: float = 0.0,
    retain_bytes: int | None = None,
    parquet: bool = False,
    seal: int = SEAL,
    seal_after: float = SEAL_AFTER,
    options: Mapping[str, str],
) -> Recorders:
    """Start recorders of a channel as a Spark job with one task per recorder, and return at once.

    Each recorder occupies a task slot until :meth:`Recorders.stop`, and writes a separate log.  If an executor is lost,
    Spark runs its task again, and the new recorder continues the log.

    Args:
        url: Path or URL of the recording.  Every executor must have access to the recording.
        retain: Seconds for which rows stay.  0 means no limit.
        retain_bytes: Maximum bytes of all logs.  None means no limit.
        parquet: Whether finished files become Parquet files, in the folder ``parquet`` of *url*.
        seal: Recorded bytes of a Parquet file.
        seal_after: Seconds after which fewer bytes become a Parquet file.  Less than 1 MB waits for an hour.
        options: Options of the source, such as nsqdTCPAddresses, nsq.authSecret, nsq.storage.region.

    Raises OptionError, and RecordingError if the recording is of another channel or its store is unreachable.
    """
    if not hasattr(spark, "sparkContext"):
        why = "needs a session with a SparkContext: start record() in a program on the cluster, or gnsq-lite record"
        raise OptionError("spark", "Spark Connect", why)
    given = parse(SourceOptions, {**options, "topic": topic, "channel": channel, "recording": url})
    settings = replace(
        given.recorder(),
        max_waiting=None,
        retain=retain,
        retain_bytes=retain_bytes,
        parquet=parquet,
        seal=seal,
        seal_after=seal_after,
    )
    recording, job = Recording(given.recording, given.storage), uuid.uuid4().hex
    found = recording.create(topic, channel)
    recording.jobs.write(job, b"")

    def run(numbers: Iterator[int]) -> Iterator[int]:
        for _ in numbers:
            yield run_task(recording, found.uuid, settings, job)

    tasks = spark.sparkContext.parallelize(range(recorders), recorders).mapPartitions(run)  # mapInArrow needs pandas
    return Recorders(tasks.collect, recording, job)


def run_task(recording: Recording, wanted: str, options: RecorderOptions, job: str) -> int:
    """Record in a task until the marker of *job* is removed, and return the number of stored rows.

    Also ends when Spark's daemon, the parent process, has died.  The daemon ends when its executor or driver dies.

    Raises RecordingNotVisible: this executor does not see the recording with the uuid *wanted*.
    """
    settle_worker()
    recording.check_visible(wanted)
    checked, parent = SYSTEM_CLOCK.now() - LOOK_EVERY, os.getppid()

    def wait(seconds: float) -> bool:
        nonlocal checked
        if os.getppid() != parent:
            log.warning("recording %s: Spark's daemon, process %d, has died: recording ends", recording.url, parent)
            return True
        if SYSTEM_CLOCK.now() - checked >= LOOK_EVERY:
            checked = SYSTEM_CLOCK.now()
            try:
                if job not in recording.jobs.names():
                    return True
            except OSError as error:  # the recorder itself fails if the store stays unreachable
                log.warning("recording %s: cannot read the job's marker: %s", recording.url, error)
        time.sleep(seconds)
        return False

    if wait(0.0):
        return 0
    with daemon.running_recorder(recording, options) as recorder:
        daemon.record(recorder, recording, options, wait)
    return recorder.stored
