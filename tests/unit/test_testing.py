"""make_message() and deliver(), without a broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite import GiveUp, Message, Requeue, Worker, errors
from gnsq_lite.testing import Outcome, RecordedMessage, deliver, make_message
from gnsq_lite.worker import Middleware


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


class Order(ValueError):
    """An error that the rules of a handler name."""


def shop(**options: Any) -> tuple[Worker, Callable[..., Any], list[Any]]:
    """Return a Worker, its decoding handler, which raises the value of the body, and the handler's arguments."""
    worker, seen = Worker(nsqd_tcp_addresses="127.0.0.1:1"), list[Any]()

    @worker.handler("orders", "payment", decode=json.loads, **options)
    def pay(name: str, message: Message) -> None:
        seen.append((name, message.topic, message.channel, message.attempts))
        raises_by_name: dict[str, BaseException] = {
            "order": Order("o"),
            "key": KeyError("k"),
            "requeue": Requeue(3.0),
            "give_up": GiveUp("sold out"),
            "exit": SystemExit(1),
        }
        if name == "touch":
            message.enable_async()
        elif name != "good":
            raise raises_by_name[name]

    return worker, pay, seen


RULES: dict[str, Any] = {"give_up_on": (KeyError,), "retry_delay": {Order: 7.0}, "max_attempts": 3}


@pytest.mark.parametrize(
    ("body", "attempts", "outcome", "answer"),
    [
        (b'"good"', 1, ("finish", None, ""), ("finish",)),
        (b"{", 1, ("give_up", None, "cannot decode the body: JSONDecodeError"), ("finish",)),
        (b'"order"', 1, ("requeue", 7.0, "Order: o"), ("requeue", 7.0, True)),
        (b'"order"', 3, ("give_up", None, "the last of 3 attempts failed"), ("finish",)),
        (b'"key"', 1, ("give_up", None, "KeyError: 'k'"), ("finish",)),
        (b'"requeue"', 1, ("requeue", 3.0, "Requeue: (3.0, True)"), ("requeue", 3.0, True)),
        (b'"requeue"', 4, ("give_up", None, "more than 3 attempts"), ("finish",)),
        (b'"give_up"', 1, ("give_up", None, "sold out"), ("finish",)),
        (b'"good"', 99, ("give_up", None, "more than 3 attempts"), ("finish",)),
        (b'"touch"', 1, ("open", None, ""), None),
    ],
)
def test_the_rules_of_a_workers_handler_apply_to_a_delivery_without_nsqd(
    body: bytes, attempts: int, outcome: tuple[Any, ...], answer: Any
) -> None:
    worker, pay, _ = shop(**RULES)
    found = worker.deliver(pay, body, attempts)
    assert (found.kind, found.delay) == outcome[:2]
    assert found.reason.startswith(outcome[2])
    assert deliver(pay, make_message(body, attempts)) == answer


def test_a_handler_gets_the_decoded_value_and_a_message_of_its_channel() -> None:
    worker, pay, seen = shop()
    assert worker.deliver(pay, b'"good"', attempts=2) == Outcome("finish")
    assert worker.deliver(worker.handlers[0], b'"good"') == Outcome("finish")
    assert seen == [("good", "orders", "payment", 2), ("good", "orders", "payment", 1)]


@pytest.mark.parametrize("options", [{}, {"retry_delay": 7.0}, {"give_up_on": (TypeError,)}, {"max_attempts": 1}])
def test_an_error_that_no_rule_names_is_raised_unless_the_test_asks_for_the_outcome(options: dict[str, Any]) -> None:
    worker, pay, _ = shop(**options)
    with pytest.raises(KeyError):
        worker.deliver(pay, b'"key"')
    found = worker.deliver(pay, b'"key"', raises=False)
    delay = options.get("retry_delay", 90.0)
    expected = ("give_up", None) if options == {"max_attempts": 1} else ("requeue", delay)
    assert (found.kind, found.delay, type(found.error)) == (*expected, KeyError)
    assert deliver(pay, make_message(b'"key"'))  # as before: no error of the handler is raised
    with pytest.raises(SystemExit):
        worker.deliver(pay, b'"exit"', raises=False)


def test_the_delay_of_an_outcome_grows_with_the_attempts_and_has_no_jitter() -> None:
    worker, pay, _ = shop(requeue_delay=10.0, requeue_jitter=0.9)
    found = [worker.deliver(pay, b'"key"', each, raises=False).delay for each in (1, 2, 3)]
    assert found == [10.0, 20.0, 30.0]


def test_the_middleware_of_the_worker_runs_around_a_delivery() -> None:
    worker, pay, _ = shop()
    calls: list[str] = []

    class Noting(Middleware[Message]):
        def before(self, message: Message) -> None:
            calls.append("before")

        def after(self, message: Message) -> None:
            calls.append("after")
            raise Requeue(1.0)

    worker.middleware.append(Noting())
    assert worker.deliver(pay, b'"good"').delay == 1.0
    assert deliver(pay, make_message(b'"good"')) == ("requeue", 1.0, True)
    assert calls == ["before", "after"] * 2


def test_a_batch_has_an_outcome_for_each_message() -> None:
    worker = Worker(nsqd_tcp_addresses="127.0.0.1:1", requeue_delay=5.0)

    @worker.handler("t", "c", batch_size=10, give_up_on=(KeyError,))
    def store(messages: list[Message]) -> None:
        messages[0].finish()
        if len(messages) > 1:
            raise KeyError(messages[1].body)

    assert [each.kind for each in worker.deliver(store, [b"1", b"2", b"3"])] == ["finish", "give_up", "give_up"]
    assert deliver(store, make_message(b"1")) == ("finish",)
    with pytest.raises(errors.OptionError, match="batch_size"):
        worker.deliver(store, b"1")


def test_a_function_that_is_no_handler_or_handles_two_channels_is_refused() -> None:
    worker, pay, _ = shop()
    with pytest.raises(errors.OptionError, match="not a handler of this Worker"):
        worker.deliver(print, b"1")
    worker.handler("orders", "audit", decode=lambda body: "good")(pay)
    with pytest.raises(errors.OptionError, match=r"worker\.handlers"):
        worker.deliver(pay, b"1")
    assert worker.deliver(worker.handlers[1], b"1").kind == "finish"
    assert deliver(pay, make_message(b"1", topic="orders", channel="audit")) == ("finish",)
    with pytest.raises(errors.BodyTypeError):
        worker.deliver(worker.handlers[1], "1")  # type: ignore[call-overload]


def test_a_copy_of_a_worker_has_not_started_and_shares_no_state() -> None:
    worker, _, _ = shop(max_attempts=3)
    copy = worker.copy(nsqd_tcp_addresses="127.0.0.1:2", max_attempts=7)
    assert [each.merged(copy.defaults)["max_attempts"] for each in copy.handlers] == [7]
    assert copy.defaults["nsqd_tcp_addresses"] == "127.0.0.1:2"
    copy.handler("t", "c")(print)
    copy.stop()
    assert (len(worker.handlers), worker.stages.drain.done()) == (1, False)
    assert worker.defaults["nsqd_tcp_addresses"] == "127.0.0.1:1"
