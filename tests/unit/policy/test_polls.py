"""PollTimes: when the nsqlookupds are polled."""

from __future__ import annotations

import itertools
import random

import pytest

from gnsq_lite.options import LookupOptions
from gnsq_lite.policy.reconnect import PollTimes, retry_delay
from tests.fakes import FakeClock


def polls_within(seconds: float, urgent_until: float = 1e9, **options: float) -> list[float]:
    """Return the times of polls, by a clock that advances in hundredths of a second.  The first polls are urgent."""
    clock = FakeClock(0.0)
    polls = PollTimes(LookupOptions(**options), clock, random.Random(2))
    times = []
    while clock.now() < seconds:
        urgent = clock.now() < urgent_until
        if polls.left(urgent) <= 0:
            polls.begin(urgent)
            times.append(clock.now())
        clock.advance(1 / 128)
    return times


@pytest.mark.rule("CFG-3")
@pytest.mark.rule("DISC-4")
def test_polls_follow_the_interval_plus_a_random_part() -> None:
    times = polls_within(3000.0, urgent_until=0.0, lookupd_poll_interval=10.0, lookupd_poll_jitter=0.5)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0.0
    assert 10.0 <= min(pauses) < 10.5
    assert 14.5 < max(pauses) < 15.1
    assert polls_within(50.0, urgent_until=0.0, lookupd_poll_interval=10.0, lookupd_poll_jitter=0.0) == [
        0.0, 10.0, 20.0, 30.0, 40.0
    ]  # fmt: skip


@pytest.mark.rule("DISC-4")
def test_urgent_polls_begin_soon_then_each_second_for_a_minute_then_less_often() -> None:
    times = polls_within(250.0, lookupd_poll_jitter=0.0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == [0.25, 0.5, *[1.0] * 60, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert retry_delay(10_000) > 86400.0


@pytest.mark.rule("DISC-4")
def test_an_outage_of_two_seconds_ends_within_three_whatever_the_jitter() -> None:
    for jitter in (0.0, 0.3, 1.0):
        times = polls_within(5.0, lookupd_poll_jitter=jitter)
        assert any(2.0 <= at <= 3.0 for at in times)
        assert len(times) <= 12


@pytest.mark.rule("CFG-3")
def test_an_interval_shorter_than_the_delays_of_urgent_polls_is_kept() -> None:
    assert polls_within(0.5, lookupd_poll_interval=0.125, lookupd_poll_jitter=0.0) == [0.0, 0.125, 0.25, 0.375]


@pytest.mark.rule("DISC-4")
def test_after_an_nsqd_was_found_the_interval_counts_from_the_last_poll() -> None:
    times = polls_within(30.0, urgent_until=0.7, lookupd_poll_interval=10.0, lookupd_poll_jitter=0.0)
    assert times == [0.0, 0.25, 10.25, 20.25]


def test_a_waiting_publish_or_hasten_makes_a_poll_due_before_the_interval() -> None:
    clock = FakeClock(0.0)
    polls = PollTimes(LookupOptions(), clock, random.Random(2))
    polls.begin(urgent=False)
    clock.advance(1.0)
    assert polls.left(urgent=False) > 58.0
    assert polls.left(urgent=True) < 0.0
    polls.hasten()
    assert polls.left(urgent=False) < 0.0
