"""Progress markers of the sink: a task that Spark runs again skips the rows that nsqd has confirmed.

Without a marker, a repeated task publishes its whole partition again.  A marker belongs to one partition of a query's
batch or of a batch write.  The marker is valid only if the repeated task has the same bodies in order.  After a
shuffle, or after a restart with other options, the bodies may differ.  So a marker has a checksum of the bodies.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from gnsq_lite.recording.files import Files


@dataclass(frozen=True)
class TaskKey:
    """The identity of a task.  All attempts of a task have the same identity."""

    query: str
    batch: str
    partition: int

    @property
    def file_name(self) -> str:
        """Name of the marker's file."""
        query = re.sub(r"[^A-Za-z0-9-]", "_", self.query)
        return f"{query}-b{self.batch}-p{self.partition}.json"


def current_task(write: str = "") -> TaskKey | None:
    """Return the key of the running task, or None outside a task.  *write* is the id of a batch write."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    query = write or context.getLocalProperty("sql.streaming.queryId")
    batch = "0" if write else context.getLocalProperty("streaming.sql.batchId")
    return TaskKey(query, batch, context.partitionId()) if batch and query else None


@dataclass(frozen=True)
class Done:
    """The confirmed part of a task: the number of its first rows, and the CRC-32 of their bodies."""

    rows: int = 0
    crc: int = 0


NOTHING = Done()


class Marker:
    """Stores how many rows of a task nsqd has confirmed."""

    def __init__(self, directory: Path, key: TaskKey, files: Files | None = None) -> None:
        self._path = directory / key.file_name
        self._files = files or Files()
        directory.mkdir(parents=True, exist_ok=True)

    def read(self) -> Done:
        """Return the confirmed part, or NOTHING if there is no readable marker."""
        try:
            found = json.loads(self._path.read_text())
            return Done(int(found["rows"]), int(found["crc"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return NOTHING

    def write(self, done: Done) -> None:
        """Store *done* durably.  Another attempt of the task may write the marker at the same time."""
        aside = self._path.with_name(f"{self._path.name}-{uuid.uuid4().hex}")
        self._files.write_new(aside, json.dumps(asdict(done)).encode())
        self._files.rename(aside, self._path)
        self._files.sync_directory(self._path.parent)

    def remove(self) -> None:
        """Remove the marker."""
        self._files.unlink(self._path)


def remove_markers(directory: Path, query: str, before_batch: int) -> None:
    """Remove the markers of *query*'s batches below *before_batch*."""
    prefix = re.sub(r"[^A-Za-z0-9-]", "_", query)
    for path in directory.glob(f"{prefix}-b*-p*.json*"):
        batch = re.fullmatch(re.escape(prefix) + r"-b(\d+)-p\d+\.json.*", path.name)
        if batch is not None and int(batch[1]) < before_batch:
            path.unlink(missing_ok=True)
