"""Delivery where a link changes after its connection was made: it was quick then, and becomes slow, and quick again."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gnsq_lite.policy.delivery import Delivery
from tests.fakes import FakeClock
from tests.unit.policy.nsqd_buffer import Wire, percentile

#: Seconds until the link changes, and until messages come after that.
CHANGES, COMES = 0.5, 1.0


def published(rate: float, since: float, until: float) -> list[float]:
    """Publishes at random times, *rate* a second."""
    rng, at = random.Random(1), since
    times = []
    while at < until:
        times.append(at)
        at += rng.expovariate(rate)
    return times


@pytest.mark.parametrize(("before", "after"), [(0.0001, 0.001), (0.0001, 0.002), (0.0001, 0.02), (0.005, 0.05)])
@pytest.mark.parametrize("handle", [0.0, 0.001, 0.02])
def test_a_backlog_is_worked_off_where_the_link_has_become_slow(before: float, after: float, handle: float) -> None:
    backlog = [*published(100, 0.01, CHANGES), *[COMES] * 2000]
    wires = [Wire(backlog, prompt=prompt, handle=handle, delay=before) for prompt in (True, False)]
    wire, full = (each.change(CHANGES, after).run(30.0) for each in wires)
    assert len(wire.latencies) == len(full.latencies) == len(backlog)
    growing = 24 * after  # twelve round trips: it is noticed, and the window grows
    assert wire.arrived_at - COMES <= 1.2 * (full.arrived_at - COMES) + growing
    assert len(wire.commands) < 100


@pytest.mark.parametrize("rate", [100, 500])
def test_messages_keep_coming_soon_where_the_link_has_become_slow(rate: float) -> None:
    wire = Wire(published(rate, 0.01, 4.0)).change(CHANGES, 0.02).run(10.0)
    assert percentile(wire.latencies, 0.5) <= 0.04
    assert percentile(wire.latencies, 0.99) <= 0.4


def held(seed: int) -> Callable[[], float]:
    """What travels is held for 80 ms now and then, as where a process may use so much of a processor and no more."""
    rng = random.Random(seed)
    return lambda: rng.expovariate(1 / 0.00015) + (0.08 if rng.random() < 0.002 else 0.0)


@pytest.mark.parametrize("rate", [300, 1000, 3000])
@pytest.mark.parametrize("handle", [0.0, 0.003])
def test_a_link_that_is_held_up_now_and_then_has_not_become_slow(rate: float, handle: float) -> None:
    wire = Wire(published(rate, 0.01, 2.0), jitter=held(2), handle=handle).run(5.0)
    assert percentile(wire.latencies, 0.5) <= 0.002


@pytest.mark.parametrize(("age", "gaps", "window"), [(60, (0.1,), 4), (60, (0.05, 0.2), 1), (0, (0.1,), 1)])
def test_it_takes_old_messages_at_like_distances_to_show_a_slow_link(
    age: float, gaps: tuple[float, ...], window: int
) -> None:
    """Old are those that were deferred, too, or sent back for a while: they come at any time."""
    clock = FakeClock()
    delivery = Delivery(clock, 0.0002)
    delivery.set_limit(40, 0)
    for n in range(28):
        clock.advance(0.01 if n < 8 else gaps[n % len(gaps)])
        delivery.received(1, 1, 0.0 if n < 8 else age, clock.now())
        delivery.answered(0)
        delivery.take()
        if delivery.window > 1:
            break
    assert delivery.window == window


def test_a_link_that_is_quick_again_is_taken_for_quick_again() -> None:
    backlog = [*published(100, 0.01, CHANGES), *[COMES] * 500, *published(3000, COMES, 2.0), *published(300, 2.0, 14.0)]
    wire = Wire(sorted(backlog), handle=0.02, concurrency=200).change(CHANGES, 0.02).change(2.0, 0.0001).run(20.0)
    assert percentile(wire.latencies[-300:], 0.5) <= 0.002
