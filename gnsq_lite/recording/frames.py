"""The bytes of a log: a head with the Arrow schema, and frames of one Arrow record batch each.

A frame is 64 bytes of header - length, CRC-32 of the payload, rows, topic partition, number of the first row, least and
greatest publish time, time written, CRC-32 of the header - and an encapsulated record batch, padded to 64 bytes so that
Arrow reads it in place.  The checksums distinguish rows from a torn or unwritten tail.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.recording.errors import RecordingDamaged

MAGIC = b"GNSQREC1"
ALIGN = 64
_HEAD = struct.Struct("<8sII")  # magic, length of the schema message, its CRC-32
_FRAME = struct.Struct("<IIIiqqqq")
_CRC = struct.Struct("<I")
_PADDING = [bytes(size) for size in range(ALIGN)]
#: Rows of the batches given to readers; Spark takes 10,000 at a time fastest.  Fewer, where they have so many bytes.
BATCH_ROWS, BATCH_BYTES = 10_000, 16 << 20


class Frame(NamedTuple):
    """A frame's header.  Times are microseconds since 1970; *at* is the place of the header in its file."""

    first: int
    rows: int
    partition: int
    low: int
    high: int
    written: int
    size: int
    crc: int
    at: int = 0

    @property
    def last(self) -> int:
        """Number of the last row."""
        return self.first + self.rows - 1

    @property
    def end(self) -> int:
        """Place behind the frame."""
        return self.at + ALIGN + self.size + -self.size % ALIGN


def head(schema: pa.Schema) -> bytes:
    """Return the first bytes of a file of frames."""
    message: bytes = schema.serialize().to_pybytes()
    data: bytes = _HEAD.pack(MAGIC, len(message), zlib.crc32(message)) + message
    return data + _PADDING[-len(data) % ALIGN]


def read_head(data: pa.Buffer) -> tuple[pa.Schema, int] | None:
    """Return (schema, place of the first frame); None for another file, or a torn one."""
    if data.size < _HEAD.size:
        return None
    view = memoryview(data)
    magic, length, crc = _HEAD.unpack_from(view)
    end = _HEAD.size + length
    if magic != MAGIC or end > len(view) or zlib.crc32(view[_HEAD.size : end]) != crc:
        return None
    return pa.ipc.read_schema(data.slice(_HEAD.size, length)), end + -end % ALIGN


def encode(batch: pa.RecordBatch, first: int, partition: int, written: int) -> tuple[Frame, list[Any]]:
    """Return the header of *batch* as a frame, and the buffers to write, which share the batch's memory."""
    message = batch.serialize()
    span = pc.min_max(batch.column("timestamp").view(pa.int64()))
    low, high = span["min"].as_py(), span["max"].as_py()
    frame = Frame(first, batch.num_rows, partition, low, high, written, len(message), zlib.crc32(message))
    fields = _FRAME.pack(frame.size, frame.crc, frame.rows, partition, first, low, high, written)
    header = fields + _CRC.pack(zlib.crc32(fields))
    return frame, [header.ljust(ALIGN, b"\0"), message, _PADDING[-len(message) % ALIGN]]


def header(view: memoryview, at: int) -> Frame | None:
    """Return the header at a place, whether or not its payload is there; None where it is torn or damaged."""
    fields = view[at : at + _FRAME.size]
    if at + ALIGN > len(view) or _CRC.unpack_from(view, at + _FRAME.size)[0] != zlib.crc32(fields):
        return None
    size, crc, rows, partition, first, low, high, written = _FRAME.unpack(fields)
    return Frame(first, rows, partition, low, high, written, size, crc, at)


def frame_at(view: memoryview, at: int) -> Frame | None:
    """Return the frame at a place; None where none is whole there."""
    frame = header(view, at)
    return frame if frame is not None and frame.size and frame.end <= len(view) else None


def frames(view: memoryview, at: int) -> Iterator[Frame]:
    """Yield the whole frames from a place on; payloads are not checked."""
    while (frame := frame_at(view, at)) is not None:
        yield frame
        at = frame.end


def is_intact(view: memoryview, frame: Frame) -> bool:
    """Whether the payload has the checksum of the header."""
    begin = frame.at + ALIGN
    return zlib.crc32(view[begin : begin + frame.size]) == frame.crc


def decode(data: pa.Buffer, frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
    """Return a frame's rows, in the memory of *data*.  Raises RecordingDamaged."""
    if not is_intact(memoryview(data), frame):
        raise RecordingDamaged(f"rows {frame.first} to {frame.last} are damaged: the checksum differs")
    return pa.ipc.read_record_batch(data.slice(frame.at + ALIGN, frame.size), schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return *batch* with the columns of *schema*; those it lacks are null (includeYouzan was switched on)."""
    if batch.schema.equals(schema):
        return batch
    names = batch.schema.names
    arrays = [
        batch.column(names.index(field.name)) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def coalesced(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of about BATCH_ROWS, in order: small ones cost Spark more than their rows."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(conform(batch, schema))
        rows, size = rows + batch.num_rows, size + batch.get_total_buffer_size()
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield from _joined(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield from batches
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
