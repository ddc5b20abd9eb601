"""BatchFeeder submits full lists at once and other lists after a wait.  The clock is a fake."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.consume.batches import BatchFeeder
from tests.fakes import FakeClock


class Bench:
    """A BatchFeeder with batch_size 3 and batch_wait 2 s.  This object is also its loop, its timer and its pool."""

    def __init__(self, msg_timeout: float = 60.0) -> None:
        self.clock = FakeClock()
        self.connection = SimpleNamespace(msg_timeout=msg_timeout)
        self.jobs: list[list[Any]] = []
        self.is_starved, self.running = False, 0
        self.due: tuple[float, Callable[[], None]] | None = None
        me: Any = self
        self.feeder = BatchFeeder(me, 3, 2.0, me, self.clock, lambda: self.is_starved)

    def add(self, *bodies: str) -> None:
        now = self.clock.now()
        made: list[Any] = [SimpleNamespace(body=b, received_at=now, _connection=self.connection) for b in bodies]
        self.feeder.submit(made)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if self.due is not None and self.clock.now() >= self.due[0] - 1e-9:
            self.due[1]()

    def handed_on(self) -> list[str]:
        found = ["".join(message.body for message in job) for job in self.jobs]
        self.jobs.clear()
        return found

    # -- the loop, a timer, the pool

    def timer(self, seconds: float, act: Callable[[], None]) -> Any:
        self.due = self.clock.now() + seconds, act
        return self

    def close(self) -> None:
        self.due = None

    def spawn(self, name: str, act: Callable[[], None]) -> None:
        act()

    def submit(self, jobs: list[Any]) -> None:
        self.jobs += jobs

    def busy(self) -> int:
        return self.running

    def queued(self) -> int:
        return 0


def test_full_lists_are_submitted_in_order_and_the_rest_waits() -> None:
    bench = Bench()
    bench.add("a", "b")
    assert (bench.handed_on(), bench.feeder.queued()) == ([], 2)
    bench.add("c", "d", "e", "f", "g")
    assert (bench.handed_on(), bench.feeder.queued()) == (["abc", "def"], 1)


def test_the_wait_of_a_list_begins_with_its_first_message() -> None:
    bench = Bench()
    bench.add("a")
    bench.advance(1.0)
    bench.add("b")
    bench.advance(0.9)
    assert bench.handed_on() == []
    bench.advance(0.1)
    assert bench.handed_on() == ["ab"]
    assert bench.due is None
    bench.add("c", "d", "e", "f")
    bench.advance(2.0)
    assert bench.handed_on() == ["cde", "f"]


@pytest.mark.rule("MSG-5")
def test_a_list_waits_at_most_half_of_msg_timeout() -> None:
    bench = Bench(msg_timeout=1.0)
    bench.add("a")
    bench.advance(0.5)
    assert bench.handed_on() == ["a"]


@pytest.mark.rule("RDY-7")
def test_a_starved_reader_submits_a_list_at_once_unless_a_handler_runs() -> None:
    bench = Bench()
    bench.is_starved, bench.running = True, 1
    bench.add("a")
    assert bench.handed_on() == []
    bench.running = 0
    bench.add("b")
    assert (bench.handed_on(), bench.due) == (["ab"], None)
