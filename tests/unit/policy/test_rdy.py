"""The allocator, rule by rule.  Turns (RDY-6) are in test_rdy_turns.py, random histories in test_rdy_histories.py."""

from __future__ import annotations

import pytest

from tests.fakes import FakeClock
from tests.unit.policy.fed import Fed
from tests.unit.policy.rdy import SETTLE, make, pairs, ready, settled, settled_until


@pytest.mark.rule("RDY-1")
def test_a_new_connection_gets_rdy_1_at_once_and_its_share_a_moment_later(clock: FakeClock) -> None:
    allocator = make(clock, 10)
    assert pairs(allocator.add("a", 2500)) == [("a", 1)]
    assert allocator.next_tick == pytest.approx(clock.now() + SETTLE)
    clock.advance(SETTLE - 0.001)
    assert allocator.tick() == []
    clock.advance(0.001)
    assert pairs(allocator.tick()) == [("a", 10)]
    assert allocator.next_tick is None


@pytest.mark.rule("RDY-1")
def test_connections_that_open_together_get_equal_shares(clock: FakeClock) -> None:
    allocator = make(clock, 10)
    assert [pairs(allocator.add(key, 2500)) for key in "abc"] == [[("a", 1)], [("b", 1)], [("c", 1)]]
    assert sorted(settled(clock, allocator)) == [("a", 4), ("b", 3), ("c", 3)]


@pytest.mark.rule("RDY-1")
def test_a_new_connection_without_free_rdy_gets_rdy_1_and_then_its_share(clock: FakeClock) -> None:
    allocator = ready(clock, 10, "a")
    assert allocator.add("b", 2500) == []
    assert settled(clock, allocator) == [("a", 5), ("b", 1), ("b", 5)]


@pytest.mark.rule("RDY-1")
def test_without_a_settling_time_one_call_returns_all_changes_reductions_first(clock: FakeClock) -> None:
    allocator = make(clock, 10, settle=0.0)
    assert pairs(allocator.add("a", 2500)) == [("a", 1), ("a", 10)]
    assert pairs(allocator.add("b", 2500)) == [("a", 5), ("b", 1), ("b", 5)]
    assert allocator.next_tick is None


@pytest.mark.rule("RDY-2")
def test_messages_alone_change_no_rdy(clock: FakeClock) -> None:
    allocator = ready(clock, 8, "a")
    for _ in range(50):
        allocator.received("a", 8)
        assert allocator.answered("a", 8) == []


@pytest.mark.rule("RDY-3")
@pytest.mark.parametrize(
    ("budget", "connections", "shares"),
    [(9, 3, [3, 3, 3]), (10, 3, [3, 3, 4]), (11, 3, [3, 4, 4]), (3, 3, [1, 1, 1]), (5, 1, [5])],
)
def test_shares_are_even_and_the_remainder_is_given_out(
    clock: FakeClock, budget: int, connections: int, shares: list[int]
) -> None:
    allocator = ready(clock, budget, range(connections))
    assert sorted(allocator.ready(key) for key in tuple(allocator._connections)) == shares


@pytest.mark.rule("RDY-3")
def test_the_rdy_of_a_lost_connection_goes_to_the_others(clock: FakeClock) -> None:
    allocator = ready(clock, 9, "abc")
    assert allocator.remove("b") == []
    assert sorted(settled(clock, allocator)) == [("a", 5), ("c", 4)]
    assert allocator.remove("b") == []


@pytest.mark.rule("RDY-4")
def test_lowered_rdy_is_given_to_others_only_after_the_settling_time(clock: FakeClock) -> None:
    allocator = ready(clock, 10, "a")
    allocator.add("b", 2500)
    clock.advance(SETTLE)
    assert pairs(allocator.tick()) == [("a", 5)]
    assert allocator.charged == 10
    clock.advance(SETTLE - 0.001)
    assert allocator.tick() == []
    allocator.received("a", 9)  # they were on the wire
    clock.advance(0.001)
    assert pairs(allocator.tick()) == [("b", 1)]
    assert (allocator.charged, allocator.owed) == (10, True)


@pytest.mark.rule("RDY-4")
def test_rdy_waits_for_messages_in_flight_and_goes_to_a_connection_without_rdy_first(clock: FakeClock) -> None:
    allocator = ready(clock, 10, "a")
    allocator.received("a", 10)
    allocator.add("b", 2500)
    assert settled(clock, allocator) == [("a", 5)]
    assert allocator.owed
    assert pairs(allocator.answered("a", 1)) == [("b", 1)]  # at once
    assert [allocator.answered("a", 1) for _ in range(3)] == [[], [], []]  # collected
    assert settled(clock, allocator) == [("b", 4)]
    allocator.answered("a", 6)
    assert settled(clock, allocator) == [("b", 5)]
    assert not allocator.owed


