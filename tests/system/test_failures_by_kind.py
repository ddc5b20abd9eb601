"""GiveUp, ``give_up_on`` and ``retry_delay``, against an nsqd."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from gnsq_lite import GiveUp, Message, Reader, Worker
from gnsq_lite.errors import OptionError
from tests.programs import wait_for
from tests.servers import ServerHandle


@pytest.mark.rule("MSG-4")
@pytest.mark.parametrize("batch_size", [None, 10])
def test_a_handler_ends_messages_at_once_and_the_callback_sees_the_exception(
    broker: ServerHandle, topic: str, batch_size: Any
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"1", b"2")
    given_up: list[tuple[bytes, int, str]] = []

    def handle(message: Any) -> None:
        raise GiveUp("no such customer")

    def note(message: Message) -> None:
        given_up.append((message.body, message.attempts, str(sys.exc_info()[1])))

    options: Any = {"batch_size": batch_size} if batch_size else {}
    address = broker.tcp_address
    with Reader(topic, "ch", handle, nsqd_tcp_addresses=address, on_give_up=note, max_in_flight=2, **options) as reader:
        wait_for(lambda: reader.stats().finished == 2)
        stats = reader.stats()
        assert (stats.given_up, stats.requeued, stats.backoff_level) == (2, 0, 0)
    assert sorted(given_up) == [(b"1", 1, "no such customer"), (b"2", 1, "no such customer")]


@pytest.mark.rule("MSG-4")
def test_a_worker_treats_failures_by_their_class(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"value", b"key", b"type")
    seen: list[tuple[bytes, int, float]] = []
    given_up: list[tuple[bytes, int, str]] = []
    worker = Worker(nsqd_tcp_addresses=broker.tcp_address, backoff=False, requeue_delay=0.0, max_attempts=3)

    def note(message: Message) -> None:
        given_up.append((message.body, message.attempts, type(sys.exc_info()[1]).__name__))

    @worker.handler(topic, "ch", give_up_on={ValueError: 1, KeyError: 2}, retry_delay={KeyError: 0.5}, on_give_up=note)
    def handle(message: Message) -> None:
        seen.append((message.body, message.attempts, time.monotonic()))
        raise {b"value": ValueError, b"key": KeyError, b"type": TypeError}[message.body]

    worker.start()
    try:
        wait_for(lambda: len(given_up) == 3)
        wait_for(lambda: worker.stats()[0].finished == 3)
        stats = worker.stats()[0]
        assert (stats.failures, stats.requeued, stats.given_up) == (6, 3, 3)
    finally:
        worker.close()
    assert sorted(given_up) == [(b"key", 2, "KeyError"), (b"type", 3, "TypeError"), (b"value", 1, "ValueError")]
    first, second = (at for body, _, at in seen if body == b"key")
    assert second - first >= 0.5


def test_wrong_options_show_at_the_decorator() -> None:
    with pytest.raises(OptionError, match="give_up_on"):
        Worker().handler("t", "ch", give_up_on=(str,))(print)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="retry_delay"):
        Worker(retry_delay=-1.0)
