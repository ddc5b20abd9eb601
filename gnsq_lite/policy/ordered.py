"""Handles the messages of one partition one at a time, and repeats a failed message before the next one (YZ-6).

The server sends the next message only after FIN.  The client must handle two cases:

* On an ordered channel the server silently ignores ``REQ`` with a delay: it would send the message only after
  msg_timeout (protocol_v2.go:1298).  So the client holds a failed message, unanswered, for the delay.  Then it sends
  ``REQ 0``, and the server sends the message at once.  The delay always ends before the message's deadline, after which
  the server would send the message anyway, perhaps to another consumer.
* If a message times out while its handler runs, the server sends the message again.  The new delivery must wait until
  the handler returns.  If the handler succeeds, its FIN also answers the new delivery, which has the same id.

OrderedPartition has the state of one connection.  The caller sends the commands.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from gnsq_lite.clock import Clock


@dataclass(frozen=True, slots=True)
class Decision:
    """An action that the caller must do for one message.

    Attributes:
        action: "handle": call the handler.  "hold": call :meth:`OrderedPartition.release` after *seconds*.
            "send_back": send REQ 0.  "count_out": remove the message from the count in flight, because the answer to
            another delivery of the message also answers this one.
    """

    action: Literal["handle", "hold", "send_back", "count_out"]
    message: Any
    seconds: float = 0.0


class OrderedPartition:
    """Messages of one partition on one connection.

    Each method returns the actions to do now, in order.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._current: Any | None = None
        self._again: Any | None = None  # a newer delivery of the current message
        self._queue: deque[Any] = deque()
        self._held = self._closes = False
        self._returned = False  # the handler returned without an answer

    def arrived(self, message: Any) -> list[Decision]:
        """Handle a message from the server."""
        current = self._current
        if current is None or message.id != current.id:
            self._queue.append(message)
            return self._next()
        before, self._again = self._again, message
        counted_out: list[Decision] = [] if before is None else [Decision("count_out", before)]
        if self._returned and not self._held:
            # The message timed out after its handler had returned without an answer: handle the new delivery now.
            return counted_out + self._hand_out_again()
        return counted_out

    def replace(self, finished: Any, message: Any) -> bool:
        """Handle a finished message and the one that follows it, whose handler the caller then calls.

        Return False, and do nothing, if the caller must call :meth:`finished` and :meth:`arrived` instead.
        """
        if self._current is not finished or self._again is not None or self._queue or self._held:
            return False
        self._current, self._returned = message, False
        return True

    def finished(self, message: Any) -> list[Decision]:
        """Handle a finished message, whose FIN the caller sends."""
        return self._end(message)

    def answered_late(self, message: Any, *, finished: bool) -> list[Decision]:
        """Handle an answer that the caller has sent after the message's deadline.

        If the server has sent the message again, the server applies the answer to the new delivery.
        """
        return self._end(message, back=not finished)

    def failed(self, message: Any, delay: float) -> list[Decision]:
        """Handle a failed message: send it back after *delay* seconds, or before its deadline if that is earlier."""
        current = self._current
        if current is None or current.id != message.id or self._held:
            return [Decision("send_back", message)]
        newest = self._again or current
        older: list[Decision] = [] if newest is current else [Decision("count_out", current)]
        self._again = None
        left = newest.deadline - self._clock.now()
        margin = min(1.0, left * 0.1)
        seconds = 0.0 if self._closes else min(delay, left - margin)
        if seconds <= 0:
            return [*older, Decision("send_back", newest), *self._end(message, back=True)]
        self._current, self._held = newest, True
        return [*older, Decision("hold", newest, seconds)]

    def release(self, message: Any) -> list[Decision]:
        """Send back a held message after its delay."""
        if not self._held or self._current is None or self._current.id != message.id:
            return []
        return [Decision("send_back", self._current), *self._end(message, back=True)]

    def handler_returned(self, message: Any) -> list[Decision]:
        """Handle the return of a handler that did not answer: after enable_async(), or after the deadline."""
        if self._current is not message or self._held:
            return []
        self._returned = True
        return self._hand_out_again() if self._again is not None else []

    def expired(self, message: Any) -> list[Decision]:
        """Handle a message that timed out before a handler began it.  The message gets no answer."""
        if self._current is not message or self._held:
            return []
        return self._hand_out_again() if self._again is not None else self._end(message)

    def close(self) -> list[Decision]:
        """Send back the held message and the waiting messages.  From now on send back failed messages at once."""
        self._closes = True
        decisions: list[Decision] = []
        if self._held and self._current is not None:
            decisions.append(Decision("send_back", self._current))
            decisions += [] if self._again is None else [Decision("count_out", self._again)]
            self._current = self._again = None
            self._held = False
        decisions += [Decision("send_back", message) for message in self._queue]
        self._queue.clear()
        return decisions

    def _hand_out_again(self) -> list[Decision]:
        newest, self._again = self._again, None
        self._current, self._returned = newest, False
        return [] if newest is None else [Decision("handle", newest)]

    def _end(self, message: Any, *, back: bool = False) -> list[Decision]:
        current = self._current
        if current is None or current.id != message.id:
            return []
        again: list[Decision] = [] if self._again is None else [Decision("count_out", self._again)]
        self._current = self._again = None
        self._held = self._returned = False
        if back:  # send back the waiting messages too, so that none is handled before this one
            waiting, self._queue = self._queue, deque()
            return [*again, *(Decision("send_back", later) for later in waiting)]
        return again + self._next()

    def _next(self) -> list[Decision]:
        if self._current is not None or not self._queue:
            return []
        self._current, self._returned = self._queue.popleft(), False
        return [Decision("handle", self._current)]
