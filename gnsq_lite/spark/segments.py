"""Segment files: Arrow record batches behind checksums, read by mapping them into memory.

A file is a head (magic, Arrow schema) and then records.  Each record is 64 bytes - length, CRC-32, rows - and one
encapsulated Arrow record batch, padded to 64 bytes so that Arrow reads it in place.  The checksum tells a torn or
unwritten tail from rows: what was not synced before a crash is cut off, never read as garbage.  A sealed segment says
in its name how many rows and bytes it has.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from gnsq_lite.errors import NSQError

MAGIC = b"GNSQSEG1"
ALIGN = 64
_HEAD = struct.Struct("<8sII")  # magic, length of the schema message, its CRC-32
_RECORD = struct.Struct("<IIII")  # length, CRC-32, rows, CRC-32 of the three
_NAME = re.compile(r"seg-(\d{16})-p(-?\d+)-(\d+)-(\d+)\.seg")
#: Rows of the batches given to Spark, which takes 10,000 at a time fastest; fewer, where they have so many bytes.
BATCH_ROWS, BATCH_BYTES = 10_000, 16 << 20


class SegmentDamaged(NSQError):
    """A sealed segment does not hold what its name says."""


@dataclass(frozen=True, order=True)
class Segment:
    """A sealed segment.  ``partition`` is Youzan's topic partition, -1 elsewhere."""

    number: int
    partition: int
    rows: int
    size: int

    @property
    def name(self) -> str:
        """The file's name."""
        return f"seg-{self.number:016d}-p{self.partition}-{self.rows}-{self.size}.seg"


def parse_name(name: str) -> Segment | None:
    """Return the segment a file's name tells of; None for another file."""
    found = _NAME.fullmatch(name)
    return None if found is None else Segment(*(int(part) for part in found.groups()))


def listed(directory: Path) -> list[Segment]:
    """Return the sealed segments in *directory*, by number."""
    if not directory.is_dir():
        return []
    return sorted(found for path in directory.iterdir() if (found := parse_name(path.name)) is not None)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGN)


def head(schema: pa.Schema) -> bytes:
    """Return the first bytes of a segment file."""
    message = schema.serialize().to_pybytes()
    return _padded(_HEAD.pack(MAGIC, len(message), zlib.crc32(message)) + message)


def record(batch: pa.RecordBatch) -> bytes:
    """Return the bytes that append *batch* to a segment file."""
    message = batch.serialize()
    fields = struct.pack("<III", len(message), zlib.crc32(message), batch.num_rows)
    head = _padded(fields + struct.pack("<I", zlib.crc32(fields)))
    return b"".join((head, message, b"\0" * (-len(message) % ALIGN)))


@dataclass(frozen=True)
class Scan:
    """What a file holds up to its first damage: batches, and the bytes they and the head take."""

    batches: list[pa.RecordBatch]
    rows: int
    size: int


def scan(data: pa.Buffer) -> Scan:
    """Return the whole records of a segment file's bytes, up to the first that is torn or damaged.  Total."""
    view = memoryview(data)
    if len(view) < _HEAD.size:
        return Scan([], 0, 0)
    magic, length, crc = _HEAD.unpack_from(view)
    at = _HEAD.size + length
    if magic != MAGIC or at > len(view) or zlib.crc32(view[_HEAD.size : at]) != crc:
        return Scan([], 0, 0)
    schema = pa.ipc.read_schema(data.slice(_HEAD.size, length))
    at += -at % ALIGN
    batches: list[pa.RecordBatch] = []
    rows = 0
    while at + ALIGN <= len(view):
        length, crc, count, check = _RECORD.unpack_from(view, at)
        start = at + ALIGN
        whole = start + length <= len(view) and length > 0
        if not whole or zlib.crc32(view[at : at + 12]) != check or zlib.crc32(view[start : start + length]) != crc:
            break
        end = start + length + -length % ALIGN
        if end > len(view):
            break
        batches.append(pa.ipc.read_record_batch(data.slice(start, length), schema))
        rows += count
        at = end
    return Scan(batches, rows, min(at, len(view)))


def has_record(data: pa.Buffer, behind: int) -> bool:
    """Whether some record is whole *behind* the first damage, which is no torn write then: one is the last."""
    view = memoryview(data)
    for at in range(behind + -behind % ALIGN, len(view) - ALIGN + 1, ALIGN):
        length, crc, _, check = _RECORD.unpack_from(view, at)
        start = at + ALIGN
        found = 0 < length + -length % ALIGN <= len(view) - start and zlib.crc32(view[at : at + 12]) == check
        if found and zlib.crc32(view[start : start + length]) == crc:
            return True
    return False


def scan_file(path: Path) -> Scan:
    """Return what *path* holds; its bytes stay mapped as long as the batches live."""
    if path.stat().st_size == 0:
        return Scan([], 0, 0)
    with pa.memory_map(str(path)) as mapped:
        return scan(mapped.read_buffer())


def read(data: pa.Buffer, segment: Segment) -> list[pa.RecordBatch]:
    """Return the batches of a sealed segment.  Raises SegmentDamaged where rows are missing."""
    found = scan(data)
    if found.rows != segment.rows or found.size != segment.size:
        raise SegmentDamaged(
            f"segment {segment.name} is damaged: {found.rows} of {segment.rows} rows, {found.size} of {segment.size}"
            " bytes can be read"
        )
    return found.batches


def read_file(path: Path, segment: Segment) -> list[pa.RecordBatch]:
    """Return the batches of a sealed segment's file.  Raises SegmentDamaged; FileNotFoundError."""
    with pa.memory_map(str(path)) as mapped:
        return read(mapped.read_buffer(), segment)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return *batch* with the columns of *schema*: those it lacks are null (includeYouzan was switched on)."""
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


def grouped(segments: Sequence[Segment], most_rows: int, most_bytes: int) -> list[list[Segment]]:
    """Cut a batch's segments into tasks: neighbours, up to the limits; topic partitions apart and in order.

    A pure function of its arguments: a batch that runs again has the same tasks with the same rows (PIPE-3).
    """
    groups: list[list[Segment]] = []
    latest: dict[int, tuple[list[Segment], int, int]] = {}
    for segment in segments:
        group, rows, size = latest.get(segment.partition, ([], 0, 0))
        rows, size = rows + segment.rows, size + segment.size
        ordered = segment.partition >= 0
        if not group or not (ordered or (rows <= most_rows and size <= most_bytes)):
            group, rows, size = [], segment.rows, segment.size
            groups.append(group)
        group.append(segment)
        latest[segment.partition] = group, rows, size
    return groups
