"""A log on an object store.  Each write creates an object, and fails if an object of this name exists.

::

    lease/TERM          the writer's lease, see lease.py
    rows/FIRST-N        one write: a head, and frames from the row FIRST on; N is the number of fences with this FIRST
    merged/FIRST-LAST   writes of up to 64 MB or ten minutes; created before these writes are deleted
    RETIRED, ids/       as in local.py

A recorder that opens the log first creates a fence, an object without rows, under the name of the next write.  The
recorder's next write has the same FIRST and the next N.  If an old recorder still runs, its next write fails because
the name exists, and the old recorder finishes no further message.  Fences are never deleted.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeVar

import pyarrow as pa

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.recording import frames, parquet
from gnsq_lite.recording.ahead import read_ahead
from gnsq_lite.recording.errors import DataLoss, RecordingDamaged, RecordingError, RecordingFenced
from gnsq_lite.recording.filereader import FileReader, LogFile, in_order
from gnsq_lite.recording.files import Blobs
from gnsq_lite.recording.frames import Frame
from gnsq_lite.recording.lease import Lease, Patience, create_once
from gnsq_lite.recording.logs import Age, Bounds, PartitionRows, Piece, Span
from gnsq_lite.recording.objectstore import ObjectStore

log = logging.getLogger("gnsq_lite.recording")

#: Writes are merged when they have MERGED_BYTES bytes, or MERGED_SECONDS seconds after the first of these writes.
MERGED_BYTES, MERGED_SECONDS = 64 << 20, 600.0
#: Bytes of a fence.  Every object with rows is larger.
FENCE_BYTES = 16
#: Bytes to read if only the first frame's header is needed.
_HEAD_READ = 4096
_ROWS = re.compile(r"(\d{16})-(\d{6})")
_MERGED = re.compile(r"(\d{16})-(\d{16})")

_T = TypeVar("_T")


def rows_name(first: int, number: int) -> str:
    """Return the name of the write whose first row is *first*.  *number* is the number of fences for this row."""
    return f"{first:016d}-{number:06d}"


def _frames_of(data: pa.Buffer, name: str) -> tuple[pa.Schema, list[Frame]]:
    """Return the schema and the frames of an object's bytes.  Raises RecordingDamaged."""
    head = frames.read_head(data)
    found = [] if head is None else list(frames.frames(memoryview(data), head[1]))
    if head is None or not found or found[-1].end != data.size:
        raise RecordingDamaged(f"object {name} is damaged: {len(found)} frames can be read")
    return head[0], found


class PatientBlobs:
    """Blobs of a store.  names() and read() retry while the store is unavailable."""

    def __init__(self, store: ObjectStore, patiently: Patience) -> None:
        self._store, self._patiently = store, patiently

    def names(self) -> list[str]:
        """Return the existing names, sorted."""
        return self._patiently(self._store.names)

    def read(self, name: str, at: int = 0, size: int | None = None) -> bytes:
        """Return at most *size* bytes (None: all bytes) from the offset *at* on."""
        return self._patiently(lambda: self._store.read(name, at, size))

    def write(self, name: str, data: bytes) -> None:
        """Set the content of *name*."""
        self._store.write(name, data)

    def remove(self, name: str) -> None:
        """Remove *name*."""
        self._store.remove(name)


