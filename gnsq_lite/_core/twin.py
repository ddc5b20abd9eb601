"""Python versions of the C functions, with the same results (:mod:`gnsq_lite._core` chooses).

Here ``all_new``, ``finish_open`` and ``columns`` return what they return in C for a list that C does
not handle.  Their callers then use their own Python code.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import RLock
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from struct import Struct
from typing import Any

#: Size, type and head of a message frame.
_MESSAGE_FRAME_HEAD = Struct(">iIqH16s")
_FRAME_MESSAGE = 2
_SIZE_LENGTH = 4
_BODY_AT = _MESSAGE_FRAME_HEAD.size
_SMALLEST_SIZE = _BODY_AT - _SIZE_LENGTH


def scan(
    data: bytes,
    at: int,
    limit: int,
    make: Callable[[Any, int, int, bytes, bytes], Any],
    owner: Any,
    found: list[Any],
    /,
) -> int:
    """Make a message of each complete message frame from *at* on, and append the messages to *found*.

    Calls ``make(owner, timestamp_ns, attempts, id, body)``.  Returns the position of the first frame that is
    incomplete, invalid or not a message (WIRE-2 to WIRE-4).
    """
    append, unpack, length = found.append, _MESSAGE_FRAME_HEAD.unpack_from, len(data)
    last = length - _BODY_AT  # no complete message frame can start after this position
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


def scan_rows(
    data: bytes, at: int, limit: int, make: Callable[..., Any], owner: Any, found: list[Any], most: int, /
) -> int:
    """Make rows of the message frames from *at* on, at most *most* messages each, and append the rows to *found*.

    Calls ``make(owner, data, at, end, count, oldest, newest, attempts, ids)`` with the least and the greatest
    timestamp in ns, the greatest number of attempts, and the ids, joined by ``"\\nFIN "``.  Returns the same position
    as :func:`scan`.
    """
    heads: list[tuple[int, int, bytes, int]] = []
    end = scan(data, at, limit, lambda _, ns, tries, id, body: (ns, tries, id, len(body)), None, heads)
    for first in range(0, len(heads), most):
        stamps, attempts, ids, sizes = zip(*heads[first : first + most], strict=True)
        stop = at + _BODY_AT * len(ids) + sum(sizes)
        found.append(
            make(owner, data, at, stop, len(ids), min(stamps), max(stamps), max(attempts), b"\nFIN ".join(ids))
        )
        at = stop
    return end


def frame_columns(parts: tuple[tuple[bytes, int, int], ...], /) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Return the messages of *parts*, each (data, at, end), as columns in native byte order.

    The columns are: timestamps in microseconds, int64; attempts, int32; ids; a 0 and the end offsets of the bodies,
    int32; bodies.  Raises ValueError for other frames, and OverflowError for 2 GiB of bodies.
    """
    rows: list[tuple[int, int, bytes, bytes]] = []
    for data, at, end in parts:
        if not 0 <= at <= end <= len(data):
            raise ValueError("a part is outside its data")
        if scan(data[:end], at, _MOST_PAYLOAD, lambda _, *row: row, None, rows) != end:
            raise ValueError("a part has more than complete message frames")
    if not rows:
        return b"", b"", b"", bytes(4), b""
    stamps, attempts, ids, bodies = zip(*rows, strict=True)
    ends = array("i", accumulate(map(len, bodies), initial=0))
    # As C and Arrow divide: towards zero.
    micros = array("q", [stamp // 1000 if stamp >= 0 else -(-stamp // 1000) for stamp in stamps])
    return micros.tobytes(), array("i", attempts).tobytes(), b"".join(ids), ends.tobytes(), b"".join(bodies)


def swap_token(message: Any, expected: int, token: int | None, /) -> bool:
    """Replace the token of *message*, or delete it if *token* is None.  Return False if the token is not *expected*."""
    if getattr(message, "_token", None) != expected:
        return False
    try:
        del message._token  # of several threads, one succeeds
    except AttributeError:
        return False
    if token is not None:
        message._token = token
    return True


if not getattr(sys, "_is_gil_enabled", lambda: True)():
    _swap, _lock = swap_token, RLock()

    def swap_token(message: Any, expected: int, token: int | None, /) -> bool:
        """Do the same under a lock: without the GIL, several threads may succeed to delete one slot."""
        with _lock:
            return _swap(message, expected, token)


def drain(runner: Any, queue: Any, worker: list[Any], /) -> bool:
    """Handle the jobs of *queue*, a deque, in turn.

    Returns True after a job if the time is past ``runner.slice_ends``.  Returns False if the queue is empty or if there
    are surplus workers.  *worker* is the list [greenlet or thread ident, current job or None].  An
    exception leaves the job there, because its messages may be unanswered.
    """
    run, monotonic, is_over = runner.run, time.monotonic, False
    while queue and runner.surplus <= 0 and not is_over:
        try:
            job = worker[1] = queue.popleft()
        except IndexError:
            break  # another thread took the job
        run(job)
        is_over = monotonic() > runner.slice_ends
    worker[1] = None
    return is_over


def all_answered(messages: list[Any], /) -> bool:
    """Return whether all *messages* are answered."""
    return not any(hasattr(message, "_token") for message in messages)


def all_new(messages: list[Any], most: int, /) -> bool:
    """Return whether all messages are new with at most *most* attempts.  This version returns False (unknown)."""
    return False


def finish_open(messages: list[Any], kept_too: bool, /) -> list[Any]:
    """Finish new messages.  If *kept_too* is true, also finish messages in the state ASYNC.

    Returns the messages that the caller must finish.  This version returns all messages.  C returns objects that are no
    Message, and if *kept_too* is true also expired messages.
    """
    return messages


def columns(messages: list[Any], /) -> tuple[Any, bytes, bytes, bytes, bytes, bytes] | None:
    """Return the fields of messages as columns in native byte order, after their connection.

    The connection is None if it is not the same for all messages.  The columns are: timestamps in ns, int64; attempts,
    int32; ids; a 0 and the end offsets of the bodies, int32; bodies.  Returns None if the caller must create the
    columns, as this version always does.  C returns None for other objects than Message, and for 2 GiB of bodies.
    """
    return None


def pack(head: bytes, bodies: list[Any], most: int, /) -> bytes | None:
    """Encode MPUB: *head*, size, count, and each of *bodies* with its size (WIRE-7).

    Returns None if there is no body or the total exceeds the size field.  Returns None if a body is empty, longer than
    *most*, or not exactly bytes.  The caller then raises the error.
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
    """Join *bodies*, each after its size."""
    return b"".join([len(body).to_bytes(4, "big") + body for body in bodies])


_MOST_PAYLOAD = 2**31 - 1


def murmur3_32(data: bytes, seed: int = 0, /) -> int:
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


def receive(descriptor: int, received: list[bytes], /) -> None:
    """Read at most 4 KiB from a socket, and append the bytes to *received*.

    C appends nothing if the time limit of the socket passes or a signal arrives.  Python reads again after a signal, so
    the caller must wait for bytes before.
    """
    received.extend(map(os.read, (descriptor,), (4096,)))


def exchange(descriptor: int, command: bytes, counts: list[int], received: list[bytes], /) -> None:
    """Send *command*, append the number of bytes that the socket accepts at once to *counts*, and then :func:`receive`.

    Without C the caller sends and receives itself.
    """
    raise NotImplementedError


def know_message(*classes: Any) -> None:
    """Do nothing.  In C this function registers classes whose slots C fills."""


know_classes = know_message
