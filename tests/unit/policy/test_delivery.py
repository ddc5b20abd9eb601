"""Delivery against a model of nsqd's output buffer: soon at any rate, and as fast as the whole share at full speed."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.policy.delivery import LONGEST_KEPT, TICK, Delivery
from tests.fakes import FakeClock
from tests.profiles import LONG, repeats
from tests.unit.policy.nsqd_buffer import Wire, percentile

#: What a message may wait at most where nothing but the rule itself holds it: quiet is found, and nsqd told.
SOON = 5 * TICK

#: Of a history at a steady rate.
MESSAGES = repeats(4000, 500)

#: Messages that wait at nsqd from the start.
BACKLOG = repeats(3000, 2000)


def steady(rate: float, seconds: float, seed: int = 0) -> list[float]:
    """Publishes at random times, *rate* a second."""
    rng, at = random.Random(seed), 0.01
    times = []
    while at < seconds:
        times.append(at)
        at += rng.expovariate(rate)
    return times


@pytest.mark.rule("RDY-4")
@pytest.mark.parametrize(("rate", "p50"), [(50, 0.0003), (500, 0.0003), (2000, 0.002), (5000, 0.002), (20000, 0.002)])
def test_messages_come_soon_at_any_rate(rate: float, p50: float) -> None:
    published = steady(rate, min(2.0, MESSAGES / rate))
    wire = Wire(published).run(5.0)
    full = Wire(published, prompt=False).run(5.0)
    assert len(wire.latencies) == len(full.latencies) == len(published)
    assert percentile(wire.latencies, 0.5) <= p50 < percentile(full.latencies, 0.5)
    assert percentile(wire.latencies, 0.99) <= SOON
    assert max(wire.commands) <= 200
    assert wire.most_out <= 200


@pytest.mark.parametrize("rate", [50, 500])
def test_handlers_that_answer_at_once_cost_next_to_no_ready(rate: float) -> None:
    wire = Wire(steady(rate, 2.0)).run(4.0)
    assert len(wire.commands) < 0.15 * len(wire.latencies) + 5


@pytest.mark.parametrize("rate", [10, 50, 200, 500])
def test_handlers_that_were_slow_once_and_answer_at_once_again_cost_next_to_no_ready(rate: int) -> None:
    seconds = 200 / rate
    wire = Wire(steady(rate, 2.0 * seconds), handle=0.02).run(seconds)
    wire.handle = 0.0
    told, before = len(wire.commands), len(wire.latencies)
    wire.run(2.0 * seconds + 1.0)
    assert len(wire.commands) - told <= 0.15 * (len(wire.latencies) - before) + 5


@pytest.mark.parametrize("rate", [10, 20, 50, 200, 500, 2000])
@pytest.mark.parametrize("handle", [0.0011, 0.005, 0.0203, 0.2])
def test_handlers_that_take_long_delay_no_message_and_cost_a_ready_each_at_most(rate: float, handle: float) -> None:
    limit = 200 if rate * handle < 100 else 1000
    seconds = max(min(4.0, MESSAGES / rate), 200 / rate, 2.0 * handle)
    wire = Wire(steady(rate, seconds), limit=limit, handle=handle, concurrency=1000).run(seconds + 4.0)
    assert percentile(wire.latencies, 0.5) <= 0.0006
    assert percentile(wire.latencies, 0.99) <= SOON
    assert len(wire.commands) <= 1.05 * len(wire.latencies) + 10
    assert wire.longest_kept <= LONGEST_KEPT + TICK


@pytest.mark.parametrize("rate", [10, 50, 200, 500])
@pytest.mark.parametrize("handle", [0.0011, 0.0033, 0.0123])
def test_evenly_published_messages_cost_next_to_no_ready(rate: int, handle: float) -> None:
    seconds = max(repeats(3, 1), 100 // rate)
    wire = Wire([n / rate for n in range(seconds * rate)], handle=handle, concurrency=200).run(seconds + 4.0)
    assert len(wire.commands) <= 0.1 * len(wire.latencies)
    assert percentile(wire.latencies, 0.99) <= 0.0006
    assert wire.longest_kept <= LONGEST_KEPT + TICK


def test_where_messages_come_seldom_answers_do_not_wait() -> None:
    wire = Wire(steady(3, 40.0), handle=0.02).run(50.0)
    assert wire.longest_kept == 0.0


@pytest.mark.parametrize("handle", [0.2, 1.0])
def test_answers_wait_for_no_message_after_a_silence(handle: float) -> None:
    wire = Wire([0.0] * 20, handle=handle, concurrency=1).run(30.0)
    assert len(wire.latencies) == 20
    assert wire.longest_kept == 0.0


def test_answers_wait_only_where_a_message_that_comes_meanwhile_is_sent_at_once() -> None:
    clock = FakeClock()
    delivery = Delivery(clock, 0.0002)
    delivery.set_limit(3, 0)
    for received in range(1, 40):  # each is answered 2 ms after it came
        delivery.received(1, 1, 0.0, clock.now())
        clock.advance(TICK)
        delivery.tick(received, 1)
        clock.advance(TICK)
        delivery.answered(0)
        clock.advance(0.01)
    assert delivery.take() == 1
    assert not delivery.keeps(1, 1)  # nothing can come before this is answered
    delivery.received(1, 1, 0.0, clock.now())
    clock.advance(2 * TICK)
    assert not delivery.keeps(1, 1)  # a RDY is to go out
    assert [delivery.take(), delivery.keeps(1, 1), delivery.tick_after] == [2, True, pytest.approx(0.024)]
    clock.advance(0.024)  # twice as long as from message to message
    assert not delivery.keeps(1, 1)
    delivery.answered(0)
    assert [delivery.take(), delivery.tick_after] == [1, None]
    delivery.received(1, 1, 0.0, clock.now())
    assert delivery.take() == 2
    clock.advance(2 * TICK)
    assert not delivery.keeps(1, 0)  # there is nothing to keep
    assert delivery.keeps(1, 1)
    delivery.set_limit(1, 1)
    assert delivery.take() == 1
    assert not delivery.keeps(1, 1)


@pytest.mark.parametrize("rate", [200, 500, 2000, 5000])
@pytest.mark.parametrize("handle", [0.0011, 0.003, 0.005])
def test_a_round_trip_is_not_taken_for_longer_than_it_is_because_messages_come_seldom(
    rate: float, handle: float
) -> None:
    wire = Wire(steady(rate, min(2.0, MESSAGES / rate)), handle=handle, concurrency=200).run(5.0)
    assert percentile(wire.latencies, 0.5) <= 0.0006
    assert percentile(wire.latencies, 0.99) <= SOON


def jitter(seed: int = 0) -> Callable[[], float]:
    """What a machine adds that sleeps in between: 0.15 ms on average, and half a millisecond more now and then."""
    rng = random.Random(seed)
    return lambda: rng.expovariate(1 / 0.00015) + (rng.random() * 0.001 if rng.random() < 0.03 else 0.0)


def evenly(rate: int, seconds: float, seed: int = 0) -> list[float]:
    """Publishes at equal distances, give or take what the publisher's machine adds."""
    late = jitter(seed)
    return sorted(n / rate + late() for n in range(int(rate * seconds)))


