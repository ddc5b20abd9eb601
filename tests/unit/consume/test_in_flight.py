"""What a connection has in flight: counted once, whoever answers when."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gnsq_lite._core import Fins
from gnsq_lite.consume import run_handler
from gnsq_lite.consume.in_flight import InFlight
from gnsq_lite.errors import AlreadyAnswered
from gnsq_lite.message import Message
from tests.unit.test_runner import FakeConnection, FakeOutcomes

LATE = 1e9  # seconds: any message is late then


def brought(count: int = 1) -> tuple[InFlight, list[Message], FakeConnection]:
    connection = FakeConnection(Fins)
    messages = [Message(connection, 1, 1, b"%016d" % n, b"") for n in range(count)]
    flight = InFlight()
    flight.add(messages, 0.0)
    return flight, messages, connection


@pytest.mark.rule("MSG-5")
def test_a_message_that_is_taken_over_after_its_time_is_counted_out_once() -> None:
    flight, (message,), connection = brought()
    assert flight.expire(LATE, LATE) == [message]
    message.enable_async()
    assert message.is_async
    assert flight.expire(LATE, LATE) == flight.unanswered() == []
    assert flight.count == 0
    message.finish()
    assert connection.told == [("late", message.id, True)]
    with pytest.raises(AlreadyAnswered):
        message.enable_async()


@pytest.mark.rule("MSG-5")
def test_one_that_expires_while_its_handler_has_taken_it_over_is_not_finished_when_that_returns() -> None:
    flight, (message,), connection = brought()
    outcomes = FakeOutcomes()

    def handler(given: Message) -> None:
        given.enable_async()
        assert flight.expire(LATE, LATE) == [given]

    run_handler.make_runner(handler, outcomes, 5).run(message)
    assert connection.told == [("open", message.id)]
    message.requeue()
    assert connection.told == [("open", message.id), ("late", message.id, False)]


@pytest.mark.rule("MSG-5")
def test_an_answer_beside_the_count_counts_once() -> None:
    flight, messages, _ = brought(3)
    messages[1].finish()
    flight.answered(1)
    assert flight.expire(LATE, LATE) == [messages[0], messages[2]]
    assert flight.count == 0


@pytest.mark.slow
@pytest.mark.rule("MSG-5")
def test_answers_of_a_thread_race_with_the_count() -> None:
    flight, messages, connection = brought(20_000)
    told: list[Any] = []
    connection.answer_late = lambda message, *, finished: told.append(message)  # type: ignore[method-assign]  # noqa: PLW0108
    refused: list[Message] = []

    def answer() -> None:
        for message in messages:
            try:
                message.finish()
            except AlreadyAnswered:  # in the very moment in which it was counted out
                refused.append(message)

    thread = threading.Thread(target=answer)
    thread.start()
    late = flight.expire(LATE, LATE)
    thread.join()
    in_time = connection.box.take()[1]
    assert in_time + len(late) == len(messages)
    assert len(told) + len(refused) == len(late)


def test_one_that_is_not_answered_does_not_keep_all_that_came_after_it() -> None:
    flight, (slow,), connection = brought()
    for number in range(20_000):
        message = Message(connection, 1, 1, b"%016d" % number, b"")
        flight.add([message], 0.0)
        message.finish()
        flight.answered(1)
    assert sum(map(len, flight._reads)) < 2_000
    assert flight.unanswered() == [slow]
    assert flight.expire(LATE, LATE) == [slow]
    assert flight.count == 0


@pytest.mark.rule("MSG-1")
def test_a_message_that_was_sent_back_before_a_handler_began_it_is_not_handled() -> None:
    _, messages, connection = brought(2)
    outcomes, handled = FakeOutcomes(), list[Any]()
    messages[0].requeue(0.0, backoff=False)
    run_handler.make_runner(handled.append, outcomes, 5).run(messages[0])
    run_handler.make_batch_runner(handled.extend, outcomes, 5).run(messages)
    assert handled == messages[1:]
    assert outcomes.told == []
    assert connection.told == [("requeue", messages[0].id, 0.0, False), "wake"]
