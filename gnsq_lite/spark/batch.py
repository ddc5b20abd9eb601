"""The batch source: a snapshot, drained once and kept.

Spark reads a batch source again for every action, skips partitions for a ``limit`` and stops generators early, so
nothing may be acknowledged while reading.  Instead the planner drains the channel into a directory of its own -
stored first, then FIN - and tasks only read its files: every action sees the same rows, and a named snapshot can be
read again later.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from gnsq_lite.spark import segments
from gnsq_lite.spark.collector import Collector
from gnsq_lite.spark.files import Files
from gnsq_lite.spark.options import SourceOptions
from gnsq_lite.spark.receiver import ReaderReceiver, Receiver
from gnsq_lite.spark.spool import SpoolError, SpoolInUse, lock_directory, read_meta
from gnsq_lite.spark.stream import SegmentPartition, assert_partition, open_spool, read_segments

log = logging.getLogger("gnsq_lite.spark")

_PREFIX = "snapshot-"


class NsqBatchReader(DataSourceReader):
    """Reads the snapshot *name*, which is made where it does not exist."""

    files: type[Files] = Files

    def __init__(self, options: SourceOptions, name: str) -> None:
        self._options = options
        self._directory = Path(options.spool_dir) / (_PREFIX + name)

    def partitions(self) -> Sequence[InputPartition]:
        """Drain the channel if that is not done yet, and return the tasks."""
        if not is_complete(self._directory):
            self._adopt()
            self._drain()
        options = self._options
        groups = segments.grouped(segments.listed(self._directory), options.rows_per_segment, options.segment_max_bytes)
        meta = read_meta(self._directory)
        spool = "" if meta is None else meta.uuid
        inline = options.spool_transfer == "inline"
        return [
            SegmentPartition(
                str(self._directory),
                spool,
                [(s, (self._directory / s.name).read_bytes() if inline else None) for s in group],
            )
            for group in groups or [[]]
        ]

    def _adopt(self) -> None:
        """Take over a snapshot whose maker died while it drained: what it acknowledged is in no other place."""
        if self._options.snapshot or self._directory.exists():
            return
        for orphan in sorted(self._directory.parent.glob(_PREFIX + "*")):
            meta = None if is_complete(orphan) else read_meta(orphan)
            if meta is None or (meta.topic, meta.channel) != (self._options.topic, self._options.channel):
                continue
            try:
                lock = lock_directory(orphan, wait=0.0)
            except SpoolInUse:
                continue
            try:
                orphan.rename(self._directory)
            finally:
                os.close(lock)
            log.warning("took over the unfinished snapshot %s", orphan)
            return

    def _drain(self) -> None:
        options = self._options
        spool = open_spool(self._directory, options, self.files())
        if is_complete(self._directory):  # somebody else made it while this one waited for the lock
            spool.close()
            return
        collector = Collector(spool, self._make_receiver(), options)
        collector.backlog_until_ns = time.time_ns() + 10**18  # all that comes within maxWait belongs to it
        collector.start(most=options.max_messages)
        try:
            self._fill(collector)
        finally:
            collector.stop()
        spool.open(options.lock_wait_ms / 1000)
        spool.roll()
        rows = sum(segment.rows for segment in spool.segments)
        self.files().replace_text(self._directory / "DONE", json.dumps({"rows": rows, "segments": len(spool.segments)}))
        spool.close()
        log.info("snapshot %s: %d rows", self._directory, rows)

    def _make_receiver(self) -> Receiver:
        return ReaderReceiver(self._options, most=self._options.max_messages)

    def _fill(self, collector: Collector) -> None:
        """Wait until the channel is silent, the snapshot full, or its time over."""
        options = self._options
        begun = time.monotonic()
        connected_at: float | None = None
        while time.monotonic() - begun < options.max_wait_ms / 1000:
            collector.check()
            now = time.monotonic()
            if connected_at is None and collector.is_connected():
                connected_at = now
            if options.max_messages is not None and collector.stored >= options.max_messages:
                return
            idle = options.idle_timeout_ms / 1000
            if connected_at is not None and now - max(connected_at, collector.backlog_seen) >= idle:
                return
            time.sleep(0.02)
            if connected_at is None and now - begun >= options.connect_timeout_ms / 1000:
                raise collector.not_connected(options.connect_timeout_ms / 1000)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows; reads files only."""
        assert_partition(partition)
        return read_segments(partition, self._options.include_youzan, complete=True)


def is_complete(directory: Path) -> bool:
    """Whether the snapshot in *directory* was made to its end."""
    return (directory / "DONE").exists()


def snapshots(spool_dir: str | Path) -> dict[str, int]:
    """Return the complete snapshots below *spool_dir*: name -> rows."""
    found = {}
    for done in sorted(Path(spool_dir).glob(_PREFIX + "*/DONE")):
        found[done.parent.name.removeprefix(_PREFIX)] = int(json.loads(done.read_text())["rows"])
    return found


def drop_snapshot(spool_dir: str | Path, name: str) -> None:
    """Remove a snapshot and its rows, which nsqd has forgotten.  Raises SpoolError where it is not complete."""
    directory = Path(spool_dir) / (_PREFIX + name)
    if not is_complete(directory):
        raise SpoolError(f"{directory} is no complete snapshot")
    (directory / "done").rmdir()
    for path in [p for p in directory.iterdir() if p.name != "DONE"]:
        path.unlink()
    (directory / "DONE").unlink()
    directory.rmdir()
