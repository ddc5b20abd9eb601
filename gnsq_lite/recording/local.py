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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.recording import frames, parquet
from gnsq_lite.recording.errors import DataLoss, RecordingDamaged, RecordingError, RecordingInUse
from gnsq_lite.recording.filereader import FileReader, LogFile
from gnsq_lite.recording.files import Blobs, Files, Folder
from gnsq_lite.recording.frames import Frame
from gnsq_lite.recording.logs import Age, Bounds, PartitionRows, Piece, Span

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
    seals = 0

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

    def open(self, wait: float = 0.0, *, even_retired: bool = False) -> None:
        """Take the lock, and remove an incomplete last write from the newest pack.

        Raises:
            RecordingInUse: another process writes the log.  RecordingError: the log was retired, or cannot be opened.
            RecordingDamaged: rows that were finished at nsqd cannot be read.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock_fd = lock_file(self.directory / "LOCK", wait)
            try:
                if not even_retired and (self.directory / "RETIRED").exists():
                    raise RecordingError(f"log {self.directory} is retired")
                self._recover()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise RecordingError(f"log {self.directory} cannot be opened: {error}") from error

    def _recover(self) -> None:
        there = packs(self.directory)
        synced = LocalReader(self.directory).bounds().last
        self.last = there[-1] - 1 if there else synced
        self._end_fd = os.open(self.directory / "END", os.O_RDWR | os.O_CREAT, 0o640)
        if not there:
            self._note_end()
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
        full = self._size >= (self.seals or PACK_BYTES) or self._clock.now() - self._since >= PACK_SECONDS
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

    def is_free(self) -> bool | None:
        """Return True: only :meth:`open` finds out whether another process has the lock."""
        return True

    def complete(self) -> int:
        """Close the pack, so that the next write starts a new pack.  Return the last row's number."""
        self._close_pack()
        return self.last

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


class LocalReader(FileReader):
    """Reads a log in a directory.  Remembers where :meth:`pieces` ended, because the next span often begins there."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory.name, str(directory))
        self._directory, self._sealed_folder = directory, directory.parents[1] / parquet.FOLDER
        self._place = (0, 0, 0)  # row, first row of the pack, offset of the frame after that row

    def listed(self) -> list[LogFile]:
        """Return the packs and the sealed files."""
        end = _read_end(self._directory)  # read first, because its row may be in a pack that begins after the listing
        there = packs(self._directory)  # listed next, because a pack is removed after its rows are sealed
        self._list_sealed()
        lasts = [*(first - 1 for first in there[1:]), *(max(end, first - 1) for first in there[-1:])]
        sizes = [self._size(pack_name(first)) for first in there]
        found = zip(map(pack_name, there), there, lasts, sizes, strict=True)
        return [*self._sealed_files(), *(LogFile(*one) for one in found)]

    def _list_sealed(self) -> None:
        try:
            names = [entry.name for entry in os.scandir(self._sealed_folder)]
        except FileNotFoundError:  # the recording is not sealed
            names = []
        known = self._sealed
        mine = [name for name in names if name in known or parquet.first_of(name, self.name) is not None]
        self._sealed = {name: known.get(name) or self._size(name) for name in mine}

    def _path(self, name: str) -> Path:
        return (self._sealed_folder if parquet.is_sealed(name) else self._directory) / name

    def _size(self, name: str) -> int:
        with suppress(FileNotFoundError):
            return self._path(name).stat().st_size
        return 0

    def bounds(self) -> Bounds:
        """Return the bounds of the synced rows."""
        files, end = self.files(), _read_end(self._directory)
        if not files:
            return Bounds(end + 1, end)
        return Bounds(min(files[0].first, end + 1), max(end, files[-1].last))

    def is_retired(self) -> bool:
        """Return whether the log was retired."""
        return (self._directory / "RETIRED").exists()

    def retire(self) -> None:
        """Mark the log as retired."""
        (self._directory / "RETIRED").touch()

    def span(self, start: int, end: int) -> Span:
        """Return the span *start* < row <= *end* with its files.  A pack has the offset at which to begin, if known."""
        row, pack, at = self._place
        chosen = self._chosen(start, end)
        places = [at if pack_name(pack) == file.name and row <= start else 0 for file in chosen]
        files = ((file.name, file.first, place) for file, place in zip(chosen, places, strict=True))
        return Span(self.name, start, end, tuple(files))

    def _chosen(self, start: int, end: int) -> list[LogFile]:
        """Return the files with the rows *start* < row <= *end*.  Raises DataLoss."""
        if end <= start:
            return []
        there = self.files()
        if not there or there[0].first > start + 1:
            why = f"the log begins at row {there[0].first}" if there else "the log has no rows"
            raise DataLoss(f"{self._directory} lacks rows from {start + 1} on: {why}")
        return [file for file in there if file.last > start and file.first <= end]

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the sealed files and the frames of the rows *start* < row <= *end*, and remember the last place."""
        tried = -1
        while start < end:
            try:
                for piece in self._pieces(start, end):
                    yield piece
                    start = piece.last
            except FileNotFoundError:  # a pack was sealed meanwhile
                if start == tried:
                    raise
                tried = start
            else:
                return

    def _pieces(self, start: int, end: int) -> Iterator[Piece]:
        row, pack, place = self._place
        for file in self._chosen(start, end):
            if parquet.is_sealed(file.name):
                yield Piece(file.name, file.first, 0, file.first, file.last, file.size)
                continue
            at = place if pack_name(pack) == file.name and row <= start else 0
            for frame in self._frames(mapped(self._path(file.name)), file.name, at)[1]:
                if frame.first > end:
                    break
                if frame.last <= end:
                    self._place = (frame.last, file.first, frame.end)
                if frame.last > start:
                    yield Piece(file.name, file.first, frame.at, frame.first, frame.last, frame.end - frame.at)

    def _opened(self, files: tuple[tuple[str, int, int], ...]) -> Iterator[pa.Buffer]:
        return (mapped(self._path(name)) for name, _, _ in files)

    def _end(self, name: str, size: int) -> pa.Buffer:
        return mapped(self._path(name))

    def _head(self, name: str) -> pa.Buffer:
        return mapped(self._path(name))

    def _frames(self, data: pa.Buffer, name: str, at: int) -> tuple[pa.Schema, Iterator[Frame]]:
        found = frames.read_head(data)
        if found is None:
            raise RecordingDamaged(f"{self._directory}/{name} is not a pack, or is damaged")
        return found[0], frames.frames(memoryview(data), max(at, found[1]))

    def relist(self) -> None:
        """Do nothing: :meth:`listed` lists the directories each time."""

    def remove(self, ages: list[Age]) -> None:
        """Unlink files."""
        for age in ages:
            self._path(age.name).unlink(missing_ok=True)
