"""Delays between attempts to connect to an nsqd."""

from __future__ import annotations

import random

import pytest

from gnsq_lite.options import ReconnectOptions
from gnsq_lite.policy.reconnect import Reconnect, ResetPauses
from tests.fakes import FakeClock
from tests.profiles import repeats


def delays(count: int, **options: float) -> list[float]:
    retry = Reconnect(ReconnectOptions(**options), random.Random(5))
    return [retry.failed() for _ in range(count)]


@pytest.mark.rule("CONN-3")
def test_delays_are_8_16_32_and_so_on_up_to_the_cap() -> None:
    assert delays(7, reconnect_jitter=0.0) == [8.0, 16.0, 32.0, 64.0, 120.0, 120.0, 120.0]


@pytest.mark.rule("CONN-3")
def test_an_error_that_a_retry_cannot_fix_waits_for_the_longest_delay() -> None:
    retry = Reconnect(ReconnectOptions(reconnect_jitter=0.0), random.Random(5))
    assert [retry.failed(longest=True), retry.failed(longest=True)] == [120.0, 120.0]


@pytest.mark.rule("CONN-3")
def test_first_delay_and_cap_are_configurable() -> None:
    options = {"reconnect_delay": 0.5, "max_reconnect_delay": 3.0, "reconnect_jitter": 0.0}
    assert delays(5, **options) == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.rule("CONN-3")
def test_a_connection_that_was_ready_for_some_time_resets_the_delay() -> None:
    retry = Reconnect(ReconnectOptions(reconnect_jitter=0.0), random.Random(5))
    assert [retry.failed(), retry.failed(), retry.failures] == [8.0, 16.0, 2]
    retry.served(8.0)
    assert (retry.failures, retry.failed()) == (0, 8.0)


@pytest.mark.rule("CONN-3")
@pytest.mark.parametrize(("delay", "seconds"), [(8.0, 7.9), (0.1, 0.9)])
def test_a_connection_that_broke_at_once_does_not_reset_the_delay(delay: float, seconds: float) -> None:
    retry = Reconnect(ReconnectOptions(reconnect_jitter=0.0, reconnect_delay=delay), random.Random(5))
    found = []
    for _ in range(3):
        retry.served(seconds)
        found.append(retry.failed())
    assert found == [delay, 2 * delay, 4 * delay]


@pytest.mark.rule("CONN-3")
def test_restart_resets_the_delay_however_short_the_connection_was() -> None:
    retry = Reconnect(ReconnectOptions(reconnect_jitter=0.0), random.Random(5))
    assert [retry.failed(), retry.failed()] == [8.0, 16.0]
    retry.restart()
    assert (retry.failures, retry.failed(), retry.failed()) == (0, 8.0, 16.0)


@pytest.mark.rule("CONN-3")
def test_jitter_shortens_or_lengthens_each_delay_but_never_above_the_cap() -> None:
    firsts, fourths, capped = [], [], []
    for seed in range(300):
        retry = Reconnect(ReconnectOptions(reconnect_jitter=0.25), random.Random(seed))
        steps = [retry.failed() for _ in range(8)]
        firsts.append(steps[0])
        fourths.append(steps[3])
        capped += steps[4:]
    assert 6.0 <= min(firsts) < 6.2
    assert 9.8 < max(firsts) <= 10.0
    assert min(fourths) >= 48.0
    assert max(fourths) <= 80.0
    assert max(capped) == 120.0
    assert 90.0 <= min(capped) < 95.0


@pytest.mark.rule("CONN-3")
def test_a_million_failures_do_not_overflow() -> None:
    assert delays(repeats(1_000_000, 10_000))[-1] <= 120.0


def pauses_of(clock: FakeClock, pauses: ResetPauses, resets: int, later: float = 0.0) -> list[float]:
    """Begin each pause *later* seconds after the end of the last one, and return the lengths."""
    lengths = []
    for _ in range(resets):
        pauses.begin()
        lengths.append(round(pauses.left(), 3))
        clock.advance(pauses.left() + later)
    return lengths


def test_pauses_between_resets_grow_from_50_ms_to_8_s() -> None:
    clock = FakeClock()
    assert pauses_of(clock, ResetPauses(clock), 10) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8.0, 8.0]


def test_ten_seconds_after_a_pause_without_a_reset_the_next_pause_is_short_again() -> None:
    clock = FakeClock()
    pauses = ResetPauses(clock)
    assert pauses_of(clock, pauses, 3, later=9.9) == [0.05, 0.1, 0.2]
    clock.advance(0.2)
    assert pauses_of(clock, pauses, 2) == [0.05, 0.1]


def test_a_reset_during_a_pause_does_not_lengthen_it() -> None:
    clock = FakeClock()
    pauses = ResetPauses(clock)
    pauses.begin()
    clock.advance(0.03)
    pauses.begin()
    assert round(pauses.left(), 3) == 0.02
    clock.advance(1.0)
    assert pauses.left() == 0.0
    assert pauses_of(clock, pauses, 1) == [0.1]
