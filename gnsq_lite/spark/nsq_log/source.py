"""``format("nsq_log")`` reads a topic of Youzan's NSQ as a log.

The source needs no recording, and no channel that keeps a position.  Spark's offsets are the position, and a batch that
runs again reads the same bytes of the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from gnsq_lite.errors import OptionError
from gnsq_lite.recording import schema as columns
from gnsq_lite.recording.errors import report_loss
from gnsq_lite.spark.compat import available_now_mixin, supports_available_now
from gnsq_lite.spark.nsq_log.cluster import Extent, LogCluster, LogUnavailable
from gnsq_lite.spark.nsq_log.options import LATEST, LogOptions, LogPosition
from gnsq_lite.spark.nsq_log.plan import (
    Places,
    Range,
    as_offset,
    batch_ends,
    messages_waiting,
    parse_places,
    ranges,
    resolved,
)
from gnsq_lite.spark.nsq_log.schema import LOG_COLUMNS, LOG_DDL
from gnsq_lite.spark.nsq_log.task import RangeTask
from gnsq_lite.spark.offsets import MinimumRows
from gnsq_lite.spark.options import parse, redacted, seconds_of
from gnsq_lite.spark.stream import settle_process

log = logging.getLogger("gnsq_lite.spark")

_AvailableNow: Any = available_now_mixin()

#: Seconds by which latestOffset() delays an unchanged result, because each call queries the whole cluster.
PATIENT = 0.1


class NsqLogDataSource(DataSource):
    """A topic of a cluster of Youzan's NSQ as a log, batch and streaming.

    Options: :class:`~gnsq_lite.spark.nsq_log.options.LogOptions`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._raw = dict(options.items())

    @classmethod
    def name(cls) -> str:
        """Return ``"nsq_log"``."""
        return "nsq_log"

    def schema(self) -> str:
        """Return the columns.  Checks the options, so that ``load()`` raises OptionError for a mistake."""
        parse(LogOptions, self._raw)
        return LOG_DDL

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the batch reader."""
        return NsqLogBatchReader(self._checked(schema))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the streaming reader, which sends no request until Spark calls a method for an offset."""
        return NsqLogStreamReader(self._checked(schema))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """Raise OptionError, because only ``format("nsq")`` publishes."""
        raise OptionError("format", "nsq_log", "only reads: format('nsq') publishes, to Youzan's NSQ too")

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        """Raise OptionError, because only ``format("nsq")`` publishes."""
        raise OptionError("format", "nsq_log", "only reads: format('nsq') publishes, to Youzan's NSQ too")

    def _checked(self, schema: Any) -> LogOptions:
        options = parse(LogOptions, self._raw)
        given = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        columns.check_schema(given, LOG_COLUMNS)
        return options

    def __repr__(self) -> str:
        return f"NsqLogDataSource({redacted(self._raw)})"


@dataclass
class LogPartition(InputPartition):
    """Task that reads one range of a topic partition."""

    range: Range

    def __repr__(self) -> str:
        return f"LogPartition({self.range})"


class _LogReader:
    """Base class of the batch and the streaming reader."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._cluster = LogCluster(options.lookupd_http_addresses, options.topic, options.partitions)

    def _all_extents(self) -> dict[int, Extent]:
        """Return the extents of all logs.  Raises LogUnavailable if a log has no leader within connectTimeoutMs."""
        options = self._options
        deadline = time.monotonic() + options.connect_timeout_ms / 1000
        while True:
            missing: list[int] = []
            try:
                extents = self._cluster.extents()
                missing = [number for number in self._cluster.wanted() if number not in extents]
                trouble = f"partitions {missing} of {options.topic} have no leader{self._cluster.trouble}"
            except LogUnavailable as error:
                extents, trouble = {}, str(error)
            if extents and not missing:
                return extents
            if time.monotonic() >= deadline:
                raise LogUnavailable(f"{trouble}, for {options.connect_timeout_ms / 1000:g} s")
            time.sleep(0.2)

    def _resolved(self, position: LogPosition, extents: Mapping[int, Extent]) -> Places:
        unknown = sorted(position.offsets.keys() - extents.keys())
        if unknown:
            why = f"{self._options.topic} has partitions {sorted(extents)}, not partitions {unknown}"
            raise OptionError("startingOffsets, endingOffsets", unknown, why)
        return resolved(position, extents, self._cluster)

    def _planned(self, begins: Places, ends: Places, extents: Mapping[int, Extent]) -> list[InputPartition]:
        """Return the tasks, and report messages that retention has already removed.

        A partition that was added later is read from 0, as in Spark's Kafka source.  Reading from the log's present
        beginning would skip removed messages without an error, and a repeated batch could have other rows.
        """
        topic = self._options.topic
        for partition, end in ends.items():
            begin, extent = begins.get(partition, 0), extents.get(partition)
            if extent is not None and begin < extent.begin and begin < end:
                why = f"the log begins at {extent.begin} now"
                where = f"partition {partition} of {topic} lacks {begin}"
                report_loss(f"{where}: {why}", fails=self._options.fail_on_data_loss)
                begins = {**begins, partition: min(extent.begin, end)}
        return [LogPartition(one) for one in ranges(begins, ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        if not isinstance(partition, LogPartition):
            raise TypeError(f"not a partition of this source: {partition!r}")
        return RangeTask(self._options, partition.range, self._cluster).rows()


class NsqLogBatchReader(_LogReader, DataSourceReader):
    """Reads from startingOffsets to endingOffsets.  The first action resolves both offsets."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        extents = self._all_extents()
        begins = self._resolved(self._options.starting(batch=True), extents)
        ends = self._resolved(self._options.ending(), extents)
        return self._planned(begins, ends, extents)


