"""RDY when the budget was lowered or is not enough, with messages out."""

from __future__ import annotations

import pytest

from tests.fakes import FakeClock
from tests.unit.policy.test_rdy import SETTLE, make, pairs, ready, settled, settled_until


@pytest.mark.rule("MSG-5")
def test_messages_beyond_the_window_count_and_do_not_stop_what_others_have(clock: FakeClock) -> None:
    """nsqd timed three out and sent others, while the handlers still hold the first."""
    allocator = ready(clock, 4, "ab")
    allocator.received("a", 5)
    assert (allocator.charged, allocator._connections["a"].in_flight) == (7, 5)
    assert allocator.answered("a", 3) == []
    assert (allocator.charged, allocator.ready("a"), allocator.ready("b")) == (4, 2, 2)
    assert allocator.answered("a", 9) == []
    assert allocator._connections["a"].in_flight == 0


@pytest.mark.rule("RDY-4")
@pytest.mark.rule("RDY-8")
def test_above_a_lowered_budget_no_rdy_grows_not_even_where_messages_are_out_already(clock: FakeClock) -> None:
    allocator = ready(clock, 10, "ab")
    allocator.received("a", 5)
    allocator.received("b", 5)
    allocator.pause()
    allocator.set_max_in_flight(4)
    clock.advance(1)
    assert allocator.resume() == []
    assert allocator.answered("a", 5) == []
    assert pairs(allocator.answered("b", 2)) == [("a", 1), ("b", 2)]
    assert settled(clock, allocator) == []


@pytest.mark.rule("RDY-3")
def test_what_becomes_free_is_divided_among_those_who_wait_for_it(clock: FakeClock) -> None:
    allocator = ready(clock, 12, "a")
    allocator.received("a", 12)
    allocator.add("b", 2500)
    allocator.add("c", 2500)
    settled(clock, allocator)
    assert pairs(allocator.answered("a", 2)) == [("b", 1), ("c", 1)]
    allocator.answered("a", 3)
    assert settled(clock, allocator) == [("b", 3), ("c", 2)]


@pytest.mark.rule("RDY-3")
def test_one_without_rdy_comes_before_one_that_has_some(clock: FakeClock) -> None:
    allocator = ready(clock, 9, "a")
    allocator.received("a", 9)
    allocator.add("b", 2500)
    settled(clock, allocator)
    assert pairs(allocator.answered("a", 2)) == [("b", 1), ("b", 2)]
    allocator.add("c", 2500)
    settled(clock, allocator)
    assert pairs(allocator.answered("a", 1)) == [("c", 1)]
    assert allocator.ready("b") == 2


@pytest.mark.rule("RDY-8")
def test_a_lowering_takes_back_no_more_unused_rdy_than_is_too_much(clock: FakeClock) -> None:
    allocator = ready(clock, 9, "abc")
    allocator.received("a", 3)
    allocator.set_max_in_flight(6)
    assert sorted(allocator.ready(key) for key in "abc") == [1, 2, 2]
    assert allocator.ready("a") == 2


@pytest.mark.rule("RDY-8")
def test_messages_that_were_on_their_way_at_a_lowering_leave_no_room_when_others_are_answered(clock: FakeClock) -> None:
    allocator = ready(clock, 2, "ab")
    [cut] = allocator.set_max_in_flight(1)
    kept = "a" if cut.key == "b" else "b"
    allocator.received(str(cut.key), 1)
    allocator.received(kept, 1)
    settled_until(clock, allocator, 1.0)
    assert pairs(allocator.answered(kept, 1)) == [(kept, 0)]


@pytest.mark.rule("RDY-7")
def test_a_connection_without_rdy_and_messages_is_not_starved(clock: FakeClock) -> None:
    allocator = make(clock, 4)
    allocator.add("a", 2500)
    allocator.pause()
    assert not allocator.is_starved()


@pytest.mark.rule("RDY-4")
def test_what_is_answered_while_the_change_settles_goes_on_at_once(clock: FakeClock) -> None:
    """nsqd reads RDY before the answers that were sent after it, so they make no room there."""
    allocator = ready(clock, 10, "a")
    allocator.received("a", 10)
    allocator.add("b", 2500)
    clock.advance(SETTLE)
    assert pairs(allocator.tick()) == [("a", 5)]
    assert pairs(allocator.answered("a", 1)) == [("b", 1)]
