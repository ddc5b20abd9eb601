"""Backoff: the phases and their times, also after a million failures."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsq_lite.options import BackoffOptions
from gnsq_lite.policy.backoff import Backoff, Phase
from tests.fakes import FakeClock
from tests.profiles import repeats


def make(clock: FakeClock, **options: Any) -> Backoff:
    return Backoff(BackoffOptions(**options), clock=clock, rng=random.Random(3))


def fail_up_to(backoff: Backoff, clock: FakeClock, level: int) -> None:
    while backoff.level < level:
        if backoff.phase is Phase.PAUSED:
            end_pause(backoff, clock)
        backoff.record(False)


def end_pause(backoff: Backoff, clock: FakeClock) -> None:
    assert backoff.resume_at is not None
    clock.advance(backoff.resume_at - clock.now())
    assert backoff.tick() is Phase.PROBING


@pytest.mark.rule("BACK-1")
def test_successes_alone_change_nothing(clock: FakeClock) -> None:
    backoff = make(clock)
    assert [backoff.record(True) for _ in range(3)] == [Phase.FLOWING] * 3
    assert (backoff.level, backoff.resume_at) == (0, None)
    assert backoff.tick() is Phase.FLOWING


@pytest.mark.rule("BACK-1")
def test_a_failure_pauses_for_one_unit_and_then_probes(clock: FakeClock) -> None:
    backoff = make(clock, unit=2.0)
    assert backoff.record(False) is Phase.PAUSED
    assert backoff.resume_at == clock.now() + 2.0
    clock.advance(1.999)
    assert backoff.tick() is Phase.PAUSED
    clock.advance(0.001)
    assert backoff.tick() is Phase.PROBING
    assert backoff.resume_at is None


@pytest.mark.rule("BACK-1")
def test_the_pause_doubles_with_each_failed_probe_up_to_the_longest(clock: FakeClock) -> None:
    backoff = make(clock, unit=1.0, longest=10.0)
    pauses = []
    for _ in range(7):
        backoff.record(False)
        assert backoff.resume_at is not None
        pauses.append(backoff.resume_at - clock.now())
        end_pause(backoff, clock)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


@pytest.mark.rule("BACK-2")
def test_a_probe_that_succeeds_shortens_the_next_pause_and_one_that_fails_lengthens_it(clock: FakeClock) -> None:
    backoff = make(clock, unit=1.0, longest=60.0)
    fail_up_to(backoff, clock, 4)
    end_pause(backoff, clock)
    assert backoff.record(True) is Phase.PAUSED
    assert backoff.resume_at == clock.now() + 4.0
    end_pause(backoff, clock)
    assert backoff.record(False) is Phase.PAUSED
    assert backoff.resume_at == clock.now() + 8.0


@pytest.mark.rule("BACK-3")
def test_outcomes_during_a_pause_do_not_count(clock: FakeClock) -> None:
    backoff = make(clock, unit=1.0)
    backoff.record(False)
    until = backoff.resume_at
    for outcome in (False, False, True, False, True):
        assert backoff.record(outcome) is Phase.PAUSED
    assert (backoff.level, backoff.resume_at) == (1, until)


@pytest.mark.rule("BACK-3")
def test_an_outcome_after_the_time_of_the_pause_but_before_the_probe_does_not_count(clock: FakeClock) -> None:
    backoff = make(clock, unit=1.0)
    backoff.record(False)
    clock.advance(5)
    assert backoff.record(True) is Phase.PAUSED
    assert backoff.level == 1


@pytest.mark.rule("BACK-3")
def test_each_pause_is_answered_by_one_outcome(clock: FakeClock) -> None:
    backoff = make(clock, unit=1.0)
    fail_up_to(backoff, clock, 3)
    end_pause(backoff, clock)
    assert [backoff.record(True) for _ in range(5)] == [Phase.PAUSED] * 5
    assert backoff.level == 2


@pytest.mark.rule("BACK-4")
def test_backoff_ends_only_at_level_0(clock: FakeClock) -> None:
    backoff = make(clock)
    fail_up_to(backoff, clock, 3)
    phases = []
    for _ in range(3):
        end_pause(backoff, clock)
        phases.append(backoff.record(True))
    assert phases == [Phase.PAUSED, Phase.PAUSED, Phase.FLOWING]
    assert (backoff.level, backoff.resume_at) == (0, None)


def outcomes(backoff: Backoff, text: str) -> list[Phase]:
    """Record an outcome for each letter: F is a failure, any other letter a success."""
    return [backoff.record(letter != "F") for letter in text]


@pytest.mark.rule("BACK-1")
@pytest.mark.parametrize("ratio", [None, 0.0])
def test_without_a_failure_ratio_the_first_failure_starts_backoff(clock: FakeClock, ratio: float | None) -> None:
    assert outcomes(make(clock, failure_ratio=ratio), "sF")[-1] is Phase.PAUSED


@pytest.mark.rule("BACK-1")
@pytest.mark.parametrize(
    ("history", "starts"),
    [
        ("F" * 9, False),  # fewer than ten outcomes
        ("F" * 10, True),
        ("s" * 5 + "F" * 4, False),
        ("s" * 5 + "F" * 5, True),  # half of ten
        ("s" * 6 + "F" * 5, False),
        ("s" * 10 + "F" * 9, False),
        ("s" * 10 + "F" * 10, True),  # half of twenty
        ("s" * 1000 + "F" * 9, False),
        ("s" * 1000 + "F" * 10, True),  # of the last twenty
        ("F" * 9 + "s" * 11 + "F", False),
        ("F" * 9 + "s" * 10 + "F", True),
        ("F" * 9 + "s", False),  # a success does not start backoff
        (("s" * 9 + "F") * 100, False),
    ],
)
def test_a_failure_starts_backoff_when_the_share_of_the_last_outcomes_failed(
    clock: FakeClock, history: str, starts: bool
) -> None:
    one_by_one, lazily = make(clock, failure_ratio=0.5), make(clock, failure_ratio=0.5)
    phases = outcomes(one_by_one, history)
    assert set(phases[:-1]) <= {Phase.FLOWING}
    assert (phases[-1] is Phase.PAUSED) == starts
    for position, letter in enumerate(history, 1):  # the same outcomes, with successes known only by their number
        if letter == "F":
            lazily.record(False, history[:position].count("s"))
    assert lazily.phase is one_by_one.phase


@pytest.mark.rule("BACK-3")
@pytest.mark.rule("BACK-4")
def test_outcomes_before_and_during_a_backoff_do_not_start_the_next_one(clock: FakeClock) -> None:
    backoff = make(clock, failure_ratio=0.5)
    outcomes(backoff, "F" * 10)
    assert backoff.level == 1
    outcomes(backoff, "F" * 30)
    assert backoff.level == 1
    end_pause(backoff, clock)
    assert backoff.record(False) is Phase.PAUSED  # one outcome of a probe is enough
    assert backoff.level == 2
    end_pause(backoff, clock)
    backoff.record(True)
    end_pause(backoff, clock)
    assert backoff.record(True) is Phase.FLOWING
    assert outcomes(backoff, "F" * 10) == [Phase.FLOWING] * 9 + [Phase.PAUSED]


@pytest.mark.rule("BACK-1")
@given(st.lists(st.integers(-50, 50), max_size=60))
def test_no_success_counts_twice_if_the_number_of_successes_falls_for_a_moment(steps: list[int]) -> None:
    """While FINs are sent, they are missing in both counters for a moment."""
    backoff, total, highest, last = make(FakeClock(), failure_ratio=1.0), 0, 0, 0
    for step in steps:
        total = max(0, total + step)
        last = 0 if total > highest else last + 1
        highest = max(highest, total)
        backoff.record(False, total)
        if backoff.phase is Phase.PAUSED:
            assert last >= 9
            return


@pytest.mark.rule("BACK-5")
def test_backoff_that_is_turned_off_never_pauses(clock: FakeClock) -> None:
    backoff = make(clock, longest=0.0)
    assert [backoff.record(False) for _ in range(10)] == [Phase.FLOWING] * 10
    assert backoff.level == 0


@pytest.mark.rule("BACK-1")
@pytest.mark.parametrize("strategy", ["exponential", "full-jitter"])
def test_a_million_failures_need_no_more_successes_than_a_dozen(clock: FakeClock, strategy: Any) -> None:
    backoff = make(clock, unit=1.0, longest=120.0, strategy=strategy)
    assert backoff.highest_level == 8  # 1, 2, 4 ... 64, 120
    for _ in range(repeats(1_000_000, 10_000) if strategy == "exponential" else 10_000):
        backoff.record(False)
        backoff.phase = Phase.PROBING
    assert backoff.level == 8
    successes = 0
    while backoff.phase is not Phase.FLOWING:
        backoff.phase = Phase.PROBING
        backoff.record(True)
        successes += 1
    assert successes == 8


@pytest.mark.parametrize(
    ("unit", "longest", "level"), [(1.0, 1.0, 1), (1.0, 1.001, 2), (1.0, 2.0, 2), (0.001, 86400.0, 28)]
)
def test_the_highest_level_is_the_first_that_reaches_the_longest_pause(
    clock: FakeClock, unit: float, longest: float, level: int
) -> None:
    assert make(clock, unit=unit, longest=longest).highest_level == level


@pytest.mark.rule("BACK-1")
def test_full_jitter_draws_between_0_and_the_exponential_pause(clock: FakeClock) -> None:
    backoff = make(clock, unit=1.0, longest=8.0, strategy="full-jitter")
    pauses = []
    for _ in range(400):
        backoff.phase, backoff.level = Phase.PROBING, 2
        backoff.record(False)
        assert backoff.resume_at is not None
        pauses.append(backoff.resume_at - clock.now())
    assert 0.0 <= min(pauses) < 0.2
    assert 3.8 < max(pauses) < 4.0
    assert 1.7 < sum(pauses) / len(pauses) < 2.3


@pytest.mark.rule("BACK-3")
@settings(max_examples=repeats(80), derandomize=True)
@given(
    st.lists(st.one_of(st.booleans(), st.floats(0.0, 5.0)), max_size=60),
    st.sampled_from(["exponential", "full-jitter"]),
)
def test_the_level_changes_by_one_per_pause_in_any_sequence_of_outcomes(events: list[Any], strategy: Any) -> None:
    clock = FakeClock()
    backoff = make(clock, unit=0.5, longest=6.0, strategy=strategy)
    for event in events:
        level, phase = backoff.level, backoff.phase
        if isinstance(event, bool):
            backoff.record(event)
            if phase is Phase.PAUSED:
                assert (backoff.level, backoff.phase) == (level, phase)
            elif event:
                assert backoff.level == max(0, level - 1)
            else:
                assert backoff.level == min(level + 1, backoff.highest_level)
                assert backoff.phase is Phase.PAUSED
        else:
            clock.advance(event)
            due = backoff.resume_at is not None and clock.now() >= backoff.resume_at
            assert backoff.tick() is (Phase.PROBING if due else phase)
        assert (backoff.level == 0) is (backoff.phase is Phase.FLOWING)
        assert (backoff.resume_at is not None) is (backoff.phase is Phase.PAUSED)
        if backoff.resume_at is not None:
            assert backoff.resume_at - clock.now() <= 6.0
