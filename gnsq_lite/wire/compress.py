"""Snappy and DEFLATE streams (SEC-2, SEC-3).

A codec belongs to one connection, because its state depends on all earlier bytes.  It decompresses one piece at a time,
so that a few bytes that decompress to gigabytes take only the memory of one piece.
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

#: Maximum bytes of one decompressed piece of DEFLATE.
MAX_PIECE: Final = 256 * 1024


class Codec(Protocol):
    """Compresses and decompresses the bytes of one connection."""

    def compress(self, data: bytes) -> bytes:
        """Compress and flush *data*."""

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """Decompress *data*, and yield the plain bytes in pieces.

        The caller must exhaust the iterator before the next call.  Raises ProtocolError for invalid bytes, after which
        the codec is unusable.
        """


def make_codec(algorithm: Compression, level: int = DEFAULT_DEFLATE_LEVEL) -> Codec:
    """Return a new codec.  *level* is the level of DEFLATE for sent bytes, 0 to 9."""
    return SnappyCodec() if algorithm == "snappy" else DeflateCodec(level)


class DeflateCodec:
    """Raw DEFLATE (RFC 1951) with a sync flush after every write, as in nsqd/client_v2.go:581 @v1.3.0."""

    def __init__(self, level: int = DEFAULT_DEFLATE_LEVEL) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)

    def compress(self, data: bytes) -> bytes:
        if not data:
            return b""
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes) -> Iterator[bytes]:
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
            # After a full piece, zlib may have more output even if it has consumed all input.
            if not data and len(piece) < MAX_PIECE and not stream.unused_data:
                return


#: Bytes of the head of a snappy chunk: type, and length of the rest.
#: https://github.com/google/snappy/blob/main/framing_format.txt
_CHUNK_HEAD: Final = 4
#: Maximum bytes of a chunk after its head: a checksum, and the longest encoding of 64 KiB.
_MAX_CHUNK: Final = 4 + 32 + 65536 + 65536 // 6
_STREAM_ID: Final = b"\xff\x06\x00\x00sNaPpY"
#: Maximum plain bytes of a sent chunk.  nsqd before 1.0 reads at most 16 KiB at once.  After a larger chunk it waits
#: for another chunk before it handles the command.
_OWN_CHUNK: Final = 16_000


class SnappyCodec:
    """Framed snappy, as in nsqd/client_v2.go:601 @v1.3.0.

    python-snappy compresses.  cramjam decompresses all complete chunks in one call, and checks their CRC-32C.
    """

    def __init__(self) -> None:
        self._compressor = snappy.StreamCompressor()
        self._buffer = ReceiveBuffer()

    def compress(self, data: bytes) -> bytes:
        add = self._compressor.add_chunk
        if len(data) <= _OWN_CHUNK:
            return bytes(add(data)) if data else b""  # add(b"") may return the stream identifier
        return b"".join(add(data[at : at + _OWN_CHUNK]) for at in range(0, len(data), _OWN_CHUNK))

    def decompress(self, data: bytes) -> Iterator[bytes]:
        """Decompress *data*, and yield at most one piece: snappy expands bytes at most 22 times."""
        whole = self._buffer.join(data)
        if whole is None:
            return
        end, wanted = 0, _CHUNK_HEAD
        while wanted <= len(whole):  # as long as the head of the chunk at *end* is complete
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
