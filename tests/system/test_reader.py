"""The Reader against an embedded and a real nsqd."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gnsq_lite import Message, Reader, Requeue, errors
from tests.conftest import MakeBroker
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.clients import POOLS, channel, reader_on

# -- the main job


@pytest.mark.rule("MSG-1")
@pytest.mark.rule("CFG-5")
@pytest.mark.parametrize("pool", POOLS)
def test_a_handler_that_returns_finishes_its_message(broker: ServerHandle, topic: str, pool: str) -> None:
    broker.publish(topic, *[b"%d" % n for n in range(20)])
    seen: list[Message] = []
    with reader_on(broker, topic, seen.append, handler_pool=pool, max_in_flight=5) as reader:
        wait_for(lambda: reader.stats().finished == 20)
        stats = reader.stats()
        assert (stats.received, stats.in_flight, stats.requeued, stats.state) == (20, 0, 0, "connected")
    assert sorted(int(m.body) for m in seen) == list(range(20))
    first = seen[0]
    assert (first.topic, first.channel, first.attempts, len(first.id)) == (topic, "ch", 1, 16)
    assert first.nsqd_address == broker.tcp_address
    assert first.has_responded
    assert not first.timed_out
    assert abs(first.timestamp.timestamp() - time.time()) < 60
    wait_for(lambda: (channel(broker, topic)["depth"], channel(broker, topic)["in_flight_count"]) == (0, 0))


@pytest.mark.rule("CFG-1")
@pytest.mark.rule("CFG-6")
def test_the_default_options_work_with_one_reader_per_topic(broker: ServerHandle, topic: str) -> None:
    seen: list[bytes] = []
    broker.publish(topic + "a", b"a")
    broker.publish(topic + "b", b"b")
    address = broker.tcp_address
    one = Reader(topic + "a", "ch", lambda m: seen.append(m.body), nsqd_tcp_addresses=address)
    other = Reader(topic + "b", "ch", lambda m: seen.append(m.body), nsqd_tcp_addresses=[address])
    with one, other:
        wait_for(lambda: sorted(seen) == [b"a", b"b"])


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize("pool", POOLS)
def test_a_handler_that_raises_requeues_with_a_delay(
    broker: ServerHandle, topic: str, pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.prepare(topic, "ch")
    seen: list[tuple[int, float]] = []

    def handler(message: Message) -> None:
        seen.append((message.attempts, time.monotonic()))
        if message.attempts == 1:
            raise ValueError("not today")

    broker.publish(topic, b"x")
    with reader_on(broker, topic, handler, handler_pool=pool, requeue_delay=0.3, backoff=False) as reader:
        wait_for(lambda: len(seen) == 2)
        wait_for(lambda: reader.stats().finished == 1)
        assert (reader.stats().requeued, reader.stats().failures) == (1, 1)
    assert [attempts for attempts, _ in seen] == [1, 2]
    assert seen[1][1] - seen[0][1] >= 0.28
    assert "not today" in caplog.text  # lessons: an exception is never swallowed


@pytest.mark.rule("MSG-2")
def test_a_handler_can_answer_its_message_itself_but_only_once(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    raised: list[errors.NSQError] = []
    done: list[int] = []

    def handler(message: Message) -> None:
        if message.attempts == 1:
            message.touch()
            message.requeue(0.0, backoff=False)
        else:
            message.finish()
        for again in (message.finish, message.requeue, message.touch, message.enable_async):
            try:
                again()
            except errors.AlreadyAnswered as error:
                raised.append(error)
        done.append(message.attempts)

    with reader_on(broker, topic, handler) as reader:
        wait_for(lambda: done == [1, 2])
        wait_for(lambda: reader.stats().finished == 1)
        assert (reader.stats().requeued, reader.stats().late_answers) == (1, 0)
    assert len(raised) == 8


@pytest.mark.rule("MSG-2")
@pytest.mark.parametrize("pool", POOLS)
def test_a_message_after_enable_async_can_be_answered_by_another_thread(
    broker: ServerHandle, topic: str, pool: str
) -> None:
    broker.publish(topic, b"x")
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.enable_async()
        kept.append(message)

    with reader_on(broker, topic, handler, handler_pool=pool) as reader:
        wait_for(lambda: kept)
        time.sleep(0.05)
        assert reader.stats().in_flight == 1
        threading.Thread(target=kept[0].finish).start()
        wait_for(lambda: reader.stats().finished == 1)
        wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0)
        with pytest.raises(errors.AlreadyAnswered):
            kept[0].finish()


@pytest.mark.rule("BACK-5")
def test_raising_requeue_sets_the_delay_and_starts_no_backoff(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts < 3:
            raise Requeue(delay=0.0, backoff=False)

    with reader_on(broker, topic, handler) as reader:
        wait_for(lambda: seen == [1, 2, 3])
        assert reader.stats().failures == 0
        assert reader.stats().backoff_level == 0


@pytest.mark.rule("MSG-4")
def test_more_attempts_than_max_are_given_up_and_finished(
    broker: ServerHandle, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"poison")
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        raise Requeue(0.0, backoff=False)

    with reader_on(broker, topic, handler, max_attempts=2) as reader:
        wait_for(lambda: reader.stats().given_up == 1)
        wait_for(lambda: reader.stats().finished == 1)
    assert seen == [1, 2]  # "more than": two handlers ran, the third delivery was given up
    assert "giving up" in caplog.text


@pytest.mark.rule("MSG-4")
def test_a_give_up_callback_that_fails_requeues_instead(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"poison")
    given: list[bytes] = []

    def give_up(message: Message) -> None:
        given.append(message.body)
        if len(given) == 1:
            raise OSError("disk full")

    def handler(message: Message) -> None:
        raise Requeue(0.0, backoff=False)

    options: dict[str, Any] = {"max_attempts": 1, "requeue_delay": 0.0, "on_give_up": give_up, "backoff": False}
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: reader.stats().given_up == 1)
        assert given == [b"poison", b"poison"]
        wait_for(lambda: reader.stats().finished == 1)


def test_max_attempts_zero_never_gives_up(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts < 12:
            raise Requeue(0.0, backoff=False)

    with reader_on(broker, topic, handler, max_attempts=0):
        wait_for(lambda: len(seen) == 12)


@pytest.mark.rule("MSG-5")
@pytest.mark.rule("ERR-1")
def test_a_late_answer_is_counted_and_reported_and_harms_nothing(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker()
    broker.prepare(topic, "ch")
    broker.publish(topic, b"slow")
    told: list[errors.NSQError] = []
    late: list[Message] = []

    def handler(message: Message) -> None:
        if message.attempts == 1:
            message.enable_async()
            late.append(message)
        else:
            message.enable_async()

    with reader_on(broker, topic, handler, msg_timeout=1.0, max_in_flight=5, on_error=told.append) as reader:
        wait_for(lambda: late)
        wait_for(lambda: late[0].timed_out)
        wait_for(lambda: reader.stats().received == 2)
        wait_for(lambda: reader.stats().in_flight == 1)  # the message counts once
        wait_for(lambda: reader.stats().expired >= 1 or reader.stats().in_flight == 0)
        wait_for(lambda: reader.stats().connections != ())
        wait_for(lambda: channel(broker, topic)["timeout_count"] >= 1)


@pytest.mark.rule("MSG-6")
def test_touch_extends_the_deadline_up_to_max_msg_timeout(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker(max_msg_timeout=3.0)
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    deadlines: list[float] = []

    def handler(message: Message) -> None:
        began = message.received_at
        deadlines.append(message.deadline - began)
        for _ in range(4):
            time.sleep(0.5)
            message.touch()
            deadlines.append(message.deadline - began)

    with reader_on(broker, topic, handler, msg_timeout=1.0) as reader:
        wait_for(lambda: reader.stats().finished == 1)
        assert reader.stats().late_answers == 0
    assert deadlines[0] == pytest.approx(1.0)
    assert 1.4 < deadlines[1] < 2.0
    assert deadlines[-1] == pytest.approx(3.0)  # the ceiling


@pytest.mark.rule("MSG-3")
def test_the_library_never_sends_touch_by_itself(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts == 1:
            time.sleep(1.6)

    with reader_on(broker, topic, handler, msg_timeout=1.0, max_in_flight=2, concurrency=2):
        wait_for(lambda: seen == [1, 2])
        assert channel(broker, topic)["timeout_count"] == 1


@pytest.mark.rule("CFG-4")
def test_the_defaults_are_the_documented_ones() -> None:
    settings = Reader("t", "c", print)._settings
    retry = settings.retry
    assert (settings.max_in_flight, retry.max_attempts) == (1, 5)
    assert (retry.requeue_delay, retry.requeue_growth, retry.max_requeue_delay) == (90.0, 1.0, 900.0)
    options: dict[str, Any] = {"requeue_delay": 1.0, "requeue_growth": 2.0, "max_requeue_delay": 4.0, "max_attempts": 0}
    retry = Reader("t", "c", print, max_in_flight=7, **options)._settings.retry
    assert (retry.requeue_delay, retry.requeue_growth, retry.max_requeue_delay, retry.max_attempts) == (1, 2, 4, 0)
