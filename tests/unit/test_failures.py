"""REQ, FIN or give up: the answer to a message whose handler raised, by exception class and attempts."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite import GiveUp, Requeue, TimeLimitExceeded
from gnsq_lite.errors import OptionError
from gnsq_lite.testing import deliver, make_message
from gnsq_lite.worker.failures import Failures


class Declined(ValueError):
    pass


def judged(failures: Failures, error: BaseException, attempts: int = 1) -> Any:
    return failures.judge(make_message(attempts=attempts), error)


def test_a_class_in_give_up_on_ends_a_message_and_so_do_its_subclasses() -> None:
    failures = Failures((ValueError,), None, 5)
    assert isinstance(judged(failures, Declined("no money")), GiveUp)
    assert judged(failures, Declined("no money")).why == "Declined: no money"
    assert not judged(failures, Declined("no money")).backoff
    error = KeyError("x")
    assert judged(failures, error) is error


def test_the_nearest_class_gives_the_attempts() -> None:
    failures = Failures({ValueError: 1, Declined: 3}, None, 5)
    assert isinstance(judged(failures, ValueError()), GiveUp)
    assert isinstance(judged(failures, Declined(), 2), Declined)
    assert isinstance(judged(failures, Declined(), 3), GiveUp)


def test_the_last_attempt_gives_up_and_slows_down() -> None:
    failures = Failures(None, 5.0, 3)
    assert judged(failures, KeyError(), 2).delay == 5.0
    last = judged(failures, KeyError(), 3)
    assert (type(last), last.backoff) == (GiveUp, True)
    assert isinstance(judged(failures, TimeLimitExceeded(1.0), 3), GiveUp)
    assert judged(Failures(None, None, 0), error := KeyError(), 1000) is error


def test_delays_are_by_class_and_may_be_functions_of_the_error() -> None:
    delays = {Declined: 60.0, ConnectionError: lambda error, attempts: 2.0**attempts}
    failures = Failures(None, delays, 5)
    assert judged(failures, Declined()).delay == 60.0
    assert judged(failures, ConnectionResetError(), 3).delay == 8.0
    assert isinstance(judged(failures, KeyError()), KeyError)


def test_requeue_give_up_and_exceptions_that_are_no_failure_are_returned_unchanged() -> None:
    failures = Failures((BaseException,), 5.0, 1)
    for error in (Requeue(), GiveUp("why"), KeyboardInterrupt()):
        assert judged(failures, error) is error


@pytest.mark.parametrize("broken", [lambda error, attempts: 1 / 0, lambda error, attempts: -1.0])
def test_a_function_that_fails_is_logged_and_the_usual_delay_used(
    broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    error = KeyError()
    assert judged(Failures(None, broken, 5), error) is error
    assert "retry_delay failed on KeyError" in caplog.text


@pytest.mark.parametrize(
    ("give_up_on", "retry_delay"),
    [
        *((ValueError, None), ("ValueError", None), ((int,), None), ({ValueError: 0}, None), ({ValueError: "x"}, None)),
        *((None, -1.0), (None, "5s"), (None, {int: 1.0}), (None, {ValueError: -1.0})),
    ],
)
def test_wrong_options_are_refused(give_up_on: Any, retry_delay: Any) -> None:
    with pytest.raises(OptionError):
        Failures(give_up_on, retry_delay, 5)


def test_deliver_finishes_a_message_that_is_given_up() -> None:
    def handle(message: Any) -> None:
        raise GiveUp("no such customer")

    assert deliver(handle, make_message()) == ("finish",)


@pytest.mark.parametrize("delay", [10.0, lambda error, attempts: 10.0, {Declined: 10.0}])
def test_requeue_jitter_shortens_a_retry_delay_too(delay: Any) -> None:
    failures = Failures(None, delay, 5, 0.9)
    failures.rng.seed(1)
    found = [judged(failures, Declined()).delay for _ in range(100)]
    assert 1.0 <= min(found) < 2.0
    assert 9.0 < max(found) <= 10.0


def test_a_retry_delay_that_returns_none_is_the_readers_delay_with_jitter_too() -> None:
    assert judged(Failures(None, lambda error, attempts: None, 5, 0.9), Declined()).delay is None  # type: ignore[return-value, arg-type]


def test_asking_whether_a_message_is_given_up_calls_no_function_of_the_user() -> None:
    calls: list[int] = []
    failures = Failures((ValueError,), lambda error, attempts: calls.append(attempts) or 1.0, 3)  # type: ignore[func-returns-value]
    message = make_message(b"x")
    assert failures.gives_up(message, KeyError()) is None
    assert failures.gives_up(message, ValueError()) is not None
    assert calls == []
    failures.judge(message, KeyError())
    assert calls == [1]
