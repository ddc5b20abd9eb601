"""Delivery with a model of nsqd's output buffer: messages arrive soon, and a backlog uses the whole share."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.policy.delivery import BACKLOG, CAREFUL, SLOWEST_TICK, SPAN, Delivery
from tests.fakes import FakeClock
from tests.profiles import LONG, repeats
from tests.unit.policy.nsqd_buffer import Wire, percentile

#: Number of messages at a steady rate, and in a backlog.
MESSAGES, WAITING = repeats(4000, 1000), repeats(3000, 2000)


def steady(rate: float, seconds: float, seed: int = 0, since: float = 0.01) -> list[float]:
    """Return random times of publishes, *rate* a second."""
    rng, at = random.Random(seed), since
    times = []
    while at < seconds:
        times.append(at)
        at += rng.expovariate(rate)
    return times


def jitter(seed: int = 0) -> Callable[[], float]:
    """Return the delay of a machine: 0.15 ms on average, and sometimes half a millisecond more."""
    rng = random.Random(seed)
    return lambda: rng.expovariate(1 / 0.00015) + (rng.random() * 0.001 if rng.random() < 0.03 else 0.0)


@pytest.mark.rule("RDY-4")
@pytest.mark.parametrize(("rate", "p50"), [(50, 0.0003), (500, 0.0003), (2000, 0.001), (5000, 0.001), (20000, 0.001)])
@pytest.mark.parametrize("handle", [0.0, 0.003, 0.02])
def test_messages_arrive_within_a_millisecond_at_any_rate(rate: float, p50: float, handle: float) -> None:
    published = steady(rate, min(2.0, MESSAGES / rate))
    limit = 1000 if handle else 200
    wire = Wire(published, handle=handle, limit=limit, concurrency=1000).run(5.0)
    full = Wire(published, handle=handle, limit=limit, concurrency=1000, prompt=False).run(5.0)
    assert len(wire.latencies) == len(full.latencies) == len(published)
    assert percentile(wire.latencies, 0.5) <= p50 < percentile(full.latencies, 0.5)
    assert percentile(wire.latencies, 0.99) <= 5 * SPAN
    assert max(wire.most_out, *wire.commands) <= limit
    assert len(wire.commands) <= 2.05 * len(wire.latencies)


@pytest.mark.parametrize("rate", [50, 500, 2000, 20000])
def test_messages_arrive_soon_on_a_busy_machine(rate: float) -> None:
    wire = Wire(steady(rate, min(2.0, 4 * MESSAGES / rate)), jitter=jitter()).run(5.0)
    assert percentile(wire.latencies, 0.5) <= 0.002


@pytest.mark.parametrize("rate", [50, 500])
def test_fast_handlers_need_few_rdy_commands(rate: float) -> None:
    wire = Wire(steady(rate, 2.0), handle=0.02).run(1.0)
    wire.handle = 0.0  # handlers were slow before
    sent, before = len(wire.commands), len(wire.latencies)
    wire.run(4.0)
    assert len(wire.commands) - sent < 0.15 * (len(wire.latencies) - before) + 10


@pytest.mark.parametrize("size", [1, 2, 5, 10, 50, 100, 500, 1000, 10_000])
def test_a_burst_takes_ten_milliseconds_more_than_with_the_whole_share(size: int) -> None:
    wire, full = (Wire([0.05] * size, prompt=prompt).run(3.0) for prompt in (True, False))
    assert len(wire.latencies) == len(full.latencies) == size
    assert wire.arrived_at <= full.arrived_at + 0.01


@pytest.mark.parametrize("delay", [0.0001, 0.002, 0.02, 0.1] if LONG else [0.0001, 0.02])
@pytest.mark.parametrize(("handle", "concurrency"), [(0.0, 1), (0.001, 1), (0.001, 10), (0.02, 100), (0.2, 100)])
@pytest.mark.parametrize("every", [0.0, 0.001, 1.0])
def test_a_backlog_is_consumed_as_fast_as_with_the_whole_share(
    every: float, delay: float, handle: float, concurrency: int
) -> None:
    backlog = [-every * left for left in range(WAITING, 0, -1)]
    wire, full = (
        Wire(backlog, prompt=prompt, handle=handle, concurrency=concurrency, delay=delay).run(600.0)
        for prompt in (True, False)
    )
    assert len(wire.latencies) == len(full.latencies) == WAITING
    growing = BACKLOG + 4 * delay  # seconds until the messages count as a backlog
    slower = 1.03 if delay <= SPAN else 1.4 if delay <= 0.02 else 2.0
    assert wire.arrived_at <= slower * full.arrived_at + growing


@pytest.mark.parametrize("after", [0.001, 0.02, 0.05])
@pytest.mark.parametrize("handle", [0.0, 0.001, 0.02])
def test_a_backlog_is_consumed_after_the_network_became_slow(after: float, handle: float) -> None:
    backlog = [*steady(100, 0.5), *[1.0] * 2000]
    wires = [Wire(backlog, prompt=prompt, handle=handle) for prompt in (True, False)]
    wire, full = (each.change(0.5, after).run(60.0) for each in wires)
    assert len(wire.latencies) == len(full.latencies) == len(backlog)
    assert wire.arrived_at - 1.0 <= 2.0 * (full.arrived_at - 1.0) + 2 * BACKLOG


@pytest.mark.parametrize("skew", [-3600.0, -0.2, 0.2, 3600.0])
@pytest.mark.parametrize("rate", [50, 500, 5000])
def test_messages_arrive_soon_at_low_rates_if_clocks_differ(skew: float, rate: int) -> None:
    wire = Wire(steady(rate, min(2.0, MESSAGES / rate)), skew=skew).run(5.0)
    assert percentile(wire.latencies, 0.5) <= (0.002 if rate < 5000 or skew > 0 else 0.02)


def test_a_backlog_is_consumed_almost_at_full_speed_if_nsqds_clock_is_ahead() -> None:
    wire, full = (Wire([0.0] * 20_000, prompt=prompt, skew=3600.0).run(10.0) for prompt in (True, False))
    assert wire.arrived_at <= 1.5 * full.arrived_at


@given(
    gaps=st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.0002, 0.001, 0.004, 0.05]), min_size=1, max_size=200),
    limit=st.integers(1, 40),
    handle=st.sampled_from([0.0, 0.0005, 0.003, 0.2]),
    delay=st.sampled_from([0.00005, 0.0004, 0.005]),
    skew=st.sampled_from([-1.0, 0.0, 1.0]),
)
def test_each_message_arrives_without_output_buffer_timeout(
    gaps: list[float], limit: int, handle: float, delay: float, skew: float
) -> None:
    published = list(itertools.accumulate(gaps))
    wire = Wire(published, limit=limit, handle=handle, delay=delay, ticker=None, skew=skew).run(1000.0)
    assert len(wire.latencies) == len(published)
    assert max(wire.most_out, *wire.commands) <= limit


@given(limits=st.lists(st.integers(0, 30), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_a_limit_is_kept_through_its_changes(limits: list[int], seed: int) -> None:
    wire = Wire(steady(3000, 0.1, seed), handle=0.002, limit=limits[0], ticker=None)
    for number, limit in enumerate([*limits, 10]):
        wire.limit(limit)
        sent = len(wire.commands)
        assert wire.delivery.ready <= limit
        wire.run(0.01 * (number + 1))
        assert all(count <= limit for count in wire.commands[sent:])
    assert len(wire.run(30.0).latencies) == len(steady(3000, 0.1, seed))


def test_an_idle_connection_needs_no_ticks() -> None:
    wire = Wire([0.01, 0.02, *[0.03] * 500]).run(1.0)
    assert (wire.delivery.ready, wire.delivery.tick_after) == (1, None)


@pytest.mark.rule("RDY-1")
def test_a_new_connection_gets_one_first_and_a_share_of_one_needs_no_report() -> None:
    delivery = Delivery(FakeClock())
    sent = []
    for limit in (1, 200, 1, 0, 1):
        delivery.set_limit(limit, 0)
        sent.append((delivery.ready, delivery.is_full, delivery.tick_after))
    one = (1, True, None)
    assert sent == [one, (1, False, None), one, (0, True, None), one]


def full(clock: FakeClock) -> Delivery:
    """Return a Delivery of a connection with a backlog, which uses its whole share of 40."""
    delivery = Delivery(clock)
    delivery.set_limit(40, 0)
    clock.advance(1.0)
    delivery.received(1, 0, 2 * BACKLOG)
    delivery.answered(0)
    assert (delivery.ready, delivery.is_full, delivery.tick_after) == (40, True, SPAN)
    return delivery


def test_ticks_become_rare_in_a_backlog_but_its_end_is_detected() -> None:
    clock = FakeClock()
    delivery, received, every = full(clock), 1, []
    for _ in range(6):
        clock.advance(delivery.tick_after or 0.0)
        received += 10
        delivery.tick(received, 0, 2 * BACKLOG)
        assert delivery.is_full
        every.append(delivery.tick_after)
    assert every == [0.002, 0.004, 0.008, SLOWEST_TICK, SLOWEST_TICK, SLOWEST_TICK]
    clock.advance(SLOWEST_TICK)
    delivery.tick(received, 3, 2 * BACKLOG)
    assert (delivery.ready, delivery.is_full, delivery.tick_after) == (4, False, None)


def test_young_messages_end_the_backlog_and_rdy_follows_their_rate() -> None:
    clock = FakeClock()
    delivery = full(clock)
    clock.advance(SPAN)
    delivery.tick(6, 0, 0.0)  # 5 within a millisecond
    assert (delivery.is_full, 5 <= delivery.ready <= 10) == (False, True)


def test_after_messages_expired_the_whole_share_is_used_for_a_minute() -> None:
    clock = FakeClock()
    delivery = Delivery(clock)
    delivery.set_limit(40, 0)
    delivery.received(1, 1, 0.0)
    delivery.expired(0)
    assert (delivery.ready, delivery.tick_after) == (40, CAREFUL)
    clock.advance(CAREFUL - 1.0)
    delivery.tick(1, 0, 0.0)
    assert (delivery.ready, delivery.tick_after) == (40, pytest.approx(1.0))
    clock.advance(1.0)
    delivery.tick(1, 0, 0.0)
    assert (delivery.ready, delivery.tick_after) == (1, None)