class NsqLogStreamReader(_LogReader, DataSourceStreamReader, _AvailableNow):
    """Plans batches in the driver.  :meth:`read` runs in the tasks."""

    def __init__(self, options: LogOptions) -> None:
        super().__init__(options)
        self._last: Places | None = None
        self._initial: Places | None = None
        self._until: Places | None = None
        self._warned: set[str] = set()
        self._is_healthy = True
        self._patience = MinimumRows(options.min_offsets_per_trigger, seconds_of(options.max_trigger_delay))
        limits = {
            "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
            "minOffsetsPerTrigger": options.min_offsets_per_trigger,
        }
        for name, limit in limits.items():
            if limit and not supports_available_now():
                why = "this PySpark does not pass a batch's start to a Python source: limits need PySpark 4.2"
                raise OptionError(name, limit, why)

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a new query, from startingOffsets or startingTimestamp.

        PySpark calls this method after latestOffset() too.  The start must not change between the calls.
        """
        settle_process()
        if self._initial is None:
            self._initial = self._last = self._resolved(self._options.starting(batch=False), self._all_extents())
        return as_offset(self._options.topic, self._initial)

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next batch, which begins at *start*.

        PySpark before 4.2 passes no arguments.  The batch then begins at the last known offset: a restarted query has
        called partitions() with its checkpoint's offset, and a new query begins at its initial offset.
        """
        settle_process()
        topic = self._options.topic
        if start is None and self._last is None:
            self.initialOffset()
        begins = (self._last or {}) if start is None else parse_places(start, topic)
        self._is_healthy = True
        extents = self._extents(begins)
        ends = {**begins, **{number: extent.end for number, extent in extents.items()}}
        if self._until is not None:  # AvailableNow omits partitions that were added after the query's start
            last = {**begins, **self._until}
            ends = {number: last[number] for number in ends if number in last}
        self._report_shorter(begins, ends)
        try:
            ends = self._admitted(begins, ends, extents, limit)
        except LogUnavailable as error:  # a leader was lost after the lookup
            if self._until is not None:  # an empty batch would end AvailableNow
                raise
            self._warn(str(error))
            ends = dict(begins)
        if ends == begins and self._until is None:
            time.sleep(PATIENT)
        if self._is_healthy:
            self._warned.clear()
        self._last = ends
        return as_offset(topic, ends)

    def _extents(self, begins: Places) -> dict[int, Extent]:
        """Return the available extents, and log a warning if a partition of *begins* has no leader."""
        try:
            extents = self._cluster.extents()
        except LogUnavailable as error:  # a stream tries again at its next trigger
            self._warn(str(error))
            return {}
        missing = sorted((begins.keys() & set(self._cluster.wanted())) - extents.keys())
        if missing:
            self._warn(f"partitions {missing} of {self._options.topic} have no leader now{self._cluster.trouble}")
        return extents

    def _warn(self, why: str) -> None:
        """Log *why* once until latestOffset() has no warning, because Spark calls that method many times a second."""
        self._is_healthy = False
        if why not in self._warned:
            self._warned.add(why)
            log.warning("%s", why)

    def _report_shorter(self, begins: Places, ends: Places) -> None:
        shorter = {number: end for number, end in ends.items() if end < begins.get(number, 0)}
        if not shorter:
            return
        why = f"the logs of {self._options.topic} end at {shorter}, before the checkpoint's {begins}"
        why += ": the topic was created again, or a replica that had fallen behind is the leader"
        report_loss(why, fails=self._options.fail_on_data_loss)

    def _admitted(self, begins: Places, ends: Places, extents: Mapping[int, Extent], limit: Any) -> Places:
        """Return *ends* within the limits, or *begins* if too few messages wait."""
        options = self._options
        more = self._until is None and any(ends[n] > begins.get(n, 0) for n in ends)
        if more and self._patience.waits(lambda: messages_waiting(begins, extents, self._cluster)):
            return dict(begins)
        rows = [one for one in (options.max_offsets_per_trigger, getattr(limit, "max_rows", None)) if one is not None]
        if not rows:
            return ends
        there = {n: max(begins.get(n, 0), extents[n].begin if n in extents else 0) for n in ends}
        return batch_ends(there, ends, min(rows), self._cluster)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the logs for the query's progress, or None if they are unavailable."""
        try:
            extents = self._cluster.extents()
        except LogUnavailable:
            return None
        return as_offset(self._options.topic, {**(self._last or {}), **{n: e.end for n, e in extents.items()}})

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of AvailableNow at the present ends of the logs."""
        self._until = self._resolved(LogPosition(LATEST), self._all_extents())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, at most one for each topic partition."""
        settle_process()
        begins, ends = parse_places(start, self._options.topic), parse_places(end, self._options.topic)
        self._last = ends
        self._report_shorter(begins, ends)  # PySpark before 4.2 passes a batch's start here first
        return self._planned(begins, ends, self._extents(begins))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: nsqd's retention removes messages."""

    def stop(self) -> None:
        """Do nothing, because no file or connection is open."""
