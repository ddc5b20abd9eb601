"""A recording has the logs of one topic and channel, in a directory or on an object store.

::

    meta            version, uuid, topic, channel, and whether one Spark query owns the recording
    committed       the position up to which the owning query has committed rows
    logs/NAME/      a log, see local.py and objects.py
    jobs/ID         marker of a Spark job of recorders; the job stops when the marker is removed
    parquet/        sealed files, if the recording is sealed, see parquet.py

A position maps log names to the number of the last row read.  It has no entry for a log of which no row was read.
"""

from __future__ import annotations

import errno
import heapq
import io
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.arrow import arrow_schema
from gnsq_lite.arrow_values import number_scalar
from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.recording import frames, lease, objectstore, parquet
from gnsq_lite.recording.errors import DataLoss, RecordingDamaged, RecordingError, RecordingInUse, RecordingNotVisible
from gnsq_lite.recording.files import Blobs, Files, Folder
from gnsq_lite.recording.frames import Frame
from gnsq_lite.recording.lease import Patience, create_once
from gnsq_lite.recording.local import LocalLog, LocalReader, lock_file
from gnsq_lite.recording.location import is_remote, local_directory, remote_url
from gnsq_lite.recording.logs import Bounds, Span, new_name
from gnsq_lite.recording.objects import ObjectLog, ObjectReader, exists

log = logging.getLogger("gnsq_lite.recording")

Position = dict[str, int]
#: Names that may exist without ``meta``: this module creates them, or the file system does.
_MAY_PRECEDE_META = frozenset({"LOCK", "meta", "meta.new", "logs", "jobs", "lost+found"})
_T = TypeVar("_T")


@dataclass(frozen=True)
class Meta:
    """Identity of a recording: its topic, channel and uuid.

    Version 2 means that the recording is sealed, so that releases without sealed files refuse it.  *youzan* means that
    its sealed files have the columns of Youzan's NSQ.
    """

    uuid: str
    topic: str
    channel: str
    owned: bool = False
    v: int = 1
    youzan: bool = False

    @property
    def is_sealed(self) -> bool:
        """Whether finished packs or objects become Parquet files."""
        return self.v == 2

    def encode(self) -> bytes:
        """Return the content of ``meta``.  A release without sealed files can read version 1."""
        fields = {name: value for name, value in asdict(self).items() if self.is_sealed or name != "youzan"}
        return json.dumps(fields).encode()


