"""Seals the logs of a recording: writes the rows of complete packs or objects to Parquet files, and removes the packs.

Only the writer of a log, which holds its lock or lease, seals the log.  Sealed files of a log follow each other without
gaps.  So a sealer that was suspended finds the file of its first row, and does nothing.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.recording import parquet
from gnsq_lite.recording.errors import RecordingError, RecordingInUse
from gnsq_lite.recording.filereader import LogFile
from gnsq_lite.recording.local import LocalLog
from gnsq_lite.recording.logs import Span
from gnsq_lite.recording.objects import ObjectLog
from gnsq_lite.recording.options import SEAL, SEAL_AFTER
from gnsq_lite.recording.recorder import Recorder
from gnsq_lite.recording.recording import Recording, without_writer

log = logging.getLogger("gnsq_lite.recording")

#: Fewer bytes than SMALL wait for SMALL_AFTER seconds, because small sealed files can never be merged.
SMALL, SMALL_AFTER = 1 << 20, 3600.0
#: Seconds between two looks at the rows of the own log, and before the next try after an error.
LOOK, RETRY = 0.5, 10.0


def seal_log(recording: Recording, writer: LocalLog | ObjectLog, last: int, *, whole: bool = True) -> int:
    """Seal the packs or objects of an open log up to the row *last*, and return the bytes of those that stay.

    A sealed file gets packs or objects of at least ``writer.seals`` bytes.  If *whole* is true, the last file may get
    fewer bytes.  Packs are removed after their rows were read from the sealed file.  Raises OSError, RecordingError.
    """
    reader, youzan = recording.reader(writer.name), recording.meta().youzan
    reader.relist()
    reader.remove([file.age() for file in reader.replaced()])
    waiting = [file for file in reader.unsealed() if file.first <= last]
    for group in list(_groups(waiting, writer.seals, whole)):
        first, end = group[0].first, group[-1].last
        name = parquet.sealed_name(writer.name, first)
        span = Span(writer.name, first - 1, end, tuple((file.name, file.first, 0) for file in group))
        writer.check_writer()
        fill = partial(parquet.write, rows=reader.read(span), include_youzan=youzan)
        if not recording.add_sealed(name, fill):
            log.info("log %s: another process has sealed row %d", writer.name, first)
        reader.relist()
        if reader.check_sealed(name) != end:  # another process has sealed other rows: begin again
            return seal_log(recording, writer, last, whole=whole)
        reader.remove([file.age() for file in group])
        waiting = waiting[len(group) :]
    return sum(file.size for file in waiting)


def _groups(files: list[LogFile], limit: int, whole: bool) -> Iterator[list[LogFile]]:
    group: list[LogFile] = []
    for file in files:
        group.append(file)
        if sum(one.size for one in group) >= limit:
            yield group
            group = []
    if group and whole:
        yield group


def seal_free_logs(recording: Recording, limit: int = SEAL) -> Iterator[tuple[str, str]]:
    """Seal the logs that have no writer, and yield the name of each log and the reason why it was not sealed, or "".

    *limit* is the number of bytes of packs or objects that become one sealed file.
    """
    writers = {name: recording.writer(name) for name in recording.names()}
    busy = set(writers)
    for writer in without_writer(list(writers.values())):
        try:
            _seal_free(recording, writer, limit)
        except RecordingInUse:
            continue
        except (OSError, RecordingError) as error:
            yield writer.name, str(error)
        else:
            yield writer.name, ""
        busy.discard(writer.name)
    yield from ((name, "a recorder writes it") for name in sorted(busy))


def _seal_free(recording: Recording, writer: LocalLog | ObjectLog, limit: int) -> None:
    writer.seals = limit
    writer.open(even_retired=True)
    try:
        seal_log(recording, writer, writer.last)
    finally:
        writer.close()


@dataclass
class _Other:
    """A log of another recorder: its last row, when this row was seen first, and whether the log is sealed."""

    writer: LocalLog | ObjectLog
    last: int
    since: float
    is_done: bool = False


class Sealer:
    """Seals the log of a recorder, and in time the logs that have no writer.  Works in a thread.

    *limit* is the number of bytes of packs or objects that become one sealed file.  After *after* seconds, fewer bytes
    become one.
    """

    def __init__(
        self,
        recording: Recording,
        recorder: Recorder,
        limit: int = SEAL,
        after: float = SEAL_AFTER,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._recording = copy.copy(recording)  # a copy has no readers yet: a reader is not thread-safe
        self._recorder, self._limit, self._after, self._clock = recorder, limit, after, clock
        self._name = recorder.log.name
        recorder.log.seals = limit
        self._lock = threading.Lock()
        #: Bytes of the own log that were not sealed when the recorder had stored _stored bytes, and since when.
        self._left = sum(file.size for file in self._recording.reader(self._name).unsealed())
        self._stored = 0
        self._since: float | None = None
        self._others: dict[str, _Other] = {}
        #: Seconds between two looks at the other logs.  On an object store, a look at a log takes up to three requests.
        self._around = min(5.0, max(1.0, after / 10))
        self._looked = clock.now()
        #: Warnings that were logged since a seal succeeded.
        self._said: set[str] = set()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="gnsq_lite-seal", daemon=True).start()

    def stop(self) -> None:
        """Stop, and seal all rows of the own log."""
        self._stopping.set()
        try:
            self.seal()
        except Exception as error:  # the recorder must close its log
            self._warn(f"log {self._name}: its last rows are not sealed: {error}")

    def _warn(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)

    def _run(self) -> None:
        pause = LOOK
        while not self._stopping.wait(pause):
            pause = LOOK
            try:
                self.look()
            except Exception as error:  # the thread goes on: the rows wait in their packs
                self._warn(f"log {self._name} cannot be sealed now: {error}")
                pause = RETRY
            self.look_around()

    def look(self) -> None:
        """Seal rows of the own log if they have *limit* bytes, or are older than *after* seconds."""
        now, waiting = self._clock.now(), self._left + self._recorder.stored_bytes - self._stored
        if not waiting:
            self._since = None
            return
        self._since = now if self._since is None else self._since
        is_old = now - self._since >= (self._after if waiting >= SMALL else max(self._after, SMALL_AFTER))
        if is_old or waiting >= self._limit:
            self.seal(whole=is_old)

    def seal(self, *, whole: bool = True) -> None:
        """Seal the rows of the own log that are stored now.  If *whole* is false, seal only whole files."""
        with self._lock:
            with self._recorder.lock:
                last, stored = self._recorder.log.complete(), self._recorder.stored_bytes
            writer: Any = self._recorder.log
            self._left = seal_log(self._recording, writer, last, whole=whole)
            self._stored, self._since = stored, None
        self._said.clear()
        if ahead := self._recording.sealed_in_future():
            many = f"{len(ahead)} Parquet files have times ahead of this host's clock, such as {ahead[0]}"
            why = "a host's clock is wrong, and a Spark stream ignores files a week older than the newest"
            self._warn(f"{self._recording.url}: {many}: {why}")

    def look_around(self) -> None:
        """Seal the other logs that have no writer, and no new row for *after* seconds."""
        if self._clock.now() - self._looked < self._around:
            return
        self._looked = self._clock.now()
        try:
            names = self._recording.names()
        except (OSError, RecordingError) as error:
            self._warn(f"the logs of {self._recording.url} cannot be listed: {error}")
            return
        for name in names:
            try:
                if name != self._name:
                    self._look_at(name)
            except RecordingInUse:
                continue
            except Exception as error:
                self._warn(f"log {name} cannot be sealed: {error}")

    def _look_at(self, name: str) -> None:
        now, reader, known = self._clock.now(), self._recording.reader(name), self._others.get(name)
        last = reader.bounds().last
        if known is None or known.last != last:
            known = self._others[name] = _Other(self._recording.writer(name), last, now)
        if known.is_done or not known.writer.is_free() or now - known.since < self._after:
            return
        reader.relist()
        if reader.unsealed() or reader.replaced():
            self._others[name] = replace(known, writer=self._recording.writer(name), since=now)
            _seal_free(self._recording, known.writer, self._limit)
        self._others[name] = replace(known, is_done=True)