@pytest.mark.parametrize("rate", [300, 400, 500, 700, 900, 1200])
def test_what_comes_late_for_the_machine_s_sake_is_no_backlog(rate: int) -> None:
    wire = Wire(evenly(rate, 1.5), jitter=jitter()).run(3.0)
    assert len(wire.commands) <= 0.3 * len(wire.latencies)
    assert percentile(wire.latencies, 0.5) <= 0.0004


@pytest.mark.parametrize("size", [100, 3000])
def test_a_burst_comes_as_fast_on_such_a_machine(size: int) -> None:
    """After some quiet traffic, whose least ages are known by then."""
    published = [*evenly(500, 1.0), *[2.0] * size]
    wire, full = (Wire(published, prompt=prompt, jitter=jitter()).run(5.0) for prompt in (True, False))
    assert len(wire.latencies) == len(full.latencies) == len(published)
    assert wire.arrived_at - 2.0 <= 1.1 * (full.arrived_at - 2.0)


@pytest.mark.parametrize("size", [1, 2, 5, 10, 50, 100, 500, 1000, 10_000])
def test_a_burst_comes_as_fast_as_with_the_whole_share(size: int) -> None:
    wire, full = (Wire([0.05] * size, prompt=prompt).run(3.0) for prompt in (True, False))
    assert len(wire.latencies) == len(full.latencies) == size
    assert wire.arrived_at - 0.05 <= 1.1 * (full.arrived_at - 0.05)


def test_at_full_speed_the_whole_share_is_used_and_no_ready_sent() -> None:
    backlog = [0.0] * (40_000 if LONG else 10_000)
    wire, full = (Wire(backlog, prompt=prompt).run(10.0) for prompt in (True, False))
    assert wire.arrived_at <= 1.02 * full.arrived_at
    assert len(wire.commands) <= 40


