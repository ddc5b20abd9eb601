"""The layout of a message frame's data (WIRE-3).

::

    8 bytes  int64    when it was published, nanoseconds since 1970
    2 bytes  uint16   attempts, this one included
    16 bytes          id (hexadecimal ASCII from nsqd; any bytes from Youzan's)
    the rest          body
"""

from __future__ import annotations

from struct import Struct

from gnsq_lite.errors import FrameError
from gnsq_lite.wire.constants import MESSAGE_HEAD_LENGTH

#: Timestamp, attempts, id.  nsqd/message.go:43 @v1.3.0
MESSAGE_HEAD = Struct(">qH16s")


def decode_message(data: bytes) -> tuple[int, int, bytes, bytes]:
    """Return (timestamp_ns, attempts, id, body).  Raises FrameError for fewer than 26 bytes (WIRE-4)."""
    if len(data) < MESSAGE_HEAD_LENGTH:
        raise FrameError(too_short(len(data)))
    timestamp_ns, attempts, message_id = MESSAGE_HEAD.unpack_from(data)
    return timestamp_ns, attempts, message_id, data[MESSAGE_HEAD_LENGTH:]


def encode_message(timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    """Return a message frame's data: what nsqd does, for tests and fakes."""
    return MESSAGE_HEAD.pack(timestamp_ns, attempts, message_id) + body


def too_short(length: int) -> str:
    """Say that a message of *length* bytes is none."""
    return f"a message of {length} bytes; its head alone has {MESSAGE_HEAD_LENGTH}"
