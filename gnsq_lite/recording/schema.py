"""The columns of ``format("nsq")`` and their exact Arrow types.

Spark accepts a RecordBatch only if its schema equals Spark's exactly: microseconds in UTC, ``binary`` and
not ``large_binary``, the same order and nullability.  Spark checks only the first batch, so all types are defined here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.errors import OptionError
from gnsq_lite.message import Message, read_columns

#: (column, Spark type, Arrow type).  ``timestamp`` is the publish time by nsqd's clock, truncated to microseconds.
COLUMNS: tuple[tuple[str, str, pa.DataType], ...] = (
    ("topic", "STRING", pa.string()),
    ("channel", "STRING", pa.string()),
    ("nsqd", "STRING", pa.string()),
    ("id", "STRING", pa.string()),
    ("timestamp", "TIMESTAMP", pa.timestamp("us", tz="UTC")),
    ("attempts", "INT", pa.int32()),
    ("body", "BINARY", pa.binary()),
)

#: Columns that includeYouzan=true adds.  Unsigned ids are stored as signed numbers (two's complement).  ext is JSON.
YOUZAN_COLUMNS: tuple[tuple[str, str, pa.DataType], ...] = (
    ("partition", "INT", pa.int32()),
    ("internalId", "BIGINT", pa.int64()),
    ("traceId", "BIGINT", pa.int64()),
    ("ext", "STRING", pa.string()),
)


def columns(include_youzan: bool) -> tuple[tuple[str, str, pa.DataType], ...]:
    """Return the columns of a source."""
    return COLUMNS + YOUZAN_COLUMNS if include_youzan else COLUMNS


def ddl(include_youzan: bool = False) -> str:
    """Return the schema as Spark's DDL text."""
    return ", ".join(f"{name} {kind}" for name, kind, _ in columns(include_youzan))


def arrow_schema(include_youzan: bool = False) -> pa.Schema:
    """Return the Arrow schema."""
    return pa.schema([pa.field(name, kind) for name, _, kind in columns(include_youzan)])


def check_schema(fields: Iterable[tuple[str, str]], wanted: Sequence[tuple[str, str, pa.DataType]] = COLUMNS) -> None:
    """Raise OptionError if *fields*, (name, Spark type), are not *wanted*.  Spark does not check ``.schema(...)``."""
    given = [(name, kind.upper()) for name, kind in fields]
    if given != [(name, kind) for name, kind, _ in wanted]:
        shown = ", ".join(f"{name} {kind}" for name, kind in given)
        columns = ", ".join(f"{name} {kind}" for name, kind, _ in wanted)
        why = f"omit .schema(): the source always has the columns {columns}"
        raise OptionError("schema", shown, why)


def is_text_id(message_id: bytes) -> bool:
    """Return whether the 16 bytes are hex digits, as in nsqd's ids.  Youzan's ids are binary."""
    return message_id.isascii() and message_id.isalnum()


def id_text(message_id: bytes) -> str:
    """Return the id as text: 16 hex digits as nsqd sends them, or 32 hex digits for Youzan's 16 binary bytes."""
    return message_id.decode("ascii") if is_text_id(message_id) else message_id.hex()


def signed(value: int | None) -> int | None:
    """Convert an unsigned 64-bit number to Spark's signed number."""
    return value - (1 << 64) if value is not None and value >= 1 << 63 else value


_ORIGIN = attrgetter("nsqd_address")
#: Created once, because Arrow takes as long to convert a Python number as to process a thousand rows.
_THOUSAND = pa.scalar(1000, pa.int64())
#: Maximum rows of a batch for which the offsets of the ids are precomputed.  An id has 16 characters.
_MOST_IDS = 10_000
_ID_OFFSETS = pa.py_buffer(array("i", range(0, 16 * _MOST_IDS + 1, 16)))


def to_batch(messages: Sequence[Message], include_youzan: bool = False) -> pa.RecordBatch:
    """Return the messages of one or several connections as one RecordBatch, in their order."""
    schema = arrow_schema(include_youzan)
    names = [messages[0].topic, messages[0].channel]
    read = read_columns(list(messages))
    fields = _from_columns(*read[1:]) if read is not None else _from_messages(messages)
    origins = _origins(messages) if read is None or read[0] is None else _same(read[0], len(messages))
    arrays = [*(_same(name, len(messages)) for name in names), origins, *fields]
    if include_youzan:
        arrays += _youzan(messages)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _origins(messages: Sequence[Message]) -> pa.Array:
    origins = list(map(_ORIGIN, messages))
    return _same(origins[0], len(origins)) if len(set(origins)) == 1 else pa.array(origins, pa.string())


def _from_columns(stamps: bytes, attempts: bytes, ids: bytes, ends: bytes, bodies: bytes) -> list[pa.Array]:
    count = len(attempts) // 4
    texts = _text_ids(ids, count)
    return [
        pa.array([id_text(ids[at : at + 16]) for at in range(0, len(ids), 16)]) if texts is None else texts,
        _microseconds(stamps, count),
        pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(attempts)]),
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(bodies)]),
    ]


def _from_messages(messages: Sequence[Message]) -> list[pa.Array]:
    count = len(messages)
    ids = [message.id for message in messages]
    texts = _text_ids(b"".join(ids), count) if set(map(len, ids)) == {16} else None
    return [
        pa.array(map(id_text, ids), pa.string()) if texts is None else texts,
        _microseconds(array("q", [message.timestamp_ns for message in messages]), count),
        pa.array([message.attempts for message in messages], pa.int32()),
        pa.array([message.body for message in messages], pa.binary()),
    ]


def _microseconds(stamps: Any, count: int) -> pa.Array:
    nanoseconds = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(stamps)])
    return pc.divide(nanoseconds, _THOUSAND).view(COLUMNS[4][2])


def _text_ids(joined: bytes, count: int) -> pa.Array | None:
    """Return the column of *count* ids of 16 bytes, or None if an id is not hex digits or there are too many ids."""
    if count > _MOST_IDS or not is_text_id(joined):
        return None
    return pa.Array.from_buffers(pa.string(), count, [None, _ID_OFFSETS, pa.py_buffer(joined)])


def _youzan(messages: Sequence[Message]) -> list[pa.Array]:
    import json

    headers = [None if message.headers is None else json.dumps(message.headers) for message in messages]
    return [
        pa.array([message.partition for message in messages], pa.int32()),
        pa.array([signed(message.internal_id) for message in messages], pa.int64()),
        pa.array([signed(message.trace_id) for message in messages], pa.int64()),
        pa.array(headers, pa.string()),
    ]
