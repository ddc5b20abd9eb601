"""A spool on an object store: what :class:`~gnsq_lite.spark.spool.Spool` is on a disk.

An object cannot be appended to, so each write of the collector is a segment of its own; it gathers for a moment.  A
driver that moves to another machine finds all of it there.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from gnsq_lite.spark import segments
from gnsq_lite.spark.files import Blobs, Store
from gnsq_lite.spark.objectlog import ObjectLog, Patience
from gnsq_lite.spark.segments import Segment, SegmentDamaged
from gnsq_lite.spark.spoolmeta import DataLoss, Meta, SpoolError, SpoolNotVisible

log = logging.getLogger("gnsq_lite.spark")

_T = TypeVar("_T")


class ObjectSpool:
    """One query's spool below a URL.  All methods belong to one thread at a time; the owner locks."""

    #: Seconds messages are gathered before they are written.
    linger = 0.1

    def __init__(self, log_: ObjectLog, topic: str, channel: str) -> None:
        self.directory = log_.store.url
        self._log, self._patiently = log_, log_.patiently
        self.meta = Meta("", topic, channel)
        self.ids: Blobs = Index(log_.store.below("ids/"), self._patiently)
        self.indexed: int | None = None
        self.segments: list[Segment] = []
        self._past: list[Segment] = []
        self.newest = 0

    def open(self, lock_wait: float = 10.0) -> None:
        """Become the spool's one writer, and read what it holds.

        Raises:
            SpoolInUse: another query lives.  SpoolError: it is another topic's or channel's, or cannot be had.
        """
        try:
            self._patiently(lambda: self._open(lock_wait), opens=True)
        except OSError as error:
            raise SpoolError(f"spool {self.directory} cannot be opened: {error}") from error
        self.newest = max([self.meta.committed, *(segment.number for segment in self.segments)])

    def _open(self, lock_wait: float) -> None:
        wanted = replace(self.meta, uuid=str(uuid.uuid4()))
        meta = self._log.make_meta(wanted)
        if (meta.topic, meta.channel) != (wanted.topic, wanted.channel):
            raise SpoolError(
                f"spool {self.directory} belongs to {meta.topic}/{meta.channel}, not to"
                f" {wanted.topic}/{wanted.channel}: each query needs its own spoolDir"
            )
        self.segments = [entry.segment for entry in self._log.take_over(lock_wait)]
        self.meta = replace(meta, committed=self._log.committed())
        past = self._log.with_rows(number for number in self._log.numbers() if number <= self.meta.committed)
        self._past = [entry.segment for entry in past]

    def close(self) -> None:
        """Let another writer in."""
        self._log.close()

    # -- writing

    def append(self, batches: list[tuple[int, pa.RecordBatch]]) -> None:
        """Store batches, each as a segment; return when the store has confirmed all of them.

        Raises:
            SpoolFenced: another query took over.  SpoolError: the store did not answer; it must be opened anew.
        """
        for partition, batch in batches:
            payload = segments.head(batch.schema) + segments.record(batch)
            segment = self._stored(partition, batch.num_rows, payload)
            self.segments.append(segment)
            self.newest = segment.number

    def _stored(self, partition: int, rows: int, payload: bytes) -> Segment:
        try:
            return self._patiently(lambda: self._log.append(partition, rows, payload))
        except OSError as error:
            why = f"spool {self.directory} takes no writes: {error}; nothing is lost, the messages stay in nsqd"
            raise SpoolError(why) from error

    def roll(self) -> int:
        """Return the number of the newest segment; none is open."""
        return self.newest

    def advance(self, number: int) -> None:
        """Give no number up to *number* again: a checkpoint knows them though this spool does not."""
        self._log.advance(number)
        self.newest = max(self.newest, number)

    def commit(self, number: int) -> None:
        """Note that Spark is done with the segments up to *number*.  Raises SpoolError."""
        try:
            if number > self.meta.committed:
                self._log.commit(number)
                self.meta = replace(self.meta, committed=number)
            while self.segments and self.segments[0].number <= number:
                self._past.append(self.segments.pop(0))
            self.sweep()
        except OSError as error:
            raise SpoolError(f"spool {self.directory}: what is committed cannot be noted: {error}") from error

    def sweep(self) -> None:
        """Remove committed segments whose keys are in the index."""
        gone = [s for s in self._past if self.indexed is None or s.number <= self.indexed]
        self._log.remove([segment.number for segment in gone])
        self._past = [segment for segment in self._past if segment not in gone]

    def make_room(self) -> int:
        """A store has room."""
        return 0

    # -- asking

    def kept(self) -> list[Segment]:
        """Return the committed segments that are still there."""
        return list(self._past)

    def bytes_after(self, number: int) -> int:
        """Return the bytes that no batch up to segment *number* has."""
        return sum(segment.size for segment in reversed(self.segments) if segment.number > number)

    def rows_after(self, number: int) -> int:
        """Return the rows above segment *number*."""
        return sum(segment.rows for segment in reversed(self.segments) if segment.number > number)

    def located(self, begin: int, end: int, *, complete: bool) -> list[Segment]:
        """Return the segments begin < number <= end; *complete*: all of them, or raise DataLoss."""
        wanted = range(begin + 1, end + 1)
        present = {number for number in self._log.numbers() if number in wanted}
        missing = [number for number in wanted if number not in present]
        if missing and complete:
            raise DataLoss(
                f"spool {self.directory} lacks {len(missing)} objects of ({begin}, {end}], {missing[0]} for one: rows"
                " acknowledged to nsqd are gone; set failOnDataLoss=false to go on without them"
            )
        if missing:
            log.error("spool %s lacks %d objects of (%d, %d]; going on", self.directory, len(missing), begin, end)
        known = {segment.number: segment for segment in self._past + self.segments}
        found = [known.get(number) or self._segment(number, complete) for number in sorted(present)]
        return [segment for segment in found if segment is not None and segment.rows]

    def _segment(self, number: int, complete: bool) -> Segment | None:
        entry = self._log.entry(number) if complete else self._log.readable(number)
        return None if entry is None else entry.segment

    def raw(self, segment: Segment) -> bytes:
        """Return a segment's bytes.  Raises FileNotFoundError, SegmentDamaged, OSError."""
        return self._log.payload(segment)

    def stored(self, after: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (topic partition, batch) of all segments above the number *after*, oldest first."""
        for segment in [*self._past, *self.segments]:
            if segment.number <= after:
                continue
            try:
                for batch in segments.read(pa.py_buffer(self.raw(segment)), segment):
                    yield segment.partition, batch
            except (SegmentDamaged, FileNotFoundError) as error:
                log.warning("spool %s: %s cannot be read for de-duplication: %s", self.directory, segment.name, error)


class Index:
    """Where the index of known messages is.  Keys that cannot be read count as damaged: so a store is waited for."""

    def __init__(self, store: Store, patiently: Patience) -> None:
        self._store, self._patiently = store, patiently

    def names(self) -> list[str]:
        """Return the names that are there, sorted.  Raises SpoolError."""
        return self._asked(self._store.names)

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """Return *size* bytes from *at* on, fewer at the end.  Raises FileNotFoundError, SpoolError."""
        return self._asked(lambda: self._store.read(name, at, size))

    def _asked(self, do: Callable[[], _T]) -> _T:
        try:
            return self._patiently(do)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SpoolError(f"the index of spool {self._store.url} cannot be read: {error}") from error

    def write(self, name: str, data: bytes) -> None:
        """Set the content of *name*.  Raises OSError."""
        self._store.write(name, data)

    def remove(self, name: str) -> None:
        """Remove *name*.  Raises OSError."""
        self._store.remove(name)


def read_object(log_: ObjectLog, spool: str, segment: Segment) -> list[pa.RecordBatch]:
    """Return a segment's rows; in a task.

    Raises:
        SpoolNotVisible: there is no such spool for this process.  DataLoss, SegmentDamaged: the rows are gone.
    """
    try:
        return segments.read(pa.py_buffer(log_.payload(segment)), segment)
    except FileNotFoundError as error:
        meta = log_.meta()
        if meta is None or meta.uuid != spool:
            raise SpoolNotVisible(f"this executor does not see the spool {spool} at {log_.store.url}") from error
        raise DataLoss(f"segment {segment.number} of {log_.store.url} is not there") from error
