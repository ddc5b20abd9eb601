"""One timer for many deadlines."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gnsq_lite.publish.deadline_timer import NEVER, Alarm
from tests.fakes import FakeClock


class Timer:
    """Stands in for the loop's timer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.ring: Callable[[], None] | None = None
        self.open = True

    def start(self, ring: Callable[[], None], *, update: bool) -> None:
        assert update  # it counts from now, not from when the loop last looked
        self.ring = ring

    def stop(self) -> None:
        self.ring = None

    def close(self) -> None:
        self.open = False


class Bench:
    """An alarm, the timers it made, and how often it rang."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.rang = 0
        loop: Any = SimpleNamespace(hub=SimpleNamespace(loop=SimpleNamespace(timer=self._timer)))
        self.clock = FakeClock()
        self.alarm = Alarm(loop, self.clock, self._ring)

    def _timer(self, seconds: float) -> Timer:
        self.timers.append(Timer(seconds))
        return self.timers[-1]

    def _ring(self) -> None:
        self.rang += 1

    def waits(self) -> list[float]:
        """Seconds of each timer that will still ring."""
        return [timer.seconds for timer in self.timers if timer.ring is not None]


def test_it_rings_at_the_time_it_was_set_to_last_and_leaves_no_timer_behind() -> None:
    bench = Bench()
    bench.alarm.set(bench.clock.now() + 5)
    bench.clock.advance(1)
    bench.alarm.set(bench.clock.now() + 2)
    assert bench.waits() == [2.0]
    assert [timer.open for timer in bench.timers] == [False, True]
    assert bench.alarm.at == bench.clock.now() + 2


def test_a_time_that_has_passed_rings_at_once() -> None:
    bench = Bench()
    bench.alarm.set(bench.clock.now() - 3)
    assert bench.waits() == [0.0]


def test_never_is_later_than_every_deadline_and_needs_no_timer() -> None:
    bench = Bench()
    assert bench.alarm.at == NEVER
    bench.alarm.set(bench.clock.now() + 5)
    bench.alarm.set(NEVER)
    assert bench.waits() == []
    assert [timer.open for timer in bench.timers] == [False]
    assert bench.alarm.at == NEVER


def test_stopped_it_does_not_ring_twice_over() -> None:
    bench = Bench()
    bench.alarm.set(bench.clock.now() + 5)
    bench.alarm.stop()
    bench.alarm.stop()
    assert bench.waits() == []
    assert bench.rang == 0
