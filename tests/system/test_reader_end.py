"""How a Reader ends: with or without time for its handlers, twice, or without close()."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import gevent
import pytest

from gnsq_lite import Message, Reader, Writer, errors
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.clients import POOLS, channel, reader_on

# -- the end


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("pool", ["greenlet", "thread"])
def test_close_waits_for_running_handlers_and_requeues_the_other_messages(
    broker: ServerHandle, topic: str, pool: str
) -> None:
    broker.publish(topic, *[b"%d" % n for n in range(10)])
    begun: list[bytes] = []
    closing: list[bool] = []

    def handler(message: Message) -> None:
        begun.append(message.body)
        while not closing:
            pause(0.02)
        pause(1.0)  # close() waits for it

    pause = gevent.sleep if pool == "greenlet" else time.sleep
    reader = reader_on(broker, topic, handler, handler_pool=pool, max_in_flight=10, concurrency=2)
    reader.start(block=False)
    wait_for(lambda: reader.stats().in_flight == 10 and len(begun) == 2)
    closing.append(True)
    reader.close(timeout=5.0)
    stats = channel(broker, topic)
    assert len(begun) == 2  # no new handler began
    assert (stats["depth"], stats["in_flight_count"], stats["clients"]) == (8, 0, None) or (
        stats["depth"],
        stats["in_flight_count"],
        stats["clients"],
    ) == (8, 0, [])
    assert reader.join(10.0)


@pytest.mark.rule("CLOSE-1")
def test_close_requeues_the_message_of_a_handler_that_never_ends(broker: ServerHandle, topic: str) -> None:
    broker.publish(topic, b"x")
    release = threading.Event()
    begun: list[Message] = []

    def handler(message: Message) -> None:
        begun.append(message)
        release.wait(20)

    reader = reader_on(broker, topic, handler)
    reader.start(block=False)
    wait_for(lambda: begun)
    began = time.monotonic()
    reader.close(timeout=0.3)
    assert time.monotonic() - began < 15.0  # the handler waits for 20 s
    wait_for(lambda: channel(broker, topic)["depth"] == 1)  # by REQ 0, not by the 60 s time-out
    assert begun[0].has_responded
    release.set()


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("pool", POOLS)
def test_close_in_a_handler_returns_at_once_and_its_message_is_finished(
    broker: ServerHandle, topic: str, pool: str, wait: bool
) -> None:
    broker.publish(topic, *[b"%d" % n for n in range(3)])
    bodies: list[bytes] = []
    seconds: list[float] = []

    def handler(message: Message) -> None:
        bodies.append(message.body)
        began = time.monotonic()
        reader.close(timeout=20.0, wait=wait)
        seconds.append(time.monotonic() - began)
        gevent.sleep(0.3) if pool == "greenlet" else time.sleep(0.3)

    reader = reader_on(broker, topic, handler, handler_pool=pool)
    reader.start(block=False)
    assert reader.join(30.0)
    assert len(bodies) == 1
    assert seconds[0] < 10.0  # a close() that waited for its own handler would take 20 s
    assert reader.stats().finished == 1
    wait_for(lambda: channel(broker, topic)["depth"] == 2)
    assert channel(broker, topic)["in_flight_count"] == 0


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("pool", POOLS)
def test_close_in_a_handler_requeues_messages_that_no_handler_began(
    broker: ServerHandle, topic: str, pool: str
) -> None:
    broker.publish(topic, *[b"%d" % n for n in range(200)])
    bodies: list[bytes] = []

    def handler(message: Message) -> None:
        bodies.append(message.body)
        reader.close()
        gevent.sleep(0.02) if pool == "greenlet" else time.sleep(0.02)

    reader = reader_on(broker, topic, handler, handler_pool=pool, max_in_flight=200, concurrency=1)
    reader.start(block=False)
    assert reader.join(10.0)
    assert len(bodies) == len(set(bodies)) < 20
    wait_for(lambda: channel(broker, topic)["depth"] == 200 - len(bodies))
    assert channel(broker, topic)["in_flight_count"] == 0


@pytest.mark.rule("CLOSE-1")
def test_close_in_a_batch_handler_and_in_on_give_up_returns_at_once(broker: ServerHandle, topic: str) -> None:
    broker.publish(topic, b"given up")
    seconds: list[float] = []

    def close(*_: object) -> None:
        began = time.monotonic()
        reader.close(timeout=20.0)
        seconds.append(time.monotonic() - began)

    def fail(message: Message) -> None:
        raise ValueError

    retry: dict[str, Any] = {"max_attempts": 1, "requeue_delay": 0.0, "backoff": False}
    reader = reader_on(broker, topic, fail, on_give_up=close, **retry)
    reader.start(block=False)
    assert reader.join(10.0)
    broker.publish(topic, b"batch")
    reader = reader_on(broker, topic, close, batch_size=1)
    reader.start(block=False)
    assert reader.join(30.0)
    assert len(seconds) == 2
    assert max(seconds) < 10.0  # a close() that waited for its own handler would take 20 s
    wait_for(lambda: (channel(broker, topic)["depth"], channel(broker, topic)["in_flight_count"]) == (0, 0))


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("hook", ["on_connected", "on_failure", "on_backoff"])
def test_close_in_a_hook_returns_at_once(broker: ServerHandle, topic: str, hook: str) -> None:
    broker.publish(topic, b"x")
    seconds: list[float] = []

    def close(*_: object) -> None:
        began = time.monotonic()
        reader.close(timeout=20.0)
        seconds.append(time.monotonic() - began)

    def fail(message: Message) -> None:
        raise ValueError

    options: dict[str, Any] = {hook: close}
    reader = reader_on(broker, topic, fail, requeue_delay=0.0, **options)
    reader.start(block=False)
    assert reader.join(10.0)
    wait_for(lambda: seconds)
    assert max(seconds) < 10.0  # a close() that waited for its own hook would take 20 s
    wait_for(lambda: (channel(broker, topic)["depth"], channel(broker, topic)["in_flight_count"]) == (1, 0))


@pytest.mark.rule("CLOSE-1")
def test_close_without_wait_returns_while_a_handler_runs(broker: ServerHandle, topic: str) -> None:
    broker.publish(topic, b"x")
    begun, release = threading.Event(), threading.Event()

    def handler(message: Message) -> None:
        begun.set()
        release.wait(20)

    reader = reader_on(broker, topic, handler, handler_pool="thread")
    reader.start(block=False)
    wait_for(begun.is_set)
    reader.close(wait=False)
    assert not reader.join(0.3)
    release.set()
    assert reader.join(10.0)
    assert reader.stats().finished == 1


def test_close_is_idempotent_and_allowed_before_start(broker: ServerHandle, topic: str) -> None:
    reader = reader_on(broker, topic, print)
    reader.close()
    with pytest.raises(errors.ClosedError):
        reader.start()
    reader = reader_on(broker, topic, print)
    reader.start(block=False)
    with pytest.raises(errors.ClosedError):
        reader.start()
    reader.close()
    reader.close()
    assert reader.join(10.0)


def test_start_blocks_until_close(broker: ServerHandle, topic: str) -> None:
    reader = reader_on(broker, topic, print)
    ended: list[float] = []

    def run() -> None:
        reader.start(block=True)
        ended.append(time.monotonic())

    running = threading.Thread(target=run)
    running.start()
    wait_for(lambda: reader._core is not None and reader.stats().connections)
    assert ended == []
    reader.close()
    running.join(5)
    assert len(ended) == 1


def test_a_reader_without_a_reference_continues(broker: ServerHandle, topic: str) -> None:
    # a handler held by a weak reference could be collected, and messages were finished without a handler
    seen: list[bytes] = []

    class Collector:
        def handle(self, message: Message) -> None:
            seen.append(message.body)

    reader = reader_on(broker, topic, Collector().handle)
    reader.start(block=False)
    gc.collect()
    broker.publish(topic, b"x")
    wait_for(lambda: seen == [b"x"])
    reader.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_systemexit_in_a_handler_ends_the_reader(broker: ServerHandle, topic: str, error: type[BaseException]) -> None:
    broker.publish(topic, b"x")

    def handler(message: Message) -> None:
        raise error

    with pytest.raises(error):
        reader_on(broker, topic, handler).start()
    wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0)


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("pool", POOLS)
def test_systemexit_in_a_handler_requeues_all_unhandled_messages_at_once(
    broker: ServerHandle, topic: str, pool: str
) -> None:
    def handler(message: Message) -> None:
        raise SystemExit(3)

    reader = reader_on(broker, topic, handler, handler_pool=pool, max_in_flight=20, backoff=False)
    reader.start(block=False)
    wait_for(lambda: [c.share for c in reader.stats().connections] == [20])
    with Writer(broker.tcp_address) as writer:
        writer.multipublish(topic, [b"%d" % n for n in range(20)])
    with pytest.raises(SystemExit):
        reader.join(10)
    wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0)  # nsqd's msg_timeout is a minute
    found = channel(broker, topic)
    assert found["depth"] + found["deferred_count"] == 20


@pytest.mark.rule("CLOSE-1")
def test_of_many_threads_that_start_a_reader_one_succeeds_and_close_ends_the_reader(
    broker: ServerHandle, topic: str
) -> None:
    broker.publish(topic, b"x")  # the channel exists, so its statistics can be read
    for _ in range(10):
        reader = reader_on(broker, topic, print)
        refused: list[Exception] = []
        begin = threading.Barrier(4)

        def start(
            reader: Reader = reader, begin: threading.Barrier = begin, refused: list[Exception] = refused
        ) -> None:
            begin.wait(10)
            try:
                reader.start(block=False)
            except errors.ClosedError as error:
                refused.append(error)

        threads = [threading.Thread(target=start) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        reader.close()
        assert len(refused) == 3
    wait_for(lambda: channel(broker, topic).get("client_count", 0) == 0)