@functools.cache
def worked_off(backlog: int, handle: float, concurrency: int, delay: float) -> float:
    """Return when the last message of a backlog has come with the whole share."""
    wire = Wire([0.0] * backlog, prompt=False, handle=handle, concurrency=concurrency, delay=delay).run(60.0)
    assert len(wire.latencies) == backlog
    return wire.arrived_at


@pytest.mark.parametrize("delay", [0.0001, 0.002, 0.02, 0.1] if LONG else [0.0001, 0.02])
@pytest.mark.parametrize(("handle", "concurrency"), [(0.0, 1), (0.001, 10), (0.02, 100), (0.2, 100)])
def test_a_backlog_is_worked_off_as_fast_whatever_the_handlers_and_the_wire(
    delay: float, handle: float, concurrency: int
) -> None:
    wire = Wire([0.0] * BACKLOG, handle=handle, concurrency=concurrency, delay=delay).run(60.0)
    assert len(wire.latencies) == BACKLOG
    growing = 12 * delay  # of the window: six round trips
    assert wire.arrived_at <= 1.02 * worked_off(BACKLOG, handle, concurrency, delay) + growing


@pytest.mark.parametrize("every", [0.0003, 0.001, 0.003, 0.01, 0.05, 1.0] if LONG else [0.001, 1.0])
@pytest.mark.parametrize("delay", [0.0001, 0.002, 0.02] if LONG else [0.0001, 0.02])
@pytest.mark.parametrize(("handle", "concurrency"), [(0.0, 1), (0.001, 10)])
def test_a_backlog_is_worked_off_as_fast_however_slowly_it_was_published(
    every: float, delay: float, handle: float, concurrency: int
) -> None:
    backlog = [-every * left for left in range(BACKLOG, 0, -1)]
    wire = Wire(backlog, handle=handle, concurrency=concurrency, delay=delay).run(60.0)
    assert len(wire.latencies) == len(backlog)
    assert wire.arrived_at <= 1.02 * worked_off(BACKLOG, handle, concurrency, delay) + 20 * delay + 0.02


def full(clock: FakeClock, limit: int = 40) -> Delivery:
    """Return one whose messages are all in flight, with a backlog behind them."""
    delivery, received, published = Delivery(clock, 0.0002), 0, clock.now()
    delivery.set_limit(limit, 0)
    while received < limit:
        clock.advance(0.0005)
        count, received = delivery.ready - received, delivery.ready
        delivery.received(count, received, clock.now() - published, clock.now())
        clock.advance(0.001)
        delivery.tick(received, received)
    assert delivery.is_full
    assert delivery.take() == limit
    return delivery


def test_while_handlers_keep_the_whole_share_nothing_is_looked_at_until_one_answers() -> None:
    delivery = full(FakeClock())
    assert delivery.tick_after is None
    delivery.answered(39)
    assert [delivery.take(), delivery.tick_after] == [None, None]  # nsqd sends one more at once
    delivery.answered(38)
    assert delivery.take() is None
    assert delivery.tick_after is not None


def test_a_silence_after_a_time_without_ticks_is_found_by_the_first_one() -> None:
    clock = FakeClock()
    delivery = Delivery(clock, 0.0002)
    delivery.set_limit(5, 0)
    for received in range(1, 5):  # each handler takes long, so RDY goes up with what is in flight
        delivery.received(1, received, 0.0, clock.now())
        clock.advance(TICK)
        delivery.tick(received, received)
    delivery.received(1, 5, 0.0, clock.now())
    assert [delivery.take(), delivery.tick_after] == [5, None]  # all of the share is in flight
    delivery._window = 2  # as where messages come faster
    clock.advance(0.01)
    delivery.answered(2)
    assert [delivery.take(), delivery.tick_after] == [None, TICK]
    clock.advance(TICK)
    delivery.tick(5, 2)
    assert delivery.take() == 3  # nsqd flushes what it may hold


def test_at_full_speed_it_is_looked_at_ever_more_rarely_and_the_end_is_still_found() -> None:
    clock = FakeClock()
    delivery, received, every = full(clock), 40, []
    delivery.answered(0)
    for seconds in (0.02, 0.1, 0.4, 0.5, 4.0):
        clock.advance(seconds)
        received += 10_000
        delivery.tick(received, 0)
        assert delivery.take() is None
        every.append(delivery.tick_after)
    assert every == [TICK, 0.004, pytest.approx(0.0052, abs=1e-4), pytest.approx(0.0102, abs=1e-4), 0.02]
    clock.advance(0.02)
    delivery.tick(received, 0)
    assert delivery.take() == 1


