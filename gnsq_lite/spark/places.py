"""Where segments are, for the driver that writes them and the tasks that read them: a disk, an object store, HDFS."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from gnsq_lite.errors import OptionError
from gnsq_lite.spark import hdfs, objectstore, segments
from gnsq_lite.spark.ahead import read_ahead
from gnsq_lite.spark.files import Files, Store
from gnsq_lite.spark.location import is_hdfs
from gnsq_lite.spark.objectlog import ObjectLog
from gnsq_lite.spark.objectspool import ObjectSpool, read_object
from gnsq_lite.spark.options import SourceOptions
from gnsq_lite.spark.schema import arrow_schema
from gnsq_lite.spark.segments import Segment
from gnsq_lite.spark.shelves import DirectorySpool, EpochSpool, RemoteSpool
from gnsq_lite.spark.spool import Spool
from gnsq_lite.spark.spoolmeta import DataLoss, check_visible

log = logging.getLogger("gnsq_lite.spark")


@dataclass
class SegmentPartition(InputPartition):
    """A task's share: segments by path, or with their bytes where nothing is shared (spoolTransfer=inline)."""

    directory: str
    spool: str
    parts: list[tuple[Segment, bytes | None]]

    def __repr__(self) -> str:
        return f"SegmentPartition({[segment.name for segment, _ in self.parts]})"


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
    if remote is None and any(data is None for _, data in partition.parts):
        check_visible(Path(partition.directory), partition.spool)

    def read(part: tuple[Segment, bytes | None]) -> list[pa.RecordBatch]:
        segment, data = part
        try:
            if data is not None:
                return segments.read(pa.py_buffer(data), segment)
            if remote is not None:
                return read_object(remote, partition.spool, segment)
            return _from_disk(Path(partition.directory), segment)
        except (DataLoss, segments.SegmentDamaged):
            if complete:
                raise
            log.exception("failOnDataLoss=false: going on without segment %d", segment.number)
            return []

    parts = partition.parts
    found = map(read, parts) if remote is None else read_ahead(read, parts, lambda part: part[0].size)
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
        bytes_per_segment=options.segment_max_bytes,
        retention=options.spool_retention_ms / 1000,
        complete=options.fail_on_data_loss,
        files=files,
    )
    spool.open(options.lock_wait_ms / 1000)
    return spool


def open_any_spool(options: SourceOptions, files: Files) -> Spool | ObjectSpool:
    """Return the opened spool of *options*, wherever it is."""
    if not options.is_remote:
        return open_spool(Path(options.spool_dir), options, files)
    spool = ObjectSpool(object_log(options), options.topic, options.channel)
    spool.open(options.lock_wait_ms / 1000)
    return spool


def open_epoch_spool(options: SourceOptions, files: Files) -> EpochSpool:
    """Return the spool of receiver=executors, which is not locked yet."""
    if options.is_remote:
        return RemoteSpool(partial(object_log, options))
    return DirectorySpool(Path(options.spool_dir), files)


def object_log(options: SourceOptions) -> ObjectLog:
    """Return the log of a spool that is on no disk; opens nothing.  Raises OptionError, MissingExtra."""
    store: Store
    if is_hdfs(options.spool_dir):
        store = hdfs.HdfsStore(options.spool_dir, hdfs.settings(options.storage))
    else:
        store = objectstore.ObjectStore(options.spool_dir, objectstore.settings(options.storage))
    store.check()
    return ObjectLog(store)


def check_place(options: SourceOptions, *, batch: bool = False) -> None:
    """Raise OptionError, or MissingExtra, for a spool that cannot be where the options say."""
    if options.is_remote and batch:
        raise OptionError("spoolDir", options.spool_dir, "a snapshot needs a directory that driver and executors share")
    if options.is_remote:
        object_log(options)
