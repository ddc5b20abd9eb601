"""``format("nsq")``.  ``spark.dataSource.register(NsqDataSource)`` registers the format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from gnsq_lite.arrow import columns as all_columns
from gnsq_lite.errors import OptionError
from gnsq_lite.recording import schema as columns
from gnsq_lite.spark.options import SinkOptions, SourceOptions, parse, redacted
from gnsq_lite.spark.several import Recordings


class NsqDataSource(DataSource):
    """NSQ as a source and a sink, of streams and batches.

    Options: :class:`~gnsq_lite.spark.options.SourceOptions`, :class:`~gnsq_lite.spark.options.SinkOptions`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._raw = dict(options.items())

    @classmethod
    def name(cls) -> str:
        """Return ``"nsq"``."""
        return "nsq"

    def schema(self) -> str:
        """Return the source's columns.  Checks the options, so that ``load()`` raises OptionError for a mistake."""
        options = parse(SourceOptions, self._raw)
        Recordings(options).check()
        return columns.ddl(options.include_youzan)

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the batch reader of a recording.  Raises OptionError for a channel, which only a stream can read."""
        from gnsq_lite.spark.batch import NsqBatchReader

        options = self._checked(schema)
        if options.records:
            why = (
                "a channel is read as a stream: use readStream with trigger(availableNow=True), which ends with the"
                " backlog, or record it with gnsq-lite record --until-empty and read the recording without topic"
            )
            raise OptionError("topic", options.topic, why)
        return NsqBatchReader(options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the streaming reader, which does no I/O until Spark calls a method for an offset."""
        from gnsq_lite.spark.stream import NsqStreamReader

        return NsqStreamReader(self._checked(schema))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer."""
        from gnsq_lite.spark.sink import NsqArrowWriter, check_columns

        options = parse(SinkOptions, self._raw)
        check_columns(_fields(schema), options, overwrite)
        return NsqArrowWriter(options)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        """Return the streaming writer."""
        from gnsq_lite.spark.sink import check_columns, stream_writer

        options = parse(SinkOptions, self._raw)
        check_columns(_fields(schema), options, overwrite)
        return stream_writer(options, [name for name, _ in _fields(schema)])

    def _checked(self, schema: Any) -> SourceOptions:
        options = parse(SourceOptions, self._raw)
        columns.check_schema(_fields(schema), all_columns(options.include_youzan))
        return options

    def __repr__(self) -> str:
        return f"NsqDataSource({redacted(self._raw)})"


def _fields(schema: Any) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
