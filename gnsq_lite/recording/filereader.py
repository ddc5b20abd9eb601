"""Reads a log as a sequence of files, which are packs (directories) or objects (object stores), and sealed files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.arrow_values import flag_array, number_scalar
from gnsq_lite.recording import frames, parquet
from gnsq_lite.recording.errors import DataLoss, RecordingDamaged
from gnsq_lite.recording.frames import Frame
from gnsq_lite.recording.logs import SKEW, Age, Bounds, Span, cut

_T = TypeVar("_T")


class LogFile(NamedTuple):
    """A file with the rows *first* to *last*.  *size* is in bytes."""

    name: str
    first: int
    last: int
    size: int

    def age(self, written: float = 0.0) -> Age:
        """Return the file in the form in which it is removed."""
        return Age(self.name, self.last, self.size, written)


def in_order(files: Iterable[LogFile]) -> list[LogFile]:
    """Sort files by their rows.  Of files with the same rows, return a sealed file, or else the one with most rows.

    A sealed file, or an object that was merged, may exist beside the files that it replaces.  A recorder that was
    suspended in a merge may even create an object of rows of which only the first are sealed: such a file is returned
    with the other rows.
    """
    found: list[LogFile] = []
    behind = 0
    for file in sorted(files, key=lambda one: (not parquet.is_sealed(one.name), one.first, -one.last)):
        if file.last > behind:
            found.append(file._replace(first=max(file.first, behind + 1)))
            behind = file.last
    return found


class _Gap(RecordingDamaged):
    """A file does not go on where the file before it ended, perhaps because a cached listing is old."""


class FileReader(ABC):
    """The part of a LogReader that does not depend on where the files are."""

    def __init__(self, name: str, place: str) -> None:
        self.name, self._where = name, place
        #: Bytes of each sealed file of the log at the last listing, and the footers that were read.
        self._sealed: dict[str, int] = {}
        self._footers: dict[str, parquet.Footer] = {}

    # -- what a kind of storage implements

    @abstractmethod
    def listed(self) -> list[LogFile]:
        """Return all files, among them files whose rows are also in another file.  Raises OSError."""

    @abstractmethod
    def bounds(self) -> Bounds:
        """Return the bounds of the rows stored now.  Raises OSError."""

    @abstractmethod
    def span(self, start: int, end: int) -> Span:
        """Return the span *start* < row <= *end* with its files.  Raises DataLoss, OSError."""

    @abstractmethod
    def remove(self, ages: list[Age]) -> None:
        """Remove files."""

    @abstractmethod
    def relist(self) -> None:
        """Forget the cached names, because files were added or removed."""

    @abstractmethod
    def _opened(self, files: tuple[tuple[str, int, int], ...]) -> Iterator[pa.Buffer]:
        """Yield the content of each file of a span.  Raises FileNotFoundError."""

    @abstractmethod
    def _end(self, name: str, size: int) -> pa.Buffer:
        """Return at least the last *size* bytes of a file, or all bytes.  Raises FileNotFoundError."""

    @abstractmethod
    def _head(self, name: str) -> pa.Buffer:
        """Return the first bytes of a pack or an object, with the header of the first frame."""

    @abstractmethod
    def _frames(self, data: pa.Buffer, name: str, at: int) -> tuple[pa.Schema, Iterable[Frame]]:
        """Return the schema and the frames of a pack or an object, from the offset *at* on."""

    # -- sealed files

    def _footer(self, name: str) -> parquet.Footer:
        if name not in self._footers:
            found = parquet.footer(self._end(name, parquet.TAIL), name)
            found = found or parquet.footer(self._end(name, self._sealed.get(name, 1 << 40)), name)
            if found is None:
                raise RecordingDamaged(f"{name} is damaged: its footer is incomplete")
            self._footers[name] = found
        return self._footers[name]

    def _sealed_files(self) -> list[LogFile]:
        """Return the sealed files.  All but the newest end where the next one begins."""
        sizes = self._sealed  # another thread, such as that of /metrics, may list meanwhile
        names = sorted(sizes)
        firsts = [parquet.first_of(name, self.name) or 0 for name in names]
        lasts = [first - 1 for first in firsts[1:]] + [self._footer(name).last for name in names[-1:]]
        return [LogFile(*one, sizes[one[0]]) for one in zip(names, firsts, lasts, strict=True)]

    def files(self) -> list[LogFile]:
        """Return the files in the order of their rows.  Raises OSError."""
        return in_order(self._retried(self.listed))

    def sealed_to(self) -> int:
        """Return the last row in a sealed file, as of the last listing, or 0."""
        return max((file.last for file in self._sealed_files()), default=0)

    def unsealed(self) -> list[LogFile]:
        """Return the packs or objects whose rows are in no sealed file."""
        return [file for file in self.files() if not parquet.is_sealed(file.name)]

    def replaced(self) -> list[LogFile]:
        """Return the packs or objects whose rows are in sealed files: a recorder died before it removed them."""
        files, end = self.listed(), self.sealed_to()
        return [file for file in files if file.first <= file.last <= end and not parquet.is_sealed(file.name)]

    def check_sealed(self, name: str) -> int:
        """Read a sealed file back, and return its last row.  Raises OSError, RecordingDamaged."""
        (data,) = self._opened(((name, 0, self._sealed.get(name, 0)),))
        return parquet.check(data, name).last

    def has_youzan_columns(self) -> bool:
        """Return whether rows of the log were recorded with the columns of Youzan's NSQ."""

        def look() -> bool:
            heads = (frames.read_head(self._head(file.name)) for file in self.unsealed())
            return any(head is not None and "partition" in head[0].names for head in heads)

        return self._retried(look)

    # -- reading

    def _retried(self, do: Callable[[], _T]) -> _T:
        """Call *do*, and list the files and call it again if a file was merged, sealed or removed meanwhile."""
        for _ in range(3):
            try:
                return do()
            except FileNotFoundError:
                self.relist()
        return do()

    def read(self, span: Span) -> Iterator[tuple[Frame, pa.RecordBatch]]:
        """Yield the rows of *span*.  If a file was merged, sealed or removed meanwhile, list the files again."""
        start, files, tries, tried = span.start, span.files, 0, -1
        while start < span.end:
            try:
                for frame, batch in self._rows(files, Span(span.log, start, span.end)):
                    yield frame, batch
                    start = min(frame.last, span.end)
                if start < span.end:
                    raise _Gap(f"{self._where} lacks rows {start + 1} to {span.end}")
            except (FileNotFoundError, _Gap) as error:
                tries, tried = tries + 1 if start == tried else 1, start
                if tries > 3 and isinstance(error, _Gap):
                    raise
                if tries > 3:
                    raise DataLoss(f"{self._where} lacks row {start + 1}: {error}") from error
                self.relist()
                files = self.span(start, span.end).files

    def _rows(self, files: tuple[tuple[str, int, int], ...], span: Span) -> Iterator[tuple[Frame, pa.RecordBatch]]:
        expected = span.start + 1
        for (name, _, at), data in zip(files, self._opened(files), strict=True):
            for frame, batch in self._file_rows(data, name, at, span):
                if frame.last >= expected:
                    if frame.first > expected:
                        raise _Gap(f"{self._where}: {name} lacks row {expected}")
                    expected = frame.last + 1
                    yield frame, cut(batch, frame, span)

    def _file_rows(self, data: pa.Buffer, name: str, at: int, span: Span) -> Iterator[tuple[Frame, pa.RecordBatch]]:
        if parquet.is_sealed(name):
            yield from parquet.read(data, name, span.start, span.end)
            return
        schema, found = self._frames(data, name, at)
        for frame in found:
            if frame.first > span.end:
                return
            if frame.last > span.start:
                yield frame, frames.decode(data, frame, schema)

    def first_after(self, time_us: int) -> int:
        """Return the first row published at *time_us* or later, or else the number after the last row."""
        bounds = self.bounds()
        start = self._retried(lambda: self._row_before(time_us, bounds))
        for frame, batch in self.read(self.span(start, bounds.last)):
            if frame.high >= time_us:
                times = batch.column("timestamp").view(pa.int64())
                is_late = pc.greater_equal(times, number_scalar(time_us, pa.int64()))
                index = pc.index(is_late, flag_array([True])[0]).as_py()
                if index >= 0:
                    return max(frame.first, start + 1) + int(index)
        return bounds.last + 1

    def _row_before(self, time_us: int, bounds: Bounds) -> int:
        """Return a row after which :meth:`first_after` searches.  Found by the times of the files' first writes."""
        files = self.files()
        low, high = 0, len(files)
        while high - low > 1:
            middle = (low + high) // 2
            if self._began(files[middle]) < time_us / 1e6 - SKEW:
                low = middle
            else:
                high = middle
        return min(bounds.last, max(bounds.first, files[low].first) - 1) if files else bounds.last

    def _began(self, file: LogFile) -> float:
        """Return the time of the first write of a file's rows, in seconds since 1970."""
        if parquet.is_sealed(file.name):
            return self._footer(file.name).began / 1e6
        data = self._head(file.name)
        head = frames.read_head(data)
        frame = None if head is None else frames.header(memoryview(data), head[1])
        if frame is None:
            raise RecordingDamaged(f"{self._where}: {file.name} is damaged")
        return frame.written / 1e6

    # -- keeping

    def ages(self) -> Iterator[Age]:
        """Yield all files except the newest.  ``written`` is the time of the first write to the following file."""
        self.relist()
        for file, following in pairwise(self.files()):
            try:
                began = self._began(following)
            except FileNotFoundError:  # it was sealed or removed meanwhile; the next call yields the others
                return
            yield file.age(began)

    def removable(self, row: int) -> list[Age]:
        """Return the files that have no row after *row*, except the newest file.  ``written`` is 0."""
        return [file.age() for file in self.files()[:-1] if file.last <= row]

    def size(self) -> int:
        """Return the size of all files in bytes."""
        return sum(file.size for file in self.files())
