"""make_message() and deliver(), without a broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite import Message, Requeue, errors
from gnsq_lite.testing import RecordedMessage, deliver, make_message


def raises(error: BaseException) -> Callable[[Message], Any]:
    def handler(message: Message) -> None:
        raise error

    return handler


async def never_awaited(message: Message) -> None:
    message.finish()


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize(
    ("handler", "answer"),
    [
        (lambda message: None, ("finish",)),
        (lambda message: message.finish(), ("finish",)),
        (lambda message: message.requeue(1.5, backoff=False), ("requeue", 1.5, False)),
        (lambda message: message.enable_async(), None),
        (raises(ValueError("x")), ("requeue", None, True)),
        (raises(Requeue(2.0, backoff=False)), ("requeue", 2.0, False)),
        (raises(Requeue()), ("requeue", None, True)),
        (lambda message: never_awaited(message), ("requeue", None, True)),  # noqa: PLW0108
    ],
)
def test_deliver_answers_as_a_reader_does(handler: Callable[[Message], Any], answer: Any) -> None:
    message = make_message(b"x")
    assert deliver(handler, message) == answer
    assert message.has_responded == (answer is not None)


def test_touches_are_recorded_and_a_second_answer_raises() -> None:
    message = make_message()

    def handler(message: Message) -> None:
        message.touch()
        message.finish()
        with pytest.raises(errors.AlreadyAnswered):
            message.requeue()
        raise ValueError("too late to matter")

    assert deliver(handler, message) == ("finish",)
    assert message.answers == [("touch",), ("finish",)]


def test_a_later_answer_is_recorded_too() -> None:
    message = make_message()
    assert deliver(lambda m: m.enable_async(), message) is None
    message.finish()
    assert message.answers == [("finish",)]


@pytest.mark.parametrize(
    "answer",
    [
        lambda message: deliver(lambda m: None, message),
        lambda message: deliver(raises(ValueError("x")), message),
        lambda message: message.finish(),
        lambda message: message.requeue(),
    ],
)
def test_an_answered_message_is_not_delivered_again(answer: Callable[[RecordedMessage], Any]) -> None:
    seen: list[Message] = []
    message = make_message(b"x")
    answer(message)
    answers = list(message.answers)
    with pytest.raises(errors.AlreadyAnswered, match=r"already been answered; .*attempts=2"):
        deliver(seen.append, message)
    assert seen == []
    assert message.answers == answers
    again = make_message(message.body, attempts=2, id=message.id)
    assert deliver(seen.append, again) == ("finish",)
    assert seen == [again]


def test_a_message_without_an_answer_may_be_delivered_again() -> None:
    seen: list[Message] = []
    message = make_message()
    message.touch()
    assert deliver(lambda m: m.enable_async(), message) is None
    assert deliver(seen.append, message) is None
    assert seen == [message]
    message.finish()
    assert message.answers == [("touch",), ("finish",)]


def test_an_error_that_is_no_exception_is_raised_again() -> None:
    message = make_message()
    with pytest.raises(SystemExit):
        deliver(raises(SystemExit(1)), message)
    assert message.answers == [("requeue", None, True)]


def test_a_made_message_has_the_given_values_and_a_unique_id() -> None:
    message = make_message(
        b"b",
        3,
        topic="t",
        channel="c",
        id=b"0123456789abcdef",
        timestamp_ns=10**18,
        nsqd_address="h:1",
        msg_timeout=5.0,
    )
    assert isinstance(message, Message)
    assert (message.body, message.attempts, message.topic, message.channel) == (b"b", 3, "t", "c")
    assert (message.id, message.timestamp_ns, message.nsqd_address) == (b"0123456789abcdef", 10**18, "h:1")
    assert 4 < message.deadline - time.monotonic() <= 5
    one, other = make_message(), make_message()
    assert one.id != other.id
    assert len(one.id) == 16
    assert (one.attempts, one.has_responded, one.timed_out) == (1, False, False)
    assert abs(one.timestamp.timestamp() - time.time()) < 60


def test_make_message_refuses_values_that_nsqd_would_not_send() -> None:
    with pytest.raises(errors.BodyTypeError, match=r"\.encode\(\)"):
        make_message("text")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidName):
        make_message(topic="a b")
    assert isinstance(make_message(), RecordedMessage)
