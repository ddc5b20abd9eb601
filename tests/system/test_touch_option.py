"""``touch=True`` with ``time_limit``: the library extends nsqd's deadline while a handler runs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gnsq_lite import Message, Reader, errors
from gnsq_lite.consume.time_limits import AFTER_LIMIT, TimeLimits
from gnsq_lite.testing import RecordedMessage, make_message
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.clients import channel

TOUCHED: dict[str, Any] = {"touch": True, "time_limit": 30.0, "msg_timeout": 2.0, "handler_pool": "thread"}


@pytest.mark.rule("MSG-3")
@pytest.mark.parametrize("options", [{}, {"batch_size": 2, "batch_wait": 0.1}, {"handler_pool": "greenlet"}])
def test_a_call_beyond_msg_timeout_runs_once(broker: ServerHandle, topic: str, options: dict[str, Any]) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"1", b"2")
    seen: list[bytes] = []

    def handle(given: Any) -> None:
        import gevent

        seen.extend(message.body for message in (given if isinstance(given, list) else [given]))
        (gevent.sleep if options.get("handler_pool") == "greenlet" else time.sleep)(5.0)

    given: dict[str, Any] = {**TOUCHED, "concurrency": 4, "max_in_flight": 4, **options}
    with Reader(topic, "ch", handle, nsqd_tcp_addresses=broker.tcp_address, **given) as reader:
        wait_for(lambda: reader.stats().finished == 2, timeout=60)
        assert sorted(seen) == [b"1", b"2"]
        assert channel(broker, topic)["timeout_count"] == 0


def test_no_message_waits_in_the_process_so_each_is_delivered_once(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, *[b"%d" % number for number in range(12)])
    seen: list[bytes] = []
    most: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.body)
        most.append(reader.stats().in_flight)
        time.sleep(0.8)

    options = {**TOUCHED, "concurrency": 2, "max_in_flight": 50}
    reader = Reader(topic, "ch", handle, nsqd_tcp_addresses=broker.tcp_address, **options)
    with reader:
        reader.set_max_in_flight(100)
        wait_for(lambda: reader.stats().finished == 12, timeout=60)
        assert reader.stats().max_in_flight == 2
    assert len(seen) == len(set(seen)) == 12
    assert max(most) <= 2


def test_a_message_beyond_its_time_limit_is_not_touched_any_more(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"1")
    release, seen = threading.Event(), list[int]()

    def handle(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts == 1:
            release.wait(60)

    options = {**TOUCHED, "time_limit": 3.0, "requeue_delay": 0.0, "backoff": False}
    with Reader(topic, "ch", handle, nsqd_tcp_addresses=broker.tcp_address, **options) as reader:
        wait_for(lambda: seen == [1, 2], timeout=60)
        assert (reader.stats().late_answers, channel(broker, topic)["timeout_count"]) == (0, 0)
        release.set()


class Job:
    """Calls TimeLimits._touch() as each second's check does, with a message whose deadline the test reads."""

    def __init__(self, msg_timeout: float, max_msg_timeout: float = 900.0) -> None:
        self.message: RecordedMessage = make_message(msg_timeout=msg_timeout, max_msg_timeout=max_msg_timeout)
        self.began, self.now, self.timeout = self.message._received_at, 0.0, msg_timeout

    def run(self, seconds: int, limit: float) -> list[tuple[int, float]]:
        """Return (second, new deadline) of each TOUCH, in seconds since the call began."""
        found = []
        for second in range(seconds):
            before = len(self.message.answers)
            limits: Any = None
            TimeLimits._touch(limits, self.message, self.began + second, self.began + limit + AFTER_LIMIT)
            if len(self.message.answers) > before:
                ceiling = self.message._connection.max_msg_timeout
                self.message._extended_to = self.began + min(second + self.timeout, ceiling)
                found.append((second, self.message._extended_to - self.began))
        return found


@pytest.mark.parametrize(
    ("msg_timeout", "limit", "most", "touches"),
    [
        (60.0, 30.0, 900.0, []),  # nsqd's deadline is later anyway
        (60.0, 60.0, 900.0, [(5, 65.0)]),
        (60.0, 100.0, 900.0, [(30, 90.0), (45, 105.0)]),
        (5.0, 12.0, 900.0, [(3, 8.0), (6, 11.0), (9, 14.0), (12, 17.0)]),
        (2.0, 2.0, 900.0, [(1, 3.0), (2, 4.0), (3, 5.0), (4, 6.0), (5, 7.0)]),
        (5.0, 60.0, 12.0, [(3, 8.0), (6, 11.0), (7, 12.0)]),  # never past max-msg-timeout
    ],
)
def test_touch_is_sent_at_half_of_msg_timeout_until_the_deadline_is_5_s_after_time_limit(
    msg_timeout: float, limit: float, most: float, touches: list[tuple[int, float]]
) -> None:
    found = Job(msg_timeout, most).run(130, limit)
    assert [(second, round(deadline, 3)) for second, deadline in found] == touches


def test_touch_keeps_a_message_for_nsqds_900_s_and_is_not_sent_later() -> None:
    touches = Job(60.0).run(1000, 2000.0)
    assert max(deadline for _, deadline in touches) == touches[-1][1] == 900.0
    assert touches[-1][0] < 900


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs time_limit"),
        ({"time_limit": 5.0, "handler_pool": "inline"}, "inline"),
        ({"time_limit": 5.0, "msg_timeout": 1.0}, "at least 2 s"),
    ],
)
def test_an_option_that_cannot_work_with_touch_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(errors.OptionError, match=why):
        Reader("t", "c", print, touch=True, **options)


def test_a_max_msg_timeout_before_the_time_limit_is_a_warning(
    broker: ServerHandle, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {**TOUCHED, "time_limit": 86400.0}
    with Reader(topic, "ch", print, nsqd_tcp_addresses=broker.tcp_address, **options) as reader:
        wait_for(lambda: reader.stats().connections)
    assert [line for line in caplog.messages if "max-msg-timeout is " in line]
