"""The log of one (epoch, slot): numbered chunks that are published once, and an end (receiver=executors).

Spark may run two attempts of a task at the same time, and an attempt it gave up may still run.  A chunk's number is
taken by creating its name exclusively (a hard link), and FIN follows only then; the end marker takes a number too, so
nobody can publish, and finish, behind it.  Every attempt yields the same chunks in the same order.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from gnsq_lite.spark import segments
from gnsq_lite.spark.files import Files
from gnsq_lite.spark.segments import SegmentDamaged

_END = b"GNSQEND1"
_NAME = re.compile(r"e(\d{16})-(?:s\d{4}-c\d{6}|plan)\.\w+")


@dataclass(frozen=True)
class End:
    """How an epoch ended in one slot."""

    rows: int
    #: Rows that were published before the query's AvailableNow began.
    backlog: int
    connected: bool


@dataclass(frozen=True)
class Plan:
    """What was decided for an epoch when it was planned first; it holds when the batch runs again."""

    receivers: int
    backlog_until_ns: int


class EpochLog:
    """One slot's log of one epoch, in a directory all executors share."""

    def __init__(self, directory: Path, epoch: int, slot: int, files: Files | None = None) -> None:
        self._directory, self._epoch, self._slot = directory, epoch, slot
        self._files = files or Files()

    def _path(self, number: int) -> Path:
        return self._directory / f"e{self._epoch:016d}-s{self._slot:04d}-c{number:06d}.seg"

    def read(self, number: int) -> list[pa.RecordBatch] | End | None:
        """Return chunk *number*: its batches, the end, or None where nobody has published it.

        Raises SegmentDamaged.
        """
        path = self._path(number)
        try:
            with path.open("rb") as file:
                head = file.read(len(_END))
                if head == _END:
                    return End(**json.loads(file.read()))
        except FileNotFoundError:
            return None
        found = segments.scan_file(path)
        if found.size != path.stat().st_size or not found.rows:
            raise SegmentDamaged(f"chunk {path} is damaged")
        return found.batches

    def publish(self, number: int, batches: Sequence[pa.RecordBatch]) -> bool:
        """Publish chunk *number*, durably; False: somebody else has."""
        return self._create(number, segments.head(batches[0].schema) + b"".join(segments.record(b) for b in batches))

    def finish(self, number: int, end: End) -> bool:
        """Publish the end as chunk *number*; False: there is another chunk of that number."""
        return self._create(number, _END + json.dumps(asdict(end)).encode())

    def _create(self, number: int, data: bytes) -> bool:
        return create_once(self._path(number), data, self._files)

    def end(self) -> End | None:
        """Return how the epoch ended here; None: it has not."""
        number = 0
        while True:
            entry = self.read(number)
            if entry is None or isinstance(entry, End):
                return entry
            number += 1


def create_once(path: Path, data: bytes, files: Files) -> bool:
    """Create *path* with *data*, whole and durable, unless it exists; return whether this call did."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}")
    fd = files.create(fresh)
    try:
        files.append(fd, data)
        files.sync(fd)
    finally:
        files.close(fd)
    try:
        files.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        files.unlink(fresh)
    files.sync_directory(path.parent)
    return True


def plan_epoch(directory: Path, epoch: int, plan: Plan, files: Files) -> Plan:
    """Store *plan* for *epoch*, or return the one that was stored before."""
    path = directory / f"e{epoch:016d}-plan.json"
    if not path.exists() and create_once(path, json.dumps(asdict(plan)).encode(), files):
        return plan
    return Plan(**json.loads(path.read_text()))


def read_plan(directory: Path, epoch: int) -> Plan | None:
    """Return the stored plan of *epoch*."""
    path = directory / f"e{epoch:016d}-plan.json"
    return Plan(**json.loads(path.read_text())) if path.exists() else None


def forget_epochs(directory: Path, up_to: int, files: Files) -> None:
    """Remove the logs of the epochs up to *up_to*."""
    for path in directory.iterdir():
        found = _NAME.fullmatch(path.name)
        if found is not None and int(found[1]) <= up_to:
            files.unlink(path)
