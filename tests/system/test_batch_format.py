"""Handlers that get each batch as a pyarrow.RecordBatch."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest

from gnsq_lite import Message, Reader, Requeue, Worker
from gnsq_lite.consume.calls import current_message
from gnsq_lite.contrib.inbox import Inbox
from gnsq_lite.errors import OptionError
from gnsq_lite.message import finish_all, send_back
from gnsq_lite.net.os_threads import is_patched
from gnsq_lite.recording.receiver import RowsReader
from gnsq_lite.worker.app import Middleware
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.clients import POOLS, channel, reader_on

pa = pytest.importorskip("pyarrow")

COLUMNS = ["topic", "channel", "nsqd", "id", "timestamp", "attempts", "body"]


def published(broker: ServerHandle, topic: str, count: int) -> list[bytes]:
    """Publish *count* bodies to a topic with a channel, and return the bodies."""
    broker.prepare(topic, "ch")
    bodies = [b"%d" % n for n in range(count)]
    broker.publish(topic, *bodies)
    return bodies


def columns(**options: Any) -> dict[str, Any]:
    return {"batch_size": 8, "batch_wait": 0.2, "batch_format": "pyarrow", "max_in_flight": 40, **options}


@pytest.mark.parametrize("pool", POOLS)
def test_a_handler_gets_columns_and_its_messages_are_finished(broker: ServerHandle, topic: str, pool: str) -> None:
    bodies = published(broker, topic, 50)
    got: list[Any] = []
    with reader_on(broker, topic, got.append, **columns(handler_pool=pool)) as reader:
        wait_for(lambda: reader.stats().finished == 50)
        assert channel(broker, topic)["in_flight_count"] == 0
    assert all(batch.schema.names == COLUMNS and 1 <= batch.num_rows <= 8 for batch in got)
    rows = [row for batch in got for row in batch.to_pylist()]
    assert sorted(row["body"] for row in rows) == sorted(bodies)
    assert len({row["id"] for row in rows}) == 50
    assert {(row["topic"], row["channel"], row["attempts"]) for row in rows} == {(topic, "ch", 1)}
    assert all(abs(row["timestamp"].timestamp() - time.time()) < 600 for row in rows)


@pytest.mark.skipif(is_patched(), reason="a monkey-patched process cannot run async handlers")
def test_an_async_handler_gets_columns(broker: ServerHandle, topic: str) -> None:
    published(broker, topic, 20)
    got: list[Any] = []

    async def handler(batch: Any) -> None:
        got.append(batch)

    with reader_on(broker, topic, handler, **columns()) as reader:
        wait_for(lambda: reader.stats().finished == 20)
    assert sum(batch.num_rows for batch in got) == 20


@pytest.mark.parametrize("kind", [list, pa.array])
def test_a_mask_requeues_some_rows_and_finishes_the_others(broker: ServerHandle, topic: str, kind: Any) -> None:
    published(broker, topic, 30)
    seen: Counter[bytes] = Counter()

    def handler(batch: Any) -> None:
        bodies = batch.column("body").to_pylist()
        seen.update(bodies)
        mask = [body.endswith(b"7") and seen[body] == 1 for body in bodies]
        if any(mask):
            raise Requeue(0.0, backoff=False, rows=kind(mask))

    with reader_on(broker, topic, handler, **columns(concurrency=1)) as reader:
        wait_for(lambda: reader.stats().finished == 30)
        assert reader.stats().requeued == 3
    assert {body: count for body, count in seen.items() if count != 1} == {b"7": 2, b"17": 2, b"27": 2}


@pytest.mark.parametrize("mask", [lambda n: [True] * (n + 1), lambda n: [None] * n, lambda n: pa.array([], "bool")])
def test_a_mask_that_does_not_fit_fails_all_rows(broker: ServerHandle, topic: str, mask: Any) -> None:
    published(broker, topic, 3)
    errors: list[BaseException] = []

    def handler(batch: Any) -> None:
        if batch.column("attempts").to_pylist()[0] == 1:
            raise Requeue(0.0, rows=mask(batch.num_rows))

    options = columns(requeue_delay=0.0, backoff=False, on_failure=lambda message, error: errors.append(error))
    options["batch_size"] = 1
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: reader.stats().finished == 3)
        assert reader.stats().requeued == 3
        wait_for(lambda: len(errors) == 3)
    assert all(isinstance(error, OptionError) and "rows=" in str(error) for error in errors)


@pytest.mark.parametrize("form", ["list", "pyarrow"])
def test_rows_over_max_attempts_are_given_up_one_by_one(broker: ServerHandle, topic: str, form: str) -> None:
    published(broker, topic, 12)
    given_up: list[Message] = []
    handled: list[bytes] = []

    def handler(batch: Any) -> None:
        bodies = [message.body for message in batch] if form == "list" else batch.column("body").to_pylist()
        if b"5" in bodies:
            raise ValueError("one row is bad")
        handled.extend(bodies)

    options = columns(
        batch_format=form, batch_size=1, max_attempts=2, requeue_delay=0.0, backoff=False, on_give_up=given_up.append
    )
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: reader.stats().finished == 12)
        assert reader.stats().given_up == 1
    assert [(message.body, message.attempts) for message in given_up] == [(b"5", 3)]
    assert len(handled) == 11


def test_rows_that_time_out_come_again(broker: ServerHandle, topic: str) -> None:
    published(broker, topic, 5)
    calls: list[list[int]] = []
    release = threading.Event()

    def handler(batch: Any) -> None:
        calls.append(batch.column("attempts").to_pylist())
        if len(calls) == 1:
            release.wait(30)

    options = columns(handler_pool="thread", concurrency=2, msg_timeout=1.0, max_attempts=0, backoff=False)
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: reader.stats().expired >= 1 and reader.stats().finished == 5)
        release.set()
        wait_for(lambda: not reader.stats().handlers_running)
        assert (reader.stats().in_flight, reader.stats().expired) == (0, len(calls[0]))
    attempts = sorted(attempt for each in calls[1:] for attempt in each)
    assert attempts == [1] * (5 - len(calls[0])) + [2] * len(calls[0])


def test_touch_keeps_the_rows_of_a_slow_handler(broker: ServerHandle, topic: str) -> None:
    published(broker, topic, 5)
    seen: Counter[bytes] = Counter()

    def handler(batch: Any) -> None:
        seen.update(batch.column("body").to_pylist())
        time.sleep(5.0)

    options = columns(handler_pool="thread", batch_size=5, msg_timeout=2.0, touch=True, time_limit=60.0)
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: reader.stats().finished == 5, 60)
        assert reader.stats().expired == 0
    assert set(seen.values()) == {1}


def test_a_time_limit_fails_each_row(broker: ServerHandle, topic: str) -> None:
    published(broker, topic, 4)
    given_up: list[bytes] = []
    done = threading.Event()

    def waits(batch: Any) -> None:
        done.wait(30)

    options = columns(
        handler_pool="thread",
        max_attempts=1,
        requeue_delay=0.0,
        backoff=False,
        time_limit=1.0,
        on_give_up=lambda message: given_up.append(message.body),
    )
    with reader_on(broker, topic, waits, **options) as reader:
        wait_for(lambda: reader.stats().finished == 4, 30)
        done.set()
    assert sorted(given_up) == [b"0", b"1", b"2", b"3"]


def test_a_closing_reader_requeues_the_rows_that_no_handler_has_begun(broker: ServerHandle, topic: str) -> None:
    published(broker, topic, 30)
    begun, end = threading.Event(), threading.Event()

    def handler(batch: Any) -> None:
        begun.set()
        end.wait(30)

    with reader_on(broker, topic, handler, **columns(handler_pool="thread", concurrency=1)) as reader:
        assert begun.wait(30)
        wait_for(lambda: reader.stats().received == 30)
        reader.close(wait=False)
        wait_for(lambda: reader.stats().requeued)
        end.set()
    finished = reader.stats().finished
    assert 1 <= finished <= 8
    assert reader.stats().requeued == 30 - finished
    wait_for(lambda: channel(broker, topic)["depth"] == 30 - finished)


@pytest.mark.parametrize("coding", [{"compression": "snappy"}, {"compression": "deflate"}])
def test_columns_come_through_compression(broker: ServerHandle, topic: str, coding: dict[str, Any]) -> None:
    bodies = published(broker, topic, 40)
    got: list[Any] = []
    with reader_on(broker, topic, got.append, **columns(**coding)) as reader:
        wait_for(lambda: reader.stats().finished == 40)
    assert sorted(body for batch in got for body in batch.column("body").to_pylist()) == sorted(bodies)


def test_running_calls_and_current_message_name_the_first_row(broker: ServerHandle, topic: str) -> None:
    published(broker, topic, 3)
    seen: list[Any] = []
    begun, end = threading.Event(), threading.Event()

    def handler(batch: Any) -> None:
        seen.append((batch.column("id")[0].as_py(), current_message()))
        begun.set()
        end.wait(30)

    with reader_on(broker, topic, handler, **columns(batch_size=3, handler_pool="thread")) as reader:
        assert begun.wait(30)
        calls = reader.running()
        end.set()
        wait_for(lambda: reader.stats().finished == 3)
    (first, message) = seen[0]
    assert (message.id.decode(), message.has_responded) == (first, True)
    assert calls[0].id == first
    assert 1 <= calls[0].messages <= 3


@pytest.mark.parametrize("answer", [finish_all, send_back])
def test_an_answer_to_rows_after_their_timeout_ends_nothing(broker: ServerHandle, topic: str, answer: Any) -> None:
    published(broker, topic, 20)
    held: list[Message] = []

    def hold(message: Message) -> None:
        message.enable_async()
        held.append(message)

    options: dict[str, Any] = {"handler_pool": "inline", "msg_timeout": 1.0, "max_in_flight": 40, "max_attempts": 0}
    with RowsReader(topic, "ch", hold, nsqd_tcp_addresses=broker.tcp_address, **options) as reader:
        wait_for(lambda: reader.stats().expired >= 20)
        late, held[:] = held.copy(), []
        answer(late)  # as a recorder does after a write that took long

        def is_empty() -> bool:
            finish_all([held.pop() for _ in range(len(held))])
            there = channel(broker, topic)
            return not (there["depth"] + there["in_flight_count"] + there["deferred_count"])

        wait_for(is_empty, 30)
        assert reader.stats().connections[0].open_for > 1.0  # the same connection
    assert reader.stats().error is None


# -- what cannot be combined


@pytest.mark.parametrize("wrong", [{"batch_format": "pyarrow"}, {"batch_format": "pandas", "batch_size": 3}])
def test_a_wrong_batch_format_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="batch_format"):
        Reader("t", "c", print, **wrong)


def test_decode_once_and_middleware_of_messages_are_refused_at_registration() -> None:
    worker = Worker(nsqd_tcp_addresses="127.0.0.1:1")
    given: Any = {"batch_size": 10, "batch_format": "pyarrow"}
    with pytest.raises(OptionError, match="decode"):
        worker.handler("t", "c", decode=bytes, **given)(print)
    once = Inbox(lambda: None).once(key=lambda message: message.id)
    with pytest.raises(OptionError, match="once"):
        worker.handler("t", "c", **given)(once(lambda message, connection: None))
    worker.middleware.append(Middleware())
    with pytest.raises(OptionError, match="the middleware Middleware"):
        worker.handler("t", "c", **given)(print)


def test_a_middleware_may_take_columns() -> None:
    class Counts(Middleware[Any]):
        takes_columns = True
        rows = 0

        def after(self, message: Any) -> None:
            self.rows += message.num_rows

    worker, counts = Worker(nsqd_tcp_addresses="127.0.0.1:1"), Counts()
    worker.middleware.append(counts)
    got: list[Any] = []

    @worker.handler("t", "c", batch_size=10, batch_format="pyarrow")
    def handler(batch: Any) -> None:
        got.extend(batch.column("body").to_pylist())

    outcomes = worker.deliver(handler, [b"a", b"b"])
    assert [outcome.kind for outcome in outcomes] == ["finish", "finish"]
    assert (got, counts.rows) == ([b"a", b"b"], 2)