def test_an_nsqd_that_was_only_slow_does_not_have_it_looked_at_more_often_again() -> None:
    clock = FakeClock()
    delivery, received, published = full(clock), 40, clock.now()
    delivery.answered(0)
    for _ in range(10):
        clock.advance(0.1)
        received += 10_000
        delivery.tick(received, 0)
    clock.advance(0.02)
    delivery.tick(received, 0)
    assert delivery.take() == 1
    delivery.received(1, 1, clock.now() - published, clock.now())
    assert delivery.take() == 40  # it had waited all the while
    assert delivery.is_full
    delivery.answered(0)
    assert delivery.tick_after == pytest.approx(0.0102, abs=1e-3)


def test_after_messages_expired_nothing_is_looked_at_until_nsqd_counts_them_no_more() -> None:
    clock = FakeClock()
    delivery = Delivery(clock, 0.0002)
    delivery.set_limit(40, 0)
    delivery.expired(0)
    assert [delivery.take(), delivery.tick_after] == [40, pytest.approx(60.0)]
    clock.advance(60.0)
    delivery.tick(0, 0)
    assert [delivery.take(), delivery.tick_after] == [1, None]


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
def test_clocks_that_differ_change_nothing(skew: float) -> None:
    wire, same = (Wire(steady(5000, 0.5), skew=s).run(2.0) for s in (skew, 0.0))
    assert percentile(wire.latencies, 0.5) == pytest.approx(percentile(same.latencies, 0.5), abs=1e-4)


@given(
    gaps=st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.0002, 0.001, 0.004, 0.05]), min_size=1, max_size=200),
    limit=st.integers(1, 40),
    handle=st.sampled_from([0.0, 0.0005, 0.003]),
    delay=st.sampled_from([0.00005, 0.0004, 0.005]),
)
def test_without_any_ticker_each_message_comes(gaps: list[float], limit: int, handle: float, delay: float) -> None:
    published = list(itertools.accumulate(gaps))
    wire = Wire(published, limit=limit, handle=handle, delay=delay, ticker=None).run(1000.0)
    assert len(wire.latencies) == len(published)
    assert max(wire.commands) <= limit
    assert wire.most_out <= limit


