"""Shared by both backends of a log: the protocols of a writer and a reader, and spans of rows."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.recording.files import Blobs
from gnsq_lite.recording.frames import Frame

#: Seconds by which a publish time may be ahead of the recorder's clock, for a search by time.
SKEW = 60.0
#: A batch to store, and its topic partition; -1: plain NSQ.
Lane = tuple[int, pa.RecordBatch]


@dataclass(frozen=True)
class Span:
    """Rows *start* < row <= *end* of a log, and the *files* that hold them.

    A file is (name, first row, offset to start at in a pack, or bytes of an object).
    """

    log: str
    start: int
    end: int
    files: tuple[tuple[str, int, int], ...] = ()


class Piece(NamedTuple):
    """A frame or an object: its file, the file's first row, the frame's offset or the object's bytes, rows, bytes."""

    file: str
    file_first: int
    place: int
    first: int
    last: int
    size: int


class Bounds(NamedTuple):
    """First and last readable row; *last* is *first* - 1 if a log has no rows."""

    first: int
    last: int


class Age(NamedTuple):
    """One file of a log, for retention: number of its last row, its bytes, and when it was complete, in seconds."""

    name: str
    last: int
    size: int
    written: float


class LogWriter(Protocol):
    """A log that this process writes.  Only one thread at a time may call methods; the owner locks."""

    name: str
    #: Number of the last durable row.
    last: int
    #: Folder of the index of known messages.
    ids: Blobs
    #: Seconds in which messages are gathered before a write.
    linger: float

    def append(self, lanes: list[Lane]) -> int:
        """Store the batches durably and return their size in bytes.

        Raises:
            OSError: no row is stored, and the next call may succeed (disk full).
            RecordingError: the rows may be stored; the log must be opened again.
        """

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
        """Whether `recording retire` ended the log."""

    def span(self, start: int, end: int) -> Span:
        """Return the rows *start* < row <= *end* and the files that hold them.  Raises DataLoss, OSError."""

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the pieces with rows of a range, in order.  Raises DataLoss, RecordingDamaged, OSError."""

    def read(self, span: Span) -> Iterator[tuple[Frame, pa.RecordBatch]]:
        """Yield the rows of *span* with their frames, cut at its ends.

        Raises DataLoss, RecordingDamaged, OSError.
        """

    def first_after(self, time_us: int) -> int:
        """Return the number of the first row published at *time_us* or later, or of the next row if there is none."""

    def ages(self) -> Iterator[Age]:
        """Yield the files that retention may remove, oldest first: all but the newest."""

    def removable(self, row: int) -> list[Age]:
        """Return the files, all but the newest, whose rows are up to *row*; their times are not read."""

    def size(self) -> int:
        """Return the bytes of all files."""

    def remove(self, ages: list[Age]) -> None:
        """Remove files."""

    def retire(self) -> None:
        """Write the end marker, after which no recorder takes the log."""


def new_name() -> str:
    """Return a new name for a log; a log that replaces a lost log gets another name."""
    return secrets.token_hex(4)


def share(ranges: list[tuple[LogReader, int, int]], parts: int) -> list[list[Span]]:
    """Split ranges (log, start, end) into about *parts* groups of equal size; depends only on the rows (PIPE-3)."""
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
    """Return the files of the rows *start* < row <= *end*; drops the pieces before them."""
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


def first_row(reader: LogReader, start: int, last: int, time_us: int) -> int:
    """Return the first row of *start* < row <= *last* published at *time_us* or later; else *last* + 1."""
    for frame, batch in reader.read(reader.span(start, last)):
        if frame.high >= time_us:
            times = batch.column("timestamp").view(pa.int64())
            index = pc.index(pc.greater_equal(times, pa.scalar(time_us, pa.int64())), True).as_py()
            if index >= 0:
                return max(frame.first, start + 1) + int(index)
    return last + 1
