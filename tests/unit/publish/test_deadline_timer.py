"""One timer for many deadlines."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gnsq_lite.publish.deadline_timer import NEVER, DeadlineTimer
from tests.fakes import FakeClock


class Timer:
    """Stands in for the loop's timer."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.seconds = max(0.0, seconds)
        self.act: Callable[[], None] | None = act
        self.open = True

    def stop(self) -> None:
        self.act = None

    def close(self) -> None:
        self.open = False


class Bench:
    """A deadline timer, the loop's timers it made, and how often it acted."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.acted = 0
        self.error: BaseException | None = None
        loop: Any = SimpleNamespace(timer=self._timer)
        self.clock = FakeClock()
        self.deadlines = DeadlineTimer(loop, self.clock, self._act)

    def _timer(self, seconds: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, act))
        return self.timers[-1]

    def _act(self) -> float:
        self.acted += 1
        if self.error is not None:
            raise self.error
        return NEVER

    def waits(self) -> list[float]:
        """Seconds of each timer that will still fire."""
        return [timer.seconds for timer in self.timers if timer.act is not None]


def test_it_acts_at_the_time_it_was_set_to_last_and_leaves_no_timer_behind() -> None:
    bench = Bench()
    bench.deadlines.set(bench.clock.now() + 5)
    bench.clock.advance(1)
    bench.deadlines.set(bench.clock.now() + 2)
    assert bench.waits() == [2.0]
    assert [timer.open for timer in bench.timers] == [False, True]
    assert bench.deadlines.at == bench.clock.now() + 2


def test_a_time_that_has_passed_acts_at_once() -> None:
    bench = Bench()
    bench.deadlines.set(bench.clock.now() - 3)
    assert bench.waits() == [0.0]


def test_never_is_later_than_every_deadline_and_needs_no_timer() -> None:
    bench = Bench()
    assert bench.deadlines.at == NEVER
    bench.deadlines.set(bench.clock.now() + 5)
    bench.deadlines.set(NEVER)
    assert bench.waits() == []
    assert [timer.open for timer in bench.timers] == [False]
    assert bench.deadlines.at == NEVER


def test_stopped_it_does_not_act_twice_over() -> None:
    bench = Bench()
    bench.deadlines.set(bench.clock.now() + 5)
    bench.deadlines.stop()
    bench.deadlines.stop()
    assert bench.waits() == []
    assert bench.acted == 0
