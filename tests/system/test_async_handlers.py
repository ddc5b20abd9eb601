"""Handlers that are ``async def``: one event loop for the process, limits, cancellation, publishing and middleware."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gnsq_lite import GiveUp, Message, Reader, Requeue, Worker, Writer, current_message, errors
from gnsq_lite.broker import Broker
from gnsq_lite.contrib.inbox import Inbox
from gnsq_lite.net.os_threads import is_patched
from gnsq_lite.testing import deliver, make_message
from gnsq_lite.worker import Middleware
from tests.programs import python, wait_for
from tests.servers import ServerHandle
from tests.system.clients import QUICK, channel

pytestmark = pytest.mark.skipif(is_patched(), reason="a monkey-patched process refuses async def")


def a_reader(broker: ServerHandle, topic: str, handler: Any, **options: Any) -> Reader:
    made = {"max_in_flight": 50, "backoff": False, "requeue_delay": 0.05, **QUICK, **options}
    return Reader(topic, "ch", handler, nsqd_tcp_addresses=broker.tcp_address, **made)


def publish(broker: ServerHandle, topic: str, *bodies: bytes) -> None:
    broker.prepare(topic, "ch")
    with Writer(broker.tcp_address) as writer:
        writer.multipublish(topic, bodies)


@pytest.mark.rule("MSG-1")
def test_handlers_wait_side_by_side_in_one_event_loop_up_to_the_concurrency(broker: ServerHandle, topic: str) -> None:
    running, most, threads, loops = 0, 0, set[int](), set[Any]()

    async def handle(message: Message) -> None:
        nonlocal running, most
        threads.add(threading.get_ident())
        loops.add(asyncio.get_running_loop())
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1

    publish(broker, topic, *[b"%d" % number for number in range(30)])
    publish(broker, topic + "2", b"x")
    with a_reader(broker, topic, handle, concurrency=5) as reader:
        wait_for(lambda: reader.stats().finished == 30)
        assert 1 < most <= 5
        with a_reader(broker, topic + "2", handle) as other:
            wait_for(lambda: other.stats().finished == 1)
    assert (len(threads), len(loops)) == (1, 1)
    assert threading.main_thread().ident not in threads
    assert channel(broker, topic)["in_flight_count"] == 0


@pytest.mark.rule("MSG-2")
@pytest.mark.rule("MSG-4")
def test_an_async_handler_fails_requeues_and_gives_up_like_any_other(broker: ServerHandle, topic: str) -> None:
    calls: list[tuple[bytes, int]] = []
    given_up: list[bytes] = []

    async def handle(message: Message) -> None:
        calls.append((message.body, message.attempts))
        await asyncio.sleep(0)
        if message.body == b"raise" and message.attempts < 3:
            raise ValueError("not yet")
        if message.body == b"requeue" and message.attempts < 2:
            raise Requeue(0.01)
        if message.body == b"give up":
            raise GiveUp("wrong")
        if message.body == b"always":
            raise KeyError("always")

    publish(broker, topic, b"raise", b"requeue", b"give up", b"always", b"fine")
    options: dict[str, Any] = {"max_attempts": 3, "on_give_up": lambda message: given_up.append(message.body)}
    with a_reader(broker, topic, handle, **options) as reader:
        wait_for(lambda: reader.stats().finished == 5)
        stats = reader.stats()
    assert sorted(given_up) == [b"always", b"give up"]
    assert (stats.given_up, stats.requeued) == (2, 6)
    assert calls.count((b"raise", 3)) == 1


def test_a_list_of_messages_is_awaited(broker: ServerHandle, topic: str) -> None:
    seen: list[bytes] = []

    async def handle(messages: list[Message]) -> None:
        await asyncio.sleep(0)
        seen.extend(each.body for each in messages)
        if len(seen) <= 4 and b"0" in seen:
            raise ValueError("once more")

    publish(broker, topic, b"0", b"1", b"2", b"3")
    with a_reader(broker, topic, handle, batch_size=4, batch_wait=0.1) as reader:
        wait_for(lambda: reader.stats().finished == 4)
    assert sorted(set(seen)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.rule("CLOSE-1")
def test_close_waits_for_handlers_and_closes_the_lifespan_that_readers_share(broker: ServerHandle, topic: str) -> None:
    noted: list[str] = []

    @asynccontextmanager
    async def pool() -> AsyncIterator[None]:
        noted.append("open")
        yield
        await asyncio.sleep(0.05)
        noted.append("closed")

    async def handle(message: Message) -> None:
        assert noted == ["open"]
        await asyncio.sleep(0.5)
        noted.append("handled")

    publish(broker, topic, b"x")
    first = a_reader(broker, topic, handle, lifespan=pool)
    second = a_reader(broker, topic + "2", handle, lifespan=pool)
    first.start(block=False)
    second.start(block=False)
    wait_for(lambda: first.stats().handlers_running == 1)
    second.close()
    first.close()
    assert noted == ["open", "handled", "closed"]
    assert channel(broker, topic)["in_flight_count"] == 0
    wait_for(lambda: "gnsq_lite-asyncio" not in [each.name for each in threading.enumerate()])
    assert first.stats().finished == 1


def test_a_lifespan_that_raises_ends_the_reader_with_the_reason(broker: ServerHandle, topic: str) -> None:
    @asynccontextmanager
    async def pool() -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    async def handle(message: Message) -> None:
        raise AssertionError("not reached")

    publish(broker, topic, b"x")
    reader = a_reader(broker, topic, handle, lifespan=pool)
    with pytest.raises(SystemExit, match="no database"):
        reader.start()
    assert channel(broker, topic)["depth"] + channel(broker, topic)["deferred_count"] == 1


@pytest.mark.rule("MSG-5")
def test_at_the_time_limit_the_handler_is_cancelled_and_its_message_fails(broker: ServerHandle, topic: str) -> None:
    cleaned: list[int] = []

    async def handle(message: Message) -> None:
        try:
            await asyncio.sleep(0.0 if message.attempts > 1 else 60.0)
        finally:
            cleaned.append(message.attempts)

    publish(broker, topic, b"x")
    with a_reader(broker, topic, handle, time_limit=0.5) as reader:
        wait_for(lambda: reader.stats().finished == 1, 20.0)
        stats = reader.stats()
    assert cleaned == [1, 2]
    assert (stats.requeued, stats.failures, stats.handlers_overdue) == (1, 1, 0)


def test_a_handler_that_runs_on_after_its_cancellation_is_logged_and_replaced(
    broker: ServerHandle, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()

    async def handle(message: Message) -> None:
        while message.body == b"hung" and message.attempts == 1 and not over.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass

    publish(broker, topic, b"hung", b"fine")
    with a_reader(broker, topic, handle, time_limit=0.5, concurrency=1) as reader:
        wait_for(lambda: reader.stats().finished == 2, 30.0)
        assert reader.stats().handlers_overdue == 1
        over.set()
        wait_for(lambda: reader.stats().handlers_overdue == 0)
    assert "exceeded its time limit and still runs" in caplog.text
    assert "another task is started instead" in caplog.text
    assert "caught the CancelledError of its time limit" in caplog.text


def test_publish_nowait_is_awaited_and_a_blocking_publish_refused(broker: ServerHandle, topic: str) -> None:
    outcomes: list[Any] = []

    async def handle(message: Message) -> None:
        for blocks in (
            lambda: writer.publish(topic + "2", b"x"),
            lambda: writer.multipublish(topic + "2", [b"x"]),
            lambda: writer.publish_nowait(topic + "2", b"x").result(),
        ):
            try:
                blocks()
            except errors.NSQError as error:
                outcomes.append(type(error))
        outcomes.append(await writer.publish_nowait(topic + "2", b"x"))
        try:
            await writer.publish_nowait("bad topic", b"x")
        except errors.InvalidName:
            outcomes.append("refused")
        await asyncio.to_thread(writer.publish, topic + "2", b"x")

    publish(broker, topic, b"x")
    with Writer(broker.tcp_address) as writer, a_reader(broker, topic, handle) as reader:
        wait_for(lambda: reader.stats().finished == 1)
        assert writer.stats().published == 3
    assert outcomes == [errors.NotSent, errors.NotSent, errors.ClosedError, None, "refused"]


def test_the_message_and_the_stack_of_a_waiting_handler_are_known(broker: ServerHandle, topic: str) -> None:
    over, found = threading.Event(), list[Any]()

    async def in_the_handler() -> None:
        while not over.is_set():
            await asyncio.sleep(0.02)

    async def handle(message: Message) -> None:
        found.append((current_message() is message, await asyncio.create_task(other())))
        await in_the_handler()

    async def other() -> object:
        return current_message()

    publish(broker, topic, b"x")
    with a_reader(broker, topic, handle) as reader:
        wait_for(lambda: found)
        assert found == [(True, None)]
        (call,) = reader.running()
        assert call.thread.startswith("task ")
        assert "in_the_handler" in call.stack
        over.set()
        wait_for(lambda: reader.stats().finished == 1)


class Sync(Middleware[Any]):
    def __init__(self, noted: list[Any]) -> None:
        self._noted = noted

    def before(self, message: Any) -> None:
        time.sleep(0.01)  # may block
        self._noted.append(("sync before", threading.current_thread().name))

    def after(self, message: Any) -> None:
        self._noted.append("sync after")

    def failed(self, message: Any, error: BaseException) -> None:
        self._noted.append(f"sync failed: {type(error).__name__}")


class Async(Middleware[Any]):
    def __init__(self, noted: list[Any]) -> None:
        self._noted = noted

    async def before(self, message: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self._noted.append("async before")

    async def after(self, message: Any) -> None:  # type: ignore[override]
        self._noted.append("async after")


@pytest.mark.parametrize("order", ["sync first", "async first"])
def test_a_worker_runs_decoders_and_middleware_around_an_async_handler(order: str) -> None:
    noted: list[Any] = []
    hooks: list[Middleware[Any]] = [Sync(noted), Async(noted)]
    with Broker(lookupd=False) as broker:
        worker = Worker(
            middleware=hooks if order == "sync first" else hooks[::-1],
            nsqd_tcp_addresses=broker.nsqd_tcp_address,
            requeue_delay=0.05,
            backoff=False,
        )

        @worker.handler("t", "ch", decode=int, max_attempts=2)
        async def handle(number: int, message: Message) -> None:
            await asyncio.sleep(0)
            noted.append(number)
            if number == 2 and message.attempts < 2:
                raise KeyError("again")

        with Writer(broker.nsqd_tcp_address) as writer:
            writer.publish("t", b"1")
            worker.start()
            wait_for(lambda: worker.stats()[0].finished == 1)
            one, noted[:] = list(noted), []
            writer.publish("t", b"2")
            wait_for(lambda: worker.stats()[0].finished == 2)
        worker.close()
    named = [each if isinstance(each, str | int) else each[0] for each in one]
    inner = ["async before", 1, "async after"] if order == "sync first" else ["sync before", 1, "sync after"]
    outer = ("sync before", "sync after") if order == "sync first" else ("async before", "async after")
    assert named == [outer[0], *inner, outer[1]]
    assert "sync failed: KeyError" in noted
    (thread,) = [each[1] for each in one if isinstance(each, tuple)]
    assert thread != "gnsq_lite-asyncio"


def test_the_time_limit_reaches_a_handler_behind_sync_middleware() -> None:
    noted: list[Any] = []
    with Broker(lookupd=False) as broker:
        worker = Worker(middleware=[Sync(noted)], nsqd_tcp_addresses=broker.nsqd_tcp_address, requeue_delay=0.05)

        @worker.handler("t", "ch", time_limit=0.5)
        async def handle(message: Message) -> None:
            try:
                await asyncio.sleep(0.0 if message.attempts > 1 else 60.0)
            except asyncio.CancelledError:
                noted.append("cancelled")
                raise

        with Writer(broker.nsqd_tcp_address) as writer:
            writer.publish("t", b"1")
        worker.start()
        wait_for(lambda: worker.stats()[0].finished == 1, 20.0)
        worker.close()
    assert "cancelled" in noted
    assert "sync failed: CancelledError" in noted


def test_tests_deliver_messages_to_async_handlers() -> None:
    seen: list[Any] = []
    worker = Worker(middleware=[Sync(seen)])

    @worker.handler("t", "ch", decode=int, give_up_on=[KeyError])
    async def handle(number: int, message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(number)
        if number == 2:
            raise KeyError("never")

    assert worker.deliver(handle, b"1").kind == "finish"
    assert worker.deliver(handle, b"2").kind == "give_up"
    assert worker.deliver(handle, b"no number").kind == "give_up"

    async def alone(message: Message) -> None:
        await asyncio.sleep(0)

    assert deliver(alone, make_message(b"x")) == ("finish",)
    assert [each for each in seen if isinstance(each, int)] == [1, 2]


async def nothing(message: Message) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Reader("t", "ch", nothing, handler_pool="thread"), "handler_pool"),
        (lambda: Reader("t", "ch", print, lifespan=lambda: None), "async def"),  # type: ignore[arg-type,return-value]
        (lambda: Inbox(lambda: None).once(key=str)(nothing), "async def"),
    ],
)
def test_what_an_async_handler_cannot_have_is_refused(make: Callable[[], object], why: str) -> None:
    with pytest.raises(errors.OptionError, match=why):
        make()


@pytest.mark.program
def test_a_patched_process_refuses_an_async_handler() -> None:
    text = """
from gevent import monkey
monkey.patch_all()
from gnsq_lite import Reader, errors
async def handle(message): pass
try:
    Reader("t", "ch", handle)
except errors.OptionError as error:
    print(error)
"""
    assert "a monkey-patched process cannot run" in python(text).stdout.decode()
