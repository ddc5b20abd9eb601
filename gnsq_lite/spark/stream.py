"""The streaming source reads a recording.  If the query has a topic, the source also records the channel.

Spark creates the reader twice, and sends a pickled copy of a reader to the tasks.  So the constructor does no I/O.  The
first call of a driver method opens the recording, in Spark's process for the source of this query.  An offset is a
position: a dict from log name to the number of the last row.  The rows between two offsets never change.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gnsq_lite.errors import ConnectError
from gnsq_lite.net.depths import Depths
from gnsq_lite.recording.backlog import Backlog
from gnsq_lite.recording.daemon import collect_seldom
from gnsq_lite.recording.files import Files
from gnsq_lite.recording.receiver import Receiver
from gnsq_lite.recording.recording import Position, Recording
from gnsq_lite.spark.compat import available_now_mixin, supports_available_now
from gnsq_lite.spark.embedded import Embedded
from gnsq_lite.spark.offsets import MinimumRows, limited, parse_position
from gnsq_lite.spark.options import SourceOptions, seconds_of
from gnsq_lite.spark.reading import Checked, first_position, read_partition, tasks
from gnsq_lite.spark.several import Recordings

log = logging.getLogger("gnsq_lite.spark")

_AvailableNow: Any = available_now_mixin()

#: Seconds for which latestOffset() waits for a row.  Without a new row, Spark repeats the call 10 ms later.
PATIENT = 0.1
#: Seconds for which a started query's first batch gathers rows.  Without this wait, the batch would have one row.
FIRST = 0.1
#: Rows that AvailableNow's first batch gathers while the backlog arrives.  Each later batch gathers as many rows as all
#: earlier batches together, because a batch costs 0.1 s of CPU.
GATHERED = 100_000


class NsqStreamReader(DataSourceStreamReader, _AvailableNow):
    """Records a channel and plans batches in the driver.  :meth:`read` runs in the tasks."""

    #: The file system calls of the recorder.  Fault tests replace this class.
    files: type[Files] = Files

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._opened: Recordings | None = None
        self._embedded: Embedded | None = None
        self._depths: Depths | None = None
        #: Start of AvailableNow in nanoseconds since 1970, and the last position to read if the query does not record.
        self._until_ns = 0
        self._target: Position | None = None
        self._is_read, self._is_first = False, True
        #: Value of the recorder's ``backlog_seen`` at its last change, and number of the last row stored at that time.
        self._seen, self._ready = 0.0, 0
        #: Rows in AvailableNow's batches so far.
        self._given = 0
        self._waits_for_backlog = options.records and not supports_available_now()
        self._last: Position | None = None
        self._initial: Position | None = None
        self._minimum = MinimumRows(options.min_offsets_per_trigger, seconds_of(options.max_trigger_delay))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_embedded": None, "_depths": None}

    # -- driver side

    def _recording(self) -> Recordings:
        if self._opened is None:
            settle_process()
            recording = Recordings(self._options, self.files())
            recording.check()
            if self._options.records:
                self._embedded = Embedded(recording.each[0], self._options)
                self._embedded.open()
            self._opened = recording
        if self._embedded is not None:
            self._embedded.check()
        return self._opened

    def _make_receiver(self) -> Receiver:
        return Receiver(self._options.recorder())

    def _valid(self, position: Position) -> Checked:
        """Check *position* against the logs.  The first call also starts the recorder, if the position is valid."""
        recording, fails = self._recording(), self._options.fail_on_data_loss
        if self._embedded is not None and self._embedded.recorder is not None and position == self._last:
            return Checked(recording, position, self._embedded.end(), fails)
        found = Checked.of(recording, position, fails=fails, embedded=self._embedded)
        if self._embedded is not None and self._embedded.recorder is None:
            self._embedded.start(self._make_receiver(), found.position)
            if self._until_ns:
                self._embedded.expect(self._until_ns)
            self._depths = Depths(lambda topic: self._options.depth_arguments())
        return found

    def initialOffset(self) -> dict[str, Any]:
        """Return a new query's start: the committed position if the query records, or else startingOffsets.

        PySpark before 4.2 calls latestOffset() first.  The start must not change between the two calls.
        """
        if self._initial is None:
            recording, records = self._recording(), self._options.records
            found = recording.each[0].committed() if records else first_position(recording, self._options, "latest")
            self._initial = self._last = self._valid(found).position
        return _ordered(self._initial)

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next batch, which begins at *start*.

        PySpark before 4.2 passes no arguments.  The batch then begins at the last known position: a restarted query
        has called partitions() with its checkpoint's position, and only a new query has called nothing before.
        """
        given = self._last if start is None else parse_position(start)
        begin = self._valid(parse_position(self.initialOffset()) if given is None else given)
        most = [one for one in (self._options.max_offsets_per_trigger, getattr(limit, "max_rows", None)) if one]
        rows = min(most, default=None)
        if self._waits_for_backlog and self._embedded is not None:
            self._waits_for_backlog = False
            self._wait_for_backlog(self._embedded, rows)
        if self._until_ns:
            end = self._available(begin, rows)
        else:
            if self._embedded is not None:
                self._embedded.wait_for_rows(PATIENT)
                if self._is_first and self._embedded.end() != begin.position:
                    self._is_first = False
                    time.sleep(FIRST)
                begin.there = self._embedded.end()
            elif begin.end() == begin.position:
                time.sleep(PATIENT)
            end = limited(begin.position, begin.end(), rows)
            if self._waits(begin, end):
                end = begin.position
        if self._embedded is not None:
            self._embedded.hand_over(end)
        self._last = end
        return _ordered(end)

    def _waits(self, begin: Checked, end: Position) -> bool:
        """Return whether minOffsetsPerTrigger delays a batch.  No batch is delayed while the recorder is paused."""
        paused = self._embedded is not None and self._embedded.is_paused()
        waiting = sum(end.values()) - sum(begin.position.values())
        return bool(waiting) and not paused and self._minimum.waits(lambda: waiting)

    def _available(self, begin: Checked, rows: int | None) -> Position:
        """Return the end of AvailableNow's next batch, or *begin* if the whole backlog is in batches."""
        embedded = self._embedded
        if embedded is None:
            if self._target is None:
                self._target = begin.end()
            return limited(begin.position, self._target, rows)
        backlog = Backlog(embedded.started(), self._options.recorder())
        while True:
            seen, there = embedded.started().backlog_seen, embedded.last_row()
            if not self._is_read and (seen != self._seen or embedded.is_paused()):
                self._seen, self._ready = seen, there
            begin.there = embedded.end(self._ready)
            end = limited(begin.position, begin.end(), rows)
            waiting = sum(end.values()) - sum(begin.position.values())
            enough = min(max(GATHERED, self._given), rows or sys.maxsize)
            gathers = waiting < enough and backlog.is_connected() and not embedded.is_paused()
            if self._is_read or (waiting and not gathers):
                self._given += waiting
                return end
            if backlog.is_read():
                self._is_read, self._ready = True, embedded.last_row()
            else:
                time.sleep(0.02)

    def _wait_for_backlog(self, embedded: Embedded, rows: int | None) -> None:
        """Wait for the backlog before a query's first batch, AvailableNow's only batch with PySpark before 4.2.

        Return earlier if receiving pauses (maxWaitingBytes), *rows* rows are stored, or an nsqd stays unreachable.
        """
        embedded.expect(time.time_ns())
        backlog = Backlog(embedded.started(), self._options.recorder())
        try:
            while not backlog.is_read():
                if embedded.is_paused() or (rows is not None and embedded.started().stored >= rows):
                    log.warning(
                        "the backlog exceeds maxWaitingBytes or maxOffsetsPerTrigger: with PySpark before 4.2,"
                        " AvailableNow reads only this amount; start the query again to read on"
                    )
                    return
                time.sleep(0.02)
        except ConnectError as error:  # a query without AvailableNow must not end because an nsqd is unreachable
            log.warning("%s", error)
        finally:
            embedded.expect(0)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest position and the lag for the query's progress, or None before the first batch."""
        if self._opened is None or self._last is None:
            return None
        end = self._opened.position(Recording.end)
        waiting = sum(end.values()) - sum(self._last.get(name, 0) for name in end)
        found: dict[str, Any] = {"logs": _ordered(end), "waiting": waiting}
        if self._embedded is not None and self._embedded.recorder is not None:
            found |= self._embedded.report()
            found["depth"] = (
                None if self._depths is None else self._depths.total(self._options.topic, self._options.channel)
            )
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        """Let AvailableNow read the messages published before this call or, without topic, rows stored before it."""
        self._until_ns = time.time_ns()
        if self._embedded is not None and self._embedded.recorder is not None:
            self._embedded.expect(self._until_ns)
        elif not self._options.records:
            self._target = self._recording().position(Recording.end)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch.  A batch that runs again has the same offsets, and so the same rows."""
        last = parse_position(end)
        begin = self._valid(parse_position(start))  # PySpark before 4.2 passes the checkpoint's position here first
        if self._embedded is not None:
            self._embedded.hand_over(last)
            begin.there = self._embedded.end()
        self._last = last
        return tasks(self._recording(), begin.ranges(last), self._options)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Commit the rows up to *end*, so that they may be removed.  Spark reads no committed row again."""
        if self._embedded is not None:
            self._recording()
            self._embedded.commit(parse_position(end))

    def stop(self) -> None:
        """Stop receiving, and leave no message in flight.  After 20 seconds the process exits, even if a step hangs."""
        embedded, self._embedded, self._opened = self._embedded, None, None
        if embedded is not None:
            guard = exit_after(20.0)
            try:
                embedded.stop()
            finally:
                guard.set()

    # -- task side

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        return read_partition(partition, self._options)


def _ordered(position: Position) -> dict[str, Any]:
    return dict(sorted(position.items()))


def settle_process() -> None:
    """In Spark's source process, ignore SIGTERM, and raise the thresholds of the garbage collector.

    Spark sends SIGTERM when it closes the process's socket, but the process must still call ``stop()``.
    """
    if _is_source_process() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        collect_seldom()


def _is_source_process() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.endswith("python_streaming_source_runner")


def exit_after(seconds: float) -> threading.Event:
    """End Spark's source process in *seconds* unless the returned event is set."""
    done = threading.Event()
    if _is_source_process():

        def guard() -> None:
            if not done.wait(seconds):
                os._exit(1)

        threading.Thread(target=guard, name="gnsq_lite-exit", daemon=True).start()
    return done
