"""The batch source reads a range of a recording.  Every action reads the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from gnsq_lite.spark.options import SourceOptions
from gnsq_lite.spark.reading import (
    Checked,
    RecordingPartition,
    first_position,
    last_position,
    read_partition,
    tasks,
)
from gnsq_lite.spark.several import Recordings


class NsqBatchReader(DataSourceReader):
    """Reads from startingOffsets to endingOffsets (default: all rows).  The first action resolves both offsets."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Resolve the range to row numbers, and return the tasks.  Spark keeps the tasks for later actions."""
        recording = Recordings(self._options)
        begin = first_position(recording, self._options, "earliest")
        checked = Checked.of(recording, begin, fails=self._options.fail_on_data_loss)
        end = last_position(recording, self._options)
        found = tasks(recording, checked.ranges(end), self._options)
        return found or [RecordingPartition("", "", [])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        return read_partition(partition, self._options)
