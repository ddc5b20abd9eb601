"""RateLimit: the tokens, and the messages that may be in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsq_lite.errors import OptionError
from gnsq_lite.options import HandlerOptions
from gnsq_lite.policy.rate import RateLimit
from tests.fakes import FakeClock


def test_the_first_burst_has_the_messages_of_a_second_and_then_the_rate_holds() -> None:
    clock = FakeClock()
    limit = RateLimit(100.0, clock)
    assert (limit.allowed, limit.next_tick) == (100, None)
    limit.received(60)
    assert limit.allowed == 40
    limit.received(40)
    assert limit.allowed == 0
    assert limit.next_tick == pytest.approx(clock.now() + 0.1)
    limit.tick()
    assert limit.allowed == 0
    clock.advance(0.1)
    limit.tick()
    assert limit.allowed == 10


def test_messages_above_the_limit_make_the_pause_longer() -> None:
    clock = FakeClock()
    limit = RateLimit(10.0, clock)
    limit.received(30)
    assert limit.allowed == 0
    assert limit.next_tick == pytest.approx(clock.now() + 2.1)
    clock.advance(2.0)
    limit.tick()
    assert limit.allowed == 0
    clock.advance(0.11)
    limit.tick()
    assert limit.allowed == 1


def test_a_rate_below_one_lets_one_through_at_a_time() -> None:
    clock = FakeClock()
    limit = RateLimit(5 / 60, clock)
    assert limit.allowed == 1
    limit.received(1)
    assert limit.next_tick == pytest.approx(clock.now() + 12)
    clock.advance(12)
    limit.tick()
    assert (limit.allowed, limit.next_tick) == (1, None)
    clock.advance(3600)
    limit.tick()
    assert limit.allowed == 1


@given(st.floats(0.01, 1000), st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50), st.integers(0, 10)), max_size=60))
def test_at_most_the_rate_plus_one_burst_plus_messages_on_the_wire_arrive(
    rate: float, steps: list[tuple[float, int, int]]
) -> None:
    """The server sends what is allowed, and *late* messages more before it learns of a lower limit."""
    clock = FakeClock()
    limit = RateLimit(rate, clock)
    came, most_late = 0, 0
    for pause, asked, late in steps:
        clock.advance(pause)
        limit.tick()
        if limit.allowed:
            count = min(asked, limit.allowed) + late
            came, most_late = came + count, max(most_late, late)
            limit.received(count)
        assert 0 <= limit.allowed <= max(1, int(rate))
        assert limit.tokens >= -most_late - 1e-6
        assert came <= max(1.0, rate) + rate * (clock.now() - 1000) + most_late + 1e-6


@given(st.floats(0.01, 1000), st.integers(1, 500))
def test_the_limit_rises_at_next_tick(rate: float, count: int) -> None:
    clock = FakeClock()
    limit = RateLimit(rate, clock)
    limit.received(count)
    for _ in range(20):
        due = limit.next_tick
        if due is None:
            break
        before = limit.allowed
        clock.advance(max(0.0, due - clock.now()) + 1e-6)
        limit.tick()
        assert limit.allowed > before
    assert limit.next_tick is None


@pytest.mark.parametrize(
    ("text", "rate"), [("100/s", 100.0), ("5/m", 5 / 60), ("7200/h", 2.0), ("0.5/s", 0.5), (" 3 / m ", 0.05)]
)
def test_a_rate_is_a_number_in_a_unit_of_time(text: str, rate: float) -> None:
    assert HandlerOptions(rate_limit=text).per_second == pytest.approx(rate)


@pytest.mark.parametrize("bad", ["100", "/s", "0/s", "-1/s", "1/d", "nan/s", "inf/s", 100, b"1/s", "1e9/s", ""])
def test_what_is_no_rate_is_refused(bad: object) -> None:
    with pytest.raises(OptionError, match="rate_limit"):
        HandlerOptions(rate_limit=bad)  # type: ignore[arg-type]


def test_no_rate_is_no_limit() -> None:
    assert HandlerOptions().per_second is None
