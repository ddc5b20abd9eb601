"""Parses messages of Youzan's nsqd (YZ-10, YZ-15), and its replies to traced publishes (YZ-9).

After the id, a message contains (with the number of bytes):

::

    SUB                        body
    SUB_ADVANCED, SUB_ORDERED  queue offset (8), raw size (4), body
    an ext topic               ext version (1); if it is not 0: length (2), JSON; then as above

The format depends on the SUB command and on extend_support in IDENTIFY (nsqd/message.go:191 @0.3.7-HA.1.13.0).  The
frame does not show the format, so each connection has its own message factory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

from gnsq_lite.dialect import PublishReceipt
from gnsq_lite.errors import ProtocolError
from gnsq_lite.message import Answers, Message
from gnsq_lite.youzan.compression import CODEC_KEY, SIZE_KEY, codec_of, unpack
from gnsq_lite.youzan.constants import EXT_NONE, EXT_VERSIONS, PARTITION_SHIFT, RESERVED, TAG_KEY, TAIL_LENGTH

_ids = Struct(">QQ").unpack
_tail = Struct(">qI").unpack_from
_trace = Struct(">2sQQqI")

#: Bytes that the header of each compressed message contains.
_COMPRESSED = CODEC_KEY.encode()


#: The body, ext header, queue offset and raw size of a message.  A missing part is None.
Content: TypeAlias = tuple[bytes, bytes | None, int | None, int | None]


def decode_content(data: bytes, *, ext: bool = False, tail: bool = False) -> Content:
    """Split *data*, the bytes after a message's id, into a Content.  Raises ProtocolError if bytes are missing."""
    at = 0
    header: bytes | None = None
    if ext:
        if not data:
            raise ProtocolError("a message of an ext topic has no ext version")
        version, at = data[0], 1
        if version not in EXT_VERSIONS:
            raise ProtocolError(f"unknown ext version {version}: did the topic become an ext topic meanwhile?")
        if version != EXT_NONE:
            start = 3
            at = start + int.from_bytes(data[1:3], "big")
            if len(data) < at:
                raise ProtocolError(f"an ext header of {at - start} bytes, but only {max(len(data) - start, 0)} came")
            header = data[start:at]
    if not tail:
        return data[at:], header, None, None
    if len(data) < at + TAIL_LENGTH:
        raise ProtocolError(f"{len(data) - at} bytes for the queue offset and size, which have {TAIL_LENGTH} bytes")
    offset, size = _tail(data, at)
    return data[at + TAIL_LENGTH :], header, offset, size


def split_id(message_id: bytes) -> tuple[int, int]:
    """Split a message id into (internal id, trace id) (YZ-10).  Raises ProtocolError unless it has 16 bytes."""
    if len(message_id) != 16:
        raise ProtocolError(f"a message id has {len(message_id)} bytes, not 16")
    internal, trace = _ids(message_id)
    return internal, trace


def partition_of_id(internal_id: int) -> int:
    """Return the partition in an internal id.  It is 0 for a standalone server."""
    return internal_id >> PARTITION_SHIFT


