"""When a batch of messages is handed on: full, waited long enough, or no more can come (RDY-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from gnsq_lite.clock import Clock

T = TypeVar("T")


class Batcher(Generic[T]):
    """Collects messages into batches of *batch_size*.

    An incomplete batch is handed on *batch_wait* seconds after its first message came, or at once when the Reader is
    starved: nsqd sends nothing more before something is answered, and waiting would be for nothing.  *latest* returns
    the clock's time beyond which a message must not wait here, whatever *batch_wait* is (MSG-5).
    """

    __slots__ = ("_clock", "_due", "_held", "_latest", "_size", "_wait")

    def __init__(
        self, batch_size: int, batch_wait: float, clock: Clock, latest: Callable[[T], float] | None = None
    ) -> None:
        self._size, self._wait, self._clock, self._latest = max(1, batch_size), batch_wait, clock, latest
        self._held: list[T] = []
        self._due: float | None = None

    def __len__(self) -> int:
        """Return the number of messages that wait."""
        return len(self._held)

    @property
    def next_tick(self) -> float | None:
        """The clock's time at which :meth:`tick` hands on what waits; None: nothing waits."""
        return self._due

    def add(self, messages: Iterable[T]) -> list[list[T]]:
        """Take messages; return the batches that are full now, in order."""
        held, size = self._held, self._size
        was_empty = not held
        held.extend(messages)
        full = len(held) // size * size
        batches = [held[at : at + size] for at in range(0, full, size)]
        del held[:full]
        if not held:
            self._due = None
        elif was_empty or full:
            self._due = self._clock.now() + self._wait
            if self._latest is not None:
                self._due = min(self._due, self._latest(held[0]))
        return batches

    def drop(self, useless: Callable[[T], bool]) -> list[T]:
        """Remove and return those of the waiting messages that are *useless*."""
        dropped: list[T] = []
        kept: list[T] = []
        for message in self._held:
            (dropped if useless(message) else kept).append(message)
        self._held, self._due = kept, self._due if kept else None
        return dropped

    def tick(self) -> list[list[T]]:
        """Return the batch whose wait is over, if there is one."""
        if self._due is None or self._clock.now() < self._due:
            return []
        return self._take()

    def flush_now(self) -> list[list[T]]:
        """Return what waits."""
        return self._take() if self._held else []

    def _take(self) -> list[list[T]]:
        batch, self._held, self._due = self._held, [], None
        return [batch]
