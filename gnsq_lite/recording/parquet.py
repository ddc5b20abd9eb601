"""The format of sealed files: Parquet files with the rows of finished packs or objects, which any tool reads.

::

    parquet/LOG-FIRST.parquet    rows of the log LOG from the row FIRST on; the footer has the number of rows
    parquet/schema.parquet       no rows, so that every tool can read the folder before the first rows are sealed
    sealing/                     files that a recorder writes now (directories only)

The folder ``parquet`` has only finished files, because each tool fails at other names of unfinished files.  The name
has the first row and not the last, so that only one of two processes can create the file of a row.
"""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.arrow import COLUMNS, YOUZAN_COLUMNS, arrow_schema
from gnsq_lite.recording.errors import RecordingDamaged, RecordingError
from gnsq_lite.recording.frames import BATCH_ROWS, Frame, conform

FOLDER, STAGING, SCHEMA_FILE = "parquet", "sealing", "schema.parquet"
#: Bytes of Arrow memory at which a row group is complete.
GROUP_BYTES = 16 << 20
#: Bytes at the end of a file that contain the whole footer of most files.
TAIL = 64 << 10
#: Columns with few distinct values, and columns whose least and greatest value let a tool skip row groups.
_DICTIONARIES = ["topic", "channel", "nsqd", "attempts"]
_STATISTICS = ["timestamp", "id"]
_KEY = b"gnsq_lite"
_NAME = re.compile(r"([0-9a-f]+)-(\d{16})\.parquet")


class Footer(NamedTuple):
    """What a sealed file tells of its rows.  Times are microseconds since 1970.

    *began* and *written* are the times of the first and the last write of these rows.  *runs* has (topic partition,
    number of rows), in the order of the rows; the partition is -1 for plain NSQ.  *crc* is the CRC-32 of the first
    *size* bytes, all before the footer, because the checksums of pages do not cover the headers of pages.
    """

    first: int
    last: int
    began: int
    written: int
    runs: list[tuple[int, int]]
    size: int = 0
    crc: int = 0


def sealed_name(log: str, first: int) -> str:
    """Return the name of the sealed file whose first row has this number."""
    return f"{log}-{first:016d}.parquet"


def first_of(name: str, log: str) -> int | None:
    """Return the first row of the sealed file *name* of *log*, or None for any other name."""
    found = _NAME.fullmatch(name)
    return int(found[2]) if found is not None and found[1] == log else None


def is_sealed(name: str) -> bool:
    """Return whether *name* is that of a sealed file, and not of a pack or an object."""
    return name.endswith(".parquet")


def file_schema(include_youzan: bool) -> pa.Schema:
    """Return the columns of sealed files.  Only the columns of Youzan's NSQ may be null."""
    fields = [pa.field(name, kind, nullable=False) for name, _, kind in COLUMNS]
    return pa.schema(fields + ([pa.field(name, kind) for name, _, kind in YOUZAN_COLUMNS] if include_youzan else []))


class _Sum(io.RawIOBase):
    """A file object that passes bytes on to *sink*, and counts and sums them."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink, self.size, self.crc = sink, 0, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        self.size, self.crc = self.size + len(data), zlib.crc32(data, self.crc)
        return self._sink.write(data)


def write(sink: BinaryIO, rows: Iterable[tuple[Frame, pa.RecordBatch]], include_youzan: bool) -> None:
    """Write rows, given as frames with their batches, to the binary file object *sink* as a Parquet file.

    Raises RecordingError if rows have the columns of Youzan's NSQ and *include_youzan* is false.
    """
    from pyarrow.parquet import ParquetWriter

    schema, footer = file_schema(include_youzan), Footer(0, -1, 0, 0, [])
    waiting: list[pa.RecordBatch] = []
    size, runs = 0, footer.runs
    file = _Sum(sink)
    with ParquetWriter(
        file,
        schema,
        compression="zstd",
        use_dictionary=_DICTIONARIES,
        write_statistics=_STATISTICS,
        write_page_checksum=True,
    ) as writer:
        for frame, batch in rows:
            if waiting and size >= GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting), row_group_size=1 << 31)
                waiting, size = [], 0
            if not include_youzan and "partition" in batch.schema.names:
                raise RecordingError("rows have columns of Youzan's NSQ, which the recording's Parquet files lack")
            waiting.append(conform(batch, schema))
            size += batch.nbytes
            same = bool(runs) and runs[-1][0] == frame.partition
            count = batch.num_rows + (runs.pop()[1] if same else 0)
            runs.append((frame.partition, count))
            first, began = (footer.first, footer.began) if footer.first else (frame.first, frame.written)
            footer = Footer(first, frame.last, began, frame.written, runs)
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting), row_group_size=1 << 31)
        footer = footer._replace(size=file.size, crc=file.crc)
        writer.add_key_value_metadata({_KEY: _encoded(footer)})


def _encoded(found: Footer) -> bytes:
    """Return *found* as JSON.  Runs are compressed, because Youzan's NSQ may have as many as there are rows."""
    runs = base64.b64encode(zlib.compress(json.dumps(found.runs).encode())).decode()
    return json.dumps({**found._asdict(), "runs": runs}).encode()


