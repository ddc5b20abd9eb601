"""Protocols for writers and readers of logs, and spans of rows.  local.py and objects.py implement the protocols."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from gnsq_lite.recording.files import Blobs
from gnsq_lite.recording.frames import Frame

#: Seconds by which publish times may be ahead of the recorder's clock.  A search by time starts this much earlier.
SKEW = 60.0
#: A topic partition (-1 for plain NSQ), and rows of this partition.
PartitionRows = tuple[int, pa.RecordBatch]


@dataclass(frozen=True)
class Span:
    """Rows *start* < row <= *end* of a log, and the *files* that hold them.

    A file is (name, first row, number).  The number is the offset to start at in a pack, or the size of an object.
    """

    log: str
    start: int
    end: int
    files: tuple[tuple[str, int, int], ...] = ()


class Piece(NamedTuple):
    """A frame or an object, with rows *first* to *last*.  *place* is the frame's offset or the object's size."""

    file: str
    file_first: int
    place: int
    first: int
    last: int
    size: int


class Bounds(NamedTuple):
    """Numbers of the first and the last readable row.  *last* is *first* - 1 if a log has no rows."""

    first: int
    last: int


class Age(NamedTuple):
    """A file that may be removed, and its last row.  *written* is the time of its completion in seconds since 1970."""

    name: str
    last: int
    size: int
    written: float


class LogWriter(Protocol):
    """A log that this process writes.  Methods are not thread-safe, so callers must use a lock."""

    name: str
    #: Number of the last durable row.
    last: int
    #: Folder of the index of known messages.
    ids: Blobs
    #: Seconds for which messages are gathered before a write.
    linger: float
    #: If the recording is sealed: bytes of packs or objects that become one sealed file.  0 if it is not sealed.
    seals: int

    def append(self, batches: list[PartitionRows]) -> int:
        """Store the batches durably and return their size in bytes.

        Raises:
            OSError: no row is stored, and the next call may succeed (disk full).
            RecordingError: the rows may be stored, or the log is closed.  The log must be opened again.
        """

    def probe(self, size: int) -> None:
        """Raise OSError unless the disk has room for *size* bytes.  Called after append() has raised OSError."""

    def complete(self) -> int:
        """Complete the newest pack or object, so that no row is added to it.  Return the last row's number."""

    def check_writer(self) -> None:
        """Raise RecordingFenced if another process has taken over the log."""

    def close(self) -> None:
        """Release the log."""


class LogReader(Protocol):
    """Reads a log, in any process."""

    name: str

    def bounds(self) -> Bounds:
        """Return the bounds of the rows stored now.  Raises OSError."""

    def is_retired(self) -> bool:
        """Return whether ``recording retire`` has marked the log."""

    def span(self, start: int, end: int) -> Span:
        """Return the span *start* < row <= *end* with its files.  Raises DataLoss, OSError."""

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the pieces that have rows *start* < row <= *end*.  Raises DataLoss, RecordingDamaged, OSError."""

    def read(self, span: Span) -> Iterator[tuple[Frame, pa.RecordBatch]]:
        """Yield each frame of *span* with a batch of the frame's rows in *span*.

        Raises DataLoss, RecordingDamaged, OSError.
        """

    def first_after(self, time_us: int) -> int:
        """Return the number of the first row published at *time_us* or later, or else the last row's number + 1."""

    def ages(self) -> Iterator[Age]:
        """Yield the files that retention may remove, oldest first: all except the newest file."""

    def removable(self, row: int) -> list[Age]:
        """Return the files that have no row after *row*, except the newest file.  ``written`` is 0."""

    def size(self) -> int:
        """Return the size of all files in bytes."""

    def remove(self, ages: list[Age]) -> None:
        """Remove files."""

    def retire(self) -> None:
        """Mark the log as retired.  No recorder writes a retired log."""


def new_name() -> str:
    """Return a new random name for a log.  Positions refer to logs by name, so a name must not be used again."""
    return secrets.token_hex(4)


def share(ranges: list[tuple[LogReader, int, int]], parts: int) -> list[list[Span]]:
    """Split ranges (log, start, end) into about *parts* groups of equal size.  Equal ranges give equal groups."""
    most = -(-sum(end - start for _, start, end in ranges) // max(1, parts))
    groups: list[list[Span]] = [[]]
    left = most
    for reader, start, end in ranges:
        pieces = deque(reader.pieces(start, end))
        while start < end:
            if not left:
                groups.append([])
                left = most
            last = min(end, start + left)
            groups[-1].append(Span(reader.name, start, last, _files(pieces, start, last)))
            left -= last - start
            start = last
    return groups


def _files(pieces: deque[Piece], start: int, end: int) -> tuple[tuple[str, int, int], ...]:
    """Return the files of the rows *start* < row <= *end*, and drop the pieces of earlier rows from *pieces*."""
    while pieces[0].last <= start:
        pieces.popleft()
    files: list[tuple[str, int, int]] = []
    for piece in pieces:
        if piece.first > end:
            break
        if not files or files[-1][0] != piece.file:
            files.append((piece.file, piece.file_first, piece.place))
    return tuple(files)


def cut(batch: pa.RecordBatch, frame: Frame, span: Span) -> pa.RecordBatch:
    """Return the rows of a frame's batch that are in *span*."""
    begin = max(0, span.start + 1 - frame.first)
    return batch.slice(begin, min(frame.last, span.end) - frame.first - begin + 1)
