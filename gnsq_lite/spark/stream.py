"""The streaming source, with its receiver beside the query.

Spark makes a reader object twice and pickles one of them into the tasks, so the constructor does nothing; the first
driver-side call opens the spool and starts receiving, in the one process Spark keeps for the query.  Tasks only read
segment files.  An offset is a segment number; ``(start, end]`` never changes its rows (PIPE-3).
"""

from __future__ import annotations

import gc
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
from gnsq_lite.recording.backlog import Backlog
from gnsq_lite.recording.files import Files
from gnsq_lite.recording.receiver import ReaderReceiver, Receiver
from gnsq_lite.spark import segments
from gnsq_lite.spark.collector import Collector
from gnsq_lite.spark.compat import available_now_mixin, supports_available_now
from gnsq_lite.spark.depth import ChannelDepth
from gnsq_lite.spark.offsets import OLDER, Limits, Offset, Patience, parse_offset
from gnsq_lite.spark.options import SEGMENT_BYTES, SourceOptions, seconds_of
from gnsq_lite.spark.places import SegmentPartition, assert_partition, open_any_spool, read_segments
from gnsq_lite.spark.spoolmeta import tell_loss

log = logging.getLogger("gnsq_lite.spark")

_AvailableNow: Any = available_now_mixin()

#: Seconds an answer to Spark waits for a row where there is none: it asks again 10 ms after each.
PATIENT = 0.1
#: New objects before Spark's source process looks for garbage: many times what is in flight.
UNCOLLECTED = 50_000


