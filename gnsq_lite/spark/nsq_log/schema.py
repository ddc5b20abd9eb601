"""The columns of ``format("nsq_log")``.  Every read from every replica returns the same values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.arrow import signed
from gnsq_lite.arrow_values import number_array, number_scalar, text_array, text_scalar

#: (column, Spark type, Arrow type).  ``offset`` is the message's offset in the log, in bytes.
LOG_COLUMNS: tuple[tuple[str, str, pa.DataType], ...] = (
    ("topic", "STRING", pa.string()),
    ("partition", "INT", pa.int32()),
    ("offset", "BIGINT", pa.int64()),
    ("timestamp", "TIMESTAMP", pa.timestamp("us", tz="UTC")),
    ("id", "STRING", pa.string()),
    ("internalId", "BIGINT", pa.int64()),
    ("traceId", "BIGINT", pa.int64()),
    ("ext", "STRING", pa.string()),
    ("body", "BINARY", pa.binary()),
)
LOG_DDL = ", ".join(f"{name} {kind}" for name, kind, _ in LOG_COLUMNS)
LOG_SCHEMA = pa.schema([pa.field(name, kind) for name, _, kind in LOG_COLUMNS])


def to_log_batch(topic: str, partition: int, messages: Sequence[Any]) -> pa.RecordBatch:
    """Return a partition's messages as one RecordBatch, in their order."""
    count = len(messages)
    headers = [None if message.headers is None else json.dumps(message.headers) for message in messages]
    nanoseconds = number_array((message.timestamp_ns for message in messages), pa.int64())
    arrays = [
        pa.repeat(text_scalar(topic, pa.string()), count),
        pa.repeat(number_scalar(partition, pa.int32()), count),
        number_array((message.queue_offset for message in messages), pa.int64()),
        pc.divide(nanoseconds, number_scalar(1000, pa.int64())).view(LOG_SCHEMA.field("timestamp").type),
        text_array((message.id.hex() for message in messages), pa.string()),
        number_array((signed(message.internal_id) for message in messages), pa.int64()),
        number_array((signed(message.trace_id) for message in messages), pa.int64()),
        text_array(headers, pa.string()),
        text_array((message.body for message in messages), pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=LOG_SCHEMA)
