"""Compresses and decompresses the server's side of a connection, with framed snappy or raw DEFLATE.

:meth:`Codec.decode` yields pieces of about 1 MiB or less, and the caller processes each piece before the next piece is
decompressed.  So a small input that expands to a huge output cannot exhaust the memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

import cramjam

_PIECE = 1 << 18
_SNAPPY_HEADER = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_LONGEST = 76490 + 4  # longest chunk of the framing format: 64 KiB of incompressible data and a checksum
_SNAPPY_CHUNKS = 16  # chunks to decode in one step, at most 1 MiB of contents


class CodecError(Exception):
    """The client's bytes are invalid for the negotiated compression, or the compressed stream has ended."""


class Codec(Protocol):
    """Compression of one connection, in both directions."""

    def encode(self, data: bytes) -> bytes:
        """Compress *data* and flush the compressor."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decompress *data* as far as possible, and yield the result in pieces.  Raises CodecError."""


class Deflate:
    """Raw DEFLATE (no zlib header), flushed at each write."""

    def __init__(self, level: int) -> None:
        self._packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS)

    def encode(self, data: bytes) -> bytes:
        """Compress *data* and flush the compressor."""
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decompress *data* as far as possible.  Raises CodecError for invalid data, and at the end of the stream."""
        while data:
            try:
                piece = self._unpacker.decompress(data, _PIECE)
            except zlib.error as error:
                raise CodecError(f"flate: {error}") from None
            data = self._unpacker.unconsumed_tail
            if piece:
                yield piece
            if self._unpacker.eof:
                raise CodecError("EOF")


class Snappy:
    """The snappy framing format, with verified checksums."""

    def __init__(self) -> None:
        self._packer = cramjam.snappy.Compressor()
        self._left = b""
        self._begun = False

    def encode(self, data: bytes) -> bytes:
        """Encode *data* as chunks of the framing format.  The first call also returns the stream header."""
        self._packer.compress(data)
        return bytes(self._packer.flush())

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decode all complete chunks, and keep an incomplete chunk for the next call.  Raises CodecError."""
        data = self._left + data if self._left else data
        at, start, count = 0, 0, 0
        while (end := self._chunk_end(data, at)) is not None:
            if not self._begun:
                if data[at:end] != _SNAPPY_HEADER:
                    raise CodecError("snappy: corrupt input")
                self._begun = True
            at = end
            count += 1
            if count == _SNAPPY_CHUNKS:
                yield from self._decoded(data[start:at])
                start, count = at, 0
        if at > start:
            yield from self._decoded(data[start:at])
        self._left = data[at:]

    @staticmethod
    def _chunk_end(data: bytes, at: int) -> int | None:
        if len(data) - at < 4:
            return None
        kind = data[at]
        size = int.from_bytes(data[at + 1 : at + 4], "little")
        if 0x02 <= kind <= 0x7F:
            raise CodecError("snappy: unsupported input")
        if size > (6 if kind == 0xFF else _SNAPPY_LONGEST):
            raise CodecError("snappy: corrupt input")
        end = at + 4 + size
        return end if end <= len(data) else None

    @staticmethod
    def _decoded(chunks: bytes) -> Iterator[bytes]:
        try:
            piece = bytes(cramjam.snappy.decompress(_SNAPPY_HEADER + chunks))
        except cramjam.DecompressionError as error:
            raise CodecError(f"snappy: corrupt input: {error}") from None
        if piece:
            yield piece


def codec_for(kind: str, level: int) -> Codec:
    """Return a new codec for "snappy" or "deflate"."""
    return Snappy() if kind == "snappy" else Deflate(level)
