"""Recognizes copies: messages that nsqd sends again after their rows were stored.

A copy has the key of the first delivery: its id, publish time and nsqd (Youzan's NSQ: topic partition).  nsqd sends a
copy if the FIN is late or is lost with its connection.  An nsqd that was killed sends copies of all messages that it
read from its disk queue after the last sync.  Such a copy may come a week later, and its attempts start at 1, so no key
expires.  Most messages are newer than all stored messages of their nsqd.  The index looks up only the other messages.

The keys of the newest rows are in memory.  :meth:`DedupIndex.flush` writes these keys to an index file.  Afterwards the
packs or objects of these rows may be removed.  An index file has a JSON head with the first and last publish time of
each chunk of keys, and the compressed chunks.  A lookup reads only the chunks that may hold the key of a copy.
"""

from __future__ import annotations

import json
import logging
import re
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.arrow_values import flag_array, number_scalar, text_scalar
from gnsq_lite.recording.ahead import read_ahead
from gnsq_lite.recording.files import Blobs

log = logging.getLogger("gnsq_lite.recording")

_HEAD = struct.Struct("<8sII")  # magic, length of the JSON, CRC-32 of the JSON
_MAGIC = b"GNSQIDS1"
_NAME = re.compile(r"ids-(\d{16})-(\d+)\.idx")
_SCHEMA = pa.schema([("id", pa.string()), ("time", pa.int64())])
#: A flush is due at FLUSH_ROWS keys in memory.  A flush also rewrites a newest file of fewer than FILE_ROWS keys.
FLUSH_ROWS, FILE_ROWS = 100_000, 100_000
#: A chunk has at most CHUNK_ROWS keys, and ends at each of the MOST_GAPS longest gaps of more than GAP microseconds.
CHUNK_ROWS, MOST_GAPS, GAP = 50_000, 16, 10_000_000
#: Bytes of the first read of a file.  Most heads are smaller.
HEAD_READ = 16_384
#: More than MOST_SMALL small chunks of an origin in memory are merged.  At most CACHED chunks of files are cached.
MOST_SMALL, CACHED = 64, 8


@dataclass(eq=False)
class Chunk:
    """Keys of one origin between two publish times.  The keys are in memory, or at an offset of a file."""

    origin: str
    low: int
    high: int
    rows: int
    keys: pa.Table | None = None
    blobs: Blobs | None = None
    name: str = ""
    at: int = 0
    size: int = 0
    crc: int = 0

    def load(self) -> pa.Table:
        """Return the keys.  Raises OSError, or ValueError or pa.ArrowInvalid for a damaged file."""
        if self.keys is not None or self.blobs is None:
            return self.keys
        data = self.blobs.read(self.name, self.at, self.size)
        if zlib.crc32(data) != self.crc:
            raise ValueError(f"{self.name} is damaged")
        return pa.ipc.open_stream(data).read_all()


@dataclass(eq=False)
class IndexFile:
    """An index file.  ``number`` is the number of the newest row whose key is in this file or in an older file."""

    name: str
    number: int
    rows: int
    chunks: list[Chunk]