@given(limits=st.lists(st.integers(0, 30), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_a_limit_is_kept_through_its_changes(limits: list[int], seed: int) -> None:
    wire = Wire(steady(3000, 0.1, seed), handle=0.002, limit=limits[0], ticker=None)
    for number, limit in enumerate([*limits, 10]):
        wire.limit(limit)
        told = len(wire.commands)
        assert wire.delivery.ready <= limit
        wire.run(0.01 * (number + 1))
        assert all(count <= limit for count in wire.commands[told:])
    assert len(wire.run(30.0).latencies) == len(steady(3000, 0.1, seed))


def test_an_idle_connection_needs_no_ticks() -> None:
    wire = Wire([0.01, 0.02, *[0.03] * 500]).run(1.0)
    assert wire.delivery.ready == 1
    assert wire.delivery.tick_after is None


@pytest.mark.rule("RDY-1")
def test_a_new_connection_gets_one_first_and_a_share_of_one_is_left_alone() -> None:
    clock = FakeClock()
    delivery = Delivery(clock, 0.0002)
    sent = []
    for limit in (1, 200, 1, 0, 1):
        delivery.set_limit(limit, 0)
        sent.append(delivery.take())
    assert sent == [1, None, None, 0, 1]
    delivery.received(1, 1, 0.0, clock.now())
    delivery.answered(0)
    assert [delivery.take(), delivery.tick_after] == [None, None]


def test_what_expired_here_may_count_at_nsqd_so_the_whole_share_is_used_for_a_minute() -> None:
    clock = FakeClock()
    delivery = Delivery(clock, 0.0002)
    delivery.set_limit(10, 0)
    assert delivery.take() == 1
    delivery.received(1, 1, 0.0, clock.now())
    delivery.expired(0)
    assert delivery.take() == 10
    clock.advance(59.0)
    for _ in range(2):
        delivery.tick(1, 0)
        assert delivery.take() is None
    clock.advance(2.0)
    delivery.tick(1, 0)
    assert [delivery.take(), delivery.tick_after] == [1, None]


def test_a_thread_that_was_busy_reads_before_it_asks_nsqd_to_flush() -> None:
    wire = Wire([0.0] * 3000).run(0.008)
    assert wire.delivery.is_full
    assert wire.delivery.ready == 200
    wire.clock.advance(0.1)  # a handler held the loop up: what came meanwhile is not read yet
    for _ in range(2):  # nor has it been looked for since
        wire.delivery.tick(wire.received + 1, 0)
        assert wire.delivery.ready == 200
    wire.clock.advance(0.1)
    wire.delivery.tick(wire.received + 1, 0)
    assert wire.delivery.ready == 1


def test_with_a_limit_of_one_nothing_is_to_be_told_it() -> None:
    delivery = Delivery(FakeClock(), 0.0002)
    delivery.set_limit(1, 0)
    assert [delivery.take(), delivery.is_full, delivery.tick_after] == [1, True, None]
    delivery.set_limit(10, 1)
    assert [delivery.take(), delivery.is_full] == [2, False]
    delivery.set_limit(1, 1)
    assert [delivery.take(), delivery.is_full] == [1, True]


class One:
    """A connection that gets a message at a time, each answered at once."""

    def __init__(self, first_trip: float, limit: int = 40) -> None:
        self.clock = FakeClock()
        self.delivery = Delivery(self.clock, first_trip)
        self.delivery.set_limit(limit, 0)
        self.received = 0

    def message(self, after: float, age: float = 0.0, count: int = 1, answered: bool = True) -> None:
        """Read *count* messages *after* seconds, the last of which is *age* seconds old."""
        self.clock.advance(after)
        self.received += count
        self.delivery.received(count, count, age, self.clock.now())
        if answered:
            self.delivery.answered(0)
        self.delivery.take()

    def told_to_flush(self, after: float) -> bool:
        """Let it look *after* seconds; return whether nsqd is made to flush then."""
        self.clock.advance(after)
        before = self.delivery.ready
        self.delivery.tick(self.received, 0)
        return self.delivery.ready == 1 < before


def known(trip: float, first_trip: float) -> One:
    """Return one that has got messages 10 ms apart, and one of them a round trip after the answer before it."""
    one = One(first_trip)
    for _ in range(8):
        one.message(0.01)
    one.message(trip)
    for _ in range(8):
        one.message(0.01)
    return one


@pytest.mark.parametrize(("waited", "window"), [(0.0006, 1), (0.0008, 4)])
def test_a_backlog_is_what_was_there_when_the_room_was_given_and_not_what_the_process_read_late(
    waited: float, window: int
) -> None:
    one = known(0.0002, 0.0002)
    one.message(0.0009, waited)  # 0.7 ms since nsqd knew of the room
    assert one.delivery.window == window


def flushed(window: int) -> One:
    """Return one that had nsqd flush now, after some silence, with a window of so many."""
    one = known(0.0002, 0.0002)
    one.delivery._window = window
    one.delivery.set_limit(40, 0)
    assert one.delivery.ready == window
    one.delivery.answered(0)
    assert one.told_to_flush(0.01)
    return one


@pytest.mark.parametrize(("count", "after", "window"), [(3, 0.0005, 6), (20, 0.0005, 8), (3, 0.005, 1)])
def test_the_window_after_a_flush_fits_what_nsqd_held_and_is_one_where_it_held_none(
    count: int, after: float, window: int
) -> None:
    one = flushed(16)
    one.message(after, count=count, answered=False)
    assert one.delivery.window == window


def test_a_message_that_was_sent_before_nsqd_knew_of_less_room_says_nothing_of_the_round_trip() -> None:
    one = flushed(16)  # less room from now on
    trip = one.delivery._trip.value
    one.message(0.0004)  # sent meanwhile
    one.message(0.00001)  # so was this, and not for the room that the answer to the last one gave
    assert one.delivery._trip.value == trip == pytest.approx(0.0002)
    one.message(0.01)
    one.message(0.0001)
    assert one.delivery._trip.value == pytest.approx(0.0001)


def test_nsqd_is_made_to_flush_after_two_round_trips_however_seldom_messages_come() -> None:
    one = known(0.003, 0.005)
    one.message(0.015)  # most of which nothing was published in
    one.delivery._window = 2
    one.delivery.set_limit(40, 0)
    assert not one.told_to_flush(0.001)  # takes note of what has come
    assert not one.told_to_flush(0.0049)
    assert one.told_to_flush(0.0002)


@pytest.mark.parametrize(("waited", "window"), [(0.012, 1), (0.014, 40)])
def test_the_last_read_before_a_flush_may_have_been_as_long_ago_as_ticks_are_apart(waited: float, window: int) -> None:
    one = One(0.0002)
    one.delivery, one.received = full(one.clock), 40
    one.delivery.answered(0)
    one.clock.advance(0.1)
    one.received += 10_000
    one.delivery.tick(one.received, 0)  # some of them came up to 4 ms ago
    assert one.told_to_flush(0.004)
    one.message(0.001, one.delivery._age.value + waited, answered=False)
    assert one.delivery.window == window
