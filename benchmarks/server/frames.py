"""The frames a pump sends, made beforehand, and the codecs they are sent in."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

HEAD = struct.Struct(">IIqH")
"""Size, type, timestamp and attempts of a message frame; the id and the body follow."""
_SEGMENT = 25  # frames compressed together, ahead of time
_PORTION = 1000  # frames handed to the kernel at once


def identity(data: bytes) -> bytes:
    """Return *data*: no compression."""
    return data


def packer(codec: str) -> Callable[[bytes], bytes]:
    """Return what turns bytes into *codec*'s, in pieces that can be sent in any order."""
    if codec == "deflate":
        deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        return lambda data: deflate.compress(data) + deflate.flush(zlib.Z_FULL_FLUSH)
    if codec == "snappy":
        import snappy

        compressor = snappy.StreamCompressor()
        compressor.compress(b"")  # the stream's identifier goes out on its own
        return lambda data: bytes(compressor.compress(data))
    return identity


def unpacker(codec: str) -> Callable[[bytes], bytes]:
    """Return the inverse of :func:`packer`, incremental."""
    if codec == "deflate":
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress
    if codec == "snappy":
        import snappy

        decompress = snappy.StreamDecompressor().decompress
        return lambda data: bytes(decompress(data))
    return identity


class Frames:
    """All message frames of a run, and how far they are sent."""

    def __init__(self, messages: int, body: bytes, codec: str) -> None:
        self.messages, self.sent, self.codec = messages, 0, codec
        self._size = 34 + len(body)
        head = HEAD.pack(30 + len(body), 2, time.time_ns(), 1)
        self._plain = memoryview(b"".join([b"%b%016x%b" % (head, n, body) for n in range(messages)]))
        self._segments: list[bytes] = []
        if codec != "plain":
            pack = packer(codec)
            step = _SEGMENT * self._size
            self._segments = [pack(bytes(self._plain[at : at + step])) for at in range(0, len(self._plain), step)]

    def take(self, window: int) -> tuple[int, Any, bool]:
        """Return how many frames, at most *window*, their bytes, and whether these are already compressed."""
        first = self.sent
        count = min(window, _PORTION, self.messages - first)
        if self._segments and count >= _SEGMENT and first % _SEGMENT == 0:
            count -= count % _SEGMENT
            data: Any = b"".join(self._segments[first // _SEGMENT : (first + count) // _SEGMENT])
            self.sent += count
            return count, data, True
        if self._segments:  # up to the next whole segment
            count = min(count, _SEGMENT - first % _SEGMENT)
        self.sent += count
        return count, self._plain[first * self._size : (first + count) * self._size], False