class DedupIndex:
    """Index of the keys of the newest stored rows.  Above *most_rows* keys, a flush removes the oldest files."""

    def __init__(self, blobs: Blobs, most_rows: int) -> None:
        self._blobs, self._most_rows = blobs, most_rows
        self._files: list[IndexFile] = []
        self._small: dict[str, list[Chunk]] = {}
        self._joined: list[Chunk] = []
        self._cache: OrderedDict[Chunk, pa.Table] = OrderedDict()
        self._newest: dict[str, int] = {}
        self._unwritten = 0
        self.dropped = 0

    @property
    def rows(self) -> int:
        """Return the number of known keys."""
        return self._unwritten + sum(file.rows for file in self._files)

    @property
    def is_due(self) -> bool:
        """Return whether a flush is due."""
        return self._unwritten >= FLUSH_ROWS

    # -- lookup and update

    def fresh(self, partition: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of *batch* that are not stored, without duplicates.  *partition* is -1 for plain NSQ."""
        ids, times = _keys(batch)
        copies: set[tuple[str, str, int]] = set()
        for origin, mask in _origins(partition, batch):
            newest = self._newest.get(origin)
            if newest is None:
                continue
            if pc.min_max(times)["min"].as_py() > newest:
                continue
            suspects = pc.less_equal(times, number_scalar(newest, pa.int64()))
            if mask is not None:
                suspects = pc.and_(suspects, mask)
            if pc.any(suspects).as_py():
                copies |= self._found(origin, ids.filter(suspects), times.filter(suspects))
        if not copies and _are_distinct(ids):
            return batch
        origins = [f"#{partition}"] * len(ids) if partition >= 0 else batch.column("nsqd").to_pylist()
        keep = []
        for key in zip(origins, ids.to_pylist(), times.to_pylist(), strict=True):
            keep.append(key not in copies)
            copies.add(key)
        self.dropped += keep.count(False)
        return batch.filter(flag_array(keep))

    def _found(self, origin: str, ids: pa.Array, times: pa.Array) -> set[tuple[str, str, int]]:
        span = pc.min_max(times)
        low, high = span["min"].as_py(), span["max"].as_py()
        found: set[tuple[str, str, int]] = set()
        for chunk in self._chunks():
            if chunk.origin != origin or chunk.high < low or chunk.low > high:
                continue
            keys = self._loaded(chunk)
            near = keys.filter(pc.is_in(keys.column("time"), value_set=times))
            if near.num_rows:
                hits = near.filter(pc.is_in(near.column("id"), value_set=ids))
                columns = [column.to_pylist() for column in hits.columns]
                found.update((origin, *key) for key in zip(*columns, strict=True))
        return found

    def _chunks(self) -> Iterator[Chunk]:
        yield from self._in_memory()
        for file in reversed(self._files):
            yield from file.chunks

    def _in_memory(self) -> Iterator[Chunk]:
        for chunks in self._small.values():
            yield from chunks
        yield from self._joined

    def _loaded(self, chunk: Chunk) -> pa.Table:
        if chunk.keys is not None:
            return chunk.keys
        if chunk not in self._cache:
            try:
                self._cache[chunk] = chunk.load()
            except (OSError, pa.ArrowInvalid, ValueError) as error:
                log.warning("an index file of known messages cannot be read; copies may be stored again: %s", error)
                self._cache[chunk] = _SCHEMA.empty_table()
            if len(self._cache) > CACHED:
                self._cache.popitem(last=False)
        self._cache.move_to_end(chunk)
        return self._cache[chunk]

    def add(self, partition: int, batch: pa.RecordBatch) -> None:
        """Add the keys of *batch*, whose rows were just stored."""
        ids, times = _keys(batch)
        for origin, mask in _origins(partition, batch):
            keys = pa.Table.from_arrays([ids, times], schema=_SCHEMA)
            chunk = _chunk(origin, keys if mask is None else keys.filter(mask))
            small = self._small.setdefault(origin, [])
            small += [chunk] if chunk.high - chunk.low <= GAP else _split(origin, chunk.load())
            self._newest[origin] = max(chunk.high, self._newest.get(origin, chunk.high))
            if len(small) > MOST_SMALL:
                self._joined += _split(origin, pa.concat_tables(one.load() for one in small))
                small.clear()
        self._unwritten += batch.num_rows

    def load(self, stored: Iterable[tuple[int, pa.RecordBatch]]) -> None:
        """Add the keys of stored rows, given as (topic partition, batch), oldest first."""
        for partition, batch in stored:
            self.add(partition, _detached(batch))

    # -- the files

    def open(self) -> int:
        """Read the heads of the index files, and return the number of the newest row whose key is in a file."""
        names = self._blobs.names()
        heads = read_ahead(lambda name: _read_head(self._blobs, name) if _NAME.fullmatch(name) else None, names)
        for name, chunks in zip(names, heads, strict=True):
            found = _NAME.fullmatch(name)
            if found is None or chunks is None:
                log.warning("removing %s, which is not an index of known messages, or is damaged", name)
                self._blobs.remove(name)
                continue
            self._files.append(IndexFile(name, int(found[1]), int(found[2]), chunks))
            for chunk in chunks:
                self._newest[chunk.origin] = max(chunk.high, self._newest.get(chunk.origin, chunk.high))
        return self._files[-1].number if self._files else 0

    def flush(self, number: int) -> None:
        """Write the keys in memory to an index file.  *number* is the newest row's number.  Raises OSError."""
        if not self._unwritten:
            return
        joined = self._files[-1:] if self._files and self._files[-1].rows < FILE_ROWS else []
        parts: dict[str, list[pa.Table]] = {}
        for chunk in [*(chunk for file in joined for chunk in file.chunks), *self._in_memory()]:
            parts.setdefault(chunk.origin, []).append(self._loaded(chunk))
        chunks = [chunk for origin, tables in parts.items() for chunk in _split(origin, pa.concat_tables(tables))]
        written = self._write(number, chunks)
        self._files = [*self._files[: len(self._files) - len(joined)], written]
        for file in joined:
            if file.name != written.name:
                self._blobs.remove(file.name)
        self._small.clear()
        self._joined.clear()
        self._unwritten = 0
        while len(self._files) > 1 and self.rows > self._most_rows:
            self._blobs.remove(self._files.pop(0).name)

    def _write(self, number: int, chunks: list[Chunk]) -> IndexFile:
        rows = sum(chunk.rows for chunk in chunks)
        name = f"ids-{number:016d}-{rows}.idx"
        blobs = [_compressed(chunk.load()) for chunk in chunks]
        sizes = [len(blob) for blob in blobs]
        entries = [
            [chunk.origin, chunk.low, chunk.high, chunk.rows, sum(sizes[:index]), len(blob), zlib.crc32(blob)]
            for index, (chunk, blob) in enumerate(zip(chunks, blobs, strict=True))
        ]
        head = json.dumps(entries).encode()
        data = b"".join([_HEAD.pack(_MAGIC, len(head), zlib.crc32(head)), head, *blobs])
        self._blobs.write(name, data)
        return IndexFile(name, number, rows, _placed(self._blobs, name, entries, len(data) - sum(sizes)))


def _detached(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the columns of a key.  A reference would keep the disk space of a mapped file in use after its removal."""
    keys = batch.select(["id", "nsqd", "timestamp"])
    return pa.ipc.read_record_batch(keys.serialize(), keys.schema)


def _keys(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    return batch.column("id"), batch.column("timestamp").view(pa.int64())


def _are_distinct(ids: pa.Array) -> bool:
    """Return whether all ids differ.  nsqd's ids usually rise, and the check for rising ids is ten times as fast."""
    rises = pc.less(ids.slice(0, max(0, len(ids) - 1)), ids.slice(1))
    return bool(pc.all(rises).as_py() or pc.count_distinct(ids).as_py() == len(ids))


def _origins(partition: int, batch: pa.RecordBatch) -> Iterable[tuple[str, pa.Array | None]]:
    """Return each origin of ids with a mask of the origin's rows.  The mask None means all rows.

    An origin is an nsqd or, with Youzan's NSQ, a topic partition, because a partition's leader moves between nsqds.
    """
    if partition >= 0:
        return [(f"#{partition}", None)]
    nsqds = batch.column("nsqd")
    first = nsqds[0].as_py()
    if _is_repeated(nsqds, first):
        return [(first, None)]
    values = nsqds.unique().to_pylist()
    return [(value, pc.equal(nsqds, text_scalar(value, pa.string()))) for value in values]


def _is_repeated(texts: pa.Array, text: str) -> bool:
    """Return whether all *texts*, addresses, are *text*.  Comparing bytes takes a tenth of the time of unique()."""
    length, begin = len(text.encode()), texts.offset
    offsets, data = texts.buffers()[1:]
    bounds = memoryview(offsets).cast("i")
    size = len(texts) * length
    if bounds[begin + len(texts)] - bounds[begin] != size:
        return False
    return bytes(memoryview(data)[bounds[begin] : bounds[begin] + size]) == text.encode() * len(texts)


def _chunk(origin: str, keys: pa.Table) -> Chunk:
    span = pc.min_max(keys.column("time"))
    return Chunk(origin, span["min"].as_py(), span["max"].as_py(), keys.num_rows, keys)


def _split(origin: str, keys: pa.Table) -> list[Chunk]:
    """Split *keys* at the longest gaps between publish times (as after a backlog), and after each CHUNK_ROWS keys."""
    keys = keys.combine_chunks()
    times = keys.column("time").combine_chunks()
    falls = pc.less(times.slice(1), times.slice(0, max(0, len(times) - 1)))
    if pc.any(falls).as_py():
        keys = keys.sort_by("time").combine_chunks()
        times = keys.column("time").combine_chunks()
    cuts = set(range(CHUNK_ROWS, keys.num_rows, CHUNK_ROWS))
    gaps = pc.subtract(times.slice(1), times.slice(0, max(0, len(times) - 1)))
    longest = pc.select_k_unstable(gaps, min(MOST_GAPS, len(gaps)), sort_keys=[("", "descending")]).to_pylist()
    cuts |= {index + 1 for index in longest if gaps[index].as_py() > GAP}
    ends = [*sorted(cuts), keys.num_rows]
    return [_chunk(origin, keys.slice(a, b - a)) for a, b in zip([0, *ends], ends, strict=False) if b > a]


def _compressed(keys: pa.Table) -> bytes:
    codec = next((name for name in ("zstd", "lz4") if pa.Codec.is_available(name)), None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(keys)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _placed(blobs: Blobs, name: str, entries: list[Any], base: int) -> list[Chunk]:
    return [
        Chunk(origin, low, high, rows, None, blobs, name, base + at, size, crc)
        for origin, low, high, rows, at, size, crc in entries
    ]


def _read_head(blobs: Blobs, name: str) -> list[Chunk] | None:
    data = blobs.read(name, 0, HEAD_READ)
    if len(data) < _HEAD.size or data[:8] != _MAGIC:
        return None
    _, length, crc = _HEAD.unpack_from(data)
    head = data[_HEAD.size : _HEAD.size + length]
    if len(head) < length:
        head += blobs.read(name, len(data), length - len(head))
    return _placed(blobs, name, json.loads(head), _HEAD.size + length) if zlib.crc32(head) == crc else None
