"""RDY where messages wait for handlers in vain."""

from __future__ import annotations

import pytest

from gnsq_lite.policy.pace import Pace
from tests.fakes import FakeClock


@pytest.mark.rule("MSG-5")
def test_a_connection_goes_down_to_what_moves_and_up_again_when_handlers_are_idle() -> None:
    clock = FakeClock()
    pace: Pace[str] = Pace(clock)
    assert pace.look(True) == []
    assert pace.stalled("a", 100, 8, 60.0) == 8
    assert pace.stalled("a", 100, 0, 60.0) == 0
    assert pace.look(True) == []  # not yet
    clock.advance(1.0)
    assert pace.look(False) == []  # every handler hangs
    grown = []
    for _ in range(8):
        clock.advance(1.0)
        grown += pace.look(True)
        assert pace.look(True) == []
    assert grown == [("a", 1), ("a", 2), ("a", 4), ("a", 8), ("a", 16), ("a", 32), ("a", 64), ("a", 100)]
    clock.advance(1.0)
    assert pace.look(True) == []


def test_it_never_grows_by_an_expiry_and_others_are_left_alone() -> None:
    pace: Pace[str] = Pace(FakeClock())
    assert pace.stalled("a", 10, 4, 1.0) == 4
    assert pace.stalled("a", 10, 9, 1.0) == 4
    assert pace.stalled("b", 10, 90, 1.0) == 10


@pytest.mark.rule("MSG-5")
def test_busy_handlers_get_more_only_where_it_would_not_wait_for_half_of_its_time() -> None:
    clock = FakeClock()
    pace: Pace[str] = Pace(clock)
    pace.stalled("a", 100, 10, 60.0)
    pace.answered("other", 99)
    for answered, expected in ((0, []), (1, [("a", 20)]), (1, []), (2, [("a", 40)]), (2, []), (3, [("a", 80)])):
        pace.answered("a", answered)
        clock.advance(1.0)
        assert pace.look(False) == expected  # 2 * size <= answered * 30
    pace.remove("a")
    clock.advance(1.0)
    assert pace.look(True) == []


def test_a_slow_handler_settles_where_nothing_expires() -> None:
    """A message a second, 100 in flight at first, each with 60 seconds: 60 can be handled in time."""
    clock = FakeClock()
    pace: Pace[str] = Pace(clock)
    size, queue, expired = 100, [0.0] * 100, 0
    for second in range(1, 1200):
        clock.advance(1.0)
        if queue:
            queue.pop(0)
            pace.answered("a", 1)
        late = [at for at in queue if second - at > 60]
        queue = queue[len(late) :]
        if late:
            expired += len(late)
            size = pace.stalled("a", 100, 1, 60.0)
        size = dict(pace.look(False)).get("a", size)
        queue += [float(second)] * max(0, size - len(queue))
    assert expired <= 100
    assert 8 <= size <= 60
