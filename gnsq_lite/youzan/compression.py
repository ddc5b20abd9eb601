"""Decompresses bodies that youzan/go-nsq compressed (its option ``topics_for_compress``).

Two headers of the message contain the number of the codec and the original size, both as decimal text.  A gzip body is
a gzip file.  A snappy or lz4 body is one block without a frame.  An lz4 block does not contain its original size.
compress.go, message.go:295 @1.7.2-HA
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import cramjam

from gnsq_lite.errors import CompressedBodyError

#: Header names of a compressed message.
CODEC_KEY = "nsq.client.compress"
SIZE_KEY = "nsq.msg.size"
#: The codecs by their numbers.  The number "0" means that the body is not compressed.
_NAMES = {"1": "gzip", "2": "snappy", "3": "lz4"}

#: Maximum decompressed bytes per compressed byte, to bound the memory for a block that declares a larger size.
_MOST_OF_LZ4, _MOST_OF_SNAPPY = 255, 64


def codec_of(headers: Mapping[str, Any] | None) -> str | None:
    """Return the number of the codec in *headers*, as text, or None if there is none."""
    number = (headers or {}).get(CODEC_KEY)
    return number if isinstance(number, str) and number else None


def unpack(data: bytes, headers: Mapping[str, Any], most: int) -> bytes:
    """Decompress *data* with the codec that *headers* name, and return the body.

    Raises CompressedBodyError if the body has more than *most* bytes, if *data* is corrupt, and for an unknown codec.
    """
    number = codec_of(headers)
    if number in (None, "0"):
        return data
    codec = _NAMES.get(str(number))
    if codec is None:
        raise CompressedBodyError(f"the body has the unknown codec {str(number)[:20]!r}")
    size = _size(headers.get(SIZE_KEY))
    if size is not None and size > most:
        raise _too_large(codec, most)
    if codec == "gzip":
        return _gunzip(data, most)
    try:
        return _snappy(data, most) if codec == "snappy" else _lz4(data, most if size is None else size)
    except cramjam.DecompressionError as error:
        raise CompressedBodyError(f"the {codec} block of {len(data)} bytes is corrupt: {error}") from None


def _size(text: object) -> int | None:
    if not isinstance(text, str):
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise CompressedBodyError(f"the header {SIZE_KEY} is {text[:20]!r}, not a number")
    return int(text)


def _too_large(codec: str, most: int) -> CompressedBodyError:
    return CompressedBodyError(f"the decompressed {codec} body has more than {most} bytes (max_decompressed_size)")


def _gunzip(data: bytes, most: int) -> bytes:
    body = b""
    while data:  # a gzip file may have several members
        member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            body += member.decompress(data, most + 1 - len(body))
        except zlib.error as error:
            raise CompressedBodyError(f"the gzip data is corrupt: {error}") from None
        if len(body) > most:
            raise _too_large("gzip", most)
        if not member.eof:
            raise CompressedBodyError("the gzip data ends too early")
        data = member.unused_data
    return body


def _snappy(data: bytes, most: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > most:
        raise _too_large("snappy", most)
    if size > len(data) * _MOST_OF_SNAPPY:
        raise CompressedBodyError(f"the snappy block of {len(data)} bytes declares a size of {size} bytes")
    return bytes(cramjam.snappy.decompress_raw(data))


def _lz4(data: bytes, most: int) -> bytes:
    room = min(most, len(data) * _MOST_OF_LZ4)
    return bytes(cramjam.lz4.decompress_block(room.to_bytes(4, "little") + data))
