"""What the two backends of a log share: the protocols of a writer and a reader, and spans of rows."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from gnsq_lite.recording.files import Blobs
from gnsq_lite.recording.frames import Frame

#: A batch to store, and the topic partition it is of; -1: plain NSQ's.
Lane = tuple[int, pa.RecordBatch]


@dataclass(frozen=True)
class Span:
    """Rows *start* < row <= *end* of a log, in *files*: (name, first row, place to begin at)."""

    log: str
    start: int
    end: int
    files: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Piece:
    """A frame, or an object: its file, the file's first row, its place there, its rows, its bytes."""

    file: str
    file_first: int
    at: int
    first: int
    last: int
    size: int


@dataclass(frozen=True)
class Bounds:
    """First and last row that a reader can have; *last* is *first* - 1 where a log has no rows."""

    first: int
    last: int


@dataclass(frozen=True)
class Age:
    """One file of a log, for retention: number of its last row, its bytes, and when it was complete, in seconds."""

    name: str
    last: int
    size: int
    written: float


class LogWriter(Protocol):
    """A log held by this process.  All methods belong to one thread at a time; the owner locks."""

    name: str
    #: Number of the last durable row.
    last: int
    #: Folder of the index of known messages.
    ids: Blobs
    #: Seconds in which messages are gathered before a write.
    linger: float

    def append(self, lanes: list[Lane]) -> int:
        """Store the batches and return their bytes when they are durable.

        Raises:
            OSError: no row is stored, and the next call may succeed (disk full).
            RecordingError: the rows may be stored; the log must be opened again.
        """

    def check_writer(self) -> None:
        """Raise RecordingFenced where another process has taken the log over."""

    def close(self) -> None:
        """Release the log."""


class LogReader(Protocol):
    """A log as any process reads it."""

    name: str

    def bounds(self) -> Bounds:
        """Return the rows that are there now.  Raises OSError."""

    def is_retired(self) -> bool:
        """Whether `recording retire` ended the log."""

    def span(self, start: int, end: int) -> Span:
        """Return the rows *start* < row <= *end* and the files that hold them.  Raises DataLoss, OSError."""

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield what holds rows of a range, in order.  Raises DataLoss, RecordingDamaged, OSError."""

    def read(self, span: Span) -> Iterator[tuple[Frame, pa.RecordBatch]]:
        """Yield the rows of *span* with their frames, cut at its ends.

        Raises DataLoss, RecordingDamaged, OSError.
        """

    def first_after(self, time_us: int) -> int:
        """Return the number of the first row published at *time_us* or later; of the next row where there is none."""

    def ages(self) -> Iterator[Age]:
        """Yield the files that retention may remove, oldest first: all but the newest."""

    def size(self) -> int:
        """Return the bytes of all files."""

    def remove(self, ages: list[Age]) -> None:
        """Remove files."""

    def retire(self) -> None:
        """Write the end marker: no recorder takes the log any more."""


def new_name() -> str:
    """Return a name for a new log: a log that replaces a lost one never has its name."""
    return secrets.token_hex(4)


def split(log: str, start: int, end: int, pieces: list[Piece], parts: int) -> list[Span]:
    """Return about *parts* spans of the same number of rows; a pure function of its arguments (PIPE-3)."""
    rows = -(-(end - start) // max(1, parts))
    found = []
    index = 0
    for begin in range(start, end, rows) if rows else ():
        last = min(end, begin + rows)
        while pieces[index].last <= begin:
            index += 1
        files: list[tuple[str, int, int]] = []
        for piece in pieces[index:]:
            if piece.first > last:
                break
            if not files or files[-1][0] != piece.file:
                files.append((piece.file, piece.file_first, 0 if files else piece.at))
        found.append(Span(log, begin, last, tuple(files)))
    return found


def cut(batch: pa.RecordBatch, frame: Frame, span: Span) -> pa.RecordBatch:
    """Return the rows of a frame's batch that *span* has."""
    begin = max(0, span.start + 1 - frame.first)
    return batch.slice(begin, min(frame.last, span.end) - frame.first - begin + 1)


def expired(ages: Iterable[Age], total: int, now: float, retain: float, retain_bytes: int | None) -> list[Age]:
    """Return the files, the oldest, that retention by seconds (0: for ever) and by bytes of all *total* removes."""
    found = []
    for age in ages:
        too_old = bool(retain) and age.written < now - retain
        if not too_old and (retain_bytes is None or total <= retain_bytes):
            break
        total -= age.size
        found.append(age)
    return found
