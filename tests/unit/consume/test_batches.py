"""BatchFeeder submits full lists at once and other lists after a wait.  The clock is a fake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnsq_lite.consume.batches import BatchFeeder
from tests.unit.fake_loop import FakeLoop


class FakePool:
    """Keeps the lists that it is given; *running* handlers are busy."""

    def __init__(self) -> None:
        self.jobs, self.running = list[list[Any]](), 0
        self.submit = self.jobs.extend

    def busy(self) -> int:
        return self.running

    def queued(self) -> int:
        return 0


class Lists:
    """A BatchFeeder with batch_size 3 and batch_wait 2 s, its loop and its pool."""

    def __init__(self, msg_timeout: float = 60.0) -> None:
        self.loop, self.pool, self.is_starved = FakeLoop(), FakePool(), False
        self.connection = SimpleNamespace(msg_timeout=msg_timeout)
        loop, pool = cast(Any, self.loop), cast(Any, self.pool)
        self.feeder = BatchFeeder(loop, 3, 2.0, pool, self.loop.clock, lambda: self.is_starved)

    def add(self, *bodies: str) -> None:
        now = self.loop.clock.now()
        made: list[Any] = [SimpleNamespace(body=b, received_at=now, _connection=self.connection) for b in bodies]
        self.feeder.submit(made)

    def advance(self, seconds: float) -> None:
        self.loop.advance(seconds)
        self.loop.run_spawned()

    def submitted(self) -> list[str]:
        """Remove and return the lists that the pool was given."""
        found = ["".join(message.body for message in job) for job in self.pool.jobs]
        self.pool.jobs.clear()
        return found


def test_full_lists_are_submitted_in_order_and_the_rest_waits() -> None:
    lists = Lists()
    lists.add("a", "b")
    assert (lists.submitted(), lists.feeder.queued()) == ([], 2)
    lists.add("c", "d", "e", "f", "g")
    assert (lists.submitted(), lists.feeder.queued()) == (["abc", "def"], 1)


def test_the_wait_of_a_list_begins_with_its_first_message() -> None:
    lists = Lists()
    lists.add("a")
    lists.advance(1.0)
    lists.add("b")
    lists.advance(0.9)
    assert lists.submitted() == []
    lists.advance(0.1)
    assert lists.submitted() == ["ab"]
    assert lists.loop.running() == []
    lists.add("c", "d", "e", "f")
    lists.advance(2.0)
    assert lists.submitted() == ["cde", "f"]


@pytest.mark.rule("MSG-5")
def test_a_list_waits_at_most_half_of_msg_timeout() -> None:
    lists = Lists(msg_timeout=1.0)
    lists.add("a")
    lists.advance(0.5)
    assert lists.submitted() == ["a"]


@pytest.mark.rule("RDY-7")
def test_a_starved_reader_submits_a_list_at_once_unless_a_handler_runs() -> None:
    lists = Lists()
    lists.is_starved, lists.pool.running = True, 1
    lists.add("a")
    assert lists.submitted() == []
    lists.pool.running = 0
    lists.add("b")
    assert (lists.submitted(), lists.loop.running()) == (["ab"], [])
