"""Collects messages into lists for a handler of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.consume.pools import Pool
from gnsq_lite.message import Message, is_expired
from gnsq_lite.net.loop import Loop


class BatchFeeder:
    """Collects messages into lists of *size*, and submits full lists to the pool.  Call it in the loop's thread.

    A list that is not full is submitted *wait* seconds after its first message arrived.  The wait is at most half of
    the message's timeout, so that the handler has the other half (MSG-5).  If the Reader is starved after a read and no
    handler runs or is queued, the list is submitted at once, because nsqd may send nothing before an answer (RDY-7).
    """

    def __init__(
        self, loop: Loop, size: int, wait: float, pool: Pool, clock: Clock, is_starved: Callable[[], bool]
    ) -> None:
        self._loop, self._size, self._wait, self._pool = loop, size, wait, pool
        self._clock, self._is_starved = clock, is_starved
        self._held: list[Message] = []
        self._timer: Any = None

    def submit(self, messages: list[Message]) -> None:
        """Add the *messages* of a read, and submit the lists that are full."""
        was_empty, size = not self._held, self._size
        self._held.extend(messages)
        batches = self._take_full(size)
        if was_empty or batches:
            self._start_timer()
        if batches:
            self._pool.submit(batches)
        # While a handler runs, the incomplete list can wait: nsqd sends more messages after the handler's answers.
        if self._held and self._is_starved() and not (self._pool.busy() or self._pool.queued()):
            self._submit_held()

    def _take_full(self, size: int) -> list[list[Message]]:
        """Remove and return the full lists."""
        full = len(self._held) // size * size
        batches = [self._held[at : at + size] for at in range(0, full, size)]
        del self._held[:full]
        return batches

    def _start_timer(self) -> None:
        self._stop_timer()
        if self._held:
            first = self._held[0]
            latest = first.received_at + first._connection.msg_timeout / 2.0 - self._clock.now()
            # In a greenlet, because submit() of an inline pool calls the handler, which cannot wait in the hub.
            self._timer = self._loop.timer(
                max(0.0, min(self._wait, latest)), lambda: self._loop.spawn("batches", self._submit_held)
            )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def _submit_held(self) -> None:
        batch = self._take()
        if batch:
            self._pool.submit([batch])

    def _take(self) -> list[Message]:
        self._stop_timer()
        held, self._held = self._held, []
        return held

    def queued(self) -> int:
        """Return the number of queued lists plus the number of messages in the incomplete list."""
        return self._pool.queued() + len(self._held)

    def take_queued(self) -> list[Message]:
        """Remove and return the messages that no handler has begun."""
        return self._pool.take_queued() + self._take()

    def purge(self) -> list[Message]:
        """Remove and return the messages that timed out at nsqd before a handler began them."""
        gone = self._pool.purge() + list(filter(is_expired, self._held))
        self._held = [message for message in self._held if not is_expired(message)]
        return gone


class RowsFeeder(BatchFeeder):
    """Collects Rows into lists of at most *size* messages.  A list ends where a read ends, because that costs least."""

    def _take_full(self, size: int) -> list[list[Message]]:
        lists: list[list[Message]] = [[]]
        count = 0
        for rows in self._held:
            if count + rows._rows > size:
                lists.append([])
                count = 0
            lists[-1].append(rows)
            count += rows._rows
        self._held = [] if count >= size else lists.pop()
        return list(filter(None, lists))
