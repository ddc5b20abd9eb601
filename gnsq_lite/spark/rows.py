"""Checks rows before the sink sends them.  The option onBadRow applies to rows that nsqd would refuse."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.arrow_values import flag_array, number_scalar
from gnsq_lite.errors import InvalidBody, MessageTooLarge, NSQError, OptionError
from gnsq_lite.spark.options import SinkOptions
from gnsq_lite.wire.names import check_topic

log = logging.getLogger("gnsq_lite.spark")

#: Maximum bytes of a bad row's record without the body.
_RECORD_BYTES = 1024
_ZERO = number_scalar(0.0, pa.float64())


class BadRows(NSQError, ValueError):
    """nsqd would refuse rows, and onBadRow is error.  No row of the checked slice was sent."""


class Run(NamedTuple):
    """Consecutive rows of one topic.  *defers* has the delay of each row in seconds, or is None if all delays are 0."""

    topic: str
    bodies: pa.Array
    defers: pa.Array | None


class CheckedRows(NamedTuple):
    """The valid rows of a slice, JSON records of bad rows (onBadRow=topic:NAME), and whether no row was bad."""

    runs: list[Run]
    records: list[bytes]
    is_whole: bool
    size: int


def check(batch: pa.RecordBatch, options: SinkOptions) -> CheckedRows:
    """Return the rows of *batch* that nsqd would accept, by topic and in order.

    Raises BadRows.  Raises OptionError if the rows have no topic, or their bodies are neither binary nor text.
    """
    bodies = _binary(batch.column("body"))
    topics = _topics(batch, options.topic)
    lengths = pc.fill_null(pc.binary_length(bodies), number_scalar(0, pa.int32()))
    wrong = {topic: error for topic in dict.fromkeys(topics) if (error := _topic_error(topic)) is not None}
    records: list[bytes] = []
    span = pc.min_max(lengths)
    if batch.num_rows and (wrong or span["min"].as_py() == 0 or span["max"].as_py() > options.max_message_bytes):
        errors = [
            wrong.get(topic) or _body_error(length, options.max_message_bytes)
            for topic, length in zip(topics, lengths.to_pylist(), strict=True)
        ]
        records = _left_out(errors, topics, bodies, options)
        kept = flag_array(error is None for error in errors)
        batch, bodies, lengths = batch.filter(kept), bodies.filter(kept), lengths.filter(kept)
        topics = [topic for topic, error in zip(topics, errors, strict=True) if error is None]
        return CheckedRows(list(_runs(batch, topics, bodies)), records, False, pc.sum(lengths).as_py() or 0)
    return CheckedRows(list(_runs(batch, topics, bodies)), records, True, pc.sum(lengths).as_py() or 0)


def _binary(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return column.cast(pa.binary())
    if not pa.types.is_binary(kind):
        why = "the column must be BINARY or STRING; cast it, or use to_json(struct(...))"
        raise OptionError("body", str(kind), why)
    return column


def _topics(batch: pa.RecordBatch, default: str) -> list[str]:
    if "topic" in batch.schema.names:
        return [topic or default for topic in batch.column("topic").to_pylist()]
    if not default:
        raise OptionError("topic", "", "set the option topic, or give the rows a column 'topic'")
    return [default] * batch.num_rows


def _topic_error(topic: str) -> NSQError | None:
    try:
        check_topic(topic)
    except NSQError as error:
        return error if topic else InvalidBody("the row's topic is null, and the option topic is not set")
    return None


def _body_error(length: int, most: int) -> NSQError | None:
    if length > most:
        return MessageTooLarge(length, most)
    return None if length else InvalidBody("null or empty body, which nsqd refuses")


def _left_out(errors: list[NSQError | None], topics: list[str], bodies: pa.Array, options: SinkOptions) -> list[bytes]:
    """Return the records of bad rows.  Raises BadRows with onBadRow=error."""
    bad = [place for place, error in enumerate(errors) if error is not None]
    why = f"nsqd would refuse {len(bad)} of {len(errors)} rows, the first because of: {errors[bad[0]]}"
    if options.on_bad_row == "error":
        raise BadRows(f"{why}; onBadRow=skip or topic:NAME continues without these rows")
    log.warning("%s; onBadRow=%s: continuing without these rows", why, options.on_bad_row)
    if options.on_bad_row == "skip":
        return []
    most = max(0, options.max_message_bytes - _RECORD_BYTES) * 3 // 4
    return [_record(str(errors[place]), topics[place], bodies[place].as_py(), most) for place in bad]


def _record(why: str, topic: str, body: bytes | None, most: int) -> bytes:
    """Encode the record of a bad row as JSON, with at most *most* bytes of the body."""
    text = None if body is None else base64.b64encode(body[:most]).decode()
    return json.dumps({"error": why[:400], "topic": topic[:100], "bytes": len(body or b""), "body": text}).encode()


def _runs(batch: pa.RecordBatch, topics: list[str], bodies: pa.Array) -> Iterator[Run]:
    """Yield the runs of consecutive rows with one topic."""
    defers: Any = batch.column("defer").cast(pa.float64()) if "defer" in batch.schema.names else None
    at, last = 0, len(topics)
    for index in range(1, last + 1) if len(set(topics)) > 1 else {last} - {0}:
        if index == last or topics[index] != topics[at]:
            some = None if defers is None else defers.slice(at, index - at)
            waits = some is not None and pc.any(pc.greater(pc.fill_null(some, _ZERO), _ZERO)).as_py()
            yield Run(topics[at], bodies.slice(at, index - at), some if waits else None)
            at = index
