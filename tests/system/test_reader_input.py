"""Invalid arguments of a Reader, and handlers that get lists."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import gevent
import pytest

from gnsq_lite import Message, Reader, Requeue, Worker, Writer, errors
from gnsq_lite.broker import Broker
from gnsq_lite.keywords import is_async
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.clients import POOLS, channel, reader_on

# -- bad input


@pytest.mark.rule("CFG-1")
@pytest.mark.parametrize(
    "wrong",
    [
        {"max_in_flight": -1},
        {"max_in_flight": 1.5},
        {"max_in_flight": True},
        {"concurrency": 0},
        {"handler_pool": "process"},
        {"heartbeat_interval": -1},
        {"heartbeat_interval": 0},
        {"sample_rate": 100},
        {"msg_timeout": 0},
        {"output_buffer_size": 1},
        {"compression": "gzip"},
        {"max_attempts": -1},
        {"requeue_delay": -1},
        {"requeue_delay": 1000.0},
        {"batch_size": 0},
        {"batch_wait": 1.0},
        {"handler_pool": "inline", "concurrency": 2},
        {"lookupd_poll_interval": 0},
        {"max_inflight": 1},
        {"tls": "yes"},
        {"backoff": 3},
        {"dialect": "kafka"},
        {"ordered": True, "dialect": "nsq"},
        {"nsqd_tcp_addresses": "host:port"},
        {"lookupd_http_addresses": ["ftp://x"]},
        {"lookupd_http_addresses": 4161},
        {"lookupd_http_addresses": "http://"},
        {"on_give_up": "log"},
        {"on_error": "log"},
        {"address_map": "127.0.0.1"},
        {"allowed_addresses": ["127.0.0.1"]},
    ],
    ids=str,
)
def test_bad_options_fail_at_construction(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.OptionError) as caught:
        Reader("t", "ch", print, **wrong)
    assert caught.value.name in str(wrong)


async def awaited_by_nobody(*args: Any) -> None:
    raise AssertionError


def never_iterated(*args: Any) -> Iterator[None]:
    yield


async def neither(*args: Any) -> AsyncIterator[None]:
    yield


class AsyncCall:
    async def __call__(self, *args: Any) -> None:
        raise AssertionError


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize(
    "function",
    [awaited_by_nobody, never_iterated, neither, AsyncCall(), functools.partial(awaited_by_nobody, 1)],
    ids=["async def", "generator", "async generator", "async __call__", "partial"],
)
def test_an_async_or_generator_function_is_refused_except_as_async_handler(function: Any) -> None:
    # A call would run no code of the function, so the Reader would finish each message unhandled.
    if not is_async(function):
        with pytest.raises(errors.OptionError, match=r"handler=.*(await|yield)"):
            Reader("t", "ch", function)
        with pytest.raises(errors.OptionError, match=r"handler=.*(await|yield)"):
            Worker().handler("t", "ch")(function)
    for option in ("on_give_up", "on_error", "on_failure", "on_connected", "allowed_addresses", "address_map"):
        with pytest.raises(errors.OptionError, match=f"{option}=.*(await|yield)"):
            Reader("t", "ch", print, **{option: function})
    with pytest.raises(errors.OptionError, match=r"allowed_addresses=.*(await|yield)"):
        Writer(allowed_addresses=function)
    with pytest.raises(errors.OptionError, match=r"on_give_up=.*(await|yield)"):
        Worker(on_give_up=function)


@pytest.mark.rule("MSG-1")
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("pool", POOLS)
def test_a_handler_that_returns_a_coroutine_fails(
    broker: ServerHandle, topic: str, pool: Any, batch_size: int | None
) -> None:
    failures: list[str] = []

    def handle(given: Any) -> Any:  # like a plain wrapper around an async def
        return awaited_by_nobody(given)

    options: dict[str, Any] = {"handler_pool": pool, "batch_size": batch_size, "backoff": False, "requeue_delay": 60.0}
    with reader_on(broker, topic, handle, on_failure=lambda m, e: failures.append(str(e)), **options) as reader:
        broker.publish(topic, b"x")
        wait_for(lambda: failures)
        assert failures == ["the handler returned a coroutine, which is never run"]
        assert reader.stats().finished == 0


@pytest.mark.rule("MSG-4")
def test_a_message_is_not_given_up_if_on_give_up_returns_a_coroutine(broker: ServerHandle, topic: str) -> None:
    failures: list[str] = []

    def fails(message: Message) -> None:
        raise ValueError("no")

    def give_up(message: Message) -> Any:
        return awaited_by_nobody(message)

    options: dict[str, Any] = {"max_attempts": 1, "requeue_delay": 0.0, "backoff": False, "on_give_up": give_up}
    with reader_on(broker, topic, fails, on_failure=lambda m, e: failures.append(str(e)), **options) as reader:
        broker.publish(topic, b"x")
        wait_for(lambda: "on_give_up returned a coroutine, which is never run" in failures)
        assert reader.stats().finished == reader.stats().given_up == 0


def test_bad_names_and_handlers_fail_at_construction() -> None:
    with pytest.raises(errors.InvalidName):
        Reader("t\n", "ch", print)
    with pytest.raises(errors.InvalidName):
        Reader("t", "ch ", print)
    with pytest.raises(errors.OptionError, match="callable"):
        Reader("t", "ch", None)  # type: ignore[arg-type]
    with pytest.raises(errors.OptionError, match="delay"):
        Requeue("5")  # type: ignore[arg-type]


def test_concurrency_above_max_in_flight_warns() -> None:
    with pytest.warns(RuntimeWarning, match="raise max_in_flight"):
        Reader("t", "ch", print, max_in_flight=2, concurrency=10)


def test_no_address_means_the_environment_then_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NSQ_LOOKUPD_HTTP_ADDRESSES", raising=False)
    monkeypatch.delenv("NSQD_TCP_ADDRESSES", raising=False)
    assert [str(e) for e in Reader("t", "c", print)._settings.endpoints] == ["127.0.0.1:4150"]
    monkeypatch.setenv("NSQD_TCP_ADDRESSES", " ")
    monkeypatch.setenv("NSQ_LOOKUPD_HTTP_ADDRESSES", " , ")
    assert [str(e) for e in Reader("t", "c", print)._settings.endpoints] == ["127.0.0.1:4150"]
    monkeypatch.setenv("NSQD_TCP_ADDRESSES", "a:1, b:2")
    assert [str(e) for e in Reader("t", "c", print)._settings.endpoints] == ["a:1", "b:2"]
    monkeypatch.setenv("NSQ_LOOKUPD_HTTP_ADDRESSES", "l:1")
    reader = Reader("t", "c", print)
    assert (list(reader._settings.endpoints), list(reader._settings.lookupds)) == ([], ["l:1"])
    reader = Reader("t", "c", print, nsqd_tcp_addresses="mine:5")
    assert [str(e) for e in reader._settings.endpoints] == ["mine:5"]


@pytest.mark.parametrize("option", ["nsqd_tcp_addresses", "lookupd_http_addresses"])
def test_an_address_of_only_separators_is_refused(option: str) -> None:
    """If the Reader accepted such an address, it would wait for an nsqd permanently."""
    with pytest.raises(errors.OptionError, match="names no address") as caught:
        Reader("t", "c", print, **{option: " , "})
    assert caught.value.name == option


def test_no_log_line_has_the_secret(embedded: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Reader("t", "ch", print, nsqd_tcp_addresses=embedded.nsqd_tcp_address, auth_secret="hunter2") as reader:
        wait_for(lambda: reader.stats().connections)
        assert "hunter2" not in repr(reader.stats())
        assert "hunter2" not in repr(reader._settings)
    assert "hunter2" not in caplog.text


# -- batches


def test_a_batch_handler_gets_lists_and_each_message_may_be_answered(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, *[b"%d" % n for n in range(20)])
    sizes: list[int] = []
    bad: list[bytes] = []

    def handler(batch: list[Message]) -> None:
        sizes.append(len(batch))
        for message in batch:
            if message.body == b"7" and message.attempts == 1:
                bad.append(message.body)
                message.requeue(0.0, backoff=False)

    options: dict[str, Any] = {"batch_size": 8, "batch_wait": 0.2, "max_in_flight": 20}
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: reader.stats().finished == 20)
        assert reader.stats().requeued == 1
    assert max(sizes) <= 8
    assert sum(sizes) == 21
    assert bad == [b"7"]


def test_if_a_batch_handler_raises_its_unanswered_messages_are_requeued(broker: ServerHandle, topic: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"a", b"b", b"c")
    rounds: list[list[bytes]] = []

    def handler(batch: list[Message]) -> None:
        rounds.append(sorted(m.body for m in batch))
        for message in batch:
            if message.body == b"a" or message.attempts > 1:
                message.finish()
        if any(m.attempts == 1 for m in batch):
            raise ValueError("some failed")

    options: dict[str, Any] = {"batch_size": 3, "batch_wait": 0.2, "max_in_flight": 3, "requeue_delay": 0.0}
    with reader_on(broker, topic, handler, backoff=False, **options) as reader:
        wait_for(lambda: reader.stats().finished == 3)
        assert sum(batch.count(b"a") for batch in rounds) == 1


@pytest.mark.parametrize("pool", ["greenlet", "inline"])
def test_a_handler_may_block_with_a_list_that_batch_wait_completed(broker: ServerHandle, topic: str, pool: str) -> None:
    broker.prepare(topic, "ch")
    broker.publish(topic, b"first")  # with RDY 1
    sizes: list[int] = []

    def handler(batch: list[Message]) -> None:
        sizes.append(len(batch))
        gevent.sleep(0.01)

    options: dict[str, Any] = {"batch_size": 8, "batch_wait": 0.5, "max_in_flight": 20, "handler_pool": pool}
    with reader_on(broker, topic, handler, **options) as reader:
        wait_for(lambda: [one["ready_count"] for one in channel(broker, topic)["clients"]] == [20])
        broker.publish(topic, b"a", b"b")
        wait_for(lambda: reader.stats().finished == 3)
        assert (sizes, reader.stats().requeued) == ([1, 2], 0)
