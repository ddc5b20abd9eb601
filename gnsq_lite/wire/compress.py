"""Snappy and DEFLATE streams (SEC-2, SEC-3).

A codec belongs to one connection, because its state depends on all earlier bytes.  It yields output in pieces of at
most 256 KiB, each made on demand, so a decompression bomb never takes more memory than one piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

import cramjam
import snappy

from gnsq_lite.errors import ProtocolError
from gnsq_lite.options import Compression
from gnsq_lite.wire.constants import DEFAULT_DEFLATE_LEVEL
from gnsq_lite.wire.receive_buffer import ReceiveBuffer

#: Maximum bytes of one piece of output: few calls into C, and the piece still fits the CPU cache.
MAX_PIECE: Final = 256 * 1024


class Codec(Protocol):
    """Compresses and decompresses the bytes of one connection."""

    def compress(self, data: bytes) -> bytes:
        """Compress and flush *data*, so that the peer can decompress all of it at once."""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """Decompress the held bytes and *data*; yield the plain bytes.

        Exhaust the iterator: the next call continues from there.  Raises ProtocolError after the bytes before the
        fault; every later call raises it again.  A snappy checksum error also loses the chunks decompressed in the same
        batch.
        """


def make_codec(algorithm: Compression, level: int = DEFAULT_DEFLATE_LEVEL) -> Codec:
    """Return a new codec.  *level* is the DEFLATE level of the sent bytes, 0 to 9."""
    return SnappyCodec() if algorithm == "snappy" else DeflateCodec(level)


class DeflateCodec:
    """Raw DEFLATE, one stream each way, a sync flush after every write (RFC 1951).  nsqd/client_v2.go:581 @v1.3.0"""

    __slots__ = ("_compressor", "_decompressor", "_error")

    def __init__(self, level: int = DEFAULT_DEFLATE_LEVEL) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
        self._error: ProtocolError | None = None

    def compress(self, data: bytes) -> bytes:
        """As :meth:`Codec.compress`."""
        if not data:
            return b""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """As :meth:`Codec.decompress`."""
        if self._error is not None:
            raise self._error
        stream = self._decompressor
        while True:
            if stream.eof:
                if stream.unused_data or data:
                    raise self._fail("bytes after the end of the DEFLATE stream")
                return
            try:
                piece = stream.decompress(data, MAX_PIECE)
            except zlib.error as error:
                raise self._fail(f"no DEFLATE stream: {error}") from None
            data = stream.unconsumed_tail
            if piece:
                yield piece
            # A full piece may leave output inside zlib though all input is consumed.
            if not data and len(piece) < MAX_PIECE and not stream.unused_data:
                return

    def _fail(self, why: str) -> ProtocolError:
        self._error = ProtocolError(why)
        return self._error


# -- snappy's framing format ------------------------------------------------------------------------------------------
# https://github.com/google/snappy/blob/main/framing_format.txt; section numbers refer to it.

_STREAM_ID: Final = b"\xff\x06\x00\x00sNaPpY"
_CHUNK_HEAD: Final = 4
_CHECKSUM: Final = 4
_COMPRESSED, _PLAIN, _IDENTIFIER = 0x00, 0x01, 0xFF
#: Maximum decompressed bytes of a chunk (section 4.2).
_MAX_BLOCK: Final = 65536
#: Maximum bytes of a chunk in its worst encoding, including the checksum.
_MAX_CHUNK: Final = _CHECKSUM + 32 + _MAX_BLOCK + _MAX_BLOCK // 6


#: Maximum plain bytes of a sent chunk.  nsqd before 1.0 reads at most 16 KiB at once; if a larger chunk leaves it a
#: partial read, it waits for the next chunk before it handles the command.
_OWN_CHUNK: Final = 16_000


class SnappyCodec:
    """Framed snappy, one stream each way.  nsqd/client_v2.go:601 @v1.3.0

    This class finds the chunk boundaries; C libraries handle blocks and their CRC-32C.  python-snappy writes chunks;
    cramjam reads many chunks in one call, which python-snappy cannot.  The codec is as strict as nsqd's reader: the
    stream identifier must come first and may be repeated; skippable reserved chunks are skipped (section 4.6), other
    reserved chunks are refused (section 4.5).
    """

    __slots__ = ("_buffer", "_compressor", "_error", "_identified", "_to_skip")

    def __init__(self) -> None:
        self._compressor = snappy.StreamCompressor()
        self._buffer = ReceiveBuffer()
        self._identified = False
        self._to_skip = 0
        self._error: ProtocolError | None = None

    def compress(self, data: bytes) -> bytes:
        """As :meth:`Codec.compress`.  The first bytes begin with the stream identifier."""
        add = self._compressor.add_chunk
        if len(data) <= _OWN_CHUNK:
            return bytes(add(data)) if data else b""  # python-snappy 0.7.0 writes the stream identifier also for b""
        return b"".join(add(data[at : at + _OWN_CHUNK]) for at in range(0, len(data), _OWN_CHUNK))

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """As :meth:`Codec.decompress`."""
        if self._error is not None:
            raise self._error
        try:
            yield from self._pieces(data)
        except ProtocolError as error:
            self._error = error
            self._buffer.take()
            raise

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        if self._to_skip:
            skipped = min(self._to_skip, len(data))
            self._to_skip -= skipped
            data = data[skipped:]
        whole = self._buffer.join(data)
        if whole is None:
            return
        at = batch_at = expected = 0
        while True:
            kind = whole[at] if at < len(whole) else _IDENTIFIER
            try:
                end = self._chunk_end(whole, at)
                is_data = end <= len(whole) and kind in (_COMPRESSED, _PLAIN)
                length = _plain_length(whole, at, end) if is_data else 0
            except ProtocolError:
                if at > batch_at:
                    yield _decompress_batch(whole[batch_at:at], expected)
                raise
            if at > batch_at and (not is_data or expected + length > MAX_PIECE):
                yield _decompress_batch(whole[batch_at:at], expected)
                batch_at, expected = at, 0
            if end > len(whole):
                if kind in (_COMPRESSED, _PLAIN, _IDENTIFIER) or end == at + _CHUNK_HEAD:
                    self._buffer.keep(whole[at:], end - at)
                else:
                    self._buffer.take()
                    self._to_skip = end - len(whole)
                return
            at = end
            if is_data:
                expected += length
            else:
                batch_at = at

    def _chunk_end(self, data: bytes, at: int) -> int:
        """Return the end of the chunk at *at*, or of its head while that is incomplete.  Raises ProtocolError."""
        if len(data) - at < _CHUNK_HEAD:
            return at + _CHUNK_HEAD
        kind = data[at]
        size = int.from_bytes(data[at + 1 : at + _CHUNK_HEAD], "little")
        end = at + _CHUNK_HEAD + size
        if kind == _IDENTIFIER:
            if size != len(_STREAM_ID) - _CHUNK_HEAD or not _STREAM_ID.startswith(data[at : min(end, at + 10)]):
                raise ProtocolError("not a snappy stream identifier")
            self._identified = True
        elif not self._identified:
            raise ProtocolError(f"no snappy stream: it begins with {data[at : at + _CHUNK_HEAD]!r}")
        elif kind in (_COMPRESSED, _PLAIN):
            if not _CHECKSUM <= size <= _MAX_CHUNK:
                raise ProtocolError(f"a snappy chunk's size is {size}, outside {_CHECKSUM}..{_MAX_CHUNK}")
        elif kind < 0x80:
            raise ProtocolError(f"a snappy chunk of the reserved type 0x{kind:02x}")
        return end


def _plain_length(data: bytes, at: int, end: int) -> int:
    """Return the decompressed length that the complete data chunk at *at* declares.  Raises ProtocolError."""
    start = at + _CHUNK_HEAD + _CHECKSUM
    if data[at] == _PLAIN:
        length = end - start
    else:
        length = shift = 0
        for byte in data[start : min(end, start + 3)]:  # a varint of at most 3 bytes: a longer one exceeds the limit
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        else:
            raise ProtocolError("a snappy block without a length, or with one above 2 MiB")
    if length > _MAX_BLOCK:
        raise ProtocolError(f"a snappy chunk of {length} bytes; at most {_MAX_BLOCK} are allowed")
    return length


def _decompress_batch(chunks: bytes, expected: int) -> bytes:
    try:
        piece = bytes(cramjam.snappy.decompress(_STREAM_ID + chunks))
    except cramjam.DecompressionError as error:
        raise ProtocolError(f"a snappy chunk that is corrupt: {error}") from None
    if len(piece) != expected:
        raise ProtocolError(f"snappy chunks of {expected} bytes gave {len(piece)}")
    return piece
