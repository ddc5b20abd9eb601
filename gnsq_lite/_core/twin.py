"""In Python what native.c and its neighbours do in C: the same either way (:mod:`gnsq_lite._core` chooses).

The ``pure_`` functions of lists leave all to their callers, who have to do in Python what C leaves to them anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

#: Why ``drain()`` has returned: nothing is queued, its turn is over, there are more workers than wanted.
QUEUE_EMPTY, TURN_OVER, SURPLUS = 0, 1, 2

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


def pure_drain(runner: Any, queue: Any, seat: list[Any] | None, /) -> int:
    """Handle the jobs of *queue*, a deque, one after the other; return why it stopped.

    *seat* is the caller's list of itself and what it is at, None between two drains: others may look.
    """
    run, monotonic = runner.run, time.monotonic
    seat = [None, None] if seat is None else seat
    try:
        while queue:
            if runner.surplus > 0:
                return SURPLUS
            try:
                job = seat[1] = queue.popleft()
            except IndexError:
                break  # another thread took it
            run(job)
            if monotonic() > runner._turn_ends:
                return TURN_OVER
        return QUEUE_EMPTY
    finally:
        seat[1] = None


def pure_skip_answered(messages: list[Any], at: int, /) -> int:
    """Return the place, from *at* on, of the first message that still has its token; their number where none has."""
    while at < len(messages) and not hasattr(messages[at], "_token"):
        at += 1
    return at


def pure_all_new(messages: list[Any], most: int, /) -> bool:
    """Whether all are new, and none was sent more than *most* times; False where that is for Python to see."""
    return False


def pure_keep_open(messages: list[Any], /) -> list[Any]:
    """Keep those that are new open, as ``enable_async()`` does, and return the others: here all of them."""
    return messages


def pure_finish_open(messages: list[Any], kept_too: bool, /) -> list[Any]:
    """Finish those that are new, and, with *kept_too*, those whose user answers later.

    Return what Python has to look at, here all of them: other objects, and with *kept_too* what has expired.
    """
    return messages


def pure_columns(messages: list[Any], /) -> tuple[Any, bytes, bytes, bytes, bytes, bytes] | None:
    """Return the one connection of all messages, or None, and what they hold column by column, in native byte order.

    These are the timestamps in ns, int64; the attempts, int32; the ids; the ends of the bodies behind a 0, int32; the
    bodies.  None: the caller has to do it, here always; in C for other objects and for bodies of 2 GiB together.
    """
    return None


def pure_pack(head: bytes, bodies: list[Any], most: int, /) -> bytes | None:
    """Return *head*, MPUB's size and count, and each of *bodies* with its size (WIRE-7).

    None where a body is not exactly bytes, is empty or has more than *most* bytes, where all together are more than
    the size field can tell, or where there is none: :func:`gnsq_lite.wire.commands.check_bodies` says what is wrong.
    """
    if set(map(type, bodies)) != {bytes}:
        return None
    sizes = set(map(len, bodies))
    if min(sizes) == 0 or max(sizes) > most:
        return None
    payload = 4 + 4 * len(bodies) + sum(map(len, bodies))
    if payload > _MOST_PAYLOAD:
        return None
    return head + payload.to_bytes(4, "big") + len(bodies).to_bytes(4, "big") + with_sizes(bodies)


def with_sizes(bodies: Sequence[bytes]) -> bytes:
    """Return *bodies* one after the other, each behind its size."""
    return b"".join([len(body).to_bytes(4, "big") + body for body in bodies])


_MOST_PAYLOAD = 2**31 - 1


def pure_murmur3_32(data: bytes, seed: int = 0, /) -> int:
    """Return the unsigned 32-bit murmur3 (x86 variant) of *data*."""
    whole = len(data) & ~3
    h = seed & _U32
    for (k,) in _words(data[:whole]):
        h ^= _scramble(k)
        h = (((h << 13) | (h >> 19)) * 5 + 0xE6546B64) & _U32
    if whole != len(data):
        h ^= _scramble(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _U32
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _U32
    return h ^ (h >> 16)


def _scramble(k: int) -> int:
    k = (k * _C1) & _U32
    return (((k << 15) | (k >> 17)) * _C2) & _U32


_U32 = 0xFFFFFFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_words = Struct("<I").iter_unpack
