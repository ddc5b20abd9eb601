"""The batch source: a snapshot, drained once and kept.

Spark reads a batch source again for every action, skips partitions for a ``limit`` and stops generators early, so
nothing may be acknowledged while reading.  Instead the planner drains the channel into a directory of its own -
stored first, then FIN - and tasks only read its files: every action sees the same rows.  A snapshot has a name, so a
job that failed reads the same rows when it runs again; nsqd has forgotten them.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from gnsq_lite.spark import segments
from gnsq_lite.spark.backlog import Backlog
from gnsq_lite.spark.collector import Collector
from gnsq_lite.spark.files import Files
from gnsq_lite.spark.options import SourceOptions
from gnsq_lite.spark.places import SegmentPartition, assert_partition, open_spool, read_segments
from gnsq_lite.spark.receiver import ReaderReceiver, Receiver
from gnsq_lite.spark.spoolmeta import DataLoss, SpoolError, read_meta

log = logging.getLogger("gnsq_lite.spark")

_PREFIX = "snapshot-"


class NsqBatchReader(DataSourceReader):
    """Reads the snapshot of the options' name, which is made where it does not exist."""

    files: type[Files] = Files

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._directory = Path(options.spool_dir) / (_PREFIX + options.snapshot)

    def partitions(self) -> Sequence[InputPartition]:
        """Drain the channel if that is not done yet, and return the tasks."""
        if not is_complete(self._directory):
            self._drain()
        if is_expired(self._directory):
            raise SnapshotExpired(
                f"snapshot {self._directory} is older than snapshotRetentionMs: its rows are removed; drop_snapshot"
                " frees the name"
            )
        options = self._options
        found = segments.listed(self._directory)
        made, here = (json.loads((self._directory / "DONE").read_text())["rows"], sum(one.rows for one in found))
        if here != made:
            raise DataLoss(f"snapshot {self._directory} was made of {made} rows; the files of {here} are there")
        groups = segments.grouped(found, options.rows_per_segment, options.segment_max_bytes)
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

    def _drain(self) -> None:
        options = self._options
        wall = time.time()
        if options.snapshot_retention_ms:
            oldest = wall - options.snapshot_retention_ms / 1000
            expire_snapshots(self._directory.parent, options.topic, options.channel, oldest, self.files())
        for orphan in unfinished(self._directory):
            log.warning("%s was not finished: it has rows nsqd forgot, read it by its name", orphan)
        where = (self._directory, options.topic, options.channel)
        log.warning("snapshot %s takes what channel %s/%s holds out of nsqd; read it again by its name", *where)
        spool = open_spool(self._directory, options, self.files())
        if is_complete(self._directory):  # somebody else made it while this one waited for the lock
            spool.close()
            return
        collector = Collector(spool, self._make_receiver(), options)
        collector.expect(int((wall + 1e9) * 1e9))  # all that comes within maxWait belongs to it
        there = sum(segment.rows for segment in spool.segments)  # of a maker that died
        most = options.max_messages
        collector.start(None if most is None else max(0, most - there))
        try:
            self._fill(collector, there)
        finally:
            collector.stop()
        spool.open(options.lock_wait_ms / 1000)
        spool.roll()
        rows = sum(segment.rows for segment in spool.segments)
        self.files().replace_text(self._directory / "DONE", json.dumps({"rows": rows, "segments": len(spool.segments)}))
        spool.close()
        shutil.rmtree(self._directory / "ids", ignore_errors=True)  # nothing more comes in
        log.info("snapshot %s: %d rows", self._directory, rows)

    def _make_receiver(self) -> Receiver:
        return ReaderReceiver(self._options, most=self._options.max_messages)

    def _fill(self, collector: Collector, there: int) -> None:
        """Wait until the channel is silent, the snapshot, with the rows *there*, full, or its time over."""
        options = self._options
        begun = time.monotonic()
        backlog = Backlog(collector, options)
        while time.monotonic() - begun < options.max_wait_ms / 1000 and not backlog.is_read():
            if options.max_messages is not None and there + collector.stored >= options.max_messages:
                return
            if collector.is_paused():
                log.warning("snapshot %s has maxSpoolBytes; the rest stays in nsqd, for another one", self._directory)
                return
            time.sleep(0.02)
        if not backlog.is_whole():
            raise collector.not_connected(options.max_wait_ms / 1000)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows; reads files only."""
        assert_partition(partition)
        return read_segments(partition, self._options, complete=True)


class SnapshotExpired(SpoolError):
    """The snapshot was made, and its rows removed after snapshotRetentionMs: it is not made anew under its name."""


def is_complete(directory: Path) -> bool:
    """Whether the snapshot in *directory* was made to its end."""
    return (directory / "DONE").exists()


def unfinished(directory: Path) -> list[Path]:
    """Return the other snapshots beside *directory* of which rows were acknowledged and that were not finished."""
    found = []
    for other in sorted(directory.parent.glob(_PREFIX + "*")):
        rows = [*other.glob("seg-*"), *other.glob("open-*")]
        if other != directory and rows and not is_complete(other):
            found.append(other)
    return found


def is_expired(directory: Path) -> bool:
    """Whether the rows of the complete snapshot in *directory* are removed."""
    return bool(json.loads((directory / "DONE").read_text()).get("expired"))


def expire_snapshots(spool_dir: Path, topic: str, channel: str, oldest: float, files: Files) -> None:
    """Remove the rows of the channel's snapshots completed before *oldest*, seconds since 1970; their names stay."""
    for done in spool_dir.glob(_PREFIX + "*/DONE"):
        meta = read_meta(done.parent)
        if meta is None or (meta.topic, meta.channel) != (topic, channel) or done.stat().st_mtime >= oldest:
            continue
        if not is_expired(done.parent):
            files.replace_text(done, json.dumps({**json.loads(done.read_text()), "expired": True}))
            log.info("snapshot %s expired", done.parent)
        for segment in segments.listed(done.parent):
            files.unlink(done.parent / segment.name)


def snapshots(spool_dir: str | Path) -> dict[str, int]:
    """Return the complete snapshots below *spool_dir* that have not expired: name -> rows."""
    found = {}
    for done in sorted(Path(spool_dir).glob(_PREFIX + "*/DONE")):
        if not is_expired(done.parent):
            found[done.parent.name.removeprefix(_PREFIX)] = int(json.loads(done.read_text())["rows"])
    return found


def drop_snapshot(spool_dir: str | Path, name: str) -> None:
    """Remove a snapshot and its rows, which nsqd has forgotten.  Raises SpoolError where it is not complete."""
    directory = Path(spool_dir) / (_PREFIX + name)
    if not is_complete(directory):
        raise SpoolError(f"{directory} is no complete snapshot")
    for path in [p for p in directory.iterdir() if p.name != "DONE"]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    (directory / "DONE").unlink()
    directory.rmdir()