class ObjectLog:
    """The writer of a log on an object store."""

    linger = 0.1
    seals = 0

    def __init__(
        self, store: ObjectStore, name: str, clock: Clock = SYSTEM_CLOCK, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.name, self._clock = name, clock
        self._reader = ObjectReader(store, name, Patience(store.url, clock, sleep))
        self._store = store.below(f"logs/{name}/")
        self._rows, self._merged = self._store.below("rows/"), self._store.below("merged/")
        self._patiently = Patience(store.url, clock, sleep)
        self.ids: Blobs = PatientBlobs(self._store.below("ids/"), self._patiently)
        self.lease = Lease(self._store, clock, sleep)
        self.last, self._number = 0, 0
        #: Writes that are not merged yet, as (name, last row, bytes), and the time of the first of these writes.
        self._parts: list[tuple[str, int, int]] = []
        self._since = 0.0

    def open(self, wait: float = 0.0, *, even_retired: bool = False) -> None:
        """Take the lease and create the fence.

        Raises RecordingInUse: another recorder runs.  RecordingError: the store is unavailable, or the log was retired.
        """
        try:
            self._patiently(lambda: self._open(wait, even_retired), opens=True)
        except OSError as error:
            raise RecordingError(f"log {self.name} of {self._store.url} cannot be opened: {error}") from error

    def _open(self, wait: float, even_retired: bool) -> None:
        if not even_retired and exists(self._store, "RETIRED"):
            raise RecordingError(f"log {self.name} of {self._store.url} is retired")
        self.lease.take(wait)
        try:
            while True:
                self.last, self._number = newest(self._rows, self._merged, self._reader.list_sealed())
                if create_once(self._rows, rows_name(self.last + 1, self._number), uuid.uuid4().bytes):
                    break
            self._number += 1
            sizes = {name: size for name, size in self._rows.sizes().items() if size > FENCE_BYTES}
            ends = [int(name[:16]) - 1 for name in list(sizes)[1:]] + [self.last]
            self._parts = [(name, end, sizes[name]) for name, end in zip(sizes, ends, strict=False)]
            self._since = self._clock.now()
        except BaseException:
            self.lease.release()
            raise

    def append(self, batches: list[PartitionRows]) -> int:
        """Create an object with the batches, and return its size in bytes after the store has confirmed the object.

        Raises RecordingFenced: another recorder has taken over the log.  RecordingError: the log is closed, or the
        store accepts no writes.
        """
        if self.lease.is_released:
            raise RecordingError(f"log {self.name} of {self._store.url} is closed; the messages stay in nsqd")
        written = int(self._clock.wall() * 1e6)
        first, buffers = self.last + 1, [frames.head(batches[0][1].schema)]
        for partition, batch in batches:
            frame, parts = frames.encode(batch, first, partition, written)
            buffers += parts
            first += frame.rows
        data = b"".join(buffers)
        name = rows_name(self.last + 1, self._number)
        try:
            mine = self._patiently(lambda: create_once(self._rows, name, data))
        except OSError as error:
            why = f"{self._store.url} accepts no writes: {error}; no row is lost, the messages stay in nsqd"
            raise RecordingError(why) from error
        if not mine:
            raise RecordingFenced(f"log {self.name} of {self._store.url} was taken over by another recorder")
        self.last, self._number = first - 1, 0
        if self.seals:  # a sealed file replaces these objects
            return len(data)
        if not self._parts:
            self._since = self._clock.now()
        self._parts.append((name, self.last, len(data)))
        if sum(part[2] for part in self._parts) >= MERGED_BYTES or self._clock.now() - self._since >= MERGED_SECONDS:
            self._merge()
        return len(data)

    def _merge(self) -> None:
        """Merge all writes except the newest into one object, if their schemas are equal, and delete these writes."""
        *parts, newest_part = self._parts
        self._parts, self._since = [newest_part], self._clock.now()
        if len(parts) < 2:
            return
        try:
            data = [pa.py_buffer(found) for found in read_ahead(self._rows.read, [part[0] for part in parts])]
            heads = [_frames_of(one, part[0]) for one, part in zip(data, parts, strict=True)]
            if any(schema != heads[0][0] for schema, _ in heads):
                return
            joined = [frames.head(heads[0][0])]
            joined += [one.slice(found[0].at).to_pybytes() for one, (_, found) in zip(data, heads, strict=True)]
            name = f"{heads[0][1][0].first:016d}-{parts[-1][1]:016d}"
            with contextlib.suppress(FileExistsError):
                self._merged.create(name, b"".join(joined))
            self._rows.remove(*[part[0] for part in parts])
        except (OSError, RecordingDamaged) as error:  # the writes stay
            log.warning("log %s: writes cannot be merged: %s", self.name, error)

    def is_free(self) -> bool | None:
        """Return whether no recorder has the lease, or None if only a later call can decide."""
        return self.lease.is_free()

    def complete(self) -> int:
        """Return the last row's number: objects never change."""
        return self.last

    def probe(self, size: int) -> None:
        """Do nothing: append() itself retries while the store is unavailable, and raises no OSError."""

    def check_writer(self) -> None:
        """Raise RecordingFenced if another recorder has a newer lease."""
        self.lease.check()

    def close(self) -> None:
        """Release the lease."""
        self.lease.release()


def exists(store: ObjectStore, name: str) -> bool:
    """Return whether the object *name* exists.  Raises OSError."""
    try:
        store.read(name)
    except FileNotFoundError:
        return False
    return True


def newest(rows: ObjectStore, merged: ObjectStore, sealed: int = 0) -> tuple[int, int]:
    """Return the last row of a log, and the N in the next write's name.  *sealed* is the last row of sealed files.

    Raises RecordingDamaged, OSError.
    """
    names = [name for name in rows.sizes() if _ROWS.fullmatch(name) and int(name[:16]) > sealed]
    if not names:
        ends = [int(found[2]) for name in merged.sizes() if (found := _MERGED.fullmatch(name))]
        return max(sealed, *ends, 0), 0
    first, number = map(int, names[-1].split("-"))
    data = rows.read(names[-1])
    if len(data) <= FENCE_BYTES:
        return first - 1, number + 1
    return _frames_of(pa.py_buffer(data), names[-1])[1][-1].last, 0


class ObjectReader(FileReader):
    """Reads a log on an object store, and caches the listed names."""

    def __init__(self, store: ObjectStore, name: str, patiently: Patience | None = None) -> None:
        super().__init__(name, f"log {name} of {store.url}")
        self._store, self._parquet = store.below(f"logs/{name}/"), store.below(f"{parquet.FOLDER}/")
        self._patiently = patiently or Patience(store.url)
        self._names: dict[str, int] = {}  # name -> bytes, of objects in rows/ except fences
        self._joined: dict[str, int] = {}  # name -> bytes, of objects in merged/
        self._newest: tuple[str, int] = ("", 0)  # name and last row of the newest object that was read

    def bounds(self) -> Bounds:
        """Return the bounds of the stored rows.  After the first call, list only names after the known names."""
        files = self.files()
        return Bounds(files[0].first, files[-1].last) if files else Bounds(1, 0)

    def _list(self) -> None:
        known = max(self._names, default="")
        more = self._listed("rows/", known)
        if not known:
            self._joined = self._listed("merged/")
            self._list_sealed()
        self._names.update(more)

    def _listed(self, folder: str, after: str = "") -> dict[str, int]:
        found = self._patiently(lambda: self._store.below(folder).sizes(after=after))
        pattern = _ROWS if folder == "rows/" else _MERGED
        return {name: size for name, size in found.items() if pattern.fullmatch(name) and size > FENCE_BYTES}

    def list_sealed(self) -> int:
        """List the sealed files, and return their last row's number."""
        self._list_sealed()
        return self.sealed_to()

    def _list_sealed(self) -> None:
        found = self._patiently(lambda: self._parquet.sizes(after=f"{self.name}-"))
        self._sealed = {name: size for name, size in found.items() if parquet.first_of(name, self.name) is not None}

    def relist(self) -> None:
        """List all names again."""
        self._names, self._joined = {}, {}
        self._list()

    def listed(self) -> list[LogFile]:
        """Return the objects, after listing the new names."""
        self._list()
        return self._known()

    def _known(self) -> list[LogFile]:
        names = sorted(self._names)
        firsts = [int(name[:16]) for name in names]
        lasts = [first - 1 for first in firsts[1:]] + ([self._last_row(names[-1])] if names else [])
        rows = [
            LogFile("rows/" + name, a, b, self._names[name]) for a, b, name in zip(firsts, lasts, names, strict=True)
        ]
        merged = [LogFile("merged/" + n, int(n[:16]), int(n[17:]), size) for n, size in self._joined.items()]
        return [*self._sealed_files(), *merged, *rows]

    def _last_row(self, name: str) -> int:
        if self._newest[0] != name:
            data = self._read("rows/" + name)
            self._newest = name, _frames_of(pa.py_buffer(data), name)[1][-1].last
        return self._newest[1]

    def _read(self, path: str, at: int = 0, size: int | None = None) -> bytes:
        store = self._parquet if parquet.is_sealed(path) else self._store
        return self._patiently(lambda: store.read(path, at, size))

    def is_retired(self) -> bool:
        """Return whether the log was retired."""
        return self._patiently(lambda: exists(self._store, "RETIRED"))

    def retire(self) -> None:
        """Mark the log as retired."""
        self._store.write("RETIRED", b"retired\n")

    def span(self, start: int, end: int) -> Span:
        """Return the span *start* < row <= *end* with its objects."""
        pieces = list(self.pieces(start, end))
        return Span(self.name, start, end, tuple((one.file, one.file_first, one.place) for one in pieces))

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield a Piece for each object with rows of the range.  ``Piece.place`` is the object's size in bytes."""
        if end <= start:
            return
        chosen = self._chosen(start, end)
        for look in (self.bounds, self.relist):
            if not _is_whole(chosen, start, end):
                look()
                chosen = self._chosen(start, end)
        if not _is_whole(chosen, start, end):
            where = f"its first row is {chosen[0].first}" if chosen else "it has none of these rows"
            raise DataLoss(f"{self._where} lacks rows of ({start}, {end}]: {where}")
        yield from chosen

    def _chosen(self, start: int, end: int) -> list[Piece]:
        return [
            Piece(file.name, file.first, file.size, file.first, file.last, file.size)
            for file in in_order(self._retried(self._known))
            if file.last > start and file.first <= end
        ]

    def _opened(self, files: tuple[tuple[str, int, int], ...]) -> Iterator[pa.Buffer]:
        return map(pa.py_buffer, read_ahead(lambda file: self._read(file[0]), files, lambda file: file[2]))

    def _end(self, name: str, size: int) -> pa.Buffer:
        return pa.py_buffer(self._read(name, max(0, self._sealed.get(name, 0) - size)))

    def _head(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self._read(name, 0, _HEAD_READ))

    def _frames(self, data: pa.Buffer, name: str, at: int) -> tuple[pa.Schema, list[Frame]]:
        return _frames_of(data, name)

    def remove(self, ages: list[Age]) -> None:
        """Remove objects."""
        sealed = [age.name for age in ages if parquet.is_sealed(age.name)]
        others = [age.name for age in ages if not parquet.is_sealed(age.name)]
        if sealed:
            self._parquet.remove(*sealed)
        if others:
            self._store.remove(*others)
        if ages:
            self.relist()


def _is_whole(pieces: list[Piece], start: int, end: int) -> bool:
    if not pieces or pieces[0].first > start + 1 or pieces[-1].last < end:
        return False
    return all(one.last + 1 == other.first for one, other in pairwise(pieces))
