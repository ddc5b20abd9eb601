"""The columns of ``format("nsq")`` and their exact Arrow types.

Spark takes a RecordBatch only where its schema equals Spark's own to the letter: microseconds in UTC, ``binary`` and
not ``large_binary``, the same order and nullability.  It checks the first batch alone, so the types are made in one
place, here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.errors import OptionError

#: (column, Spark type, Arrow type).  ``timestamp`` is the publish time by nsqd's clock, its nanoseconds cut to us.
COLUMNS: tuple[tuple[str, str, pa.DataType], ...] = (
    ("topic", "STRING", pa.string()),
    ("channel", "STRING", pa.string()),
    ("nsqd", "STRING", pa.string()),
    ("id", "STRING", pa.string()),
    ("timestamp", "TIMESTAMP", pa.timestamp("us", tz="UTC")),
    ("attempts", "INT", pa.int32()),
    ("body", "BINARY", pa.binary()),
)

#: Added by includeYouzan=true.  Ids are unsigned on the wire and signed here (two's complement); ext is JSON text.
YOUZAN_COLUMNS: tuple[tuple[str, str, pa.DataType], ...] = (
    ("partition", "INT", pa.int32()),
    ("internalId", "BIGINT", pa.int64()),
    ("traceId", "BIGINT", pa.int64()),
    ("ext", "STRING", pa.string()),
)


class Received(Protocol):
    """What a row is made of; :class:`gnsq_lite.Message` is one."""

    @property
    def id(self) -> bytes: ...
    @property
    def timestamp_ns(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def topic(self) -> str: ...
    @property
    def channel(self) -> str: ...
    @property
    def nsqd_address(self) -> str: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def internal_id(self) -> int | None: ...
    @property
    def trace_id(self) -> int | None: ...
    @property
    def headers(self) -> dict[str, Any] | None: ...


def columns(include_youzan: bool) -> tuple[tuple[str, str, pa.DataType], ...]:
    """Return the columns of a source."""
    return COLUMNS + YOUZAN_COLUMNS if include_youzan else COLUMNS


def ddl(include_youzan: bool = False) -> str:
    """Return the schema as Spark's DDL text."""
    return ", ".join(f"{name} {kind}" for name, kind, _ in columns(include_youzan))


def arrow_schema(include_youzan: bool = False) -> pa.Schema:
    """Return the schema as Arrow's."""
    return pa.schema([pa.field(name, kind) for name, _, kind in columns(include_youzan)])


def check_schema(fields: Iterable[tuple[str, str]], wanted: Sequence[tuple[str, str, pa.DataType]] = COLUMNS) -> None:
    """Raise OptionError where a ``.schema(...)`` of (name, Spark type) differs: Spark itself checks none at load."""
    given = [(name, kind.upper()) for name, kind in fields]
    if given != [(name, kind) for name, kind, _ in wanted]:
        shown = ", ".join(f"{name} {kind}" for name, kind in given)
        its_own = ", ".join(f"{name} {kind}" for name, kind, _ in wanted)
        why = f"the source has a schema of its own, leave .schema() away; it is: {its_own}"
        raise OptionError("schema", shown, why)


def is_text_id(message_id: bytes) -> bool:
    """Whether the 16 bytes are nsqd's hex digits; Youzan's are binary."""
    return message_id.isascii() and message_id.isalnum()


def id_text(message_id: bytes) -> str:
    """Return the id as text: nsqd's 16 hex digits as they are, Youzan's 16 binary bytes as 32 hex digits."""
    return message_id.decode("ascii") if is_text_id(message_id) else message_id.hex()


def signed(value: int | None) -> int | None:
    """Return an unsigned 64-bit number as Spark has it: signed."""
    return value - (1 << 64) if value is not None and value >= 1 << 63 else value


_ORIGIN = attrgetter("nsqd_address")


def to_batch(messages: Sequence[Received], include_youzan: bool = False) -> pa.RecordBatch:
    """Return the messages as one RecordBatch, in their order.  All of them are of one connection or of several."""
    count = len(messages)
    schema = arrow_schema(include_youzan)
    first = messages[0]
    origins = list(map(_ORIGIN, messages))
    arrays = [
        pa.repeat(pa.scalar(first.topic, pa.string()), count),
        pa.repeat(pa.scalar(first.channel, pa.string()), count),
        pa.repeat(pa.scalar(origins[0], pa.string()), count)
        if len(set(origins)) == 1
        else pa.array(origins, pa.string()),
        _ids([message.id for message in messages]),
        pc.divide(pa.array([message.timestamp_ns for message in messages], pa.int64()), 1000).view(
            schema.field(4).type
        ),
        pa.array([message.attempts for message in messages], pa.int32()),
        pa.array([message.body for message in messages], pa.binary()),
    ]
    if include_youzan:
        arrays += _youzan(messages)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _ids(ids: list[bytes]) -> pa.Array:
    if is_text_id(ids[0]):
        try:
            return pa.array(ids, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:  # a binary id that began like a text one
            pass
    return pa.array([id_text(one) for one in ids], pa.string())


def _youzan(messages: Sequence[Received]) -> list[pa.Array]:
    import json

    headers = [None if message.headers is None else json.dumps(message.headers) for message in messages]
    return [
        pa.array([message.partition for message in messages], pa.int32()),
        pa.array([signed(message.internal_id) for message in messages], pa.int64()),
        pa.array([signed(message.trace_id) for message in messages], pa.int64()),
        pa.array(headers, pa.string()),
    ]
