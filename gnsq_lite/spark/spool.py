"""The spool: where received messages become durable before nsqd hears FIN (PIPE-2).

::

    LOCK                  flock: one query at a time; holder's pid and host inside
    META.json             version, uuid, topic, channel, number of the last committed segment
    open-*.part           appended and synced, then FIN; one per topic partition
    seg-NUMBER-...seg     sealed: number given when it is sealed, so numbers have no gaps; a rename makes it appear
    done/seg-...          committed: kept until the index of known messages has their keys, and for the retention
    ids/                  that index; see known.py

An offset of the query is a segment number.  Sealing, committing and recovery are renames, so a crash leaves the state
before or the state after.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pyarrow as pa

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.recording.files import Files, Folder
from gnsq_lite.spark import segments
from gnsq_lite.spark.segments import Segment, SegmentDamaged
from gnsq_lite.spark.spoolmeta import DataLoss, Meta, SpoolError, lock_directory, read_meta

log = logging.getLogger("gnsq_lite.spark")


class Lane:
    """An open segment file of one topic partition."""

    def __init__(self, path: Path, fd: int, partition: int) -> None:
        self.path, self.fd, self.partition = path, fd, partition
        self.rows = 0
        self.size = 0


class Spool:
    """One query's spool directory.

    All methods belong to one thread at a time; the owner locks.  After :meth:`append` has returned, the rows survive
    any crash; after it has raised OSError, none of them are in the spool.
    """

    #: Seconds messages are gathered before they are written: a disk is quick.
    linger = 0.0

    def __init__(
        self,
        directory: Path,
        *,
        topic: str,
        channel: str,
        rows_per_segment: int = 50_000,
        bytes_per_segment: int = 16 << 20,
        retention: float = 0.0,
        complete: bool = True,
        files: Files | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.directory, self.done = directory, directory / "done"
        self._topic, self._channel = topic, channel
        self._most_rows, self._most_bytes = rows_per_segment, bytes_per_segment
        self._retention, self._complete = retention, complete
        self._files, self._clock = files or Files(), clock
        self._lanes: dict[int, Lane] = {}
        self._lock_fd: int | None = None
        self._files_made = 0
        self.meta = Meta("", topic, channel)
        self.ids = Folder(directory / "ids", self._files)
        #: Committed segments above this number stay; None: whatever the number.
        self.indexed: int | None = None
        self.segments: list[Segment] = []
        self.newest = 0

    # -- opening and closing ----------------------------------------------------------------------------------------

    def open(self, lock_wait: float = 10.0) -> None:
        """Lock the directory, make or check META.json, and seal what an earlier run left open.

        Raises:
            SegmentDamaged: rows that were acknowledged cannot be read, and all are asked for (*complete*).
            SpoolInUse: another query holds it, and did not let go in *lock_wait* seconds.
            SpoolError: it is another topic's or channel's, or not writable.
        """
        try:
            self.done.mkdir(parents=True, exist_ok=True)
            self._lock_fd = lock_directory(self.directory, lock_wait)
            try:
                self._load()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise SpoolError(f"spool {self.directory} cannot be opened: {error}") from error

    def _load(self) -> None:
        meta = read_meta(self.directory)
        if meta is None:
            meta = replace(self.meta, uuid=str(uuid.uuid4()))
            if segments.listed(self.directory) or segments.listed(self.done):
                raise SpoolError(f"spool {self.directory} has segments but no META.json: it is damaged")
            self._files.replace_text(self.directory / "META.json", meta.text())
        if (meta.topic, meta.channel) != (self._topic, self._channel):
            raise SpoolError(
                f"spool {self.directory} belongs to {meta.topic}/{meta.channel}, not to {self._topic}/{self._channel}:"
                " each query needs its own spoolDir"
            )
        self.meta = meta
        found = segments.listed(self.directory)
        past = segments.listed(self.done)
        self.newest = max([meta.committed, *(segment.number for segment in found + past)])
        self.segments = found
        self._recover()
        self._retire()

    def _recover(self) -> None:
        """Seal files an earlier run left open, up to their last whole record."""
        for path in sorted(self.directory.glob("open-*.part")):
            found = segments.scan_file(path)
            torn = path.stat().st_size - found.size
            if torn and segments.has_record(pa.py_buffer(path.read_bytes()), found.size):
                self._damaged(path, found.size)
            elif torn:
                log.info("spool %s: %d unacknowledged bytes of a torn write cut off", self.directory, torn)
            if not found.rows:
                self._files.unlink(path)
                continue
            fd = os.open(path, os.O_WRONLY)
            try:
                self._files.truncate(fd, found.size)
                self._files.sync(fd)
            finally:
                self._files.close(fd)
            partition = int(path.stem.rpartition("-p")[2])
            self._seal(path, partition, found.rows, found.size)

    def _damaged(self, path: Path, at: int) -> None:
        why = f"spool {self.directory}: {path.name} is damaged at byte {at}; rows behind it were acknowledged to nsqd"
        if self._complete:
            raise SegmentDamaged(f"{why}: set failOnDataLoss=false to go on without them")
        log.error("%s; failOnDataLoss=false: going on", why)

    def close(self) -> None:
        """Close files and release the lock; open files are sealed by the next :meth:`open`."""
        for lane in self._lanes.values():
            self._files.close(lane.fd)
        self._lanes.clear()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    # -- appending --------------------------------------------------------------------------------------------------

    def append(self, batches: list[tuple[int, pa.RecordBatch]]) -> None:
        """Append batches, each to the lane of its topic partition, and return when they are on the disk.

        Raises:
            OSError: none of the rows is in the spool, and the next call may go better (disk full).
            SpoolError: the rows may be in the spool; it must be opened anew.
        """
        before = {partition: (lane, lane.size, lane.rows) for partition, lane in self._lanes.items()}
        full: list[Lane] = []
        touched: list[Lane] = []
        try:
            for partition, batch in batches:
                self._append(partition, batch, full, touched)
            for lane in dict.fromkeys(touched):
                self._files.sync(lane.fd)
        except OSError:
            self._undo(before, touched)
            raise
        full += [lane for lane in self._lanes.values() if lane.rows >= self._most_rows or lane.size >= self._most_bytes]
        for lane in full:
            self._seal_lane(lane)

    def _append(self, partition: int, batch: pa.RecordBatch, full: list[Lane], touched: list[Lane]) -> None:
        """Write *batch*, cut so that no segment passes its limit of rows; what is full waits for the sync in *full*."""
        at = 0
        while at < batch.num_rows:
            lane = self._lanes.get(partition)
            if lane is not None and (lane.rows >= self._most_rows or lane.size >= self._most_bytes):
                full.append(self._lanes.pop(partition))
                lane = None
            if lane is None:
                lane = self._new_lane(partition)
                touched.append(lane)
                data = segments.head(batch.schema)
                self._files.append(lane.fd, data)
                lane.size = len(data)
                self._files.sync_directory(self.directory)
            touched.append(lane)
            piece = batch.slice(at, self._most_rows - lane.rows)
            data = segments.record(piece)
            self._files.append(lane.fd, data)
            lane.size += len(data)
            lane.rows += piece.num_rows
            at += piece.num_rows

    def _new_lane(self, partition: int) -> Lane:
        self._files_made += 1
        path = self.directory / f"open-{time.time_ns():020d}-{self._files_made:06d}-p{partition}.part"
        lane = self._lanes[partition] = Lane(path, self._files.create(path), partition)
        return lane

    def _undo(self, before: dict[int, tuple[Lane, int, int]], touched: list[Lane]) -> None:
        old = {lane for lane, _, _ in before.values()}
        try:
            for lane, size, rows in before.values():
                if lane in touched:
                    self._files.truncate(lane.fd, size)
                    lane.size, lane.rows = size, rows
            for lane in set(touched) - old:
                self._files.close(lane.fd)
                self._files.unlink(lane.path)
        except OSError as error:
            raise SpoolError(f"spool {self.directory}: a failed write could not be undone: {error}") from error
        self._lanes = {partition: lane for partition, (lane, _, _) in before.items()}

    # -- sealing and committing -------------------------------------------------------------------------------------

    def roll(self) -> int:
        """Seal what is open and return the number of the newest segment.  Raises SpoolError."""
        for lane in list(self._lanes.values()):
            if lane.rows:
                self._seal_lane(lane)
        return self.newest

    def _seal_lane(self, lane: Lane) -> None:
        try:
            self._seal(lane.path, lane.partition, lane.rows, lane.size)
            self._files.close(lane.fd)
        except OSError as error:
            raise SpoolError(f"spool {self.directory}: {lane.path.name} could not be sealed: {error}") from error
        if self._lanes.get(lane.partition) is lane:
            del self._lanes[lane.partition]

    def _seal(self, path: Path, partition: int, rows: int, size: int) -> None:
        segment = Segment(self.newest + 1, partition, rows, size)
        self._files.rename(path, self.directory / segment.name)
        self.newest = segment.number
        self.segments.append(segment)
        self._files.sync_directory(self.directory)

    def advance(self, number: int) -> None:
        """Give no number up to *number* again: a checkpoint knows them though this spool does not."""
        self.newest = max(self.newest, number)

    def commit(self, number: int) -> None:
        """Note that Spark is done with the segments up to *number*; they go to ``done/`` and later away."""
        if number > self.meta.committed:
            meta = replace(self.meta, committed=number)
            self._files.replace_text(self.directory / "META.json", meta.text())
            self.meta = meta
        self._retire()
        self.sweep()

    def _retire(self) -> None:
        while self.segments and self.segments[0].number <= self.meta.committed:
            segment = self.segments[0]
            path = self.directory / segment.name
            if path.exists():
                os.utime(path, (self._clock.wall(), self._clock.wall()))
                self._files.rename(path, self.done / segment.name)
            self.segments.pop(0)

    def sweep(self) -> None:
        """Remove committed segments that are older than the retention and whose keys are in the index."""
        oldest = self._clock.wall() - self._retention
        for segment in segments.listed(self.done):
            path = self.done / segment.name
            kept = self._retention and path.stat().st_mtime >= oldest
            if kept or (self.indexed is not None and segment.number > self.indexed):
                break
            self._files.unlink(path)

    def make_room(self) -> int:
        """Remove all committed segments, for the disk is full; return the bytes that are free now."""
        past = segments.listed(self.done)
        for segment in past:
            self._files.unlink(self.done / segment.name)
        return sum(segment.size for segment in past)

    # -- asking -----------------------------------------------------------------------------------------------------

    def bytes_after(self, number: int) -> int:
        """Return the bytes, sealed and open, that no batch up to segment *number* has."""
        sealed = sum(segment.size for segment in self._after(number))
        return sealed + sum(lane.size for lane in self._lanes.values())

    def rows_after(self, number: int) -> int:
        """Return the rows above segment *number*, those of open segments too."""
        sealed = sum(segment.rows for segment in self._after(number))
        return sealed + sum(lane.rows for lane in self._lanes.values())

    def _after(self, number: int) -> Iterator[Segment]:
        return takewhile(lambda segment: segment.number > number, reversed(self.segments))

    def located(self, begin: int, end: int, *, complete: bool) -> list[Segment]:
        """Return the segments begin < number <= end; *complete*: all of them, or raise DataLoss."""
        return [segment for segment, _ in locate(self.directory, begin, end, complete=complete)]

    def kept(self) -> list[int]:
        """Return the bytes of each committed segment that is still there."""
        return [segment.size for segment in segments.listed(self.done)]

    def stored(self, after: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (topic partition, batch) of all segments above the number *after*, oldest first."""
        for directory in (self.done, self.directory):
            for segment in segments.listed(directory):
                if segment.number <= after:
                    continue
                try:
                    for batch in segments.read_file(directory / segment.name, segment):
                        yield segment.partition, batch
                except (segments.SegmentDamaged, FileNotFoundError):
                    log.warning("spool %s: %s cannot be read for de-duplication", self.directory, segment.name)


def locate(directory: Path, start: int, end: int, *, complete: bool = True) -> list[tuple[Segment, Path]]:
    """Return the segments start < number <= end of a spool with their files; *complete*: all of them, or raise.

    Raises:
        DataLoss: a number of that range is missing, neither waiting nor kept in ``done/``.
    """
    found: dict[int, tuple[Segment, Path]] = {}
    for place in (directory / "done", directory):  # a segment moves from the second to the first: look there last
        for segment in segments.listed(place):
            if start < segment.number <= end:
                found[segment.number] = (segment, place / segment.name)
    missing = [number for number in range(start + 1, end + 1) if number not in found]
    if missing and not complete:
        log.error("spool %s lacks %d segments of (%d, %d]; going on without", directory, len(missing), start, end)
    elif missing:
        shown = f"{missing[0]}" if len(missing) == 1 else f"{missing[0]} to {missing[-1]}, {len(missing)} in all"
        raise DataLoss(
            f"spool {directory} lacks segment {shown} of ({start}, {end}]: rows acknowledged to nsqd are gone;"
            " set failOnDataLoss=false to go on without them"
        )
    return [found[number] for number in sorted(found)]
