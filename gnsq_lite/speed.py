"""What is done once per message, in C where it was built, in Python elsewhere: the same either way.

``GNSQ_LITE_PURE=1`` in the environment, at import, keeps to Python.  Consuming 100-byte messages from nsqd at
max_in_flight 2500 went from 0.41 to 0.68 of the bare gevent loop inline, from 0.39 to 0.61 with the greenlet pool.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import Struct
from typing import Any

#: Size, type, and a message's head in one go.
_MESSAGE_FRAME_HEAD = Struct(">iIqH16s")
_FRAME_MESSAGE = 2
_SIZE_LENGTH = 4
_BODY_AT = _MESSAGE_FRAME_HEAD.size
_SMALLEST_SIZE = _BODY_AT - _SIZE_LENGTH


def pure_scan(
    data: bytes,
    at: int,
    limit: int,
    make: Callable[[Any, int, int, bytes, bytes], Any],
    owner: Any,
    found: list[Any],
    /,
) -> int:
    """Append to *found* what *make* returns for each whole message frame from *at* on.

    It is called as ``make(owner, timestamp_ns, attempts, id, body)``.  Returns where the first frame is that is no
    message, not whole, or not lawful (WIRE-2 to WIRE-4).
    """
    append, unpack, length = found.append, _MESSAGE_FRAME_HEAD.unpack_from, len(data)
    last = length - _BODY_AT  # beyond it no message frame can start and be whole
    while at <= last:
        size, kind, timestamp_ns, attempts, message_id = unpack(data, at)
        if kind != _FRAME_MESSAGE or not _SMALLEST_SIZE <= size <= limit:
            break
        end = at + _SIZE_LENGTH + size
        if end > length:
            break
        append(make(owner, timestamp_ns, attempts, message_id, data[at + _BODY_AT : end]))
        at = end
    return at


def pure_skip_answered(messages: list[Any], at: int, /) -> int:
    """Return the place, from *at* on, of the first message that still has its token; their number where none has."""
    while at < len(messages) and not hasattr(messages[at], "_token"):
        at += 1
    return at


def pure_know(type: type, fresh: int, /) -> None:
    """Python needs to know nothing; C fills the slots of *type* directly, with *fresh* as a new message's token."""


scan, skip_answered, know, is_accelerated = pure_scan, pure_skip_answered, pure_know, False
if os.environ.get("GNSQ_LITE_PURE") != "1":
    try:
        from gnsq_lite._speed import know as _know
        from gnsq_lite._speed import scan as _scan
        from gnsq_lite._speed import skip_answered as _skip_answered
    except ImportError:
        pass  # it is built where a C compiler is at hand
    else:
        scan, skip_answered, know, is_accelerated = _scan, _skip_answered, _know, True
