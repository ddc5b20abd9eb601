"""Handler threads that answer, keep and expire messages, publishing threads, stats and set_max_in_flight, side by side.

With the GIL the test has a hundredth of the messages.  Run it by hand without the GIL::

    PYTHON_GIL=0 python3.14t -m pytest tests/system/test_free_threading.py
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Any

import pytest

from gnsq_lite import Message, Reader, Writer
from gnsq_lite.errors import AlreadyAnswered
from gnsq_lite.net.os_threads import Count, has_gil
from tests.conftest import MakeBroker
from tests.profiles import LONG
from tests.programs import wait_for
from tests.system.clients import QUICK

COUNT = 6_000 if has_gil() and not LONG else 600_000
PUBLISHERS = 4


@pytest.mark.rule("MSG-1")
@pytest.mark.timeout(1200.0)
def test_no_message_is_lost_or_answered_twice_beside_many_threads(make_broker: MakeBroker, topic: str) -> None:
    brokers = [make_broker(), make_broker()]
    for broker in brokers:
        broker.prepare(topic, "ch")
    addresses = [broker.tcp_address for broker in brokers]
    done: list[Counter[bytes]] = []
    local, kept, wrong = threading.local(), list[Message](), list[str]()
    numbers, handled = itertools.count(), Count()

    def handle(message: Message) -> None:
        if not hasattr(local, "done"):
            local.done = Counter[bytes]()
            done.append(local.done)
        act = next(numbers) % 8
        if act == 0 and message.attempts == 1:
            message.requeue(0.0, backoff=False)
            return
        if act == 1:
            message.touch()
        local.done[message.body] += 1
        handled.add()
        if act == 2:
            message.finish()
            try:
                message.finish()
                wrong.append("answered twice")
            except AlreadyAnswered:
                pass
        elif act == 3:
            message.enable_async()
            kept.append(message)

    def answer_kept() -> None:
        while not ends[0].wait(0.001):
            while kept:
                kept.pop().finish()

    def publish(number: int) -> None:
        with Writer(addresses[number % 2]) as writer:
            each = COUNT // PUBLISHERS
            for first in range(0, each, 100):
                bodies = [b"%d-%d" % (number, first + index) for index in range(min(100, each - first))]
                writer.multipublish(topic, bodies)

    def look() -> None:
        while not ends[1].wait(0.005):
            reader.set_max_in_flight(next(limits))
            stats = reader.stats()
            if stats.in_flight < 0:
                wrong.append(f"in flight: {stats.in_flight}")

    # An event for each thread: gevent 25.9.1 and 26.9.0 may leave one of two waiting threads asleep.
    ends, limits = (threading.Event(), threading.Event()), itertools.cycle((50, 200, 500))
    options: dict[str, Any] = {
        "concurrency": 8,
        "max_in_flight": 200,
        "handler_pool": "thread",
        "backoff": False,
        **QUICK,
    }
    with Reader(topic, "ch", handle, nsqd_tcp_addresses=addresses, **options) as reader:
        helpers = [threading.Thread(target=run) for run in (answer_kept, look)]
        threads = [threading.Thread(target=publish, args=(number,)) for number in range(PUBLISHERS)]
        for thread in (*helpers, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: handled.value() >= COUNT, timeout=600.0)
        wait_for(lambda: reader.stats().in_flight == 0 and not kept, timeout=60.0)
        time.sleep(0.1)
        for end, thread in zip(ends, helpers, strict=True):
            end.set()
            thread.join()
        stats = reader.stats()
    seen = sum(done, Counter[bytes]())
    assert wrong == []
    assert len(seen) == COUNT
    assert set(seen.values()) == {1}
    assert stats.received == stats.finished + stats.requeued + stats.expired
    assert (stats.late_answers, stats.failures, stats.expired, stats.finished) == (0, 0, 0, COUNT)
    for broker in brokers:
        (channel,) = broker.stats(topic)["channels"]
        assert (int(channel["depth"]), int(channel["in_flight_count"]), int(channel["deferred_count"])) == (0, 0, 0)
