"""When backoff is said to hold a Reader below a tenth of its rate."""

from __future__ import annotations

import pytest

from gnsq_lite.policy.backoff_cost import BackoffCost
from tests.fakes import FakeClock


def compared(free: float, held: float, handled_free: int, handled_held: int, times: int) -> list[tuple[float, float]]:
    """Return what was found while a Reader was outside and in backoff by turns, for so many seconds each."""
    clock = FakeClock()
    cost, handled, found = BackoffCost(clock), 0, []
    for _ in range(times):
        clock.advance(free)
        handled += handled_free
        found.append(cost.changed(True, handled))
        clock.advance(held)
        handled += handled_held
        assert cost.changed(False, handled) is None
    return [rates for rates in found if rates is not None]


@pytest.mark.rule("BACK-1")
@pytest.mark.parametrize(
    ("handled_held", "low"),
    [(0, True), (50, True), (60, False), (1000, False)],
)
def test_a_rate_below_a_tenth_of_the_rate_outside_backoff_is_found(handled_held: int, low: bool) -> None:
    found = compared(0.05, 1.0, 50, handled_held, 200)  # 1,000/s outside
    assert bool(found) == low
    for rate, full in found:
        assert rate < 0.1 * full
        assert full == pytest.approx(1000.0)


@pytest.mark.rule("BACK-1")
def test_no_comparison_covers_less_than_a_minute() -> None:
    assert compared(0.05, 1.0, 50, 0, 57) == []
    assert len(compared(0.05, 1.0, 50, 0, 60)) == 1
    assert 3 <= len(compared(0.05, 1.0, 50, 0, 250)) <= 4


@pytest.mark.rule("BACK-1")
def test_a_reader_that_handles_nothing_outside_backoff_is_not_held_back() -> None:
    assert compared(1.0, 20.0, 0, 1, 50) == []
    assert compared(0.0, 20.0, 0, 1, 50) == []
