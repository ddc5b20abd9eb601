"""Ordered consumption of one partition: one message at a time, a failed one again before any later one (YZ-6).

The server sends the next message only after FIN.  What it leaves to the client:

* It ignores ``REQ`` with a delay on an ordered channel, without a word: the message would come back only after
  msg_timeout (protocol_v2.go:1298).  So the client keeps a failed message for the delay, in flight and unanswered, and
  then sends ``REQ 0``, which brings it back at once.  A delay that does not fit before the message's deadline is cut:
  after the deadline the server would send it anyway, maybe to another consumer.
* A message that timed out while its handler still ran comes again: it must wait for that handler to end.  Where that
  handler succeeds, its FIN counts for the new delivery too, which has the same id.

The policy holds one connection's state.  It never yields; its caller sends the commands.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from gnsq_lite.clock import Clock


@dataclass(frozen=True, slots=True)
class Handle:
    """Give the message to the handler."""

    message: Any


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the message for *seconds*, then ask :meth:`OrderedPartition.release`."""

    message: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class SendBack:
    """Send REQ 0 for the message."""

    message: Any


@dataclass(frozen=True, slots=True)
class CountOut:
    """The message is in flight no more: what was sent for another delivery of it has answered this one."""

    message: Any


Decision = Handle | Hold | SendBack | CountOut


class OrderedPartition:
    """The messages of one partition on one connection.

    Every method returns what to do now, in order.
    """

    __slots__ = ("_again", "_clock", "_closes", "_current", "_held", "_queue", "_returned")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._current: Any | None = None
        self._again: Any | None = None  # a newer delivery of the current one
        self._queue: deque[Any] = deque()
        self._held = self._closes = False
        self._returned = False  # the handler ended without an answer

    def arrived(self, message: Any) -> list[Decision]:
        """Take a message from the server."""
        current = self._current
        if current is None or message.id != current.id:
            self._queue.append(message)
            return self._next()
        before, self._again = self._again, message
        counted_out: list[Decision] = [] if before is None else [CountOut(before)]
        if self._returned and not self._held:
            # nobody answered in time and nobody is at it: the answer, should it come, would come too late
            return counted_out + self._hand_out_again()
        return counted_out

    def finished(self, message: Any) -> list[Decision]:
        """The message was answered with FIN; the caller sends it."""
        return self._end(message)

    def answered_late(self, message: Any, *, finished: bool) -> list[Decision]:
        """The message's handler answered when its time was over; the caller has sent that, for what it is worth.

        Where the server has sent the message again, it is the answer to that.
        """
        return self._end(message, back=not finished)

    def failed(self, message: Any, delay: float) -> list[Decision]:
        """The message is to be sent again after *delay* seconds."""
        current = self._current
        if current is None or current.id != message.id or self._held:
            return [SendBack(message)]
        newest = self._again or current
        older: list[Decision] = [] if newest is current else [CountOut(current)]
        self._again = None
        left = newest.deadline - self._clock.now()
        margin = min(1.0, left * 0.1)
        seconds = 0.0 if self._closes else min(delay, left - margin)
        if seconds <= 0:
            return [*older, SendBack(newest), *self._end(message, back=True)]
        self._current, self._held = newest, True
        return [*older, Hold(newest, seconds)]

    def release(self, message: Any) -> list[Decision]:
        """The pause of a held message is over, or the consumer closes."""
        if not self._held or self._current is None or self._current.id != message.id:
            return []
        return [SendBack(self._current), *self._end(message, back=True)]

    def handler_returned(self, message: Any) -> list[Decision]:
        """The handler ended, maybe without an answer: it answers later, or the message had timed out."""
        if self._current is not message or self._held:
            return []
        self._returned = True
        return self._hand_out_again() if self._again is not None else []

    def expired(self, message: Any) -> list[Decision]:
        """The message's time had passed before its handler began: nobody will answer it."""
        if self._current is not message or self._held:
            return []
        return self._hand_out_again() if self._again is not None else self._end(message)

    def close(self) -> list[Decision]:
        """The consumer closes: what is held or waits goes back at once, in order; so does what fails from now on."""
        self._closes = True
        decisions: list[Decision] = []
        if self._held and self._current is not None:
            decisions.append(SendBack(self._current))
            decisions += [] if self._again is None else [CountOut(self._again)]
            self._current = self._again = None
            self._held = False
        decisions += [SendBack(message) for message in self._queue]
        self._queue.clear()
        return decisions

    def _hand_out_again(self) -> list[Decision]:
        newest, self._again = self._again, None
        self._current, self._returned = newest, False
        return [] if newest is None else [Handle(newest)]

    def _end(self, message: Any, *, back: bool = False) -> list[Decision]:
        current = self._current
        if current is None or current.id != message.id:
            return []
        again: list[Decision] = [] if self._again is None else [CountOut(self._again)]
        self._current = self._again = None
        self._held = self._returned = False
        if back:  # what waits is later than what goes back: it has to come after it
            behind, self._queue = self._queue, deque()
            return [*again, *(SendBack(later) for later in behind)]
        return again + self._next()

    def _next(self) -> list[Decision]:
        if self._current is not None or not self._queue:
            return []
        self._current, self._returned = self._queue.popleft(), False
        return [Handle(self._current)]
