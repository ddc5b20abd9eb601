"""A connection counts each message once, whether the loop, a thread or a time-out ends it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gnsq_lite._core import Fins
from gnsq_lite.consume import run_handler
from gnsq_lite.errors import AlreadyAnswered
from gnsq_lite.message import Message
from gnsq_lite.wire import commands
from tests.unit.consume.fake_reader import FakeReader
from tests.unit.runners import FakeConnection, FakeOutcomes


class Flight(FakeReader):
    """A connection with *count* messages of one read in flight."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.connection.set_ready(count)
        self.turn()
        self.messages = [Message(self.connection, 1, 1, b"%016d" % n, b"") for n in range(count)]
        self.connection._on_messages(self.messages)

    def expire(self) -> list[Message]:
        """Expire the messages in flight at a time at which every message is late."""
        return self.connection.expire_overdue(1e9)


@pytest.mark.rule("MSG-5")
def test_a_message_kept_open_after_its_deadline_is_removed_once() -> None:
    flight = Flight()
    (message,) = flight.messages
    assert flight.expire() == [message]
    message.enable_async()
    assert message.is_async
    assert flight.expire() == flight.connection.unanswered() == []
    assert flight.connection.in_flight == 0
    message.finish()
    assert commands.finish(message.id) in flight.turn()
    assert flight.connection.in_flight == 0
    with pytest.raises(AlreadyAnswered):
        message.enable_async()


@pytest.mark.rule("MSG-5")
def test_a_message_that_expires_after_its_handler_kept_it_open_is_not_finished_when_the_handler_returns() -> None:
    flight = Flight()
    (message,) = flight.messages

    def handler(given: Message) -> None:
        given.enable_async()
        assert flight.expire() == [given]

    run_handler.HandlerCalls(handler, FakeOutcomes(), 5).run(message)
    assert b"FIN" not in flight.turn()
    message.requeue()
    assert flight.turn() == commands.requeue(message.id, 0)


@pytest.mark.rule("MSG-5")
def test_an_answered_message_does_not_expire() -> None:
    flight = Flight(3)
    flight.messages[1].finish()
    flight.turn()
    assert flight.expire() == [flight.messages[0], flight.messages[2]]
    assert flight.connection.in_flight == 0


@pytest.mark.slow
@pytest.mark.rule("MSG-5")
def test_a_message_is_answered_or_expires_if_a_thread_answers_during_expire() -> None:
    flight = Flight(20_000)
    late_answers: list[Message] = []
    refused: list[Message] = []

    def answer_late(message: Message, *, finished: bool) -> None:
        late_answers.append(message)

    def answer() -> None:
        for message in flight.messages:
            try:
                message.finish()
            except AlreadyAnswered:  # it expired between the check and the answer
                refused.append(message)

    flight.connection.answer_late = answer_late  # type: ignore[method-assign]
    thread = threading.Thread(target=answer)
    thread.start()
    expired = flight.expire()
    thread.join()
    assert len(flight.connection._fins.ids) + len(expired) == 20_000
    assert len(late_answers) + len(refused) == len(expired)


def test_an_unanswered_message_does_not_keep_later_messages_in_memory() -> None:
    flight = Flight()
    for _ in range(20_000):
        flight.receive().finish()
        flight.turn()
    connection = flight.connection
    assert sum(map(len, connection._reads)) < 2_000
    assert connection.unanswered() == flight.expire() == flight.messages
    assert connection.in_flight == 0


@pytest.mark.rule("MSG-1")
def test_a_message_that_was_sent_back_before_a_handler_began_it_is_not_handled() -> None:
    connection = FakeConnection(Fins)
    messages = [Message(connection, 1, 1, b"%016d" % n, b"") for n in range(2)]
    outcomes, handled = FakeOutcomes(), list[Any]()
    messages[0].requeue(0.0, backoff=False)
    run_handler.HandlerCalls(handled.append, outcomes, 5).run(messages[0])
    run_handler.BatchCalls(handled.extend, outcomes, 5).run(messages)
    assert handled == messages[1:]
    assert outcomes.told == []
    assert connection.told == [("requeue", messages[0].id, 0.0, False), "wake"]
