"""Messages that no handler has begun are dropped with their connection or at their deadline, and are not given up."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import gevent
import pytest

from gnsq_lite import Message, Reader
from tests.conftest import MakeBroker
from tests.native import native_lock
from tests.programs import wait_for
from tests.proxy import Proxy
from tests.servers import ServerHandle
from tests.system.clients import QUICK, reader_on

MANY = 300


def publish_many(broker: ServerHandle, topic: str) -> None:
    broker.publish(topic, *[b"%d" % number for number in range(MANY)])


class Gate:
    """A handler that counts messages and blocks until the gate is opened, in any pool."""

    def __init__(self) -> None:
        self.opened = False
        self.calls = 0
        self.begun: Counter[bytes] = Counter()
        self._lock = native_lock()

    def __call__(self, job: Message | list[Message]) -> None:
        with self._lock:
            self.begun.update(message.body for message in (job if isinstance(job, list) else [job]))
            self.calls += 1
        while not self.opened:
            gevent.sleep(0.01)


@pytest.mark.rule("MSG-5")
@pytest.mark.parametrize(
    ("pool", "options"),
    [("greenlet", {}), ("thread", {"batch_size": 7, "batch_wait": 0.05})],
    ids=["greenlet-single", "thread-batches"],
)
def test_after_a_lost_connection_only_running_messages_are_handled_twice(
    make_broker: MakeBroker, topic: str, pool: str, options: dict[str, Any]
) -> None:
    broker = make_broker(msg_timeout=2.0)
    publish_many(broker, topic)
    gate = Gate()
    with Proxy(broker.tcp_address) as proxy:
        reader = Reader(
            topic,
            "ch",
            gate,
            nsqd_tcp_addresses=proxy.address,
            handler_pool=pool,
            concurrency=2,
            max_in_flight=MANY,
            **QUICK,
            **options,
        )
        with reader:
            wait_for(lambda: reader.stats().in_flight == MANY and reader.stats().handlers_running == 2)
            wait_for(lambda: gate.calls == 2)
            running = set(gate.begun)
            proxy.refusing = True
            proxy.reset()
            wait_for(lambda: reader.stats().dropped == MANY - len(running))
            assert reader.stats().queued == 0
            gate.opened = True
            proxy.clear()
            wait_for(lambda: len(gate.begun) == MANY and reader.stats().finished >= MANY - len(running))
            wait_for(lambda: broker.stats(topic, "ch")["in_flight_count"] == 0)
    assert {body for body, times in gate.begun.items() if times > 1} <= running
    assert max(gate.begun.values()) <= 2


@pytest.mark.rule("MSG-5")
def test_an_inline_handler_gets_few_messages_of_a_lost_connection(make_broker: MakeBroker, topic: str) -> None:
    broker = make_broker(msg_timeout=2.0)  # nsqd sends only timed-out messages again
    publish_many(broker, topic)
    begun: Counter[bytes] = Counter()
    cut = threading.Event()

    def handle(message: Message) -> None:
        begun[message.body] += 1
        gevent.sleep(0.005 if cut.is_set() else 0.02)  # until RDY has grown from 1 to the share
        while len(begun) > 10 and not cut.is_set():
            gevent.sleep(0.01)

    with Proxy(broker.tcp_address) as proxy:
        options: dict[str, Any] = {"handler_pool": "inline", "max_in_flight": MANY, "delivery": "bulk", **QUICK}
        with Reader(topic, "ch", handle, nsqd_tcp_addresses=proxy.address, **options) as reader:
            wait_for(lambda: reader.stats().finished >= 10 and reader.stats().queued > MANY // 2)
            proxy.reset()
            cut.set()
            wait_for(lambda: reader.stats().dropped > 0)
            wait_for(lambda: len(begun) == MANY)
    twice = sum(times > 1 for times in begun.values())
    assert twice < MANY * 2 // 3  # the messages until an answer could not be sent


@pytest.mark.rule("MSG-4")
@pytest.mark.rule("MSG-5")
@pytest.mark.parametrize(
    ("pool", "options"),
    [("greenlet", {"batch_size": 7, "batch_wait": 0.05}), ("thread", {})],
    ids=["greenlet-batches", "thread-single"],
)
def test_a_hung_reader_gets_no_more_messages_and_its_messages_are_not_given_up_unhandled(
    make_broker: MakeBroker, topic: str, pool: str, options: dict[str, Any]
) -> None:
    broker = make_broker(msg_timeout=1.0)
    publish_many(broker, topic)
    hung, seen, given_up = Gate(), Counter[bytes](), []
    lock = threading.Lock()

    def handle(job: Message | list[Message]) -> None:
        with lock:
            seen.update(message.body for message in (job if isinstance(job, list) else [job]))

    common: dict[str, Any] = {"handler_pool": pool, "concurrency": 2, "max_in_flight": 20, "max_attempts": 1}
    common |= {"on_give_up": lambda message: given_up.append(message.body), **options}
    with reader_on(broker, topic, hung, **common) as stuck:
        wait_for(lambda: stuck.stats().expired >= 20)  # its only attempt is used
        wait_for(lambda: stuck.stats().ready == 0)
        with reader_on(broker, topic, handle, **common) as healthy:
            wait_for(lambda: len(seen) >= MANY - len(hung.begun))
            wait_for(lambda: broker.stats(topic, "ch")["depth"] == 0 and healthy.stats().in_flight == 0)
            received = stuck.stats().received
            assert (given_up, stuck.stats().given_up, healthy.stats().given_up) == ([], 0, 0)
        assert stuck.stats().received == received  # the Reader received nothing meanwhile
        hung.opened = True
        wait_for(lambda: stuck.stats().share == 20)  # and its whole share when its handlers are free
    assert set(seen) | set(hung.begun) == {b"%d" % number for number in range(MANY)}


@pytest.mark.rule("MSG-4")
@pytest.mark.parametrize("options", [{}, {"batch_size": 1, "batch_wait": 0.05}], ids=["single", "batches"])
def test_a_message_whose_attempts_other_processes_used_is_handled_once_more(
    broker: ServerHandle, topic: str, options: dict[str, Any]
) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    away: list[int] = []
    common: dict[str, Any] = {"requeue_delay": 0.0, "backoff": False}

    def elsewhere(message: Message) -> None:
        away.append(message.attempts)
        if message.attempts < 4:
            message.requeue(0.0, backoff=False)
        else:
            message.enable_async()  # requeued at the end

    with reader_on(broker, topic, elsewhere, max_attempts=0, **common) as holder:
        wait_for(lambda: len(away) == 4)
        holder.close(timeout=0.1)
    tried: list[int] = []
    failed: list[str] = []

    def fail(job: Message | list[Message]) -> None:
        (message,) = job if isinstance(job, list) else [job]
        tried.append(message.attempts)
        raise ValueError("no")

    common["on_failure"] = lambda message, error: failed.append(str(error))
    with reader_on(broker, topic, fail, max_attempts=2, **common, **options) as reader:
        wait_for(lambda: reader.stats().given_up == 1 and reader.stats().finished == 1)
        assert reader.stats().requeued == 0
    assert len(tried) == 1
    assert tried[0] > 3
    assert failed == ["no"]


@pytest.mark.rule("MSG-4")
@pytest.mark.parametrize("answer", ["raise", "requeue", "time out"])
def test_a_message_that_this_reader_handled_max_attempts_times_is_given_up_at_its_next_delivery(
    make_broker: MakeBroker, topic: str, answer: str
) -> None:
    broker = make_broker(msg_timeout=0.5)
    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    tried: list[int] = []

    def handle(message: Message) -> None:
        tried.append(message.attempts)
        if answer == "requeue":
            message.requeue(0.0)
        elif answer == "raise":
            raise ValueError("no")
        else:
            message.enable_async()  # and no handler ever answers

    options: dict[str, Any] = {"max_attempts": 2, "requeue_delay": 0.0, "backoff": False}
    with reader_on(broker, topic, handle, **options) as reader:
        wait_for(lambda: reader.stats().given_up == 1 and reader.stats().finished == 1)
    assert tried == [1, 2]