@pytest.mark.rule("RDY-5")
def test_no_share_exceeds_max_rdy_count_and_the_rest_goes_to_the_others(clock: FakeClock) -> None:
    allocator = make(clock, 12)
    allocator.add("small", 2)
    allocator.add("large", 2500)
    settled(clock, allocator)
    assert (allocator.ready("small"), allocator.ready("large")) == (2, 10)
    assert pairs(allocator.set_max_rdy_count("large", 3)) == [("large", 3)]
    allocator.set_max_rdy_count("small", 7)
    settled(clock, allocator)
    assert (allocator.ready("small"), allocator.ready("large")) == (7, 3)
    assert allocator.set_max_rdy_count("small", 7) == []
    assert allocator.set_max_rdy_count("unknown", 7) == []


@pytest.mark.rule("RDY-7")
@pytest.mark.parametrize(("in_flight", "starved"), [(0, False), (1, False), (16, False), (17, True), (20, True)])
def test_a_connection_is_starved_from_85_percent_on(clock: FakeClock, in_flight: int, starved: bool) -> None:
    allocator = ready(clock, 40, "ab")
    allocator.received("b", in_flight)
    assert allocator.is_starved() is starved


@pytest.mark.rule("RDY-8")
def test_max_in_flight_0_sends_rdy_0_to_all_until_it_is_raised(clock: FakeClock) -> None:
    allocator = ready(clock, 6, "abc")
    assert pairs(allocator.set_max_in_flight(0)) == [("a", 0), ("b", 0), ("c", 0)]
    assert allocator.add("d", 2500) == []
    assert settled(clock, allocator) == []
    assert allocator.total_ready == 0
    allocator.set_max_in_flight(8)
    settled(clock, allocator)
    assert [allocator.ready(key) for key in tuple(allocator._connections)] == [2, 2, 2, 2]


@pytest.mark.rule("RDY-8")
def test_more_max_in_flight_is_given_out_at_once(clock: FakeClock) -> None:
    allocator = ready(clock, 2, "ab")
    assert pairs(allocator.set_max_in_flight(10)) == [("a", 5), ("b", 5)]


@pytest.mark.rule("RDY-4")
@pytest.mark.rule("RDY-8")
def test_after_max_in_flight_was_lowered_no_rdy_grows_until_messages_are_answered(clock: FakeClock) -> None:
    allocator = make(clock, 10)
    allocator.add("busy", 2500)
    allocator.add("idle", 2500)
    settled(clock, allocator)
    allocator.received("busy", 5)
    assert pairs(allocator.set_max_in_flight(4)) == [("busy", 2), ("idle", 0)]
    assert settled(clock, allocator) == []
    assert allocator.charged == 5
    assert allocator.answered("busy", 1) == []  # 4 are in flight, 4 are allowed
    assert pairs(allocator.answered("busy", 1)) == [("idle", 1)]


@pytest.mark.rule("BACK-1")
def test_a_pause_sends_rdy_0_to_all_that_have_any_and_lasts(clock: FakeClock) -> None:
    allocator = make(clock, 2)
    for key in "abc":
        allocator.add(key, 2500)
    assert sorted(pairs(allocator.pause())) == [("a", 0), ("b", 0)]
    assert allocator.pause() == []
    assert allocator.add("d", 2500) == []
    clock.advance(1000)
    assert allocator.tick() == []
    assert allocator.total_ready == 0


@pytest.mark.rule("BACK-2")
def test_a_probe_is_rdy_1_on_one_connection_whatever_max_in_flight_is(clock: FakeClock) -> None:
    allocator = ready(clock, 100, range(10))
    allocator.pause()
    clock.advance(1)
    changes = pairs(allocator.probe())
    assert [count for _, count in changes] == [1]
    assert allocator.total_ready == 1
    assert allocator.probe() == []


def delivered(clock: FakeClock, allocator: Fed, *keys: object) -> None:
    """Deliver and answer one message on each connection, a second apart."""
    for key in keys:
        clock.advance(1)
        allocator.received(key, 1)
        allocator.answered(key, 1)


@pytest.mark.rule("BACK-2")
def test_each_probe_goes_to_the_connection_that_delivered_last(clock: FakeClock) -> None:
    allocator = ready(clock, 100, "abcde")
    delivered(clock, allocator, *"abdec")
    for last, then in ["cc", "ca", "ab", "bb"]:
        allocator.pause()
        clock.advance(1)
        assert pairs(allocator.probe()) == [(last, 1)]
        delivered(clock, allocator, last, then)


