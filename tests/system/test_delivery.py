"""When messages arrive with delivery="prompt" and delivery="bulk"."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gnsq_lite import BackoffOptions, Reader, errors
from tests.conftest import MakeBroker
from tests.programs import wait_for
from tests.proxy import Proxy
from tests.servers import ServerHandle
from tests.system.clients import QUICK, channel, reader_on

#: output_buffer_timeout of nsqd in seconds, longer than any test.
NEVER = 29.0


def sent_ready(broker: ServerHandle, topic: str) -> int:
    found: int = channel(broker, topic)["clients"][0]["ready_count"]
    return found


@pytest.mark.rule("RDY-1")
@pytest.mark.rule("RDY-3")
def test_an_idle_connection_has_ready_1_or_its_share_or_what_batches_need(broker: ServerHandle, topic: str) -> None:
    for options, expected in (
        ({}, 1),
        ({"delivery": "prompt", "batch_size": 10}, 1),
        ({"delivery": "bulk"}, 50),
        ({"batch_size": 10}, 50),
    ):
        with reader_on(broker, topic, lambda got: None, max_in_flight=50, **options) as reader:
            wait_for(lambda: reader.stats().share == 50)
            wait_for(lambda expected=expected: sent_ready(broker, topic) == expected)  # type: ignore[misc]
            assert (reader.stats().ready, reader.stats().connections[0].ready) == (expected, expected)


@pytest.mark.parametrize("pause", [0.0, 0.2], ids=["at-once", "slow"])
def test_messages_arrive_although_nsqd_never_flushes_its_buffer_by_time(
    broker: ServerHandle, topic: str, pause: float
) -> None:
    seen: list[bytes] = []

    def handler(message: Any) -> None:
        seen.append(message.body)
        time.sleep(pause)

    options: dict[str, Any] = {"output_buffer_timeout": NEVER, "max_in_flight": 100, "concurrency": 20}
    with reader_on(broker, topic, handler, **options) as reader:
        for n in range(20):
            broker.publish(topic, b"%d" % n)
            wait_for(lambda n=n: len(seen) == n + 1)  # type: ignore[misc]
        wait_for(lambda: reader.stats().finished == 20)
        wait_for(lambda: sent_ready(broker, topic) == 1)


@pytest.mark.parametrize("size", [3, 40, 400])
def test_all_messages_of_a_burst_arrive_and_the_next_burst_too(broker: ServerHandle, topic: str, size: int) -> None:
    options: dict[str, Any] = {"output_buffer_timeout": NEVER, "max_in_flight": 100}
    with reader_on(broker, topic, lambda m: None, **options) as reader:
        wait_for(lambda: reader.stats().share == 100)
        for n in range(1, 3):
            broker.publish(topic, *[b"x" * 100] * size)
            wait_for(lambda n=n: reader.stats().finished == n * size)  # type: ignore[misc]
            wait_for(lambda: sent_ready(broker, topic) == 1)


@pytest.mark.rule("RDY-4")
@pytest.mark.rule("RDY-8")
def test_pause_and_a_lower_max_in_flight_hold_with_prompt_delivery(broker: ServerHandle, topic: str) -> None:
    with reader_on(broker, topic, lambda m: None, max_in_flight=100, output_buffer_timeout=NEVER) as reader:
        broker.publish(topic, *[b"x" * 100] * 300)
        reader.set_max_in_flight(2)
        wait_for(lambda: reader.stats().finished == 300)
        reader.pause()
        wait_for(lambda: sent_ready(broker, topic) == 0)
        broker.publish(topic, b"while paused")
        time.sleep(0.2)
        assert reader.stats().finished == 300
        reader.resume()
        wait_for(lambda: reader.stats().finished == 301)
        assert sent_ready(broker, topic) <= 2


def test_no_message_waits_behind_a_running_handler_while_a_thread_is_free(broker: ServerHandle, topic: str) -> None:
    """Three of four handlers wait until the fourth has handled all other messages."""
    done: list[bytes] = []

    def handler(message: Any) -> None:
        if message.body in (b"0", b"1", b"2"):
            wait_for(lambda: len(done) >= 197)
        done.append(message.body)

    options: dict[str, Any] = {"handler_pool": "thread", "concurrency": 4, "max_in_flight": 50}
    broker.publish(topic, *[b"%d" % n for n in range(200)])
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: reader.stats().finished == 200)


@pytest.mark.rule("RDY-4")
@pytest.mark.rule("RDY-6")
@pytest.mark.parametrize("max_in_flight", [200, 2], ids=["shares", "turns"])
def test_messages_of_three_nsqds_arrive_although_they_never_flush_by_time(
    make_broker: MakeBroker, topic: str, max_in_flight: int
) -> None:
    brokers = [make_broker() for _ in range(3)]
    seen: list[bytes] = []

    def handler(message: Any) -> None:
        seen.append(message.body)
        time.sleep(0.003)

    options: dict[str, Any] = {"output_buffer_timeout": NEVER, "rdy_idle_timeout": 0.1, "max_in_flight": max_in_flight}
    addresses = [broker.tcp_address for broker in brokers]
    with Reader(topic, "ch", handler, nsqd_tcp_addresses=addresses, **QUICK, **options) as reader:
        wait_for(lambda: len(reader.stats().connections) == 3)
        for n in range(18):
            brokers[n % 3].publish(topic, b"%d" % n)
            wait_for(lambda n=n: len(seen) == n + 1)  # type: ignore[misc]
        for broker in brokers:
            broker.publish(topic, *[b"x" * 100] * 100)
        wait_for(lambda: reader.stats().finished == 318)
        wait_for(lambda: sum(sent_ready(broker, topic) for broker in brokers) <= min(3, max_in_flight))


@pytest.mark.rule("BACK-1")
@pytest.mark.rule("BACK-4")
def test_messages_arrive_at_once_after_backoff(broker: ServerHandle, topic: str) -> None:
    failed: list[bytes] = []

    def handler(message: Any) -> None:
        time.sleep(0.003)
        if message.attempts == 1 and message.body.endswith(b"0"):
            failed.append(message.body)
            raise ValueError("the first time")

    backoff = BackoffOptions(unit=0.05, longest=0.1)
    options: dict[str, Any] = {"output_buffer_timeout": NEVER, "max_in_flight": 100, "requeue_delay": 0.0}
    with reader_on(broker, topic, handler, backoff=backoff, concurrency=20, **options) as reader:
        for n in range(30):
            broker.publish(topic, b"%d" % n)
            wait_for(lambda n=n: reader.stats().finished == n + 1)  # type: ignore[misc]
        broker.publish(topic, *[b"%d" % n for n in range(100)])
        wait_for(lambda: reader.stats().finished == 130)
        wait_for(lambda: sent_ready(broker, topic) == 1)
    assert len(failed) == 13


def test_a_closing_reader_requeues_messages_that_arrive(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker()
    broker.publish(topic, *[b"x" * 100] * 500)
    with reader_on(broker, topic, lambda m: time.sleep(0.01), max_in_flight=50, concurrency=5) as reader:
        wait_for(lambda: reader.stats().finished > 50)
    left = channel(broker, topic)
    assert left["depth"] + reader.stats().finished == 500
    assert reader.stats().late_answers == 0


def one_after_the_other(broker: ServerHandle, topic: str, seen: list[bytes], count: int) -> None:
    """Publish each message when the handler of the last message runs."""
    for _ in range(count):
        before = len(seen)
        broker.publish(topic, b"x")
        wait_for(lambda before=before: len(seen) > before)  # type: ignore[misc]


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("pool", ["greenlet", "thread"])
def test_answers_are_sent_without_further_messages_and_before_close_ends(
    broker: ServerHandle, topic: str, pool: str
) -> None:
    seen: list[bytes] = []

    def handler(message: Any) -> None:
        seen.append(message.body)
        time.sleep(0.005)

    with reader_on(broker, topic, handler, handler_pool=pool, concurrency=8, max_in_flight=100) as reader:
        one_after_the_other(broker, topic, seen, 50)
        wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0)
        one_after_the_other(broker, topic, seen, 50)
    assert reader.stats().finished == 100
    wait_for(lambda: (channel(broker, topic)["depth"], channel(broker, topic)["in_flight_count"]) == (0, 0))
    assert channel(broker, topic)["requeue_count"] == 0


def test_unsent_answers_of_a_lost_connection_are_counted(broker: ServerHandle, topic: str) -> None:
    seen: list[bytes] = []

    def handler(message: Any) -> None:
        seen.append(message.body)
        time.sleep(0.005)

    with Proxy(broker.tcp_address) as proxy:
        options: dict[str, Any] = {"nsqd_tcp_addresses": proxy.address, "max_in_flight": 100, **QUICK}
        with Reader(topic, "ch", handler, **options) as reader:
            for _ in range(5):
                one_after_the_other(broker, topic, seen, 30)
                time.sleep(0.01)
                proxy.reset()
                wait_for(lambda: channel(broker, topic)["depth"] == 0 and reader.stats().share == 100)
            wait_for(lambda: reader.stats().in_flight == 0 and len(seen) == reader.stats().received)
            stats = reader.stats()
            assert stats.finished + stats.answers_lost == stats.received


def test_delivery_is_checked() -> None:
    with pytest.raises(errors.OptionError, match="delivery"):
        Reader("t", "c", print, delivery="soon")  # type: ignore[call-overload]
