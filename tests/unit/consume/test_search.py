"""How long a Reader waits before it looks for a leader that was lost."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.consume.leader_search import LONGEST_PAUSE, LeaderSearch, first_pause
from gnsq_lite.dialect import Endpoint
from tests.fakes import FakeClock


@pytest.mark.rule("YZ-12")
def test_the_search_for_a_leader_begins_ever_later_and_no_count_of_losses_is_too_much_for_it() -> None:
    assert [first_pause(0.2, misses) for misses in (1, 2, 3, 4, 5, 8, 9)] == [0.2, 0.2, 0.2, 0.4, 0.8, 6.4, 8.0]
    assert first_pause(0.05, 5_000) == 8.0  # a leader that stays away for a day


@pytest.mark.rule("YZ-12")
def test_a_leader_that_is_lost_again_as_soon_as_it_is_found_is_looked_for_ever_later() -> None:
    clock, pauses = FakeClock(), list[float]()
    task = SimpleNamespace(kill=lambda block: None)

    def spawn(name: str, run: Any, endpoint: Endpoint, pause: float) -> Any:
        pauses.append(pause)
        return task

    loop: Any = SimpleNamespace(spawn=spawn)
    search = LeaderSearch(loop, random.Random(1), clock, lambda endpoint: False, lambda endpoint: True)
    leader = Endpoint("nsqd", 4150, 3)
    for served in (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, LONGEST_PAUSE + 1.0, 0.1):
        search.found(leader)
        clock.advance(served)
        search.lost(leader, 1.0)
    assert pauses == [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 1.0, 1.0]
    search.lost(Endpoint("nsqd", 4150, 4), 1.0)  # another partition
    assert pauses[-1] == 1.0
