"""More connections than RDY (RDY-6): turns, the longest wait, and the search for the nsqd that has messages."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from tests.fakes import FakeClock
from tests.profiles import LONG, repeats
from tests.unit.policy.fed import Fed
from tests.unit.policy.world import World

IDLE, LOW, SETTLE = 10.0, 30.0, 0.1


def two_for_one(clock: FakeClock) -> tuple[Fed, str, str]:
    allocator = Fed(1, clock=clock, rng=random.Random(1), idle_timeout=IDLE, low_ready_timeout=LOW)
    assert [change.key for change in allocator.add("first", 2500)] == ["first"]
    assert allocator.add("second", 2500) == []
    clock.advance(SETTLE)
    allocator.tick()
    return allocator, "first", "second"


def two_at_rest(clock: FakeClock, max_in_flight: int, max_rdy_count: int) -> Fed:
    """Return an allocator whose connections "a" and "b" both have RDY."""
    allocator = Fed(max_in_flight, clock=clock, rng=random.Random(1))
    for key in "ab":
        allocator.add(key, max_rdy_count)
    clock.advance(SETTLE)
    allocator.tick()
    return allocator


@pytest.mark.rule("RDY-6")
def test_an_idle_connection_yields_after_the_idle_timeout_and_not_before(clock: FakeClock) -> None:
    allocator, first, second = two_for_one(clock)
    clock.advance(IDLE - SETTLE - 0.001)
    assert allocator.tick() == []
    clock.advance(0.001)
    assert [(c.key, c.count) for c in allocator.tick()] == [(first, 0)]
    clock.advance(SETTLE - 0.001)
    assert allocator.tick() == []
    clock.advance(0.001)
    assert [(c.key, c.count) for c in allocator.tick()] == [(second, 1)]


def test_messages_need_a_report_only_if_a_rdy_may_change(clock: FakeClock) -> None:
    alone = Fed(10, clock=clock, rng=random.Random(1), idle_timeout=IDLE, low_ready_timeout=LOW)
    alone.add("first", 1)
    clock.advance(SETTLE)
    alone.tick()
    for _ in range(3):
        alone.received("first", 1)  # as many as its RDY
        alone.answered("first", 1)
    assert (alone.told, alone.charged) == (0, 1)
    alone.received("first", 2)  # one message timed out at nsqd
    assert (alone.told, alone.charged) == (1, 2)
    alone.answered("first", 1)
    alone.answered("first", 1)
    assert (alone.told, alone.charged) == (2, 1)
    allocator, first, _ = two_for_one(clock)
    allocator.received(first, 1)
    assert allocator.told == 1  # others wait for its RDY


@pytest.mark.rule("MSG-5")
def test_above_the_budget_messages_of_all_connections_are_reported(clock: FakeClock) -> None:
    allocator = two_at_rest(clock, 4, 2500)
    allocator.received("b", 2)
    allocator.received("a", 4)  # two messages timed out at nsqd
    assert (allocator.watches, allocator.charged) == (True, 6)
    assert [(c.key, c.count) for c in allocator.answered("b", 1)] == [("b", 1)]  # they do not arrive again
    allocator.answered("a", 1)
    clock.advance(SETTLE)
    allocator.tick()
    assert (allocator.watches, allocator.charged) == (True, 4)  # b waits for the rest of its share
    allocator.answered("a", 1)
    clock.advance(SETTLE)
    allocator.tick()
    assert (allocator.watches, allocator.ready("b")) == (False, 2)
    allocator.received("a", 1)
    assert (allocator.watches, allocator.charged) == (True, 5)
    allocator.answered("a", 1)
    assert (allocator.watches, allocator.charged) == (False, 4)


def test_reports_end_after_the_settling_time(clock: FakeClock) -> None:
    allocator = Fed(10, clock=clock, rng=random.Random(1))
    allocator.add("a", 2500)
    clock.advance(SETTLE)
    allocator.tick()
    allocator.received("a", 10)
    allocator.set_max_rdy_count("a", 4)
    assert (allocator.watches, allocator.charged) == (True, 10)
    clock.advance(SETTLE)
    allocator.tick()
    assert (allocator.watches, allocator.charged) == (False, 10)
    allocator.answered("a", 7)  # reported, because more messages are in flight than RDY
    assert (allocator.watches, allocator.charged, allocator.told) == (False, 4, 1)


@pytest.mark.rule("RDY-6")
def test_a_busy_connection_yields_after_the_low_ready_timeout_and_not_before(clock: FakeClock) -> None:
    allocator, first, second = two_for_one(clock)
    began = clock.now()  # others begin to wait
    while clock.now() + 1 < began + LOW:
        allocator.received(first, 1)
        allocator.answered(first, 1)
        assert allocator.tick() == []
        clock.advance(1)
    clock.advance(began + LOW - 0.001 - clock.now())
    assert allocator.tick() == []
    clock.advance(0.001)
    assert [(c.key, c.count) for c in allocator.tick()] == [(first, 0)]
    clock.advance(SETTLE)
    assert [(c.key, c.count) for c in allocator.tick()] == [(second, 1)]


@pytest.mark.rule("RDY-6")
def test_a_connection_whose_message_is_being_handled_is_not_idle(clock: FakeClock) -> None:
    allocator, first, _ = two_for_one(clock)
    allocator.received(first, 1)
    clock.advance(IDLE + 1)
    assert allocator.tick() == []
    allocator.answered(first, 1)
    clock.advance(IDLE - 0.001)
    assert allocator.tick() == []
    clock.advance(0.001)
    assert [(c.key, c.count) for c in allocator.tick()] == [(first, 0)]


@pytest.mark.rule("RDY-6")
def test_a_message_on_the_wire_at_the_end_of_a_turn_delays_the_next_turn(clock: FakeClock) -> None:
    allocator, first, second = two_for_one(clock)
    clock.advance(LOW - 1)
    allocator.received(first, 1)
    clock.advance(1)
    assert [(c.key, c.count) for c in allocator.tick()] == [(first, 0)]
    clock.advance(60)
    assert allocator.tick() == []
    assert [(c.key, c.count) for c in allocator.answered(first, 1)] == [(second, 1)]


@pytest.mark.rule("RDY-6")
def test_no_connection_yields_while_none_waits(clock: FakeClock) -> None:
    allocator = Fed(3, clock=clock, rng=random.Random(1))
    for key in "abc":
        allocator.add(key, 2500)
    clock.advance(SETTLE)
    allocator.tick()
    assert allocator.next_tick is None
    clock.advance(1000)
    assert allocator.tick() == []


@pytest.mark.rule("RDY-6")
def test_only_as_many_yield_as_wait(clock: FakeClock) -> None:
    allocator = Fed(3, clock=clock, rng=random.Random(1))
    for key in "abcd":
        allocator.add(key, 2500)
    clock.advance(SETTLE)
    allocator.tick()
    clock.advance(IDLE)
    assert [change.count for change in allocator.tick()] == [0]


@pytest.mark.rule("RDY-6")
def test_the_order_of_turns_is_random_and_all_get_one_turn_per_round() -> None:
    orders = []
    for seed in range(5):
        world = World(1, seed, idle=IDLE, low=LOW)
        for key in range(10):
            world.add(key)
        world.advance(10 * (IDLE + SETTLE) + 1)
        orders.append([change.key for change in world.sent if change.count])
        assert sorted(orders[-1][:10], key=str) == list(range(10))
    assert len({tuple(order) for order in orders}) == 5


@pytest.mark.rule("RDY-6")
@pytest.mark.parametrize("max_in_flight", [1, 2, 3, 5] if LONG else [1, 3])
def test_busy_connections_are_all_served_within_the_stated_bound(max_in_flight: int) -> None:
    """World.check() asserts the longest wait at every step.  This test also compares it with real waits."""
    world = World(max_in_flight, 3, handle=0.2, idle=1.0, low=3.0)
    for key in range(7):
        world.add(key, backlog=10_000)
    rng = random.Random(max_in_flight)
    for late in range(40):
        world.advance(5.0 * rng.random())
        if late % 4 == 0:
            world.remove(rng.choice(list(world.servers)))
            world.add(f"late {late}", backlog=10_000)
    served = {key for _, key in world.delivered}
    assert served >= set(range(7)) & set(world.servers)
    assert world.bound() / 5 < world.longest_wait <= world.bound()


@pytest.mark.rule("RDY-6")
def test_new_connections_do_not_delay_a_waiting_connection_forever() -> None:
    world = World(1, 5, handle=0.1, idle=0.5, low=1.0)
    for key in range(4):
        world.add(key, backlog=10_000)
    for late in range(300):
        world.add(f"late {late}")
        if late >= 3:
            world.remove(f"late {late - 3}")
        world.advance(0.2)
    assert {0, 1, 2, 3} <= {key for _, key in world.delivered}


def time_to_find(max_in_flight: int, seed: int) -> list[float]:
    """Return the times to find the one nsqd of 50 that has a message, for several nsqds."""
    world = World(max_in_flight, seed, handle=0.01, idle=IDLE, low=LOW, delay=0.001)
    for key in range(50):
        world.add(key)
    rng = random.Random(seed)
    times = []
    for _ in range(4):
        needle = rng.randrange(50)
        world.advance(rng.uniform(1, 60))
        published, before = world.clock.now(), len(world.delivered)
        world.publish(needle, 1)
        while len(world.delivered) == before:
            world.advance(0.5)
        times.append(world.delivered[-1][0] - published)
    return times


@pytest.mark.rule("RDY-6")
def test_one_nsqd_of_fifty_with_messages_is_found_within_the_stated_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = []
    for max_in_flight in range(1, 11) if LONG else (5,):
        times = [time for seed in range(repeats(3)) for time in time_to_find(max_in_flight, seed)]
        bound = 2 * math.ceil(50 / max_in_flight) * (IDLE + SETTLE + 0.01)
        assert max(times) <= bound
        lines.append(
            f"max_in_flight {max_in_flight:2}: found after {statistics.median(times):5.1f} s (median),"
            f" {max(times):5.1f} s (longest of {len(times)}); bound {bound:6.1f} s"
        )
    with capsys.disabled():
        print("\n50 nsqds, one has a message, idle_timeout 10 s:", *lines, sep="\n  ")


@pytest.mark.rule("RDY-6")
@pytest.mark.parametrize("late_one_is_idle", [False, True])
def test_an_idle_connection_yields_first_and_then_the_one_with_the_longest_turn(
    clock: FakeClock, late_one_is_idle: bool
) -> None:
    allocator, early, _ = two_for_one(clock)
    allocator.add("third", 2500)
    clock.advance(5)
    [late] = allocator.set_max_in_flight(2)
    clock.advance(LOW + 1)  # the tick is late: both turns are over
    for key in [early] if late_one_is_idle else [late.key, early]:
        allocator.received(key, 1)
        allocator.answered(key, 1)
    expected = late.key if late_one_is_idle else early
    assert [(change.key, change.count) for change in allocator.tick()] == [(expected, 0)]


@pytest.mark.rule("RDY-6")
@pytest.mark.rule("RDY-8")
def test_when_rdy_becomes_scarce_the_connections_that_delivered_last_keep_it(clock: FakeClock) -> None:
    allocator = Fed(3, clock=clock, rng=random.Random(1))
    for key in "abc":
        allocator.add(key, 2500)
    for key in "acb":
        clock.advance(0.1)
        allocator.tick()
        allocator.received(key, 1)
        allocator.answered(key, 1)
    assert [(change.key, change.count) for change in allocator.set_max_in_flight(1)] == [("a", 0), ("c", 0)]


@pytest.mark.rule("RDY-6")
def test_idleness_is_counted_from_the_answer_whatever_is_evaluated_meanwhile(clock: FakeClock) -> None:
    allocator, first, _ = two_for_one(clock)
    allocator.received(first, 1)
    clock.advance(IDLE + 1)
    allocator.answered(first, 1)
    assert allocator.set_max_in_flight(1) == []
    clock.advance(IDLE - 0.001)
    assert allocator.set_max_in_flight(1) == []
    clock.advance(0.001)
    assert [(change.key, change.count) for change in allocator.set_max_in_flight(1)] == [(first, 0)]


@pytest.mark.rule("RDY-6")
def test_the_rdy_of_a_lost_connection_is_given_on_before_the_end_of_its_turn(clock: FakeClock) -> None:
    allocator, first, second = two_for_one(clock)
    allocator.add("third", 2500)
    clock.advance(SETTLE)
    allocator.tick()
    allocator.remove(first)
    assert allocator.next_tick == pytest.approx(clock.now() + SETTLE)
    clock.advance(SETTLE)
    [change] = allocator.tick()
    assert change.key in {second, "third"}


@pytest.mark.rule("RDY-6")
def test_connections_that_open_during_a_round_are_served_in_random_order(clock: FakeClock) -> None:
    chosen = set()
    for seed in range(5):
        allocator = Fed(1, clock=clock, rng=random.Random(seed))
        for key in range(2):
            allocator.add(key, 2500)
        clock.advance(SETTLE)
        allocator.tick()  # a round of one
        for key in range(2, 30):
            allocator.add(key, 2500)
        changes = allocator.set_max_in_flight(10)
        assert len(changes) == 9
        assert changes[0].key == 1
        chosen.add(tuple(change.key for change in changes))
    assert len(chosen) == 5


@pytest.mark.rule("YZ-6")
def test_a_resting_connection_frees_its_rdy_and_is_the_first_to_get_rdy_when_it_resumes(clock: FakeClock) -> None:
    allocator, first, second = two_for_one(clock)
    allocator.received(first, 1)
    changes = [*allocator.rest(first, True), *allocator.rest(first, True)]
    assert [(c.key, c.count) for c in changes] == [(first, 0), (second, 1)]
    assert allocator.rest(first, False) != []
    allocator.answered(first, 1)
    clock.advance(SETTLE)
    allocator.tick()
    assert (allocator.ready(first), allocator.ready(second)) == (1, 0)
    clock.advance(IDLE)  # then the turns continue
    allocator.tick()
    clock.advance(SETTLE)
    allocator.tick()
    assert (allocator.ready(first), allocator.ready(second)) == (0, 1)


@pytest.mark.rule("YZ-6")
def test_a_resuming_connection_waits_for_the_message_of_the_yielding_one(clock: FakeClock) -> None:
    allocator, first, second = two_for_one(clock)
    allocator.received(first, 1)
    allocator.rest(first, True)
    allocator.received(second, 1)
    allocator.rest(first, False)
    allocator.answered(first, 1)
    clock.advance(SETTLE)
    allocator.tick()
    assert (allocator.ready(first), allocator.ready(second)) == (0, 0)
    allocator.answered(second, 1)
    assert allocator.ready(first) == 1


@pytest.mark.rule("YZ-6")
@pytest.mark.parametrize("seed", range(20))
def test_a_resuming_connection_is_next_even_if_no_other_has_rdy(clock: FakeClock, seed: int) -> None:
    allocator = Fed(1, clock=clock, rng=random.Random(seed))
    for key in range(5):
        allocator.add(key, 1)
    clock.advance(SETTLE)
    allocator.tick()
    allocator.received(0, 1)
    allocator.rest(0, True)
    clock.advance(1.0)
    allocator.tick()
    allocator.rest(0, False)  # its message counts until it is sent back, so another connection loses RDY only then
    allocator.answered(0, 1)
    clock.advance(SETTLE)
    allocator.tick()
    assert [allocator.ready(key) for key in range(5)] == [1, 0, 0, 0, 0]


@pytest.mark.rule("YZ-6")
def test_a_resuming_connection_gets_rdy_at_once_if_there_is_rdy_for_all(clock: FakeClock) -> None:
    allocator = two_at_rest(clock, 8, 1)
    allocator.received("a", 1)
    assert [(c.key, c.count) for c in allocator.rest("a", True)] == [("a", 0)]
    assert allocator.charged == 1
    assert [(c.key, c.count) for c in allocator.rest("a", False)] == [("a", 1)]
    assert allocator.rest("gone", True) == []
