"""One task of the sink, and the end of a batch; for writers of rows and of Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from gnsq_lite.spark.options import SinkOptions
from gnsq_lite.spark.progress import NOTHING, Marker, TaskKey, current_task, remove_markers
from gnsq_lite.spark.publisher import OtherRows, Sink, shared_writer

log = logging.getLogger("gnsq_lite.spark")


@dataclass
class Published(WriterCommitMessage):
    """A task's report: rows published, and the query if it is a streaming write."""

    rows: int
    query: str = ""


def publish(options: SinkOptions, batches: Iterable[pa.RecordBatch], *, write: str = "") -> Published:
    """Publish the rows of the task that calls it.

    *write*: the id of a batch write.  It identifies the tasks of a batch write, because all batch writes in one call of
    a foreachBatch function have the same query and batch number.
    """
    task = current_task(write)
    marker = Marker(Path(options.marker_dir), task) if options.marker_dir and task is not None else None
    sink = Sink(
        shared_writer(options),
        options,
        skip=marker.read() if marker is not None else NOTHING,
        on_progress=marker.write if marker is not None else None,
    )
    try:
        sink.write(batches)
    except OtherRows:
        if marker is not None:
            marker.remove()
        raise
    return Published(sink.published, task.query if isinstance(task, TaskKey) else "")


class StreamCommits:
    """The end of a batch, for the streaming writers."""

    _options: SinkOptions

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Remove the markers of a finished batch and of older ones."""
        queries = {message.query for message in messages if message is not None and message.query}
        if self._options.marker_dir:
            for query in queries:
                remove_markers(Path(self._options.marker_dir), query, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Log a failed batch; the restarted query runs it again, from the markers if there are any."""
        rows = sum(message.rows for message in messages if message is not None)
        log.warning("batch %d failed; %d rows of it are published", batchId, rows)
