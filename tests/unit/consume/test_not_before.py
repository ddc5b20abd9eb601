"""Messages that must not be handled before a time (not_before)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

from gnsq_lite import Message, Reader
from gnsq_lite._core import Fins, drain
from gnsq_lite.consume.run_handler import ASK_ALWAYS, BatchCalls, HandlerCalls, HandlerOutcomes, key_of
from gnsq_lite.errors import OptionError
from gnsq_lite.policy.attempts import Tries
from gnsq_lite.worker.failures import Failures
from tests.fakes import FakeClock
from tests.unit.fake_loop import FakeLoop
from tests.unit.runners import FakeConnection


class Hooks:
    def __init__(self) -> None:
        self.called = list[tuple[Any, ...]]()

    def call(self, *what: Any) -> None:
        self.called.append(what)


class TimedReader(FakeConnection):
    """The part of a Reader with not_before that decides about each message: a connection that records its answers."""

    def __init__(self, handler: Callable[[Any], Any], not_before: Any, *, batch: bool = False, **options: Any) -> None:
        super().__init__(Fins, slow=True)
        self.clock, self.hooks, self.given_up = FakeClock(), Hooks(), list[Message]()
        reader = Reader("t", "c", handler, not_before=not_before, on_give_up=self.given_up.append, **options)
        settings = reader._settings
        object.__setattr__(settings, "judge", Failures(None, None, settings.retry.max_attempts).judge)
        self.tries = Tries(settings.retry.max_attempts, remembers_all=True)
        loop: Any = FakeLoop(self.clock)
        hooks: Any = self.hooks
        self.outcomes = HandlerOutcomes(loop, settings, self.tries, hooks, self.clock, on_exit=lambda error: None)
        calls = (BatchCalls if batch else HandlerCalls)(handler, self.outcomes, ASK_ALWAYS)
        self.runner = calls.runner()

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        self.tries.tried(key_of(message), message.attempts)
        super().requeue(message, delay, backoff)

    def slow_down(self) -> None:
        self.told.append("slow down")

    def has_other_delivery(self, message: Message) -> bool:
        return False

    def message(self, attempts: int, number: int = 1) -> Message:
        connection: Any = self
        return Message(connection, 1, attempts, b"%016d" % number, b"")

    def deliver(self, attempts: int) -> Any:
        """Deliver one message, and return the commands that answer it."""
        self.told.clear()
        drain(self.runner, deque([self.message(attempts)]), [None, None])
        return self.told.copy()


def test_an_early_message_is_requeued_for_the_rest_and_no_handler_call() -> None:
    calls = list[int]()
    reader = TimedReader(lambda message: calls.append(message.attempts), lambda message: due, max_attempts=1)
    due = reader.clock.wall() + 60.0
    for attempts in range(1, 80):
        assert reader.deliver(attempts) == [("requeue", b"%016d" % 1, pytest.approx(due - reader.clock.wall()), False)]
        reader.clock.advance(0.5)
    assert (calls, reader.hooks.called, reader.given_up) == ([], [], [])
    reader.clock.advance(60.0)
    assert reader.deliver(80) == ["finish", "wake"]
    assert calls == [1]


@pytest.mark.rule("MSG-4")
@pytest.mark.parametrize("most", [1, 3])
def test_a_message_has_all_its_attempts_after_its_time(most: int) -> None:
    calls = list[int]()

    def fail(message: Message) -> None:
        calls.append(message.attempts)
        raise ValueError

    reader = TimedReader(fail, lambda message: datetime(2020, 1, 1, tzinfo=timezone.utc), max_attempts=most)
    for attempts in range(80, 80 + most):
        reader.deliver(attempts)
    assert calls == list(range(1, most + 1))
    assert len(reader.given_up) == 1


@pytest.mark.rule("MSG-4")
def test_a_message_whose_last_attempt_timed_out_is_given_up() -> None:
    calls = list[Message]()
    reader = TimedReader(calls.append, lambda message: 0.0, max_attempts=2)
    reader.tries.tried(key_of(reader.message(1)), 2)
    reader.deliver(90)
    assert (calls, len(reader.given_up)) == ([], 1)


def test_a_message_without_a_time_keeps_the_attempts_of_nsqd() -> None:
    calls = list[int]()
    reader = TimedReader(lambda message: calls.append(message.attempts), lambda message: None, max_attempts=2)
    reader.deliver(2)
    assert calls == [2]
    reader.deliver(2 + 21)
    assert (calls, len(reader.given_up)) == ([2], 1)


@pytest.mark.parametrize("wrong", [datetime(2020, 1, 1), "soon", float("nan")])
def test_a_time_that_cannot_be_read_is_a_failure_of_the_message(wrong: Any) -> None:
    calls = list[Message]()
    reader = TimedReader(calls.append, lambda message: wrong, max_attempts=2)
    assert reader.deliver(60) == [("requeue", b"%016d" % 1, None, True)]
    assert reader.hooks.called[0][0] == "on_failure"
    assert "not_before returned" in str(reader.hooks.called[0][2])
    assert reader.deliver(61) == ["slow down", "finish", "wake"]
    assert (calls, len(reader.given_up)) == ([], 1)


def test_only_the_due_messages_of_a_batch_are_handled() -> None:
    calls = list[bytes]()

    def not_before(message: Message) -> float | None:
        number = int(message.id)
        if number == 2:
            raise KeyError(number)
        return None if number == 3 else reader.clock.wall() + 5.0 * (number - 4)

    reader = TimedReader(lambda batch: calls.extend(m.id for m in batch), not_before, batch=True, batch_size=9)
    drain(reader.runner, deque([[reader.message(4, number) for number in range(1, 7)]]), [None, None])
    assert [int(each) for each in calls] == [1, 3, 4]
    assert [(int(each[1]), *each[2:]) for each in reader.told if each[0] == "requeue"] == [
        (2, None, True),
        (5, pytest.approx(5.0), False),
        (6, pytest.approx(10.0), False),
    ]


def test_not_before_must_be_a_function() -> None:
    with pytest.raises(OptionError, match="not_before"):
        Reader("t", "c", print, not_before=5)  # type: ignore[arg-type]