@pytest.mark.rule("BACK-2")
def test_idle_probes_visit_each_connection_once_in_the_order_of_last_deliveries(clock: FakeClock) -> None:
    allocator = ready(clock, 100, "abcde")
    delivered(clock, allocator, *"dbeca")
    allocator.pause()
    clock.advance(1)
    probed = allocator.probe()
    while len(probed) < 9:
        assert allocator.next_tick is not None
        clock.advance(max(0.0, allocator.next_tick - clock.now()))
        probed += allocator.tick()
    assert [change.key for change in probed if change.count] == list("acebd")


@pytest.mark.rule("BACK-2")
def test_a_probe_prefers_a_connection_with_nothing_in_flight(clock: FakeClock) -> None:
    allocator = ready(clock, 100, "ab")
    delivered(clock, allocator, "b")
    allocator.received("a", 1)  # at RDY 1 nsqd sends no message on it
    allocator.pause()
    clock.advance(1)
    assert pairs(allocator.probe()) == [("b", 1)]


@pytest.mark.rule("BACK-2")
def test_a_probe_without_a_message_moves_to_another_connection(clock: FakeClock) -> None:
    allocator = make(clock, 2)
    allocator.add("a", 2500)
    allocator.add("b", 2500)
    allocator.pause()
    clock.advance(1)
    [first] = allocator.probe()
    other = "b" if first.key == "a" else "a"
    clock.advance(9.999)
    assert allocator.tick() == []
    clock.advance(0.001)
    assert pairs(allocator.tick()) == [(first.key, 0)]
    clock.advance(SETTLE)
    assert pairs(allocator.tick()) == [(other, 1)]


@pytest.mark.rule("BACK-2")
def test_a_probe_stays_while_its_message_is_handled(clock: FakeClock) -> None:
    allocator = make(clock, 2)
    allocator.add("a", 2500)
    allocator.add("b", 2500)
    allocator.pause()
    clock.advance(1)
    [first] = allocator.probe()
    allocator.received(first.key, 1)
    for _ in range(10):
        clock.advance(60)
        assert allocator.tick() == []


@pytest.mark.rule("BACK-2")
def test_with_max_in_flight_0_there_is_no_probe(clock: FakeClock) -> None:
    allocator = make(clock, 0)
    allocator.add("a", 2500)
    allocator.pause()
    assert allocator.probe() == []


@pytest.mark.rule("BACK-2")
def test_a_connection_that_opens_during_a_probe_without_connections_gets_the_probe(clock: FakeClock) -> None:
    allocator = make(clock, 5)
    allocator.pause()
    allocator.probe()
    allocator.add("a", 2500)
    assert settled_until(clock, allocator, 1.0) == [("a", 1)]


@pytest.mark.rule("BACK-4")
def test_resuming_gives_all_connections_their_shares_at_once(clock: FakeClock) -> None:
    allocator = ready(clock, 10, "ab")
    allocator.received("a", 5)
    allocator.pause()
    assert pairs(allocator.resume()) == [("a", 5), ("b", 5)]  # its own old RDY, so it need not wait


@pytest.mark.rule("RDY-3")
def test_growing_from_1_to_100_connections_at_once_costs_few_rdy_each(clock: FakeClock) -> None:
    allocator = make(clock, 1000)
    sent = [change for key in range(100) for change in allocator.add(key, 2500)]
    changes = pairs(sent) + settled(clock, allocator)
    assert len(changes) == 200  # RDY 1 and the share
    assert all(allocator.ready(key) == 10 for key in range(100))


@pytest.mark.rule("RDY-3")
def test_each_new_connection_changes_as_few_shares_as_possible(clock: FakeClock) -> None:
    allocator = make(clock, 100)
    for key in range(100):
        shares = [allocator.ready(known) for known in range(key)]
        allocator.add(key, 2500)
        sent = settled(clock, allocator)
        changed = sum(before != allocator.ready(known) for known, before in enumerate(shares))
        share, odd = divmod(100, key + 1)
        even = sorted([share + 1] * odd + [share] * (key + 1 - odd), reverse=True)
        needed = sum(before != after for before, after in zip(sorted(shares, reverse=True), even, strict=False))
        assert changed == needed
        assert len(sent) <= needed + 2


def test_calls_for_a_removed_connection_are_ignored(clock: FakeClock) -> None:
    allocator = make(clock, 4)
    allocator.add("a", 2500)
    allocator.received("a", 3)
    allocator.remove("a")
    assert allocator.answered("a", 3) == []
    allocator.received("a", 3)
    assert (allocator.charged, tuple(allocator._connections)) == (0, ())
