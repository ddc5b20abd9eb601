"""How long a Reader waits before it looks for a leader that was lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.dialect import Endpoint
from gnsq_lite.errors import TopicNotExistError
from gnsq_lite.youzan.leader_search import LONGEST_PAUSE, LeaderSearch, first_pause
from tests.fakes import FakeClock


@pytest.mark.rule("YZ-12")
def test_the_search_for_a_leader_begins_ever_later_and_no_count_of_losses_is_too_much_for_it() -> None:
    assert [first_pause(0.2, misses) for misses in (1, 2, 3, 4, 5, 8, 9)] == [0.2, 0.2, 0.2, 0.4, 0.8, 6.4, 8.0]
    assert first_pause(0.05, 5_000) == 8.0  # a leader that stays away for a day


@pytest.mark.rule("YZ-12")
def test_a_leader_that_is_lost_again_as_soon_as_it_is_found_is_looked_for_ever_later() -> None:
    clock, pauses = FakeClock(), list[float]()
    closed: list[None] = []

    def call_later(seconds: float, act: Callable[[], None]) -> Any:
        pauses.append(seconds)
        acts.append(act)
        return SimpleNamespace(close=lambda: closed.append(None))

    acts: list[Callable[[], None]] = []
    search = LeaderSearch(call_later, random.Random(1), clock, lambda endpoint: False, lambda endpoint: True)
    leader, gone = Endpoint("nsqd", 4150, 3), TopicNotExistError("E_TOPIC_NOT_EXIST")
    for served in (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, LONGEST_PAUSE + 1.0, 0.1):
        search.found(leader)
        clock.advance(served)
        search.lost(leader, gone)
    assert pauses == [1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 1.0, 1.0]
    assert len(closed) == len(pauses) - 1  # one search for each partition
    search.lost(Endpoint("nsqd", 4150, 4), gone)
    assert pauses[-1] == 1.0
    acts[-1]()  # which finds none
    assert 2.0 <= pauses[-1] <= 2.6
    search.close()
    assert len(closed) == len(pauses)
