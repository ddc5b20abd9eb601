"""The streaming sink for PySpark 4.1 and later, which passes Arrow batches to the sink."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from gnsq_lite.spark.options import SinkOptions
from gnsq_lite.spark.sinktask import StreamCommits, publish


class NsqStreamArrowWriter(StreamCommits, DataSourceStreamArrowWriter):
    """Streaming writer, for ``df.writeStream.format("nsq").start()``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish one task's rows."""
        return publish(self._options, iterator)
