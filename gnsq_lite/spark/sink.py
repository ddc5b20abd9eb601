"""The sink.  Each task publishes its rows with MPUB, and returns when nsqd has confirmed all rows.

Delivery is at least once: a task that Spark runs again publishes its rows again.  With markerDir, the task skips rows
that nsqd has confirmed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from gnsq_lite.arrow_values import number_array, text_array
from gnsq_lite.errors import OptionError
from gnsq_lite.option_fields import check_choice
from gnsq_lite.spark.compat import stream_arrow_writer
from gnsq_lite.spark.options import SinkOptions
from gnsq_lite.spark.progress import remove_markers
from gnsq_lite.spark.sinktask import StreamCommits, publish
from gnsq_lite.wire.names import check_topic

log = logging.getLogger("gnsq_lite.spark")

#: Columns of the sink, and their allowed Spark types.
WRITABLE = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "defer": ("double", "float", "int", "bigint", "smallint", "tinyint"),
}


def check_columns(fields: Sequence[tuple[str, str]], options: SinkOptions, overwrite: bool) -> None:
    """Raise OptionError for unsupported columns or modes, before a row is sent."""
    if overwrite:
        raise OptionError("mode", "overwrite", "a queue cannot be overwritten: use mode('append')")
    names = dict(fields)
    if "body" not in names:
        raise OptionError("body", ", ".join(names), "the rows need a column 'body' (BINARY or STRING)")
    for name, kind in fields:
        if name not in WRITABLE:
            raise OptionError(name, kind, "the sink has only the columns body, topic and defer: select these")
        if not kind.startswith("decimal"):
            check_choice(name, kind, *WRITABLE[name])
    if "topic" not in names and not options.topic:
        raise OptionError("topic", "", "set the option topic, or give the rows a column 'topic'")
    if options.topic:
        check_topic(options.topic)


class NsqArrowWriter(DataSourceArrowWriter):
    """Batch writer, for ``df.write.format("nsq").mode("append").save()``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options, self._write = options, uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish one task's rows."""
        return publish(self._options, iterator, write=self._write)

    def commit(self, messages: list[Any]) -> None:
        """Log the number of published rows, and remove the markers.  Spark calls this method after all tasks."""
        log.info("published %d rows", sum(message.rows for message in messages if message is not None))
        self._remove_markers()

    def abort(self, messages: list[Any]) -> None:
        """Log a failed job, and remove the markers.  Published rows stay in nsqd."""
        rows = sum(message.rows for message in messages if message is not None)
        log.warning("the job failed; its finished tasks have published %d rows", rows)
        self._remove_markers()

    def _remove_markers(self) -> None:
        if self._options.marker_dir:
            remove_markers(Path(self._options.marker_dir), self._write, 1)


class NsqStreamRowWriter(StreamCommits, DataSourceStreamWriter):
    """Streaming writer for PySpark 4.0, which passes rows one by one.  It is slower, and has the same guarantees."""

    def __init__(self, options: SinkOptions, names: Sequence[str]) -> None:
        self._options, self._names = options, list(names)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish one task's rows."""
        return publish(self._options, batched(iterator, self._names))


def batched(rows: Iterator[Any], names: Sequence[str], size: int = 5000) -> Iterator[pa.RecordBatch]:
    """Yield rows as RecordBatches of *size*."""
    waiting: list[Any] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == size:
            yield _as_batch(waiting, names)
            waiting = []
    if waiting:
        yield _as_batch(waiting, names)


def _as_batch(rows: list[Any], names: Sequence[str]) -> pa.RecordBatch:
    columns = []
    for index, name in enumerate(names):
        values = [row[index] for row in rows]
        if name == "body":
            values = [
                value.encode() if isinstance(value, str) else None if value is None else bytes(value)
                for value in values
            ]
        columns.append(
            number_array(values, pa.float64())
            if name == "defer"
            else text_array(values, pa.binary() if name == "body" else pa.string())
        )
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def stream_writer(options: SinkOptions, names: Sequence[str]) -> DataSourceStreamWriter:
    """Return the streaming writer for this PySpark.  From 4.1 on, PySpark passes Arrow batches."""
    base = stream_arrow_writer()
    if base is None:
        return NsqStreamRowWriter(options, names)
    from gnsq_lite.spark.sink_arrow import NsqStreamArrowWriter  # PySpark 4.0 lacks its base class

    return NsqStreamArrowWriter(options)
