"""A log in a directory.  Frames are appended to pack files, and each write is synced with fdatasync.

::

    LOCK               locked (flock) by the log's writer, and contains the writer's pid and host
    pack-FIRST.rec     frames from the row FIRST on; after 64 MB or ten minutes, a new pack begins
    END                number of the last synced row, with a checksum; other processes read rows up to this number
    RETIRED            written by ``recording retire``; no recorder writes the log after that
    ids/               index of known messages, see known.py

END is written after each sync, but is not synced.  So after a power cut END may be older than the pack, but not newer.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import struct
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.recording import frames
from gnsq_lite.recording.errors import DataLoss, RecordingDamaged, RecordingError, RecordingInUse
from gnsq_lite.recording.files import Blobs, Files, Folder
from gnsq_lite.recording.frames import Frame
from gnsq_lite.recording.logs import SKEW, Age, Bounds, PartitionRows, Piece, Span, cut, first_row

log = logging.getLogger("gnsq_lite.recording")

#: The next write starts a new pack if the current pack has PACK_BYTES bytes or is PACK_SECONDS seconds old.
PACK_BYTES, PACK_SECONDS = 64 << 20, 600.0
_PACK = re.compile(r"pack-(\d{16})\.rec")
_END = struct.Struct("<QI")


def pack_name(first: int) -> str:
    """Return the name of the pack whose first row has this number."""
    return f"pack-{first:016d}.rec"


def packs(directory: Path) -> list[int]:
    """Return the numbers of the packs' first rows, sorted.  Raises OSError."""
    found = (_PACK.fullmatch(entry.name) for entry in os.scandir(directory))
    return sorted(int(match[1]) for match in found if match is not None)


def _read_end(directory: Path) -> int:
    with suppress(FileNotFoundError):
        data = (directory / "END").read_bytes()
        if len(data) == _END.size:
            row, crc = _END.unpack(data)
            if zlib.crc32(data[:8]) == crc:
                return int(row)
    return 0


