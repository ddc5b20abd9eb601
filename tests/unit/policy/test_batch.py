"""When a batch is handed on."""

from __future__ import annotations

import pytest

from gnsq_lite.policy.batch import Batcher
from tests.fakes import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_full_batches_are_handed_on_in_order_and_the_rest_waits(clock: FakeClock) -> None:
    batcher: Batcher[int] = Batcher(3, 5.0, clock)
    assert batcher.add([1, 2]) == []
    assert batcher.add([3, 4, 5, 6, 7]) == [[1, 2, 3], [4, 5, 6]]
    assert len(batcher) == 1
    assert batcher.add([8, 9]) == [[7, 8, 9]]
    assert (len(batcher), batcher.next_tick) == (0, None)


def test_an_incomplete_batch_waits_from_its_first_message_on(clock: FakeClock) -> None:
    batcher: Batcher[int] = Batcher(3, 5.0, clock)
    batcher.add([1])
    due = clock.now() + 5.0
    clock.advance(4.0)
    batcher.add([2])
    assert batcher.next_tick == due
    clock.advance(0.999)
    assert batcher.tick() == []
    clock.advance(0.001)
    assert batcher.tick() == [[1, 2]]
    assert batcher.tick() == []


def test_what_a_full_batch_leaves_over_waits_its_own_time(clock: FakeClock) -> None:
    batcher: Batcher[int] = Batcher(3, 5.0, clock)
    batcher.add([1, 2])
    clock.advance(4.0)
    assert batcher.add([3, 4]) == [[1, 2, 3]]
    assert batcher.next_tick == clock.now() + 5.0


@pytest.mark.rule("RDY-7")
def test_a_starved_reader_gets_what_there_is(clock: FakeClock) -> None:
    batcher: Batcher[int] = Batcher(3, 5.0, clock)
    assert batcher.flush_now() == []
    batcher.add([1, 2])
    assert batcher.flush_now() == [[1, 2]]
    assert batcher.next_tick is None


@pytest.mark.rule("MSG-5")
def test_no_message_waits_longer_than_it_may(clock: FakeClock) -> None:
    began = clock.now()
    batcher: Batcher[float] = Batcher(3, 60.0, clock, lambda message: message)
    batcher.add([began + 7.0, began + 8.0])
    assert batcher.next_tick == began + 7.0
    clock.advance(7.0)
    assert batcher.tick() == [[began + 7.0, began + 8.0]]
    batcher.add([clock.now() + 90.0])
    assert batcher.next_tick == clock.now() + 60.0


@pytest.mark.rule("MSG-5")
def test_what_is_of_no_use_any_more_leaves_the_batch_and_the_rest_waits_no_longer_for_it(clock: FakeClock) -> None:
    batcher: Batcher[int] = Batcher(5, 60.0, clock)
    batcher.add([1, 2, 3, 4])
    due = batcher.next_tick
    assert batcher.drop(lambda message: message % 2 == 0) == [2, 4]
    assert (len(batcher), batcher.next_tick) == (2, due)
    assert batcher.drop(lambda message: True) == [1, 3]
    assert (len(batcher), batcher.next_tick, batcher.tick()) == (0, None, [])
