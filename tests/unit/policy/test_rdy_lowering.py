"""RDY after the budget was lowered, or with a small budget, while messages are in flight."""

from __future__ import annotations

import pytest

from tests.fakes import FakeClock
from tests.unit.policy.rdy import SETTLE, make, pairs, ready, settled, settled_until


@pytest.mark.rule("MSG-5")
def test_messages_above_rdy_are_charged_and_do_not_lower_other_connections(clock: FakeClock) -> None:
    """nsqd timed out three messages and sent three more, while the handlers of the first three still run."""
    allocator = ready(clock, 4, "ab")
    allocator.received("a", 5)
    assert (allocator.charged, allocator._connections["a"].in_flight) == (7, 5)
    assert allocator.answered("a", 3) == []
    assert (allocator.charged, allocator.ready("a"), allocator.ready("b")) == (4, 2, 2)
    assert allocator.answered("a", 9) == []
    assert allocator._connections["a"].in_flight == 0


@pytest.mark.rule("RDY-4")
@pytest.mark.rule("RDY-8")
def test_above_a_lowered_budget_no_rdy_grows(clock: FakeClock) -> None:
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
def test_free_rdy_is_divided_among_waiting_connections(clock: FakeClock) -> None:
    allocator = ready(clock, 12, "a")
    allocator.received("a", 12)
    allocator.add("b", 2500)
    allocator.add("c", 2500)
    settled(clock, allocator)
    assert pairs(allocator.answered("a", 2)) == [("b", 1), ("c", 1)]
    allocator.answered("a", 3)
    assert settled(clock, allocator) == [("b", 3), ("c", 2)]


@pytest.mark.rule("RDY-3")
def test_a_connection_without_rdy_comes_before_one_with_rdy(clock: FakeClock) -> None:
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
def test_lowering_the_budget_takes_only_the_excess_of_unused_rdy(clock: FakeClock) -> None:
    allocator = ready(clock, 9, "abc")
    allocator.received("a", 3)
    allocator.set_max_in_flight(6)
    assert sorted(allocator.ready(key) for key in "abc") == [1, 2, 2]
    assert allocator.ready("a") == 2


@pytest.mark.rule("RDY-8")
def test_messages_on_the_wire_at_a_lowering_stay_charged_while_others_are_answered(clock: FakeClock) -> None:
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
def test_rdy_of_messages_answered_in_the_settling_time_is_free_at_once(clock: FakeClock) -> None:
    """nsqd reads RDY before the later answers, so it sends no message in their place."""
    allocator = ready(clock, 10, "a")
    allocator.received("a", 10)
    allocator.add("b", 2500)
    clock.advance(SETTLE)
    assert pairs(allocator.tick()) == [("a", 5)]
    assert pairs(allocator.answered("a", 1)) == [("b", 1)]
