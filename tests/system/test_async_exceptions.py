"""Asynchronous exceptions in handler threads, as timeout decorators raise them with PyThreadState_SetAsyncExc."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from typing import Any

import pytest

from gnsq_lite import Message, Reader
from tests.profiles import repeats
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.clients import QUICK

_set_exception: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Late(Exception):
    """The exception of a timeout decorator."""


def raise_in(idents: list[int]) -> None:
    for ident in idents:
        _set_exception(ctypes.c_ulong(ident), ctypes.py_object(Late))


@pytest.mark.rule("MSG-1")
# The exception may meet a destructor, or logging, which opens source files.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("answers", ["returns", "finishes", "requeues", "value"])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_exceptions_at_random_moments_lose_no_message_and_no_thread(
    broker: ServerHandle, topic: str, concurrency: int, answers: str
) -> None:
    idents: set[int] = set()
    done: set[bytes] = set()
    chance = random.Random(concurrency)

    def handle(message: Message) -> object:
        idents.add(threading.get_ident())
        time.sleep(chance.random() * 0.001)
        if answers == "finishes":
            done.add(message.body)
            message.finish()
        elif answers == "requeues" and message.attempts == 1:
            message.requeue(0.0, backoff=False)
        else:
            done.add(message.body)
        return "a value" if answers == "value" else None

    broker.prepare(topic, "ch")
    options: dict[str, Any] = {"concurrency": concurrency, "max_in_flight": 20, "msg_timeout": 60.0, **QUICK}
    options |= {"handler_pool": "thread", "backoff": False, "requeue_delay": 0.0, "max_attempts": 0}
    with Reader(topic, "ch", handle, nsqd_tcp_addresses=broker.tcp_address, **options) as reader:
        sent = 0

        def publish(count: int) -> None:
            nonlocal sent
            broker.publish(topic, *(b"%d" % (sent + number) for number in range(count)))
            sent += count

        def is_quiet() -> bool:
            channel = broker.stats(topic)["channels"][0]
            unanswered = sum(int(channel[name]) for name in ("depth", "in_flight_count", "deferred_count"))
            stats = reader.stats()
            return len(done) == sent and unanswered == 0 and stats.in_flight == 0

        for _ in range(repeats(200, 40)):
            publish(5)
            time.sleep(chance.random() * 0.004)
            raise_in(chance.sample(sorted(idents), min(len(idents), 1 + chance.randrange(2))))
            idents.clear()  # the next exception needs a thread that has run a handler since this one
        wait_for(is_quiet)
        publish(50)
        wait_for(is_quiet)
        channel, stats = broker.stats(topic)["channels"][0], reader.stats()
        assert int(channel["timeout_count"]) == 0
        assert (stats.expired, stats.late_answers) == (0, 0)
        assert (stats.share, stats.handlers_running) == (20, 0)
