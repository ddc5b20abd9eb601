"""Collects messages into lists for a handler that wants batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsq_lite.message import Message
from gnsq_lite.net.handlers import Pool
from gnsq_lite.net.runtime import Loop


class BatchFeeder:
    """Hands a list to the pool when it is full, when *batch_wait* is over, or when no more can come (RDY-7)."""

    def __init__(self, loop: Loop, size: int, wait: float, pool: Pool, is_starved: Callable[[], bool]) -> None:
        self._loop, self._size, self._wait, self._pool, self._is_starved = loop, size, wait, pool, is_starved
        self._held: list[Message] = []
        self._timer: Any = None

    def add(self, messages: list[Message]) -> None:
        """Take what a read brought; in the loop's thread."""
        held, size = self._held, self._size
        held.extend(messages)
        full = len(held) - len(held) % size
        if full:
            self._pool.submit([held[at : at + size] for at in range(0, full, size)])
            del held[:full]
            self._stop_timer()
        if held and self._is_starved():
            self._release()
        elif held and self._timer is None:
            self._timer = self._loop.hub.loop.timer(self._wait)
            self._timer.start(self._release)

    def _release(self) -> None:
        self._stop_timer()
        held, self._held = self._held, []
        if held:
            self._pool.submit([held])

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None

    def waiting(self) -> int:
        """Messages in the list that is not full yet."""
        return len(self._held)

    def take(self) -> list[list[Message]]:
        """Remove and return what was not handed on."""
        self._stop_timer()
        held, self._held = self._held, []
        return [held] if held else []
