"""The file format of a log.  A file has a head with the Arrow schema, then frames with one Arrow record batch each.

A frame consists of a header of 64 bytes and an encapsulated record batch, the payload, which is padded to a multiple
of 64 bytes so that Arrow can read it in place.  The header has the payload's length and CRC-32, the number of rows, the
topic partition, the number of the first row, the least and greatest publish time, the time of the write, and the
header's CRC-32.  The checksums distinguish complete frames from an incomplete write at the end of the file.
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
_HEAD = struct.Struct("<8sII")  # magic, length of the schema message, CRC-32 of the schema message
_FRAME = struct.Struct("<IIIiqqqq")
_CRC = struct.Struct("<I")
_PADDING = [bytes(size) for size in range(ALIGN)]
#: Number of rows or bytes at which a batch for readers is complete.  Spark is fastest with 10,000 rows.
BATCH_ROWS, BATCH_BYTES = 10_000, 16 << 20


class Frame(NamedTuple):
    """A frame's header.  Times are microseconds since 1970.  *at* is the header's offset in the file."""

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
        """Offset of the first byte after the frame."""
        return self.at + ALIGN + self.size + -self.size % ALIGN


def head(schema: pa.Schema) -> bytes:
    """Return the head of a file of frames."""
    message: bytes = schema.serialize().to_pybytes()
    data: bytes = _HEAD.pack(MAGIC, len(message), zlib.crc32(message)) + message
    return data + _PADDING[-len(data) % ALIGN]


def read_head(data: pa.Buffer) -> tuple[pa.Schema, int] | None:
    """Return (schema, offset of the first frame), or None if the file's head is incomplete or damaged."""
    if data.size < _HEAD.size:
        return None
    view = memoryview(data)
    magic, length, crc = _HEAD.unpack_from(view)
    end = _HEAD.size + length
    if magic != MAGIC or end > len(view) or zlib.crc32(view[_HEAD.size : end]) != crc:
        return None
    return pa.ipc.read_schema(data.slice(_HEAD.size, length)), end + -end % ALIGN


def encode(batch: pa.RecordBatch, first: int, partition: int, written: int) -> tuple[Frame, list[Any]]:
    """Encode *batch* as a frame, and return the frame's header and the buffers to write."""
    message = batch.serialize()
    span = pc.min_max(batch.column("timestamp").view(pa.int64()))
    low, high = span["min"].as_py(), span["max"].as_py()
    frame = Frame(first, batch.num_rows, partition, low, high, written, len(message), zlib.crc32(message))
    fields = _FRAME.pack(frame.size, frame.crc, frame.rows, partition, first, low, high, written)
    header = fields + _CRC.pack(zlib.crc32(fields))
    return frame, [header.ljust(ALIGN, b"\0"), message, _PADDING[-len(message) % ALIGN]]


def header(view: memoryview, at: int) -> Frame | None:
    """Return the header at an offset, or None if the header is incomplete or damaged.  Ignores the payload."""
    fields = view[at : at + _FRAME.size]
    if at + ALIGN > len(view) or _CRC.unpack_from(view, at + _FRAME.size)[0] != zlib.crc32(fields):
        return None
    size, crc, rows, partition, first, low, high, written = _FRAME.unpack(fields)
    return Frame(first, rows, partition, low, high, written, size, crc, at)


def frame_at(view: memoryview, at: int) -> Frame | None:
    """Return the header of the frame at an offset, or None if its header is damaged or its payload incomplete."""
    frame = header(view, at)
    return frame if frame is not None and frame.size and frame.end <= len(view) else None


def frames(view: memoryview, at: int) -> Iterator[Frame]:
    """Yield the headers of the frames from an offset up to the first incomplete frame.  Does not check payloads."""
    while (frame := frame_at(view, at)) is not None:
        yield frame
        at = frame.end


def is_intact(view: memoryview, frame: Frame) -> bool:
    """Return whether the payload matches the header's checksum."""
    begin = frame.at + ALIGN
    return zlib.crc32(view[begin : begin + frame.size]) == frame.crc


def decode(data: pa.Buffer, frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
    """Return a frame's rows, which share the memory of *data*.  Raises RecordingDamaged."""
    if not is_intact(memoryview(data), frame):
        raise RecordingDamaged(f"rows {frame.first} to {frame.last} are damaged: the checksum differs")
    return pa.ipc.read_record_batch(data.slice(frame.at + ALIGN, frame.size), schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return *batch* with the columns of *schema*.  Columns that *batch* lacks (those of includeYouzan) are null."""
    if batch.schema.equals(schema):
        return batch
    names = batch.schema.names
    arrays = [
        batch.column(names.index(field.name)) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def coalesced(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows in order, in batches of about BATCH_ROWS or BATCH_BYTES, because each batch costs Spark time."""
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
