"""Progress markers of the sink: a task that Spark runs again goes on where it stopped.

Without them a repeated task publishes its partition again.  A marker holds for one (query, batch, partition) and
relies on the same row order when the task runs again, which this source gives and a shuffle need not.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from gnsq_lite.spark.files import Files


@dataclass(frozen=True)
class TaskKey:
    """Which task: it is the same when Spark runs it again."""

    query: str
    batch: str
    partition: int

    @property
    def file_name(self) -> str:
        """The marker's file."""
        query = re.sub(r"[^A-Za-z0-9-]", "_", self.query)
        return f"{query}-b{self.batch}-p{self.partition}.json"


def current_task() -> TaskKey | None:
    """Return the running task's key; None in a batch job, whose tasks have no lasting name."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    if not batch or not query:
        return None
    return TaskKey(query, batch, context.partitionId())


class Marker:
    """How many rows of a task nsqd has taken."""

    def __init__(self, directory: Path, key: TaskKey, files: Files | None = None) -> None:
        self._path = directory / key.file_name
        self._files = files or Files()
        directory.mkdir(parents=True, exist_ok=True)

    def read(self) -> int:
        """Return the rows that are done; 0 where nothing is known."""
        try:
            return int(json.loads(self._path.read_text())["rows"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0

    def write(self, rows: int) -> None:
        """Note durably that the first *rows* rows are done."""
        self._files.replace_text(self._path, json.dumps({"rows": rows}))


def remove_markers(directory: Path, query: str, before_batch: int) -> None:
    """Remove the markers of *query*'s batches below *before_batch*."""
    prefix = re.sub(r"[^A-Za-z0-9-]", "_", query)
    for path in directory.glob(f"{prefix}-b*-p*.json"):
        batch = re.fullmatch(re.escape(prefix) + r"-b(\d+)-p\d+\.json", path.name)
        if batch is not None and int(batch[1]) < before_batch:
            path.unlink(missing_ok=True)
