"""Handlers of an ordered topic that answer in all ways, while threads read their next messages themselves (YZ-6)."""

from __future__ import annotations

import ctypes
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gnsq_lite import Reader, Requeue, Writer
from gnsq_lite.consume.ordered import OrderedConnection
from gnsq_lite.youzan.dialect import YouzanDialect
from tests.native import native_ident
from tests.programs import wait_for
from tests.youzan_broker import YouzanBroker

PARTITIONS, EACH = 3, 400


@contextmanager
def reading(handler: Callable[[Any], None]) -> Iterator[tuple[YouzanBroker, Reader]]:
    """Yield a broker with EACH messages in each partition, and a Reader that handles them in threads."""
    with YouzanBroker(nsqds=2) as broker:
        broker.youzan.create_topic("t", partitions=PARTITIONS, ordered=True)
        broker.youzan.create_channel("t", "c")
        found = {"lookupd_http_addresses": broker.lookupd_http_address}
        with Writer(dialect="youzan", **found) as writer:  # type: ignore[arg-type]
            for number in range(PARTITIONS):
                writer.multipublish("t", [b"%d" % each for each in range(EACH)], partition=number)
        reader = Reader(
            "t",
            "c",
            handler,
            dialect=YouzanDialect(ordered=True),
            handler_pool="thread",
            max_in_flight=2 * PARTITIONS,
            max_attempts=0,
            requeue_delay=0.01,
            backoff=False,
            handle_signals=False,
            **found,  # type: ignore[arg-type]
        )
        reader.start(block=False)
        with reader:
            yield broker, reader


@pytest.fixture
def read_in_threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each FIN of a thread that may read whether the thread has got the next message."""
    found: list[bool] = []
    go_on = OrderedConnection._go_on

    def recorded(self: OrderedConnection, *arguments: Any) -> bool:
        found.append(go_on(self, *arguments))
        return found[-1]

    monkeypatch.setattr(OrderedConnection, "_go_on", recorded)
    return found


@pytest.mark.rule("YZ-6")
@pytest.mark.rule("MSG-2")
def test_threads_read_messages_and_keep_the_order_whatever_handlers_answer(read_in_threads: list[bool]) -> None:
    done: list[list[int]] = [[] for _ in range(PARTITIONS)]
    running, together = [0] * PARTITIONS, set[int]()
    chance = random.Random(1)
    later: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def end(message: Any) -> None:
        done[message.partition].append(int(message.body))
        running[message.partition] -= 1

    def answer_later() -> None:
        while (message := later.get()) is not None:
            end(message)
            message.finish()

    def handle(message: Any) -> None:
        running[message.partition] += 1
        together.add(running[message.partition])
        choice = chance.random()
        if choice < 0.02:
            running[message.partition] -= 1
            raise Requeue(chance.random() * 0.01)
        if choice < 0.04:
            message.enable_async()
            later.put(message)
            return
        if choice < 0.05:
            message.touch()
        if choice < 0.06:
            time.sleep(0.01)
        end(message)
        if choice > 0.98:
            message.finish()

    thread = threading.Thread(target=answer_later)
    thread.start()
    try:
        with reading(handle) as (_, reader):
            wait_for(lambda: [len(each) for each in done] == [EACH] * PARTITIONS, 60.0)
            wait_for(lambda: reader.stats().in_flight == 0)
            assert reader.stats().finished == EACH * PARTITIONS
    finally:
        later.put(None)
        thread.join()
    assert done == [list(range(EACH))] * PARTITIONS
    assert together == {1}
    assert any(read_in_threads)


@pytest.mark.rule("YZ-12")
def test_a_leader_that_moves_while_threads_read_loses_no_message(read_in_threads: list[bool]) -> None:
    done: list[list[int]] = [[] for _ in range(PARTITIONS)]

    def handle(message: Any) -> None:
        done[message.partition].append(int(message.body))
        time.sleep(0.001)

    with reading(handle) as (broker, _):
        for node in (1, 0, 1):
            seen = len(done[0])
            wait_for(lambda seen=seen: len(done[0]) > seen + 50)  # type: ignore[misc]
            broker.youzan.move_leader("t", 0, node)
        wait_for(lambda: all(each and each[-1] == EACH - 1 for each in done), 60.0)
    assert [list(dict.fromkeys(each)) for each in done] == [list(range(EACH))] * PARTITIONS
    assert any(read_in_threads)


class Interrupted(Exception):
    """Raised in handlers' threads at random lines."""


# The exception may interrupt logging, which opens source files, and pytest's report of a file that stayed open.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(ctypes, "pythonapi"), reason="only CPython raises exceptions in other threads")
def test_exceptions_in_reading_threads_lose_no_message(
    read_in_threads: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "gnsq_lite.reader")
    done: list[list[int]] = [[] for _ in range(PARTITIONS)]
    idents = set[int]()

    def handle(message: Any) -> None:
        idents.add(native_ident())
        done[message.partition].append(int(message.body))
        time.sleep(0.0005)

    def running_handlers() -> list[int]:
        named = [each for each in threading.enumerate() if each.name.startswith("gnsq_lite-handler")]
        return [each.ident for each in named if each.ident in idents and each.ident is not None]

    with reading(handle):
        for _ in range(20):
            time.sleep(0.005)
            for ident in running_handlers()[:1]:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Interrupted))
        wait_for(lambda: all(each and each[-1] == EACH - 1 for each in done), 60.0)
    assert [list(dict.fromkeys(each)) for each in done] == [list(range(EACH))] * PARTITIONS
    assert any(read_in_threads)
