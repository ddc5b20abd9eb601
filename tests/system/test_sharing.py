"""Handlers of one Worker that share their places."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gnsq_lite import Message, Worker
from gnsq_lite.errors import OptionError
from tests.programs import wait_for
from tests.servers import ServerHandle


def test_no_more_run_than_there_are_places_by_weight_and_none_stays_empty(broker: ServerHandle, topic: str) -> None:
    heavy, light = topic + "h", topic + "l"
    for name in (heavy, light):
        broker.prepare(name, "ch")
    worker = Worker(nsqd_tcp_addresses=broker.tcp_address)
    worker.share_concurrency(4, {f"{heavy}/ch": 3.0})
    lock, go = threading.Lock(), threading.Semaphore(0)
    running: dict[str, int] = {heavy: 0, light: 0}
    most, done = [0], []

    def handle(message: Message) -> None:
        with lock:
            running[message.topic] += 1
            most[0] = max(most[0], sum(running.values()))
        go.acquire(timeout=60)
        with lock:
            running[message.topic] -= 1
            done.append(message.topic)

    worker.handler(heavy, "ch")(handle)
    worker.handler(light, "ch")(handle)
    worker.start()
    try:
        broker.publish(light, *[b"x"] * 500)  # more than can end before the places are shared out anew
        wait_for(lambda: running == {heavy: 0, light: 4})  # nobody else wants a place
        broker.publish(heavy, *[b"x"] * 500)

        released = 0

        def is_fair() -> bool:  # one handler ends at a time, whichever it is, until light ones have made room
            nonlocal released
            if running[light] > 1 and len(done) == released:
                released += 1
                go.release()
            return running == {heavy: 3, light: 1}

        wait_for(is_fair)
        go.release(1000)
        wait_for(lambda: len(done) == 1000)
        assert most == [4]
    finally:
        go.release(1000)
        worker.close()


@pytest.mark.parametrize(
    ("total", "weights"), [(0, None), (True, None), ("4", None), (4, {"t/ch": 0}), (4, {"t/ch": "much"})]
)
def test_what_cannot_be_shared_is_refused(total: Any, weights: Any) -> None:
    with pytest.raises(OptionError):
        Worker().share_concurrency(total, weights)


def test_a_weight_of_nobody_and_a_handler_that_cannot_wait_are_refused_before_the_start() -> None:
    worker = Worker()
    worker.handler("t", "ch")(lambda message: None)
    worker.share_concurrency(4, {"t/other": 2.0})
    with pytest.raises(OptionError, match="no handler has this topic/channel"):
        worker.check()
    few = Worker()
    few.handler("t", "ch")(lambda message: None)
    few.handler("t", "other")(lambda message: None)
    few.share_concurrency(1)
    with pytest.raises(OptionError, match="one place for each of 2 handlers"):
        few.check()
    inline = Worker(handler_pool="inline")
    inline.handler("t", "ch")(lambda message: None)
    inline.share_concurrency(4)
    with pytest.raises(OptionError, match="cannot share places"):
        inline.check()
