"""Requeue delays and giving up."""

from __future__ import annotations

import random

import pytest

from gnsq_lite.options import RetryOptions
from gnsq_lite.policy.attempts import UNSEEN, Tries, requeue_delay


class Fixed:
    """A random generator that always returns the same number."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self) -> float:
        return self._value


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize(("attempts", "delay"), [(1, 90.0), (2, 180.0), (9, 810.0), (10, 900.0), (11, 900.0)])
def test_the_delay_grows_with_each_attempt_up_to_the_cap(attempts: int, delay: float) -> None:
    assert requeue_delay(RetryOptions(), attempts, Fixed(0.9)) == delay


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize("attempts", [0, -3])
def test_a_count_below_one_is_a_first_attempt(attempts: int) -> None:
    assert requeue_delay(RetryOptions(), attempts, Fixed(0.0)) == 90.0


@pytest.mark.rule("CFG-4")
def test_initial_delay_growth_and_cap_are_configurable() -> None:
    options = RetryOptions(requeue_delay=2.0, requeue_growth=0.5, max_requeue_delay=4.0)
    assert [requeue_delay(options, n, Fixed(0.0)) for n in (1, 2, 3, 5, 6, 65535)] == [2.0, 3.0, 4.0, 4.0, 4.0, 4.0]
    assert requeue_delay(RetryOptions(requeue_growth=0.0), 5, Fixed(0.0)) == 90.0
    assert requeue_delay(RetryOptions(requeue_delay=0.0), 5, Fixed(0.0)) == 0.0


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize(("chance", "delay"), [(0.0, 100.0), (0.5, 90.0), (0.999999, 80.00002)])
def test_jitter_shortens_by_up_to_its_share_and_never_lengthens(chance: float, delay: float) -> None:
    options = RetryOptions(requeue_delay=100.0, max_requeue_delay=100.0, requeue_jitter=0.2)
    assert requeue_delay(options, 7, Fixed(chance)) == pytest.approx(delay)
    rng = random.Random(1)
    assert all(80.0 <= requeue_delay(options, 7, rng) <= 100.0 for _ in range(1000))


@pytest.mark.rule("MSG-4")
@pytest.mark.parametrize(
    ("limit", "attempts", "expected"),
    [(5, 1, False), (5, 5, False), (5, 6, True), (1, 1, False), (1, 2, True), (0, 1, False), (0, 65535, False)],
)
def test_a_message_that_a_handler_here_began_is_given_up_above_max_attempts(
    limit: int, attempts: int, expected: bool
) -> None:
    tries = Tries(limit)
    for before in range(1, attempts):
        tries.tried("m", before)
    assert tries.is_over(attempts) is tries.gives_up("m", attempts) is expected


@pytest.mark.rule("MSG-4")
def test_a_message_that_no_handler_here_began_is_given_up_after_many_more_attempts() -> None:
    tries = Tries(3)
    tries.tried("m", 2)  # it failed here, but another process made its last attempt
    tries.tried("other", 3)
    assert [tries.gives_up("m", attempts) for attempts in (4, 5, 3 + UNSEEN, 4 + UNSEEN)] == [False, False, False, True]
    tries.tried("m", 5)
    assert tries.gives_up("m", 6)
    assert Tries(0).gives_up("m", 65535) is False


@pytest.mark.rule("MSG-4")
@pytest.mark.parametrize(("limit", "begun", "expected"), [(3, 1, False), (3, 2, True), (1, 0, False), (1, 1, True)])
def test_attempts_that_other_processes_recorded_count(limit: int, begun: int, expected: bool) -> None:
    assert Tries(limit).gives_up("m", limit + 1, begun) is expected
    assert not Tries(limit).gives_up("m", limit, begun)


@pytest.mark.rule("MSG-4")
def test_each_ended_process_allows_one_more_attempt_that_no_handler_began() -> None:
    assert not Tries(3).gives_up("m", 3 + UNSEEN + 7, 0, 7)
    assert Tries(3).gives_up("m", 4 + UNSEEN + 7, 0, 7)


def test_a_bounded_number_of_last_messages_is_remembered() -> None:
    tries = Tries(1, keep=100)
    for number in range(1_000):
        tries.tried(number, 1)
    assert all(tries.gives_up(number, 2) for number in range(900, 1_000))
    assert sum(tries.gives_up(number, 2) for number in range(1_000)) <= 200
