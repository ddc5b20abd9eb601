"""What is done once per message, in C where it was built, in Python elsewhere: the same either way.

:mod:`gnsq_lite.accelerator` says which of the two runs, and how to choose.  What C and Python agree upon:

A message has a ``_token`` until it is answered: NEW, ASYNC, EXPIRED or LATE_ASYNC (:mod:`gnsq_lite.message`).  Who
deletes it answers, so there is one answer, whatever the threads.  ``know(Message, NEW, ASYNC)`` tells C the slots, and
a :class:`gnsq_lite.message.Tailed` those of a subclass; ``scan`` calls whatever else makes messages.

``Runner.drain(queue, seat)`` takes jobs from the left of the queue, and shows in ``seat[1]``, if there is a seat, the
one it is at.  C handles a job by itself where it is a Message, or of a subclass, whose token is NEW and whose attempts
are at most *most*; then it calls ``handler(message)``, and

========================================  ==========================================================================
the handler                               C does
========================================  ==========================================================================
returned, token NEW                       delete the token; ``connection.fins.add(message.id)``, or, where ``fins`` is
                                          None, ``connection.handled(message)``
returned, no token: it has answered       nothing
returned, any other token                 ``settled(message)``
returned a coroutine or a generator       close it, then as if TypeError had been raised
returned False                            warn, then as for any other value
raised                                    ``failed(message, error)``; what that raises leaves drain()
========================================  ==========================================================================

Every other job goes to ``run(job)``, which does all of it in Python, and is what :class:`PureRunner` calls for each job
(:func:`gnsq_lite.consume.run_handler.make_runner` makes all four).  After each job drain() returns where its turn is
over; before each, where there is a surplus of workers.  ``Fins`` is the buffer of one connection's FINs: ``add`` in any
thread, ``take`` in the loop's; ``wake`` is called once between two of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

from gnsq_lite.accelerator import WANTED, do_without

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


def pure_know(type: type, fresh: int, kept: int, /) -> None:
    """Python needs to know nothing; C fills the slots of *type* directly, with these tokens."""


class PureFins:
    """The FINs of one connection that are not sent yet; :meth:`add` may be called in any thread.

    Args:
        wake: Called, wherever :meth:`add` was, when something is queued and ``due`` is False; ``due`` is True then.
    """

    __slots__ = ("_ids", "_wake", "due")

    def __init__(self, wake: Callable[[], object], /) -> None:
        self._ids: list[bytes] = []
        self._wake = wake
        self.due = False

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: bytes, /) -> None:
        """Queue the FIN of *id*; call wake unless it is due."""
        self._ids.append(id)
        if not self.due:
            self.due = True
            self._wake()

    def take(self) -> tuple[bytes, int]:
        """Return the bytes of the queued FINs, and their number; forget them."""
        ids = self._ids
        count = len(ids)  # other threads may add meanwhile: that is left
        if not count:
            return b"", 0
        taken = b"FIN " + b"\nFIN ".join(ids[:count]) + b"\n"
        del ids[:count]
        return taken, count


#: Why ``drain()`` has returned: nothing is queued, its turn is over, there are more workers than wanted.
QUEUE_EMPTY, TURN_OVER, SURPLUS = 0, 1, 2


class PureRunner:
    """Calls a handler for one queued message after the other.

    Args:
        handler: Called by C, for a message that is new and was not sent more than *most* times, instead of *run*.
        run: Handles one job, whatever it is: calls the handler and answers.
        failed: Called by C with such a message and what its handler raised.
        settled: Called by C with such a message that its handler did not leave new.
    """

    __slots__ = ("_turn_ends", "run", "surplus")

    def __init__(
        self,
        handler: Callable[[Any], object],
        most: int,
        run: Callable[[Any], None],
        failed: Callable[[Any, BaseException], None],
        settled: Callable[[Any], None],
    ) -> None:
        self.run = run
        #: Above 0: drain() returns after its job.
        self.surplus = 0
        self._turn_ends = float("inf")

    def begin_turn(self, seconds: float, /) -> None:
        """Let drain() return *seconds* from now, after the job that runs then; without this it never does."""
        self._turn_ends = time.monotonic() + seconds

    def drain(self, queue: Any, seat: list[Any] | None = None, /) -> int:
        """Handle the jobs of *queue*, a deque, one after the other; return why it stopped.

        *seat* is the caller's list of itself and what it is at, None between two drains: others may look.
        """
        run, monotonic = self.run, time.monotonic
        seat = [None, None] if seat is None else seat
        try:
            while queue:
                if self.surplus > 0:
                    return SURPLUS
                try:
                    job = seat[1] = queue.popleft()
                except IndexError:
                    break  # another thread took it
                run(job)
                if monotonic() > self._turn_ends:
                    return TURN_OVER
            return QUEUE_EMPTY
        finally:
            seat[1] = None


scan, skip_answered, know, is_accelerated = pure_scan, pure_skip_answered, pure_know, False
all_new, keep_open, finish_open, columns = pure_all_new, pure_keep_open, pure_finish_open, pure_columns
Fins: TypeAlias = PureFins
Runner: TypeAlias = PureRunner
if WANTED != "python":
    try:
        from gnsq_lite._speed import Fins as _Fins
        from gnsq_lite._speed import Runner as _Runner
        from gnsq_lite._speed import all_new as _all_new
        from gnsq_lite._speed import columns as _columns
        from gnsq_lite._speed import finish_open as _finish_open
        from gnsq_lite._speed import keep_open as _keep_open
        from gnsq_lite._speed import know as _know
        from gnsq_lite._speed import scan as _scan
        from gnsq_lite._speed import skip_answered as _skip_answered
    except ImportError as missing:
        do_without(missing)
    else:
        scan, skip_answered, know, is_accelerated = _scan, _skip_answered, _know, True
        all_new, keep_open, finish_open, columns = _all_new, _keep_open, _finish_open, _columns
        Fins, Runner = _Fins, _Runner
