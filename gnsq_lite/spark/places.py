"""Where segments are, for the driver that writes them and the tasks that read them: a disk, an object store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from gnsq_lite.recording import objectstore
from gnsq_lite.recording.ahead import read_ahead
from gnsq_lite.recording.files import Files
from gnsq_lite.recording.schema import arrow_schema
from gnsq_lite.spark import segments
from gnsq_lite.spark.objectlog import ObjectLog
from gnsq_lite.spark.objectspool import ObjectSpool, read_object
from gnsq_lite.spark.options import SEGMENT_BYTES, SourceOptions
from gnsq_lite.spark.segments import Segment
from gnsq_lite.spark.spool import Spool
from gnsq_lite.spark.spoolmeta import DataLoss, check_visible

log = logging.getLogger("gnsq_lite.spark")

#: Seconds an opening query waits for the last holder of the spool to go.
LOCK_WAIT = 5.0


@dataclass
class SegmentPartition(InputPartition):
    """A task's share: its segments of the spool."""

    directory: str
    spool: str
    parts: list[Segment]

    def __repr__(self) -> str:
        return f"SegmentPartition({[segment.name for segment in self.parts]})"


def assert_partition(partition: Any) -> None:
    """Raise TypeError for a partition of another source."""
    if not isinstance(partition, SegmentPartition):
        raise TypeError(f"not a partition of this source: {partition!r}")


def read_segments(partition: Any, options: SourceOptions, *, complete: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in batches Spark takes fastest.

    Raises:
        SpoolNotVisible: this process does not see the spool.
        DataLoss, SegmentDamaged: rows are missing, and *complete* asks for all of them.
    """
    remote = object_log(options) if options.is_remote else None
    if remote is None:
        check_visible(Path(partition.directory), partition.spool)

    def read(segment: Segment) -> list[pa.RecordBatch]:
        try:
            if remote is not None:
                return read_object(remote, partition.spool, segment)
            return _from_disk(Path(partition.directory), segment)
        except (DataLoss, segments.SegmentDamaged):
            if complete:
                raise
            log.exception("failOnDataLoss=false: going on without segment %d", segment.number)
            return []

    parts = partition.parts
    found = map(read, parts) if remote is None else read_ahead(read, parts, lambda segment: segment.size)
    batches = (batch for several in found for batch in several)  # as they are taken: a task may have a gigabyte
    yield from segments.coalesced(batches, arrow_schema(options.include_youzan))


def _from_disk(directory: Path, segment: Segment) -> list[pa.RecordBatch]:
    for place in (directory, directory / "done"):
        try:
            return segments.read_file(place / segment.name, segment)
        except FileNotFoundError:
            continue
    raise DataLoss(f"segment {directory}/{segment.name} is not there")


def open_spool(directory: Path, options: SourceOptions, files: Files) -> Spool:
    """Return the opened spool of *options* in *directory*."""
    spool = Spool(
        directory,
        topic=options.topic,
        channel=options.channel,
        rows_per_segment=options.rows_per_segment,
        bytes_per_segment=SEGMENT_BYTES,
        retention=options.spool_retention_ms / 1000,
        complete=options.fail_on_data_loss,
        files=files,
    )
    spool.open(LOCK_WAIT)
    return spool


def open_any_spool(options: SourceOptions, files: Files) -> Spool | ObjectSpool:
    """Return the opened spool of *options*, wherever it is."""
    if not options.is_remote:
        return open_spool(Path(options.spool_dir), options, files)
    spool = ObjectSpool(object_log(options), options.topic, options.channel)
    spool.open(LOCK_WAIT)
    return spool


def object_log(options: SourceOptions) -> ObjectLog:
    """Return the log of a spool that is on no disk; opens nothing.  Raises OptionError, MissingExtra."""
    store = objectstore.ObjectStore(options.spool_dir, objectstore.settings(options.storage))
    store.check()
    return ObjectLog(store)


def check_place(options: SourceOptions) -> None:
    """Raise OptionError, or MissingExtra, for a spool that cannot be where the options say."""
    if options.is_remote:
        object_log(options)
