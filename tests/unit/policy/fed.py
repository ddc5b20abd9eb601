"""An allocator with connections that count their messages and report them only while the allocator watches."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from gnsq_lite.policy.rdy import Key, ReadyAllocator, SetReady
from tests.fakes import FakeClock


class Fed(ReadyAllocator):
    """An allocator that keeps the counts of its connections.

    As in FlowControl, messages are reported only while the allocator watches.  With *always* all are reported.
    """

    def __init__(
        self, max_in_flight: int, *, clock: FakeClock, rng: random.Random, always: bool = False, **times: float
    ) -> None:
        super().__init__(max_in_flight, clock=clock, rng=rng, **times)
        self.always = always
        self.counts: dict[Key, Any] = {}
        #: Number of reports.
        self.told = 0

    def add(self, key: Key, max_rdy_count: int, counts: Any = None) -> list[SetReady]:
        mine = SimpleNamespace(in_flight=0, received_at=float("-inf"))
        changes = super().add(key, max_rdy_count, mine)
        self.counts[key] = mine
        return changes

    def remove(self, key: Key) -> list[SetReady]:
        self.counts.pop(key, None)
        return super().remove(key)

    def received(self, key: Key, count: int = 0) -> None:
        if key in self.counts:
            self.counts[key].in_flight += count
            self.counts[key].received_at = self._clock.now()
        if self._is_told(key, 0):
            super().received(key)

    def answered(self, key: Key, count: int) -> list[SetReady]:
        if key in self.counts:
            self.counts[key].in_flight = max(0, self.counts[key].in_flight - count)
        return super().answered(key, count) if self._is_told(key, count) else []

    def _is_told(self, key: Key, answered: int) -> bool:
        above = key in self.counts and self.counts[key].in_flight + answered > self.ready(key)
        is_told = self.always or self.watches or above
        self.told += is_told
        return is_told
