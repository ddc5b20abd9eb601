"""Messages as an Arrow RecordBatch, and the exact types of its columns.

Recordings, ``format("nsq")`` and handlers with ``batch_format="pyarrow"`` have these columns.  Spark accepts a
RecordBatch only if its schema equals Spark's exactly: microseconds in UTC, ``binary`` and not ``large_binary``, the
same order and nullability.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite._core import frame_columns
from gnsq_lite.arrow_values import from_buffer, number_array, number_scalar, text_array, text_scalar
from gnsq_lite.consume.rows import Rows
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


@cache
def arrow_schema(include_youzan: bool = False) -> pa.Schema:
    """Return the Arrow schema."""
    return pa.schema([pa.field(name, kind) for name, _, kind in columns(include_youzan)])


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
_THOUSAND = number_scalar(1000, pa.int64())
#: Rows of the columns that are created once, with equal texts or with the offsets of ids, which have 16 characters.
_MOST_IDS = 10_000
_ID_OFFSETS = pa.py_buffer(array("i", range(0, 16 * _MOST_IDS + 1, 16)))


def to_batch(messages: Sequence[Message], include_youzan: bool = False) -> pa.RecordBatch:
    """Return the messages of one or several connections, some of which may be Rows, as one RecordBatch, in order."""
    kinds = set(map(type, messages))
    if len(kinds) > 1 and Rows in kinds:
        groups = [list(group) for _, group in groupby(messages, lambda message: isinstance(message, Rows))]
        table = pa.Table.from_batches([to_batch(group, include_youzan) for group in groups])
        (batch,) = table.combine_chunks().to_batches()
        return batch
    if Rows in kinds:
        stamps, *others = frame_columns(tuple([message.frames for message in messages if isinstance(message, Rows)]))
        counts = [message._rows for message in messages]
        count, fields = sum(counts), _from_columns(from_buffer(stamps, pa.int64()), *others)
        origins = _repeated(list(map(_ORIGIN, messages)), counts)
        extra = [pa.nulls(count, kind) for _, _, kind in YOUZAN_COLUMNS] if include_youzan else []
    else:
        count, read = len(messages), read_columns(list(messages))
        fields = _from_messages(messages) if read is None else _from_columns(_microseconds(read[1]), *read[2:])
        origins = _origins(messages) if read is None or read[0] is None else _same(read[0], count)
        extra = _youzan(messages) if include_youzan else []
    names = [_same(name, count) for name in (messages[0].topic, messages[0].channel)]
    return pa.RecordBatch.from_arrays([*names, origins, *fields, *extra], schema=arrow_schema(include_youzan))


def _repeated(texts: list[str], counts: list[int]) -> pa.Array:
    """Return each of *texts* as often as *counts* says."""
    if len(set(texts)) == 1:
        return _same(texts[0], sum(counts))
    return pa.concat_arrays([_same(text, count) for text, count in zip(texts, counts, strict=True)])


def _same(text: str, count: int) -> pa.Array:
    return _many(text).slice(0, count) if count <= _MOST_IDS else pa.repeat(text_scalar(text, pa.string()), count)


@lru_cache(maxsize=64)
def _many(text: str) -> pa.Array:
    return pa.repeat(text_scalar(text, pa.string()), _MOST_IDS)


def _origins(messages: Sequence[Message]) -> pa.Array:
    origins = list(map(_ORIGIN, messages))
    return _same(origins[0], len(origins)) if len(set(origins)) == 1 else text_array(origins, pa.string())


def _from_columns(micros: pa.Array, attempts: bytes, ids: bytes, ends: bytes, bodies: bytes) -> list[pa.Array]:
    texts = _text_ids(ids)
    return [
        text_array((id_text(ids[at : at + 16]) for at in range(0, len(ids), 16)), pa.string())
        if texts is None
        else texts,
        micros.view(COLUMNS[4][2]),
        from_buffer(attempts, pa.int32()),
        pa.Array.from_buffers(pa.binary(), len(micros), [None, pa.py_buffer(ends), pa.py_buffer(bodies)]),
    ]


def _from_messages(messages: Sequence[Message]) -> list[pa.Array]:
    ids = [message.id for message in messages]
    texts = _text_ids(b"".join(ids)) if set(map(len, ids)) == {16} else None
    return [
        text_array(map(id_text, ids), pa.string()) if texts is None else texts,
        _microseconds(array("q", [message.timestamp_ns for message in messages])).view(COLUMNS[4][2]),
        number_array((message.attempts for message in messages), pa.int32()),
        text_array((message.body for message in messages), pa.binary()),
    ]


def _microseconds(stamps: Any) -> pa.Array:
    return pc.divide(from_buffer(stamps, pa.int64()), _THOUSAND)


def _text_ids(joined: bytes) -> pa.Array | None:
    """Return the column of ids of 16 bytes, or None if an id is not hex digits."""
    if not is_text_id(joined):
        return None
    count = len(joined) // 16
    offsets = _ID_OFFSETS if count <= _MOST_IDS else pa.py_buffer(array("i", range(0, 16 * count + 1, 16)))
    return pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(joined)])


def _youzan(messages: Sequence[Message]) -> list[pa.Array]:
    import json

    headers = [None if message.headers is None else json.dumps(message.headers) for message in messages]
    return [
        number_array((message.partition for message in messages), pa.int32()),
        number_array((signed(message.internal_id) for message in messages), pa.int64()),
        number_array((signed(message.trace_id) for message in messages), pa.int64()),
        text_array(headers, pa.string()),
    ]