class YouzanMessage(Message):
    """A message from Youzan's nsqd.

    Attributes:
        internal_id: The server's id.  It increases within each partition.  After a server lost its tail, it may be used
            again for another message: recognise duplicates by trace_id.
        trace_id: The publisher's trace id, or 0.
        partition: The partition of the message.
        queue_offset, raw_size: Offset and size of the message in the partition's queue, or None after a plain SUB.
        header_bytes: The received ext header, or None.
    """

    __slots__ = ("_headers", "header_bytes", "partition", "queue_offset", "raw_size")

    def __init__(
        self,
        connection: Answers,
        timestamp_ns: int,
        attempts: int,
        id: bytes,
        content: Content,
        partition: int | None = None,
    ) -> None:
        body, self.header_bytes, self.queue_offset, self.raw_size = content
        super().__init__(connection, timestamp_ns, attempts, id, body)
        self.partition = partition_of_id(split_id(id)[0]) if partition is None else partition
        self._headers: dict[str, Any] | None = None

    @property
    def internal_id(self) -> int:  # type: ignore[override]
        """The server's id."""
        return split_id(self.id)[0]

    @property
    def trace_id(self) -> int:  # type: ignore[override]
        """The publisher's trace id, or 0."""
        return split_id(self.id)[1]

    @property
    def headers(self) -> dict[str, Any] | None:  # type: ignore[override]
        """The headers, or None if the message has none, or {} if ``header_bytes`` is no JSON object.

        The names that the server reserves are only in ``header_bytes``, except the tag, so that every publish accepts
        these headers.
        """
        if self._headers is None and self.header_bytes is not None:
            parsed = _parse_header(self.header_bytes)
            self._headers = {k: v for k, v in parsed.items() if not k.startswith(RESERVED) or k == TAG_KEY}
        return self._headers

    @property
    def tag(self) -> str | None:
        """The tag of the message (YZ-16), or None."""
        tag = (self.headers or {}).get(TAG_KEY)
        return tag if isinstance(tag, str) else None


class CompressedMessage(YouzanMessage):
    """A message with a compressed body.  The first access to ``body`` decompresses the body.

    ``body`` raises CompressedBodyError if the decompression fails.  ``raw_body`` is the compressed body.  ``headers``
    omits the two headers that describe the compression.
    """

    __slots__ = ("_most", "_packed", "_unpacked")

    def __init__(self, most: int, *parts: Any) -> None:
        self._unpacked: bytes | None = None
        super().__init__(*parts)
        self._most, self._packed, self._unpacked = most, self.body, None

    @property
    def body(self) -> bytes:
        """The decompressed body."""
        if self._unpacked is None:
            self._unpacked = unpack(self._packed, super().headers or {}, self._most)
        return self._unpacked

    @body.setter
    def body(self, body: bytes) -> None:
        self._unpacked = body

    @property
    def raw_body(self) -> bytes:
        """The body as nsqd sent it."""
        return self._packed

    @property
    def raw_headers(self) -> dict[str, Any] | None:
        """The headers, with those that describe the compression."""
        return super().headers

    @property
    def headers(self) -> dict[str, Any] | None:  # type: ignore[override]
        """The headers as they were published."""
        headers = super().headers
        if codec_of(headers) is None or headers is None:
            return headers
        return {name: value for name, value in headers.items() if name not in (CODEC_KEY, SIZE_KEY)}


def _parse_header(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def message_factory(
    partition: int | None, most_unpacked: int | None = None, *, ext: bool = False, tail: bool = False
) -> Callable[[Any, int, int, bytes, bytes], YouzanMessage]:
    """Return the message factory of one connection.  The factory raises ProtocolError for a malformed message.

    *most_unpacked* is the maximum number of bytes of a decompressed body, or None if bodies stay compressed.  *ext* is
    true if the messages have an ext version.  *tail* is true if they have a queue offset and a raw size.
    """
    if not ext and not tail:  # faster than decode_content()
        return lambda connection, ns, attempts, id, rest: YouzanMessage(
            connection, ns, attempts, id, (rest, None, None, None), partition
        )

    def make(connection: Any, ns: int, attempts: int, id: bytes, rest: bytes) -> YouzanMessage:
        content = decode_content(rest, ext=ext, tail=tail)
        if most_unpacked is not None and content[1] is not None and _COMPRESSED in content[1]:
            return CompressedMessage(most_unpacked, connection, ns, attempts, id, content, partition)
        return YouzanMessage(connection, ns, attempts, id, content, partition)

    return make


def parse_trace_reply(data: bytes) -> PublishReceipt:
    """Parse nsqd's reply to a traced publish.  Raises ProtocolError for any other reply."""
    if len(data) != _trace.size or not data.startswith(b"OK"):
        raise ProtocolError(f"nsqd answered a traced publish with {data[:40]!r} ({len(data)} bytes)")
    _, internal_id, trace_id, queue_offset, raw_size = _trace.unpack(data)
    return PublishReceipt(internal_id, trace_id, queue_offset, raw_size, partition_of_id(internal_id))
