"""How long handlers have run, by looking at their seats."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite.errors import OptionError
from gnsq_lite.options import HandlerOptions
from gnsq_lite.policy.handler_times import GRACE, Act, HandlerTimes
from tests.fakes import FakeClock


def watched(*, interruptible: bool, **limits: float) -> tuple[HandlerTimes, FakeClock]:
    clock = FakeClock()
    return HandlerTimes(HandlerOptions(**limits), clock, interruptible=interruptible), clock


def acts(times: HandlerTimes, *seats: list[Any]) -> list[tuple[Act, Any]]:
    return [(act, run.job) for act, run in times.look(seats)]


def test_the_age_of_the_oldest_counts_from_its_first_sight_and_is_known_without_limits() -> None:
    times, clock = watched(interruptible=False)
    first, second = ["one", "a"], ["two", None]
    assert times.oldest() == 0.0
    assert acts(times, first, second) == []
    clock.advance(7)
    second[1] = "b"
    assert acts(times, first, second) == []
    assert times.oldest() == 7
    first[1] = "c"  # it has taken the next
    assert times.oldest() == 0.0
    clock.advance(86400)
    assert acts(times, first, second) == []
    assert times.oldest() == 86400
    second[1] = None
    assert acts(times, first, second) == []
    assert times.oldest() == 0.0


def test_a_handler_is_warned_of_once_at_the_soft_limit_and_each_anew() -> None:
    times, clock = watched(interruptible=True, soft_time_limit=10.0)
    seat = ["one", "a"]
    acts(times, seat)
    clock.advance(9.9)
    assert acts(times, seat) == []
    clock.advance(0.1)
    assert acts(times, seat) == [(Act.WARN, "a")]
    clock.advance(100)
    assert acts(times, seat) == []
    seat[1] = "b"
    assert acts(times, seat) == []
    clock.advance(10)
    assert acts(times, seat) == [(Act.WARN, "b")]


def test_in_a_greenlet_it_is_told_once_and_written_off_when_it_runs_on() -> None:
    times, clock = watched(interruptible=True, soft_time_limit=5.0, time_limit=10.0)
    seat = ["one", "a"]
    seen = []
    for _ in range(40):
        seen += [(clock.now() - 1000, act) for act, _ in acts(times, seat)]
        clock.advance(1)
    assert seen == [(5, Act.WARN), (10, Act.INTERRUPT), (10 + GRACE, Act.WRITE_OFF)]
    assert times.overdue == 1
    seat[1] = None
    assert times.overdue == 0


def test_a_thread_is_written_off_at_its_limit_and_the_others_are_not() -> None:
    times, clock = watched(interruptible=False, time_limit=10.0)
    hung, quick = ["one", "a"], ["two", 0]
    seen = []
    for number in range(20):
        quick[1] = number
        seen += [(clock.now() - 1000, *each) for each in acts(times, hung, quick)]
        clock.advance(1)
    assert seen == [(10, Act.WRITE_OFF, "a")]
    assert times.overdue == 1
    assert acts(times, quick) == []  # its thread has ended
    assert (times.overdue, times.oldest()) == (0, 1)


def test_a_worker_that_has_another_ones_place_in_memory_is_not_taken_for_it() -> None:
    times, clock = watched(interruptible=False, time_limit=10.0)
    job = object()
    for _ in range(20):
        clock.advance(9)
        assert times.look([["new each time", job]]) == []


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({}, 1.0),
        ({"time_limit": 3600.0}, 1.0),
        ({"time_limit": 10.0}, 0.5),
        ({"time_limit": 10.0, "soft_time_limit": 2.0}, 0.1),
        ({"soft_time_limit": 0.1}, 0.01),
    ],
)
def test_the_looks_are_as_close_as_the_shortest_limit_wants(limits: dict[str, float], seconds: float) -> None:
    times, _ = watched(interruptible=True, **limits)
    assert times.look_every == pytest.approx(seconds)


def test_a_soft_limit_above_the_hard_one_is_refused() -> None:
    with pytest.raises(OptionError, match="soft_time_limit"):
        HandlerOptions(time_limit=5.0, soft_time_limit=6.0)
