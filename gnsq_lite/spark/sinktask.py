"""Publishes the rows of a task, and commits a batch.  The sink's writers of rows and of Arrow batches use this code."""

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
    """A task's report: the number of published rows, and the id of the query or of the batch write."""

    rows: int
    query: str = ""


def publish(options: SinkOptions, batches: Iterable[pa.RecordBatch], *, write: str = "") -> Published:
    """Publish the rows of the calling task.

    *write* is the id of a batch write.  The id is needed because all batch writes in one call of a foreachBatch
    function have the same query and batch number.
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
    """The methods commit() and abort() of the streaming writers."""

    _options: SinkOptions

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Remove the markers of the batches before *batchId*."""
        queries = {message.query for message in messages if message is not None and message.query}
        if self._options.marker_dir:
            for query in queries:
                remove_markers(Path(self._options.marker_dir), query, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Log a failed batch.  A restarted query runs the batch again, and with markerDir continues at the markers."""
        rows = sum(message.rows for message in messages if message is not None)
        log.warning("batch %d failed after %d of its rows were published", batchId, rows)