def footer(tail: pa.Buffer, name: str) -> Footer | None:
    """Parse the footer at the end of *tail*.  Return None if *tail* is too short.  Raises RecordingDamaged."""
    from pyarrow.parquet import read_metadata

    end = bytes(memoryview(tail)[-8:])
    if end[4:] == b"PAR1" and int.from_bytes(end[:4], "little") + 8 > tail.size:
        return None
    try:
        return _footer(read_metadata(pa.BufferReader(tail)))
    except (OSError, ValueError, TypeError, KeyError, zlib.error) as error:
        raise RecordingDamaged(f"{name} is damaged: {error}") from error


def _footer(metadata: Any) -> Footer:
    fields = json.loads(metadata.metadata[_KEY])
    runs = json.loads(zlib.decompress(base64.b64decode(fields["runs"])))
    found = Footer(**{**fields, "runs": runs})
    if found.last - found.first + 1 != metadata.num_rows or sum(count for _, count in found.runs) != metadata.num_rows:
        raise ValueError(f"{metadata.num_rows} rows, but the footer says rows {found.first} to {found.last}")
    return found


def check(data: pa.Buffer, name: str) -> Footer:
    """Return the footer of a whole sealed file.  Raises RecordingDamaged if a byte before it has changed."""
    found = footer(data, name)
    if found is None or zlib.crc32(memoryview(data)[: found.size]) != found.crc:
        raise RecordingDamaged(f"{name} is damaged: the checksum differs")
    return found


def read(data: pa.Buffer, name: str, start: int, end: int) -> Iterator[tuple[Frame, pa.RecordBatch]]:
    """Yield the rows *start* < row <= *end* of a sealed file, in the form of frames.  Raises RecordingDamaged."""
    from pyarrow.parquet import ParquetFile

    found = check(data, name)
    ends = list(accumulate(count for _, count in found.runs))
    try:
        file = ParquetFile(pa.BufferReader(data))
        schema = arrow_schema("partition" in file.schema_arrow.names)
        at = found.first
        for index in range(file.num_row_groups):
            count = file.metadata.row_group(index).num_rows
            if at + count <= start + 1 or at > end:
                at += count
                continue
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[index], use_threads=False):
                rest = conform(batch, schema)
                while rest.num_rows:
                    if at > end:
                        return
                    run = bisect_right(ends, at - found.first)
                    piece = rest.slice(0, ends[run] - (at - found.first))
                    at, rest = at + piece.num_rows, rest.slice(piece.num_rows)
                    if at > start + 1:
                        yield _framed(piece, at - piece.num_rows, found.runs[run][0], found.written)
    except (OSError, ValueError, TypeError, IndexError) as error:  # pa.ArrowInvalid is a ValueError
        raise RecordingDamaged(f"{name} is damaged: {error}") from error


def _framed(batch: pa.RecordBatch, first: int, partition: int, written: int) -> tuple[Frame, pa.RecordBatch]:
    span = pc.min_max(batch.column("timestamp").view(pa.int64()))
    low, high = span["min"].as_py(), span["max"].as_py()
    return Frame(first, batch.num_rows, partition, low, high, written, 0, 0), batch
