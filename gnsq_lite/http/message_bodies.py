"""Message bodies as nsqd's HTTP API takes them.  What nsqd would refuse is refused here (WIRE-8)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from gnsq_lite.errors import BodyTypeError, InvalidBody

_UINT32 = struct.Struct(">I")


def check_body(body: object) -> None:
    """Raise BodyTypeError for what is not bytes, InvalidBody for an empty body."""
    if not isinstance(body, bytes):
        raise BodyTypeError(type(body).__name__)
    if not body:
        raise InvalidBody("a message body must not be empty")


def _checked(bodies: Iterable[bytes]) -> Sequence[bytes]:
    if isinstance(bodies, (bytes, str)):
        raise BodyTypeError(f"{type(bodies).__name__}; a sequence of bytes is expected")
    messages = tuple(bodies)
    for body in messages:
        check_body(body)
    if not messages:
        raise InvalidBody("a batch must hold at least one message")
    return messages


def pack_bodies(bodies: Iterable[bytes]) -> bytes:
    """Return a batch as MPUB's body has it: the count, then each message with its length."""
    messages = _checked(bodies)
    return b"".join(
        [_UINT32.pack(len(messages)), *(part for body in messages for part in (_UINT32.pack(len(body)), body))]
    )


def join_bodies(bodies: Iterable[bytes]) -> bytes:
    """Return a batch divided by newlines.  Raises InvalidBody for a message that holds one."""
    messages = _checked(bodies)
    if any(b"\n" in body for body in messages):
        raise InvalidBody("a message holds a newline; publish it with binary=True")
    return b"\n".join(messages)
