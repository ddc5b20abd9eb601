"""Code that the streaming and the batch source share: the first position, its check, and the rows of tasks."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from gnsq_lite.arrow import arrow_schema
from gnsq_lite.recording.errors import DataLoss, RecordingDamaged, report_loss
from gnsq_lite.recording.frames import coalesced
from gnsq_lite.recording.logs import LogReader, Span, share
from gnsq_lite.recording.recording import Position, Recording
from gnsq_lite.spark.offsets import given_position
from gnsq_lite.spark.options import SourceOptions
from gnsq_lite.spark.several import Recordings

if TYPE_CHECKING:
    from gnsq_lite.spark.embedded import Embedded

log = logging.getLogger("gnsq_lite.spark")

#: A batch has a task for each TASK_ROWS rows, but at most one for each core.  A task costs Spark some 10 ms.
TASK_ROWS = 10_000
#: A cluster may have more cores than the driver: a batch has a task for each LARGE_TASK rows, but at most LARGE_TASKS.
LARGE_TASK, LARGE_TASKS = 100_000, 64
#: Reported if the recording's committed position is after the position in the query's checkpoint.
OLDER = (
    "the checkpoint is an older copy.  Start with a new checkpointLocation, so that the query continues from the"
    " recording.  With this checkpoint, new rows get the ids of finished batches, and a sink may skip them"
)
_frozen: list[bool] = []


@dataclass
class RecordingPartition(InputPartition):
    """Task that reads spans of the recording *uuid* at *url*."""

    url: str
    uuid: str
    spans: list[Span]

    def __repr__(self) -> str:
        return f"RecordingPartition({[(span.log, span.start, span.end) for span in self.spans]})"


def first_position(recording: Recordings, options: SourceOptions, otherwise: str) -> Position:
    """Return the start of a reader: startingTimestamp, startingOffsets, or *otherwise*.  Raises RecordingError."""
    recording.assert_exist()
    if options.starting_timestamp is not None:
        at = options.starting_timestamp * 1000
        return recording.position(lambda one: one.at(at))
    text = options.starting_offsets or otherwise
    if text in ("earliest", "latest"):
        return recording.position(Recording.begin if text == "earliest" else Recording.end)
    return given_position("startingOffsets", text)


def last_position(recording: Recordings, options: SourceOptions) -> Position:
    """Return the end of a batch: endingTimestamp, endingOffsets, or the rows stored now."""
    if options.ending_timestamp is not None:
        at = options.ending_timestamp * 1000
        return recording.position(lambda one: one.at(at))
    if options.ending_offsets in ("", "latest"):
        return recording.position(Recording.end)
    return given_position("endingOffsets", options.ending_offsets)


@dataclass
class Checked:
    """A position after which all rows are stored, or were given up because failOnDataLoss is false."""

    recording: Recordings
    position: Position
    #: The last row of each log.
    there: Position
    fails: bool

    @classmethod
    def of(cls, recording: Recordings, position: Position, *, fails: bool, embedded: Embedded | None = None) -> Checked:
        """Check *position*.  If rows are missing, raise DataLoss, or log the loss if *fails* is false."""
        bounds = recording.bounds()
        committed = recording.each[0].committed() if embedded is not None else {}
        found = dict(position)
        for name in sorted({*position, *bounds}):
            row = position.get(name, 0)
            where = f"recording {recording.url}, log {name}"
            if name not in bounds:
                report_loss(
                    f"{where} is gone; the checkpoint is at row {row}: the recording was lost or replaced", fails=fails
                )
                del found[name]
                continue
            if row > bounds[name].last:
                report_loss(
                    f"{where} ends at row {bounds[name].last}, but the checkpoint is at row {row}: the recording"
                    " was replaced by an older copy",
                    fails=fails,
                )
                if embedded is not None:
                    embedded.begin_new_log(name)
            elif row < committed.get(name, 0):
                report_loss(f"{where} is committed up to row {committed[name]}, not {row}: {OLDER}", fails=fails)
                found[name] = committed[name]
            elif row < bounds[name].first - 1:
                report_loss(
                    f"{where} begins at row {bounds[name].first}; the rows from {row + 1} on are gone", fails=fails
                )
                found[name] = bounds[name].first - 1
        there = {name: one.last for name, one in bounds.items() if one.last}
        return cls(recording, {name: row for name, row in found.items() if row}, there, fails)

    def end(self) -> Position:
        """Return the later of :attr:`position` and the last stored row, for each log."""
        return {name: max(row, self.position.get(name, 0)) for name, row in {**self.position, **self.there}.items()}

    def ranges(self, end: Position) -> list[tuple[LogReader, int, int]]:
        """Return (log, start, end) of the rows after :attr:`position` up to *end*.  Raises DataLoss."""
        found = []
        for name, row in sorted(end.items()):
            last = self.there.get(name, 0)
            if row > last:
                why = f"recording {self.recording.url}, log {name} has rows only up to {last}, not up to {row}"
                report_loss(why, fails=self.fails)
            start = self.position.get(name, 0)
            if min(row, last) > start:
                found.append((self.recording.reader(name), start, min(row, last)))
        return found


def tasks(
    recording: Recordings, ranges: list[tuple[LogReader, int, int]], options: SourceOptions
) -> list[InputPartition]:
    """Split rows into tasks of equal size, or with ordered=true into one task for each log."""
    total = sum(end - start for _, start, end in ranges)
    if not total:
        return []
    parts = max(min(os.cpu_count() or 1, -(-total // TASK_ROWS)), min(LARGE_TASKS, total // LARGE_TASK))
    parts = max(parts, options.min_partitions or 0)
    found: list[InputPartition] = []
    for one in recording.each:
        mine = [each for each in ranges if recording.home(each[0].name) is one]
        rows = sum(end - start for _, start, end in mine)
        groups = [group for each in mine for group in share([each], 1)]
        if rows and not options.ordered:
            groups = share(mine, -(-parts * rows // total))
        found += [RecordingPartition(one.url, one.meta().uuid, group) for group in groups]
    return found


def read_partition(partition: Any, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows in batches of the best size for Spark.

    Raises RecordingNotVisible: this process does not see the recording.  DataLoss, RecordingDamaged: rows are gone.
    """
    if not isinstance(partition, RecordingPartition):
        raise TypeError(f"not a partition of this source: {partition!r}")
    settle_worker()
    recording = Recording(partition.url or options.places[0], options.storage)
    if partition.spans:
        recording.check_visible(partition.uuid)
    batches = (batch for span in partition.spans for batch in _rows(recording, span, options))
    yield from coalesced(batches, arrow_schema(options.include_youzan))


def _rows(recording: Recording, span: Span, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    try:
        for _, batch in recording.read(span):
            yield batch
    except (DataLoss, RecordingDamaged):
        if options.fail_on_data_loss:
            raise
        log.exception("failOnDataLoss=false: continuing without rows of log %s up to %d", span.log, span.end)


def settle_worker() -> None:
    """Exclude imported objects from garbage collection, because Spark's Python workers collect after every task."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if not _frozen and main is not None and main.name.startswith("pyspark."):
        _frozen.append(True)
        gc.collect()
        gc.freeze()
