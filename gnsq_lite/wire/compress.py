"""Snappy and DEFLATE streams (SEC-2, SEC-3).

A codec belongs to one connection, because its state depends on all earlier bytes.  It yields output in pieces, each
made on demand, so a decompression bomb takes no more memory than one piece.
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

#: Maximum bytes of one piece of DEFLATE's output: few calls into C, and the piece still fits the CPU cache.
MAX_PIECE: Final = 256 * 1024


class Codec(Protocol):
    """Compresses and decompresses the bytes of one connection."""

    def compress(self, data: bytes) -> bytes:
        """Compress and flush *data*, so that the peer can decompress all of it at once."""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """Decompress the held bytes and *data*; yield the plain bytes.

        Exhaust the iterator: the next call continues from there.  Raises ProtocolError for invalid bytes; do not use
        the codec after an error.
        """


def make_codec(algorithm: Compression, level: int = DEFAULT_DEFLATE_LEVEL) -> Codec:
    """Return a new codec.  *level* is the DEFLATE level of the sent bytes, 0 to 9."""
    return SnappyCodec() if algorithm == "snappy" else DeflateCodec(level)


class DeflateCodec:
    """Raw DEFLATE, one stream each way, a sync flush after every write (RFC 1951).  nsqd/client_v2.go:581 @v1.3.0"""

    def __init__(self, level: int = DEFAULT_DEFLATE_LEVEL) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)

    def compress(self, data: bytes) -> bytes:
        """As :meth:`Codec.compress`."""
        if not data:
            return b""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """As :meth:`Codec.decompress`."""
        stream = self._decompressor
        while True:
            if stream.eof:
                if stream.unused_data or data:
                    raise ProtocolError("bytes after the end of the DEFLATE stream")
                return
            try:
                piece = stream.decompress(data, MAX_PIECE)
            except zlib.error as error:
                raise ProtocolError(f"no DEFLATE stream: {error}") from None
            data = stream.unconsumed_tail
            if piece:
                yield piece
            # A full piece may leave output inside zlib though all input is consumed.
            if not data and len(piece) < MAX_PIECE and not stream.unused_data:
                return


#: Bytes of a snappy chunk's head: type, and length of the rest.
#: https://github.com/google/snappy/blob/main/framing_format.txt
_CHUNK_HEAD: Final = 4
#: Maximum bytes of a chunk: checksum, and the worst encoding of 64 KiB.  nsqd sends no skippable chunks, which may be
#: larger.
_MAX_CHUNK: Final = 4 + 32 + 65536 + 65536 // 6
_STREAM_ID: Final = b"\xff\x06\x00\x00sNaPpY"
#: Maximum plain bytes of a sent chunk.  nsqd before 1.0 reads at most 16 KiB at once; if a larger chunk leaves it a
#: partial read, it waits for the next chunk before it handles the command.
_OWN_CHUNK: Final = 16_000


class SnappyCodec:
    """Framed snappy, one stream each way.  nsqd/client_v2.go:601 @v1.3.0

    python-snappy writes chunks.  cramjam reads all complete chunks in one call, and checks their CRC-32C.
    """

    def __init__(self) -> None:
        self._compressor = snappy.StreamCompressor()
        self._buffer = ReceiveBuffer()

    def compress(self, data: bytes) -> bytes:
        """As :meth:`Codec.compress`.  The first bytes begin with the stream identifier."""
        add = self._compressor.add_chunk
        if len(data) <= _OWN_CHUNK:
            return bytes(add(data)) if data else b""  # python-snappy 0.7.0 writes the stream identifier also for b""
        return b"".join(add(data[at : at + _OWN_CHUNK]) for at in range(0, len(data), _OWN_CHUNK))

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """As :meth:`Codec.decompress`; yields at most one piece, because snappy expands bytes at most 22 times."""
        whole = self._buffer.join(data)
        if whole is None:
            return
        end, wanted = 0, _CHUNK_HEAD
        while wanted <= len(whole):  # the head of the chunk at *end* is complete
            size = int.from_bytes(whole[end + 1 : wanted], "little")
            if size > _MAX_CHUNK:
                raise ProtocolError(f"no snappy stream: a chunk of {size} bytes; at most {_MAX_CHUNK} are accepted")
            if wanted + size > len(whole):
                wanted += size
                break
            end, wanted = wanted + size, wanted + size + _CHUNK_HEAD
        self._buffer.keep(whole[end:], wanted - end)
        if end:
            try:
                piece = bytes(cramjam.snappy.decompress(_STREAM_ID + whole[:end]))
            except cramjam.DecompressionError as error:
                raise ProtocolError(f"corrupt snappy stream: {error}") from None
            if piece:
                yield piece
