"""Carries out what :class:`gnsq_lite.policy.batch.Batcher` decides: lists for a handler that wants batches.

Also what takes messages out again that wait for a handler, in batches or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.consume.pools import Pool
from gnsq_lite.message import Message
from gnsq_lite.net.loop import Loop
from gnsq_lite.policy.batch import Batcher


def latest(message: Message) -> float:
    """Return when a message is to be handed on at the latest: half its time is the handler's (MSG-5)."""
    return message.received_at + message._connection.msg_timeout / 2.0


class BatchFeeder:
    """Hands a list to the pool when it is full, when its wait is over, or when no more can come (RDY-7)."""

    def __init__(
        self, loop: Loop, batcher: Batcher[Message], pool: Pool, clock: Clock, starved: Callable[[], bool]
    ) -> None:
        self._loop, self._batcher, self._pool, self._clock, self._starved = loop, batcher, pool, clock, starved
        self._timer: Any = None

    def add(self, messages: list[Message]) -> None:
        """Take what a read brought; in the loop's thread."""
        self._hand_on(self._batcher.add(messages))
        # While a handler runs its answers will bring more, so a list that is not full may wait for them.
        if self._batcher.next_tick is not None and self._starved() and not self._pool.busy():
            self._hand_on(self._batcher.flush_now())
        self._watch()

    def _hand_on(self, batches: list[list[Message]]) -> None:
        if batches:
            self._pool.submit(batches)

    def _watch(self) -> None:
        due = self._batcher.next_tick
        if due is None:
            self._stop_timer()
        elif self._timer is None or not self._timer.active:
            self._timer = self._loop.timer(due - self._clock.now(), self._on_time)

    def _on_time(self) -> None:
        """In the hub, where no handler may run: it could not wait for anything."""
        self._stop_timer()
        self._loop.spawn("batches", self._tick)

    def _tick(self) -> None:
        try:
            self._hand_on(self._batcher.tick())
        finally:
            self._watch()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None

    def waiting(self) -> int:
        """Messages in the list that is not full yet."""
        return len(self._batcher)

    def drop(self, useless: Callable[[Message], bool]) -> list[Message]:
        """Remove and return those in that list that are *useless*."""
        return self._batcher.drop(useless)

    def take(self) -> list[list[Message]]:
        """Remove and return what was not handed on."""
        self._stop_timer()
        return self._batcher.flush_now()


# -- what waits for a handler, in the pool's queue or in a list that is not full yet --------------------------------


def take_queued(pool: Pool, batches: BatchFeeder | None) -> list[Message]:
    """Remove and return the messages that no handler has begun."""
    jobs = pool.take_queued() + (batches.take() if batches is not None else [])
    return [m for job in jobs for m in (job if isinstance(job, list) else (job,))]


def drop(pool: Pool, batches: BatchFeeder | None, useless: Callable[[Message], bool]) -> list[Message]:
    """Remove and return the *useless* ones of those that no handler has begun, out of batches too.

    The others keep their order.  In the loop's thread, where all messages are queued; a handler's thread that asks
    for work meanwhile finds none, and is woken again.
    """
    dropped: list[Message] = []
    kept: list[Any] = []
    for job in pool.take_queued():
        if isinstance(job, list):
            left: list[Message] = []
            for message in job:
                (dropped if useless(message) else left).append(message)
            kept += [left] if left else []
        else:
            (dropped if useless(job) else kept).append(job)
    if kept:
        pool.submit(kept)
    if batches is not None:
        dropped += batches.drop(useless)
    return dropped