def mapped(path: Path) -> pa.Buffer:
    """Map a file into memory, and return a buffer of its bytes.  Raises OSError."""
    if path.stat().st_size == 0:
        return pa.py_buffer(b"")
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def lock_file(path: Path, wait: float) -> int:
    """Lock a file, and return its descriptor.  Raises RecordingInUse if the file stays locked for *wait* seconds."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(fd, 200, 0).decode("utf-8", "replace").strip()
                os.close(fd)
                raise RecordingInUse(f"{path.parent} is written by another process ({holder})") from None
            time.sleep(0.05)
    with suppress(OSError):  # a full disk does not accept the holder's name
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return fd


class LocalLog:
    """The writer of a log in a directory."""

    linger = 0.005

    def __init__(self, directory: Path, files: Files | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.directory, self.name = directory, directory.name
        self._files, self._clock = files or Files(), clock
        self.ids: Blobs = Folder(directory / "ids", self._files)
        self.last = 0
        self._lock_fd = self._pack_fd = self._end_fd = -1
        self._pack: Path | None = None
        self._size = 0
        self._since = 0.0
        self._schema: pa.Schema | None = None

    def open(self, wait: float = 0.0) -> None:
        """Take the lock, and remove an incomplete last write from the newest pack.

        Raises:
            RecordingInUse: another process writes the log.  RecordingError: the log was retired, or cannot be opened.
            RecordingDamaged: rows that were finished at nsqd cannot be read.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock_fd = lock_file(self.directory / "LOCK", wait)
            try:
                if (self.directory / "RETIRED").exists():
                    raise RecordingError(f"log {self.directory} is retired")
                self._recover()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise RecordingError(f"log {self.directory} cannot be opened: {error}") from error

    def _recover(self) -> None:
        there = packs(self.directory)
        synced = _read_end(self.directory)
        self.last = there[-1] - 1 if there else synced
        self._end_fd = os.open(self.directory / "END", os.O_RDWR | os.O_CREAT, 0o640)
        if not there:
            return
        path = self.directory / pack_name(there[-1])
        data = mapped(path)
        found = frames.read_head(data)
        view, end = memoryview(data), 0
        if found is not None:
            end = found[1]
            for frame in frames.frames(view, end):
                if frame.last > synced and not frames.is_intact(view, frame):
                    break
                end, self.last = frame.end, frame.last
        self._refuse_damage(path, view, end, synced)
        if end < data.size or found is None:
            log.info("log %s: removed %d bytes of an incomplete write", self.directory, data.size - end)
            if found is None:
                self._files.unlink(path)
            else:
                fd = os.open(path, os.O_WRONLY)
                try:
                    self._files.truncate(fd, end)
                    self._files.sync(fd)
                finally:
                    self._files.close(fd)
        elif self.last > synced:  # the last write is complete, but perhaps not synced
            fd = os.open(path, os.O_WRONLY)
            try:
                self._files.sync(fd)
            finally:
                self._files.close(fd)
        self._note_end()

    def _refuse_damage(self, path: Path, view: memoryview, end: int, synced: int) -> None:
        """Raise RecordingDamaged if the frames up to *end* lack a synced row, or if an intact frame follows *end*."""
        lost = self.last < synced
        for at in range(end + frames.ALIGN, len(view) - frames.ALIGN + 1, frames.ALIGN):
            frame = frames.frame_at(view, at)
            lost = lost or (frame is not None and frames.is_intact(view, frame))
        if lost:
            raise RecordingDamaged(f"{path} is damaged at byte {end}; rows after row {self.last} were finished at nsqd")

    def _note_end(self) -> None:
        number = self.last.to_bytes(8, "little")
        os.pwrite(self._end_fd, number + struct.pack("<I", zlib.crc32(number)), 0)

    def append(self, batches: list[PartitionRows]) -> int:
        """Append the batches as frames, sync the frames to the disk, and return their size in bytes.

        Raises:
            OSError: no row is stored.  RecordingError: a failed write could not be undone, or the log is closed.
        """
        if self._lock_fd < 0:
            raise RecordingError(f"log {self.directory} is closed; no row is lost, the messages stay in nsqd")
        written = int(self._clock.wall() * 1e6)
        schema = batches[0][1].schema
        full = self._size >= PACK_BYTES or self._clock.now() - self._since >= PACK_SECONDS
        if self._pack is None or full or schema != self._schema:
            self._new_pack(schema)
        first, buffers, size = self.last + 1, [], 0
        for partition, batch in batches:
            frame, parts = frames.encode(batch, first, partition, written)
            buffers += parts
            size += frame.end
            first += frame.rows
        try:
            self._files.append_all(self._pack_fd, buffers)
            self._files.sync(self._pack_fd)
        except OSError:
            self._undo()
            raise
        self._size += size
        self.last = first - 1
        self._note_end()
        return size

    def _new_pack(self, schema: pa.Schema) -> None:
        path = self.directory / pack_name(self.last + 1)
        self._close_pack()
        data = frames.head(schema)
        self._files.unlink(path)  # a failed write may have left this file
        fd = self._files.create(path)
        try:
            self._files.append_all(fd, [data])
            self._files.sync_directory(self.directory)
        except OSError:
            self._files.close(fd)
            self._files.unlink(path)
            raise
        self._pack, self._pack_fd, self._schema = path, fd, schema
        self._size, self._since = len(data), self._clock.now()

    def _undo(self) -> None:
        try:
            self._files.truncate(self._pack_fd, self._size)
        except OSError as error:
            raise RecordingError(f"log {self.directory}: a failed write could not be undone: {error}") from error

    def _close_pack(self) -> None:
        if self._pack is not None:
            self._files.close(self._pack_fd)
            self._pack = None

    def probe(self, size: int) -> None:
        """Write and remove a file of *size* bytes and one disk block.  Raises OSError if the disk is full."""
        path = self.directory / "PROBE"
        try:
            self._files.unlink(path)
            self._files.write_new(path, bytes(size + 4096))
        finally:
            self._files.unlink(path)

    def check_writer(self) -> None:
        """Do nothing: the kernel keeps the lock."""

    def close(self) -> None:
        """Close the files and release the lock."""
        self._close_pack()
        for fd in (self._end_fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._end_fd = self._lock_fd = -1


class LocalReader:
    """Reads a log in a directory.  Remembers where :meth:`pieces` ended, because the next span often begins there."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.name = directory, directory.name
        self._place = (0, 0, 0)  # row, first row of the pack, offset of the frame after that row

    def bounds(self) -> Bounds:
        """Return the bounds of the synced rows."""
        last = _read_end(self._directory)
        there = packs(self._directory)
        return Bounds(min(there[0], last + 1) if there else last + 1, last)

    def is_retired(self) -> bool:
        """Return whether the log was retired."""
        return (self._directory / "RETIRED").exists()

    def retire(self) -> None:
        """Mark the log as retired."""
        (self._directory / "RETIRED").touch()

    def span(self, start: int, end: int) -> Span:
        """Return the span *start* < row <= *end* with its packs.  The first pack has the offset at which to begin."""
        there = packs(self._directory)
        index = bisect_right(there, start + 1) - 1
        if end > start and index < 0:
            why = f"the log begins at row {there[0]}" if there else "the log has no rows"
            raise DataLoss(f"{self._directory} lacks rows from {start + 1} on: {why}")
        chosen = [first for first in there[max(0, index) :] if first <= end] if end > start else []
        files = [(pack_name(first), first, 0) for first in chosen]
        row, pack, at = self._place
        if files and row <= start and pack == chosen[0]:
            files[0] = (*files[0][:2], at)
        return Span(self.name, start, end, tuple(files))

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the frames of the rows *start* < row <= *end*, and remember where the last frame ends."""
        for name, file_first, frame, _, _ in self._walk(self.span(start, end)):
            if frame.last <= end:
                self._place = (frame.last, file_first, frame.end)
            yield Piece(name, file_first, frame.at, frame.first, frame.last, frame.end - frame.at)

    def read(self, span: Span) -> Iterator[tuple[Frame, pa.RecordBatch]]:
        """Yield the rows of *span*, mapped into memory."""
        for _, _, frame, data, schema in self._walk(span):
            yield frame, cut(frames.decode(data, frame, schema), frame, span)

    def _walk(self, span: Span) -> Iterator[tuple[str, int, Frame, pa.Buffer, pa.Schema]]:
        expected = None
        for name, first, at in span.files:
            try:
                data = mapped(self._directory / name)
            except FileNotFoundError:
                raise DataLoss(f"{self._directory}/{name} is gone: it held rows from {first} on") from None
            found = frames.read_head(data)
            if found is None:
                raise RecordingDamaged(f"{self._directory}/{name} is not a pack, or is damaged")
            for frame in frames.frames(memoryview(data), max(at, found[1])):
                if frame.first > span.end:
                    break
                if frame.last > span.start:
                    if expected is not None and frame.first != expected:
                        raise RecordingDamaged(f"{self._directory}/{name} lacks rows {expected} to {frame.first - 1}")
                    expected = frame.last + 1
                    yield name, first, frame, data, found[0]
        if span.files and (expected is None or expected <= span.end):
            raise RecordingDamaged(f"{self._directory} lacks rows {expected or span.start + 1} to {span.end}")

    def first_after(self, time_us: int) -> int:
        """Find a pack by the times of the packs' first writes, then search the rows from there on by publish time."""
        bounds = self.bounds()
        there = packs(self._directory)
        begin = 0
        for index, first in enumerate(there):
            frame = self._first_frame(first)
            if frame is not None and frame.written / 1e6 < time_us / 1e6 - SKEW:
                begin = index
        start = max(bounds.first, there[begin]) - 1 if there else bounds.last
        return first_row(self, start, bounds.last, time_us)

    def _first_frame(self, first: int) -> Frame | None:
        with suppress(FileNotFoundError):
            data = mapped(self._directory / pack_name(first))
            found = frames.read_head(data)
            return None if found is None else frames.frame_at(memoryview(data), found[1])
        return None

    def ages(self) -> Iterator[Age]:
        """Yield all packs except the newest.  ``written`` is the time of the first write to the following pack."""
        for first, following in pairwise(packs(self._directory)):
            frame = self._first_frame(following)
            with suppress(FileNotFoundError):
                size = (self._directory / pack_name(first)).stat().st_size
                if frame is not None:
                    yield Age(pack_name(first), following - 1, size, frame.written / 1e6)

    def removable(self, row: int) -> list[Age]:
        """Return the packs that have no row after *row*, except the newest pack."""
        found = []
        for first, following in pairwise(packs(self._directory)):
            if following - 1 > row:
                break
            with suppress(FileNotFoundError):
                size = (self._directory / pack_name(first)).stat().st_size
                found.append(Age(pack_name(first), following - 1, size, 0.0))
        return found

    def size(self) -> int:
        """Return the size of all packs in bytes."""
        total = 0
        for first in packs(self._directory):
            with suppress(FileNotFoundError):
                total += (self._directory / pack_name(first)).stat().st_size
        return total

    def remove(self, ages: list[Age]) -> None:
        """Unlink packs."""
        for age in ages:
            (self._directory / age.name).unlink(missing_ok=True)
