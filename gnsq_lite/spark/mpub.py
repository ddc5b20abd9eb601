"""Converts Arrow columns to MPUB payloads, without a Python loop over the rows.

MPUB's body has a big-endian length before each message.  A column of lengths joined with the column of bodies has the
same layout, so the data buffer of the joined column is the payload.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import pyarrow as pa
import pyarrow.compute as pc

from gnsq_lite.arrow_values import text_scalar


@dataclass(frozen=True)
class Payload:
    """The messages of one MPUB: their number, and the bytes to send after the command line."""

    topic: str
    count: int
    data: bytes


class Bodies(Sequence[bytes]):
    """The messages of a payload, for dialects whose batches have another layout."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload

    def __len__(self) -> int:
        return self._payload.count

    def __iter__(self) -> Iterator[bytes]:
        return iter(bodies_of(self._payload.data))

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        return bodies_of(self._payload.data)[place]


def joined(bodies: pa.Array) -> pa.Array:
    """Prefix each body with its big-endian length."""
    lengths = pc.binary_length(bodies)
    numbers = array("i")
    numbers.frombytes(memoryview(lengths.buffers()[1])[lengths.offset * 4 : (lengths.offset + len(lengths)) * 4])
    if sys.byteorder == "little":
        numbers.byteswap()
    heads = pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(bodies), [None, pa.py_buffer(numbers.tobytes())])
    return pc.binary_join_element_wise(heads.cast(pa.binary()), bodies, text_scalar(b"", pa.binary()))


def payloads(topic: str, bodies: pa.Array, most_messages: int, most_bytes: int) -> Iterator[Payload]:
    """Split *bodies*, which must have no nulls, into payloads with at most *most_messages* and *most_bytes*."""
    if not len(bodies):
        return
    column = joined(bodies)
    offsets = array("i")
    raw = column.buffers()[1]
    offsets.frombytes(memoryview(raw)[column.offset * 4 : (column.offset + len(column) + 1) * 4])
    data = memoryview(column.buffers()[2])
    at, total = 0, len(column)
    while at < total:
        end = min(at + most_messages, total)
        while end > at + 1 and 4 + offsets[end] - offsets[at] > most_bytes:
            end = at + max(1, (end - at) // 2)
        inner = data[offsets[at] : offsets[end]]
        count = end - at
        head = (4 + len(inner)).to_bytes(4, "big") + count.to_bytes(4, "big")
        yield Payload(topic, count, head + bytes(inner))
        at = end


def checksum(pieces: Iterable[Payload], so_far: int = 0) -> int:
    """Return the CRC-32 of the messages, continued from *so_far*.  The payloads' sizes do not change the result."""
    for piece in pieces:
        so_far = zlib.crc32(memoryview(piece.data)[8:], so_far)
    return so_far


def bodies_of(data: bytes) -> list[bytes]:
    """Split the bytes of a payload into messages."""
    count = int.from_bytes(data[4:8], "big")
    found, at = [], 8
    for _ in range(count):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found