class NsqStreamReader(DataSourceStreamReader, _AvailableNow):
    """Driver side: receives, spools, plans.  Task side: :meth:`read`."""

    #: The file system calls of the spool; a fault test puts others here.
    files: type[Files] = Files

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._collector: Collector | None = None
        self._depth: ChannelDepth | None = None
        self._available_now = self._is_read = False
        #: When some of AvailableNow's backlog came last, and the number of the last segment that has any of it.
        self._seen, self._ready = 0.0, 0
        self._unasked = not supports_available_now()
        self._last: Offset | None = None
        self._patience = Patience(options.min_offsets_per_trigger, seconds_of(options.max_trigger_delay))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_collector": None, "_depth": None}

    # -- driver side

    def _started(self) -> Collector:
        if self._collector is None:
            settle_process()
            options = self._options
            spool = open_any_spool(options, self.files())
            self._collector = Collector(spool, self._make_receiver(), options)
            self._collector.start()
            self._depth = ChannelDepth(options)
        self._collector.check()
        return self._collector

    def _make_receiver(self) -> Receiver:
        return ReaderReceiver(self._options.recorder())

    def initialOffset(self) -> dict[str, Any]:
        """Return the position of the last committed segment: a new query takes over what the spool still holds."""
        spool = self._started().spool
        self._last = Offset(spool.meta.uuid, spool.meta.committed)
        return self._last.as_dict()

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Seal what was received and return how far a batch from *start* may go.

        PySpark before 4.2 passes nothing; the position is remembered then.
        """
        collector = self._started()
        begin = self._base(collector, parse_offset(start) if start is not None else self._last)
        options = self._options
        limits = Limits(options.max_offsets_per_trigger, options.max_bytes_per_trigger).tightened(limit)
        if self._unasked:
            self._unasked = False
            self._wait_unasked(collector, limits)
        if self._available_now:
            end = self._available(collector, begin, limits)
        else:
            collector.wait_for_rows(begin.number, PATIENT)
            end = None if self._waits(collector, begin) else self._end(collector, begin, limits)
        if end is not None:
            collector.hand_over(end)
        self._last = Offset(begin.spool, begin.number if end is None else end)
        return self._last.as_dict()

    def _base(self, collector: Collector, start: Offset | None) -> Offset:
        """Return *start* as a position in this spool; raise DataLoss where it is not one."""
        spool = collector.spool
        here = Offset(spool.meta.uuid, spool.meta.committed)
        if start is None:
            return here
        if start.spool != spool.meta.uuid:
            self._lost(
                f"spool {spool.directory} is not the one of this query's checkpoint ({start.spool}, now"
                f" {spool.meta.uuid}): rows that were acknowledged and not processed are gone"
            )
            return here
        if start.number > spool.newest:
            self._lost(
                f"spool {spool.directory} ends at segment {spool.newest}; the checkpoint is at {start.number}: it was"
                " replaced by an older copy"
            )
            with collector.lock:
                spool.advance(start.number)
        if start.number < here.number:
            self._lost(
                f"spool {spool.directory} has segments committed up to {here.number}, not {start.number}: {OLDER}"
            )
        return start

    def _lost(self, why: str) -> None:
        tell_loss(why, "them", fails=self._options.fail_on_data_loss)

    def _end(self, collector: Collector, begin: Offset, limits: Limits) -> int | None:
        with collector.lock:
            collector.spool.roll()
            sealed = [s for s in collector.spool.segments if s.number > begin.number]
            newest = collector.spool.newest
        if not sealed and newest > begin.number:
            return newest  # committed by an earlier query on this spool: located, or lost, in partitions()
        return limits.cut([(s.number, s.rows, s.size) for s in sealed])

    def _waits(self, collector: Collector, begin: Offset) -> bool:
        """Whether minOffsetsPerTrigger says to wait: not for what a spool that is full cannot take."""
        with collector.lock:
            waiting = collector.spool.rows_after(begin.number)
        return bool(waiting) and not collector.is_paused() and self._patience.waits(lambda: waiting)

    def _available(self, collector: Collector, begin: Offset, limits: Limits) -> int | None:
        """AvailableNow: return how far a batch goes when some of the backlog has come; None: all of it was handed over.

        Other rows go along, and alone they make no batch until it counts as read: there is no end of them.
        """
        backlog = Backlog(collector, self._options.recorder())
        while True:
            seen = collector.backlog_seen
            end = self._end(collector, begin, limits)
            if not self._is_read and (seen != self._seen or collector.is_paused()):
                self._seen, self._ready = seen, collector.spool.newest
            if end is not None and begin.number < self._ready:
                return min(end, self._ready)
            if self._is_read:
                return None
            if backlog.is_read():
                with collector.lock:
                    self._is_read, self._ready = True, collector.spool.roll()
            else:
                time.sleep(0.02)

    def _wait_unasked(self, collector: Collector, limits: Limits) -> None:
        """Before the first batch of a run, let the spool have the backlog.

        PySpark before 4.2 tells a Python source nothing of AvailableNow, and asks it once, at once, how far to go.
        """
        collector.expect(time.time_ns())
        backlog = Backlog(collector, self._options.recorder())
        try:
            while not backlog.is_read():
                if collector.is_paused() or (limits.rows is not None and collector.stored >= limits.rows):
                    log.warning(
                        "the backlog is more than maxSpoolBytes or maxOffsetsPerTrigger: AvailableNow with this"
                        " PySpark reads only that much in a run"
                    )
                    return
                time.sleep(0.02)
        except ConnectError as error:  # a query that is to run for long does not end for that
            log.warning("%s", error)
        finally:
            collector.expect(0)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest position and the lag, for the query's progress alone; None before the first batch."""
        collector = self._collector
        if collector is None or self._depth is None:
            return None
        spool = collector.spool
        with collector.lock:
            waiting = {"rows": spool.rows_after(collector.handed), "bytes": spool.bytes_after(collector.handed)}
            newest = Offset(spool.meta.uuid, spool.newest).as_dict()
        here = {"waiting": waiting, "inFlight": collector.in_flight(), "missing": collector.missing()}
        return {**newest, **here, "depth": self._depth.look()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what the backlog is: all that was published up to now, by nsqd's clock."""
        self._started().expect(time.time_ns())
        self._available_now = True

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch: the same for the same offsets, whenever it is asked (PIPE-3)."""
        collector = self._started()
        options, spool = self._options, collector.spool
        last = parse_offset(end)
        if last.spool != spool.meta.uuid:
            self._base(collector, last)
            return []
        begin = self._base(collector, parse_offset(start)).number  # PySpark before 4.2 tells it here first
        collector.hand_over(last.number)
        self._last = last
        with collector.lock:
            found = spool.located(begin, last.number, complete=options.fail_on_data_loss)
        groups = segments.grouped(found, options.rows_per_segment, SEGMENT_BYTES)
        return [SegmentPartition(str(spool.directory), spool.meta.uuid, group) for group in groups]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Note that Spark needs the segments up to *end* no more."""
        collector = self._started()
        last = parse_offset(end)
        if last.spool == collector.spool.meta.uuid:
            collector.commit(last.number)

    def stop(self) -> None:
        """Stop receiving; nothing stays in flight.  Bounded: the process must end even where something hangs."""
        collector, self._collector = self._collector, None
        if collector is not None:
            guard = exit_after(20.0)
            try:
                collector.stop()
            finally:
                guard.set()

    # -- task side

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        assert_partition(partition)
        return read_segments(partition, self._options, complete=self._options.fail_on_data_loss)


def settle_process() -> None:
    """In Spark's source process only, which does nothing else: outlive a SIGTERM, and collect garbage more seldom.

    Spark stops it with SIGTERM, and closes its socket at the same time: so ``stop()`` is called before its end.  The
    collector would look through all that is in flight each time that another 700 messages have come.
    """
    if _is_source_process() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gc.freeze()
        gc.set_threshold(UNCOLLECTED, 10, 10)


def _is_source_process() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.endswith("python_streaming_source_runner")


def exit_after(seconds: float) -> threading.Event:
    """End Spark's source process in *seconds* unless the returned event is set: it must not outlive its query."""
    done = threading.Event()
    if _is_source_process():

        def guard() -> None:
            if not done.wait(seconds):
                os._exit(1)

        threading.Thread(target=guard, name="gnsq_lite-exit", daemon=True).start()
    return done