class Recording:
    """A recording at a path or a URL.  The constructor does no I/O.

    *storage* has the settings of an object store, such as ``region``.  Every method may raise RecordingError, and
    raises OSError if the disk or the store is unavailable.
    """

    def __init__(
        self,
        url: str,
        storage: Mapping[str, str] | None = None,
        *,
        files: Files | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._files, self._clock = files or Files(), clock
        self._store: objectstore.ObjectStore | None = None
        self._readers: dict[str, LocalReader | ObjectReader] = {}
        if is_remote(url):
            self.url = remote_url(url, "recording")
            self._store = objectstore.ObjectStore(self.url, objectstore.settings(storage or {}))
        else:
            self._path = local_directory(url, "recording")
            self.url = str(self._path)
        self._patience = Patience(self.url)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    def check(self) -> None:
        """Raise MissingExtra or OptionError if the store's settings cannot work."""
        if self._store is not None:
            self._store.check()

    @property
    def _root(self) -> Blobs:
        return Folder(self._path, self._files) if self._store is None else self._store

    @property
    def jobs(self) -> Blobs:
        """Markers of the Spark jobs of recorders.  A job's recorders stop when the job's marker is removed."""
        return Folder(self._path / "jobs", self._files) if self._store is None else self._store.below("jobs/")

    def _patiently(self, do: Callable[[], _T]) -> _T:
        """Call *do*, with retries while the object store is unavailable, and return the result."""
        return do() if self._store is None else self._patience(do)

    # -- identity

    def meta(self) -> Meta:
        """Return the recording's identity.  Raises FileNotFoundError if there is no recording."""
        try:
            found = json.loads(self._patiently(lambda: self._root.read("meta")))
            if found.get("v") in (1, 2):
                return Meta(**found)
        except (ValueError, TypeError, AttributeError) as error:
            raise RecordingDamaged(f"{self.url}/meta is not readable: {error}") from error
        raise RecordingError(f"{self.url} has version {found.get('v')}; this library knows versions 1 and 2")

    def exists(self) -> bool:
        """Return whether there is a recording.  Raises RecordingError if it cannot be read."""
        try:
            return bool(self.meta())
        except FileNotFoundError:
            return False

    def inside(self) -> list[str]:
        """Return the paths or URLs of the recordings directly in this place."""
        if self._store is None:
            folders = self._path.iterdir() if self._path.is_dir() else iter(())
            return sorted(str(path) for path in folders if (path / "meta").exists())
        store = self._store
        names = self._patiently(store.folders)
        return [f"{self.url}/{name}" for name in names if exists(store.below(f"{name}/"), "meta")]

    def create(self, topic: str, channel: str, *, owned: bool = False) -> Meta:
        """Create the recording unless it exists, and return its identity.

        Raises RecordingError if the recording has another topic, channel or kind of owner (*owned*), if the place has
        files of another program, or if the store has no conditional puts.
        """
        wanted = Meta(str(uuid.uuid4()), topic, channel, owned)
        try:
            store = self._store
            found = self._create_local(wanted) if store is None else self._create_remote(store, wanted)
        except OSError as error:
            raise RecordingError(f"recording {self.url} cannot be opened: {error}") from error
        if (found.topic, found.channel) != (topic, channel):
            raise RecordingError(
                f"{self.url} is a recording of {found.topic}/{found.channel}, not of {topic}/{channel}"
            )
        if found.owned != owned:
            owner = "one Spark query owns" if found.owned else "recorders write"
            raise RecordingError(f"{owner} the recording {self.url}: choose another path or URL")
        return found

    def _create_local(self, wanted: Meta) -> Meta:
        self._path.mkdir(parents=True, exist_ok=True)
        self._refuse_others([path.name for path in self._path.iterdir()], (self._path / "meta").exists)
        with open(lock_file(self._path / "LOCK", 10.0), "rb"):
            try:
                return self.meta()
            except FileNotFoundError:
                if self.names():
                    raise RecordingDamaged(f"{self.url} has logs but no meta: it is damaged") from None
            self._files.replace(self._path / "meta", wanted.encode())
        return wanted

    def _refuse_others(self, names: list[str], has_meta: Callable[[], bool]) -> None:
        """Raise RecordingError if *names* has files of another program and there is no ``meta``.

        *has_meta* is called after *names* were listed, because another recorder may create the recording meanwhile.
        """
        others = sorted(name for name in names if name not in _MAY_PRECEDE_META and not name.startswith("."))
        if others and not has_meta():
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            raise RecordingError(
                f"{self.url} is no recording: it has no meta, but {', '.join(others[:3])}{more}; choose an empty place"
            )

    def _create_remote(self, store: objectstore.ObjectStore, wanted: Meta) -> Meta:
        def create() -> Meta:
            text = wanted.encode()
            try:
                text = store.read("meta")
            except FileNotFoundError:
                self._refuse_others(store.entries(), lambda: exists(store, "meta"))
                if not create_once(store, "meta", text):
                    text = store.read("meta")
            try:
                store.create("meta", text)  # a store without conditional puts replaces the object by the same bytes
            except FileExistsError:
                return self.meta()
            raise RecordingError(
                f"the store of {self.url} has no conditional puts: a put that may only create replaced an object.  Use"
                " another store, because on this store a log could have two writers"
            )

        return self._patience(create, opens=True)

    def begin_sealing(self, include_youzan: bool = False) -> Meta:
        """Make this a sealed recording, unless it is one, and return its identity.

        Raises RecordingError if a Spark query owns the recording, if its file system has no hard links, or if
        *include_youzan* is true and the sealed files have no columns of Youzan's NSQ.
        """
        if self._store is not None:
            return self._begin_sealing(include_youzan)
        self.meta()  # without a recording, no LOCK is created
        with open(lock_file(self._path / "LOCK", 10.0), "rb"):  # several recorders may start at the same time
            return self._begin_sealing(include_youzan)

    def _begin_sealing(self, include_youzan: bool) -> Meta:
        before = found = self.meta()
        if found.owned:
            raise RecordingError(f"the Spark query that owns {self.url} removes its rows: they cannot be sealed")
        if not found.is_sealed:
            youzan = include_youzan or any(self.reader(name).has_youzan_columns() for name in self.names())
            found = replace(found, v=2, youzan=youzan)
        elif include_youzan and not found.youzan:
            raise RecordingError(f"the Parquet files of {self.url} lack the columns of Youzan's NSQ: use another place")
        try:  # before meta, so that no reader finds version 2 without the folder
            self.add_sealed(parquet.SCHEMA_FILE, lambda sink: parquet.write(sink, [], found.youzan))
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
            raise RecordingError(f"{self.url} cannot be sealed: its file system has no hard links") from error
        if found != before:
            self._patiently(lambda: self._root.write("meta", found.encode()))
        return found

    def add_sealed(self, name: str, fill: Callable[[BinaryIO], None]) -> bool:
        """Create the sealed file *name* durably, with all its bytes or not at all, and return False if it exists.

        *fill* writes the bytes to a file object.  On an object store they are held in memory.  Raises OSError.
        """
        if self._store is None:
            folder, staging = self._path / parquet.FOLDER, self._path / parquet.STAGING
            folder.mkdir(exist_ok=True)
            staging.mkdir(exist_ok=True)
            return not (folder / name).exists() and self._files.create_whole(folder / name, staging / name, fill)
        store, data = self._store.below(f"{parquet.FOLDER}/"), io.BytesIO()
        fill(data)
        try:
            self._patiently(lambda: store.create(name, data.getvalue()))
        except FileExistsError:
            return False
        return True

    def sealed_in_future(self) -> list[str]:
        """Return the sealed files of a directory whose time is a minute or more ahead of this host's clock."""
        limit = self._clock.wall() + 60.0
        folder = self._path / parquet.FOLDER if self._store is None else None  # a store sets the times itself
        found = []
        for path in folder.iterdir() if folder is not None else ():
            with suppress(FileNotFoundError):  # retention removes files
                if path.stat().st_mtime >= limit:
                    found.append(path.name)
        return found

    def check_visible(self, wanted: str) -> None:
        """Raise RecordingNotVisible unless this process sees the recording with the uuid *wanted*."""
        try:
            found = self.meta().uuid
        except FileNotFoundError:
            found = ""
        if found != wanted:
            what = "another recording" if found else "no recording"
            raise RecordingNotVisible(
                f"this process sees {what} at {self.url}: executors must see the same recording as the driver"
            )

    def committed(self) -> Position:
        """Return the position that the owning query has committed."""
        try:
            data = self._patiently(lambda: self._root.read("committed"))
            return {str(name): int(row) for name, row in json.loads(data).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            raise RecordingDamaged(f"{self.url}/committed is damaged: {error}") from error

    def commit(self, position: Mapping[str, int]) -> None:
        """Store the position that the owning query has committed, durably."""
        text = json.dumps(position, sort_keys=True).encode()
        self._patiently(lambda: self._root.write("committed", text))

    # -- logs

    def names(self) -> list[str]:
        """Return the names of the logs, sorted."""
        if self._store is not None:
            logs = self._store.below("logs/")
            return self._patiently(logs.folders)
        folder = self._path / "logs"
        return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []

    def reader(self, name: str) -> LocalReader | ObjectReader:
        """Return the reader of a log.  A reader is not thread-safe."""
        if name not in self._readers:
            if self._store is None:
                self._readers[name] = LocalReader(self._path / "logs" / name)
            else:
                self._readers[name] = ObjectReader(self._store, name, self._patience)
        return self._readers[name]

    def take(self, *, own: bool = False, wait: float = 0.0, complete: bool = True) -> LocalLog | ObjectLog:
        """Open a log that has no writer, or a new log, for writing.

        If *own* is false, skip logs that have lost rows.  If *own* is true, the recording may have only one writer:
        raise RecordingInUse if another writer still runs after *wait* seconds.  If its log has lost rows, raise
        RecordingDamaged or, if *complete* is false, retire this log and open a new log.
        """
        writers = [self.writer(name) for name in self.names() if not self.reader(name).is_retired()]
        for writer in writers if own else without_writer(writers):
            try:
                writer.open(wait)
            except RecordingInUse:
                if own:
                    raise
            except RecordingDamaged as error:
                if own and complete:
                    raise RecordingDamaged(f"{error}: set failOnDataLoss=false to skip these rows") from error
                log.exception("log %s is skipped", writer.name)
                if own:
                    self.reader(writer.name).retire()
            else:
                return writer
        fresh = self.writer(new_name())
        fresh.open()
        return fresh

    def writer(self, name: str) -> LocalLog | ObjectLog:
        """Return the writer of a log, which is not open yet."""
        if self._store is None:
            return LocalLog(self._path / "logs" / name, self._files, self._clock)
        return ObjectLog(self._store, name, self._clock)

    def bounds(self) -> dict[str, Bounds]:
        """Return the first and the last row of each log."""
        return {name: self.reader(name).bounds() for name in self.names()}

    def end(self) -> Position:
        """Return the position after the last rows stored now."""
        return {name: bounds.last for name, bounds in self.bounds().items() if bounds.last}

    def begin(self) -> Position:
        """Return the position before the first stored rows."""
        return {name: bounds.first - 1 for name, bounds in self.bounds().items() if bounds.first > 1}

    def at(self, time_us: int) -> Position:
        """Return the position before each log's first row that was published at *time_us* or later."""
        found = {name: self.reader(name).first_after(time_us) - 1 for name in self.names()}
        return {name: row for name, row in found.items() if row}

    def spans(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[Span]:
        """Return the spans of the rows between two positions.  Raises DataLoss."""
        gone = [name for name in start if name not in end]
        if gone:
            raise DataLoss(f"recording {self.url} has no log {gone[0]}: its rows after {start[gone[0]]} are gone")
        found = [self.reader(name).span(start.get(name, 0), row) for name, row in sorted(end.items())]
        return [span for span in found if span.end > span.start]

    def read(self, span: Span) -> Iterator[tuple[Frame, pa.RecordBatch]]:
        """Yield the rows of a span, with their frames."""
        return self.reader(span.log).read(span)

    # -- reading

    def batches(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        start: Mapping[str, int] | None = None,
        end: Mapping[str, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows, log by log and in order, in batches of about 10,000.

        *since* and *until* select rows that were published at *since* or later and before *until*, in seconds since
        1970.  *start* and *end* are positions; the default is all stored rows.  Raises DataLoss, RecordingDamaged.
        """
        found = (batch for _, batch in self.rows(since=since, until=until, start=start, end=end))
        first = next(found, None)
        if first is not None:
            wanted = arrow_schema("partition" in first.schema.names)
            yield from frames.coalesced(chain([first], found), wanted)

    def rows(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        start: Mapping[str, int] | None = None,
        end: Mapping[str, int] | None = None,
        most: int = 10_000,
        most_bytes: int | None = None,
    ) -> Iterator[tuple[Position, pa.RecordBatch]]:
        """Yield the rows of :meth:`batches` as (position after the batch, batch of at most *most* rows).

        *most_bytes* limits the bodies of a batch in bytes (None: no limit).  A larger body gets its own batch.
        """
        low = None if since is None else int(since * 1e6)
        high = None if until is None else int(until * 1e6)
        position = dict(self.begin() if start is None else start)
        if start is None and low is not None:
            position = self.at(low)
        for span in self.spans(position, self.end() if end is None else end):
            for frame, batch in self.read(span):
                before = max(frame.first - 1, span.start)
                for piece in _pieces(batch, most, most_bytes):
                    before += piece.num_rows
                    position[span.log] = before
                    yield dict(position), chosen(piece, frame, low, high)

    # -- keeping

    def trim(self, retain: float, retain_bytes: int | None = None) -> int:
        """Remove files older than *retain* seconds, and the oldest files until at most *retain_bytes* remain.

        0 and None mean no limit.  Returns the removed bytes.  The newest pack or object of each log stays.
        """
        readers = [self.reader(name) for name in self.names()]
        total = sum(reader.size() for reader in readers)
        streams = [((age, reader) for age in reader.ages()) for reader in readers]
        removed = 0
        for age, reader in heapq.merge(*streams, key=lambda one: one[0].written):
            too_old = bool(retain) and age.written < self._clock.wall() - retain
            if not too_old and (retain_bytes is None or total - removed <= retain_bytes):
                break
            reader.remove([age])
            removed += age.size
        return removed

    def retire(self, name: str) -> None:
        """Mark a log as retired.  No recorder writes a retired log, and its rows stay readable.

        Raises RecordingInUse: a recorder writes the log.  RecordingError: there is no such log.
        """
        if name not in self.names():
            raise RecordingError(f"recording {self.url} has no log {name}")
        writer = self.writer(name)
        writer.open()
        writer.close()
        self.reader(name).retire()

    def verify(self) -> Iterator[tuple[str, Bounds, str]]:
        """Read and check every row.  For each log, yield its name, its bounds, and its error text or ""."""
        for name in self.names():
            bounds, wrong = Bounds(1, 0), ""
            try:
                bounds = self.reader(name).bounds()
                for _ in self.read(self.reader(name).span(bounds.first - 1, bounds.last)):
                    pass
            except (DataLoss, RecordingDamaged) as error:
                wrong = str(error)
            yield name, bounds, wrong


def without_writer(logs: list[LocalLog | ObjectLog]) -> Iterator[LocalLog | ObjectLog]:
    """Yield each log as soon as its lease is known to be free, but no log with a writer.  Watches all leases."""
    while logs:
        states = [(one, one.is_free()) for one in logs]
        yield from (one for one, is_free in states if is_free)
        logs = [one for one, is_free in states if is_free is None]
        if logs:
            time.sleep(lease.LOOK)


def _pieces(batch: pa.RecordBatch, most: int, most_bytes: int | None) -> Iterator[pa.RecordBatch]:
    """Cut *batch* into slices of at most *most* rows and *most_bytes* of bodies, but at least one row."""
    for at in range(0, batch.num_rows, most):
        piece = batch.slice(at, most)
        begin = size = 0
        if most_bytes is not None and piece.column("body").nbytes > most_bytes:
            for row, length in enumerate(pc.binary_length(piece.column("body")).to_pylist()):
                if row > begin and size + length > most_bytes:
                    yield piece.slice(begin, row - begin)
                    begin, size = row, 0
                size += length
        yield piece.slice(begin)


def chosen(batch: pa.RecordBatch, frame: Frame, low: int | None, high: int | None) -> pa.RecordBatch:
    """Return the rows published at *low* or later and before *high*, microseconds since 1970."""
    if (low is None or frame.low >= low) and (high is None or frame.high < high):
        return batch
    times = batch.column("timestamp").view(pa.int64())
    if low is not None:
        mask = pc.greater_equal(times, number_scalar(low, pa.int64()))
        batch, times = batch.filter(mask), times.filter(mask)
    return batch if high is None else batch.filter(pc.less(times, number_scalar(high, pa.int64())))
