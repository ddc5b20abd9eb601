"""RDY counts on a fake clock."""

from __future__ import annotations

import random
from collections.abc import Iterable

from gnsq_lite.policy.rdy import SetReady
from tests.fakes import FakeClock
from tests.unit.policy.fed import Fed

SETTLE = 0.1


def make(clock: FakeClock, max_in_flight: int, settle: float = SETTLE) -> Fed:
    return Fed(max_in_flight, clock=clock, rng=random.Random(7), settle=settle)


def pairs(changes: list[SetReady]) -> list[tuple[object, int]]:
    return [(change.key, change.count) for change in changes]


def settled(clock: FakeClock, allocator: Fed) -> list[tuple[object, int]]:
    """Advance the clock until no tick is scheduled.  Return the RDY commands until then."""
    sent: list[tuple[object, int]] = []
    while allocator.next_tick is not None:
        clock.advance(max(0.0, allocator.next_tick - clock.now()))
        sent += pairs(allocator.tick())
    return sent


def ready(clock: FakeClock, max_in_flight: int, keys: Iterable[object]) -> Fed:
    """Return an allocator whose connections, *keys*, have their shares."""
    allocator = make(clock, max_in_flight)
    for key in keys:
        allocator.add(key, 2500)
    settled(clock, allocator)
    return allocator


def settled_until(clock: FakeClock, allocator: Fed, seconds: float) -> list[tuple[object, int]]:
    sent, end = [], clock.now() + seconds
    while allocator.next_tick is not None and allocator.next_tick <= end:
        clock.advance(max(0.0, allocator.next_tick - clock.now()))
        sent += pairs(allocator.tick())
    return sent
