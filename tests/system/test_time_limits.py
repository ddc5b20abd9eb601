"""Handlers that exceed their time limit, in each pool."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import gevent
import pytest

from gnsq_lite import Message, Reader, TimeLimitExceeded
from gnsq_lite.broker import Broker
from gnsq_lite.consume import time_limits
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.worker_programs import get, pages_at, pids, publish, worker

LIMIT = 0.3


def limited(broker: ServerHandle, topic: str, handler: Any, **options: Any) -> Reader:
    settings: dict[str, Any] = {"time_limit": LIMIT, "requeue_delay": 0.0, "backoff": False, "max_in_flight": 5}
    return Reader(topic, "ch", handler, nsqd_tcp_addresses=broker.tcp_address, **{**settings, **options})


class Handled:
    """Records the handled messages as (body, attempts), and the failures."""

    def __init__(self) -> None:
        self.done: list[tuple[bytes, int]] = []
        self.failures: list[tuple[int, BaseException]] = []

    def failed(self, message: Message, error: BaseException) -> None:
        self.failures.append((message.attempts, error))


def test_a_hung_thread_is_replaced_and_its_message_is_handled_by_another(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"hangs", b"one", b"two")
    seen, release = Handled(), threading.Event()

    def handle(message: Message) -> None:
        if message.body == b"hangs" and message.attempts == 1:
            release.wait(60)
        seen.done.append((message.body, message.attempts))

    with limited(broker, topic, handle, handler_pool="thread", concurrency=1, on_failure=seen.failed) as reader:
        wait_for(lambda: len(seen.done) == 3)
        assert sorted(seen.done) == [(b"hangs", 2), (b"one", 1), (b"two", 1)]
        (attempts, error), *others = seen.failures
        assert (attempts, type(error), others) == (1, TimeLimitExceeded, [])
        stats = reader.stats()
        assert (stats.handlers_overdue, stats.handlers_running) == (1, 1)
        assert stats.oldest_handler >= LIMIT
        release.set()  # its answer is ignored, and its thread ends
        wait_for(lambda: reader.stats().handlers_overdue == 0)
        broker.publish(topic, b"three")
        wait_for(lambda: len(seen.done) == 5)
        wait_for(lambda: reader.stats().handlers_running == 0)
        assert reader.stats().late_answers == 0
    depth = broker.stats(topic, "ch")
    assert (depth["depth"], depth["in_flight_count"], depth["timeout_count"]) == (0, 0, 0)


def test_close_does_not_wait_for_an_overdue_thread(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"hangs")
    release = threading.Event()

    def handle(message: Message) -> None:
        if message.attempts == 1:
            release.wait(60)

    reader = limited(broker, topic, handle, handler_pool="thread", concurrency=1)
    reader.start(block=False)
    wait_for(lambda: reader.stats().finished == 1)
    closing = threading.Thread(target=reader.close, args=(30.0,))
    closing.start()
    closing.join(15)
    assert not closing.is_alive()
    assert reader.stats().handlers_abandoned == 0
    release.set()


@pytest.mark.parametrize("pool", ["greenlet", "inline"])
def test_the_time_limit_raises_in_a_greenlet_where_it_waits(broker: ServerHandle, topic: str, pool: Any) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"waits", b"one", b"two")
    seen = Handled()
    cleaned: list[int] = []

    def handle(message: Message) -> None:
        try:
            if message.body == b"waits" and message.attempts == 1:
                gevent.sleep(60)
            seen.done.append((message.body, message.attempts))
        except Exception:  # it is not an Exception
            seen.done.append((b"caught", 0))
        finally:
            cleaned.append(message.attempts)

    with limited(broker, topic, handle, handler_pool=pool, on_failure=seen.failed) as reader:
        wait_for(lambda: len(seen.done) == 3)
        assert sorted(seen.done) == [(b"one", 1), (b"two", 1), (b"waits", 2)]
        assert len(cleaned) == 4
        ((attempts, error),) = seen.failures
        assert attempts == 1
        assert str(error) == "the handler exceeded its time limit of 0.3 s"
        assert reader.stats().handlers_overdue == 0
        wait_for(lambda: reader.stats().finished == 3)
        assert (reader.stats().failures, reader.stats().handlers_running) == (1, 0)


@pytest.mark.rule("MSG-4")
@pytest.mark.parametrize("pool", ["greenlet", "thread"])
def test_a_message_that_exceeds_the_time_limit_at_its_last_attempt_is_given_up(
    broker: ServerHandle, topic: str, pool: Any
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"hangs")
    release, given_up = threading.Event(), []
    wait = release.wait if pool == "thread" else gevent.sleep

    with limited(
        broker,
        topic,
        lambda message: wait(60) and None,
        handler_pool=pool,
        max_attempts=2,
        on_give_up=lambda message: given_up.append((message.body, message.attempts)),
    ) as reader:
        wait_for(lambda: reader.stats().finished == 1)
        assert given_up == [(b"hangs", 3)]
        assert reader.stats().given_up == 1
        release.set()


@pytest.mark.rule("MSG-4")
@pytest.mark.parametrize("pool", ["greenlet", "inline", "thread"])
@pytest.mark.parametrize("fails", ["the handler", "no handler"])
def test_on_give_up_that_exceeds_the_time_limit_does_not_run_twice_at_once(
    broker: ServerHandle, topic: str, pool: Any, fails: str
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"bad")
    release, seen, calls, most = threading.Event(), Handled(), [], 0

    def handle(message: Message) -> None:
        if fails == "the handler" or message.attempts < 3:
            raise ValueError("bad")
        release.wait(60) if pool == "thread" else gevent.sleep(60)

    def give_up(message: Message) -> None:
        nonlocal most
        calls.append(message.attempts)
        most = max(most, calls.count(message.attempts))
        if len(calls) == 1:
            release.wait(60) if pool == "thread" else gevent.sleep(60)

    options: dict[str, Any] = {"handler_pool": pool, "max_attempts": 2, "concurrency": 1}
    with limited(broker, topic, handle, **options, on_give_up=give_up, on_failure=seen.failed) as reader:
        wait_for(lambda: reader.stats().finished == 1)
        assert len(calls) == 2
        assert most == 1
        assert reader.stats().given_up == 1
        assert [type(error) for _, error in seen.failures].count(TimeLimitExceeded) >= 1
        release.set()
        wait_for(lambda: reader.stats().handlers_running == 0)
        assert (reader.stats().given_up, reader.stats().late_answers) == (1, 0)
    depth = broker.stats(topic, "ch")
    assert (depth["depth"], depth["deferred_count"], depth["in_flight_count"], depth["timeout_count"]) == (0, 0, 0, 0)


def test_the_error_is_raised_once_in_a_greenlet(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"stubborn")
    errors: list[TimeLimitExceeded] = []

    def handle(message: Message) -> None:
        try:
            gevent.sleep(60)
        except TimeLimitExceeded as error:
            errors.append(error)
            gevent.sleep(3.0)

    with limited(broker, topic, handle, handler_pool="greenlet", concurrency=1) as reader:
        wait_for(lambda: reader.stats().finished == 1)
        assert (len(errors), reader.stats().handlers_overdue, reader.stats().failures) == (1, 0, 0)


def test_at_the_time_limit_the_unanswered_messages_of_a_batch_are_requeued(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, *[b"%d" % number for number in range(4)])
    release = threading.Event()
    lists: list[list[bytes]] = []

    def handle(messages: list[Message]) -> None:
        lists.append([message.body for message in messages])
        if len(lists) == 1:
            messages[0].finish()
            release.wait(60)

    with limited(
        broker, topic, handle, handler_pool="thread", concurrency=1, batch_size=4, batch_wait=1.0, max_in_flight=4
    ) as reader:
        wait_for(lambda: reader.stats().finished == 4)
        assert reader.stats().requeued == len(lists[0]) - 1
        assert sorted(sum(lists[1:], lists[0][:1])) == [b"0", b"1", b"2", b"3"]
        release.set()


def test_the_age_of_handlers_is_known_without_a_limit(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"slow")
    release = threading.Event()
    looked: list[float] = []
    with limited(
        broker, topic, lambda message: release.wait(60) and None, handler_pool="thread", time_limit=None
    ) as reader:
        wait_for(lambda: reader.stats().handlers_running == 1)
        assert reader._core is not None
        watch = reader._core.limits
        assert isinstance(watch, time_limits.TimeLimits)
        wait_for(lambda: looked.append(reader.stats().oldest_handler) or looked[-1] > 0.1)  # type: ignore[func-returns-value]
        release.set()
        wait_for(lambda: reader.stats().oldest_handler == 0.0)


APP = """
import os, time
from gnsq_lite import Worker

worker = Worker(requeue_delay=0.0, backoff=False, reconnect_delay=0.1)

@worker.handler("t", "ch", time_limit=0.5, concurrency=1, handler_pool="thread")
def handle(message):
    os.write(1, f"handled {message.body.decode()} {os.getpid()}\\n".encode())
    while message.body == b"stuck" and message.attempts == 1:
        time.sleep(0.1)
"""


@pytest.mark.program
def test_a_process_with_a_thread_that_does_not_end_is_replaced_and_ends(tmp_path: Path) -> None:
    with (
        Broker(lookupd=False) as nsqd,
        worker(tmp_path, nsqd.nsqd_tcp_address, "--metrics-port", "0", app=APP) as program,
    ):
        address = pages_at(program)
        program.says("connected")
        publish(nsqd, b"stuck")
        program.says("handled stuck", times=2)
        program.says("1 handlers run beyond their time limit")
        program.says("which was draining, ended (0)")
        publish(nsqd, b"more")
        program.says("handled more")
        assert len(set(pids(program))) == 2
        wait_for(lambda: get(address, "/readyz")[0] == 200)
        assert '"oldest_handler": 0.0' in get(address, "/readyz")[1]
        program.signal(signal.SIGTERM)
        assert program.ends() == 0
