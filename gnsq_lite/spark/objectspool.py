"""A spool on an object store: what :class:`~gnsq_lite.spark.spool.Spool` is on a disk.

An object cannot be appended to, so each write of the collector is a segment of its own; it gathers for a moment.  A
driver that moves to another machine finds all of it there.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

import pyarrow as pa

from gnsq_lite.recording.ahead import read_ahead
from gnsq_lite.recording.files import Blobs, Store
from gnsq_lite.spark import segments
from gnsq_lite.spark.objectlog import ObjectLog, Patience
from gnsq_lite.spark.segments import Segment, SegmentDamaged
from gnsq_lite.spark.spoolmeta import DataLoss, Meta, SpoolError, SpoolNotVisible

log = logging.getLogger("gnsq_lite.spark")

_T = TypeVar("_T")


class ObjectSpool:
    """One query's spool below a URL.  All methods belong to one thread at a time; the owner locks."""

    def __init__(self, log_: ObjectLog, topic: str, channel: str) -> None:
        self.directory = log_.store.url
        self._log, self._patiently = log_, log_.patiently
        self.meta = Meta("", topic, channel)
        self.ids: Blobs = Index(log_.store.below("ids/"), self._patiently)
        self.indexed: int | None = None
        self.segments: list[Segment] = []
        self._past: dict[int, int] = {}  # of committed segments, by number: bytes
        self.newest = 0

    @property
    def linger(self) -> float:
        """Seconds messages are gathered before they are written; more, the more objects wait for a sink that is away.

        At ten a second it would find 36,000 after an hour.
        """
        return min(1.0, 0.1 + len(self.segments) / 1000)

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
        self.segments, self._past = self._log.take_over(lock_wait)
        self.meta = replace(meta, committed=self._log.committed())

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
                segment = self.segments.pop(0)
                self._past[segment.number] = segment.size
            self.sweep()
        except OSError as error:
            raise SpoolError(f"spool {self.directory}: what is committed cannot be noted: {error}") from error

    def sweep(self) -> None:
        """Remove committed segments whose keys are in the index."""
        gone = [number for number in self._past if self.indexed is None or number <= self.indexed]
        self._log.remove(gone)
        for number in gone:
            del self._past[number]

    def make_room(self) -> int:
        """A store has room."""
        return 0

    # -- asking

    def kept(self) -> list[int]:
        """Return the bytes of each committed segment that is still there."""
        return list(self._past.values())

    def bytes_after(self, number: int) -> int:
        """Return the bytes that no batch up to segment *number* has."""
        return sum(segment.size for segment in self._after(number))

    def rows_after(self, number: int) -> int:
        """Return the rows above segment *number*."""
        return sum(segment.rows for segment in self._after(number))

    def _after(self, number: int) -> Iterator[Segment]:
        return takewhile(lambda segment: segment.number > number, reversed(self.segments))

    def located(self, begin: int, end: int, *, complete: bool) -> list[Segment]:
        """Return the segments begin < number <= end; *complete*: all of them, or raise DataLoss."""
        there = self._log.sizes(end)  # what is committed is removed, so little is listed before it
        found = {s.number: s for s in self.segments if begin < s.number <= end and s.number in there}
        unknown = [number for number in range(begin + 1, end + 1) if number not in found and there.get(number, -1)]
        heads = self._log.heads(unknown, complete)  # a store may list late, or in no order: those are asked for
        missing = [number for number in unknown if number not in heads]
        if missing and complete:
            raise DataLoss(
                f"spool {self.directory} lacks {len(missing)} objects of ({begin}, {end}], {missing[0]} for one: rows"
                " acknowledged to nsqd are gone; set failOnDataLoss=false to go on without them"
            )
        if missing:
            log.error("spool %s lacks %d objects of (%d, %d]; going on", self.directory, len(missing), begin, end)
        found.update((number, entry.segment) for number, entry in heads.items() if entry.rows)
        return [found[number] for number in sorted(found)]

    def stored(self, after: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (topic partition, batch) of all segments above the number *after*, oldest first."""
        sizes = {**self._past, **{segment.number: segment.size for segment in self.segments}}
        wanted = [number for number in sizes if number > after]
        for found in read_ahead(self._readable, wanted, lambda number: sizes[number]):
            yield from found

    def _readable(self, number: int) -> list[tuple[int, pa.RecordBatch]]:
        try:
            segment, payload = self._log.stored(number)
            return [(segment.partition, batch) for batch in segments.read(pa.py_buffer(payload), segment)]
        except (SegmentDamaged, FileNotFoundError) as error:
            log.warning("spool %s: object %d cannot be read for de-duplication: %s", self.directory, number, error)
            return []


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
