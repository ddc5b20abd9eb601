"""Exceptions of the user's hooks and of logging do not end a Reader.  Lost answers are counted."""

from __future__ import annotations

import logging
import time
from typing import Any

import gevent
import pytest

from gnsq_lite import BackoffOptions, Message, Writer
from gnsq_lite.net.os_threads import is_patched, native_ident
from tests.programs import wait_for
from tests.servers import ServerHandle
from tests.system.clients import QUICK, channel, reader_on


def odd_timeout(*args: Any) -> None:
    raise gevent.Timeout(1)  # not an Exception


def error_in_a_hook(*args: Any) -> None:
    raise ValueError("an error in the hook")


@pytest.mark.parametrize("raises", [odd_timeout, error_in_a_hook])
@pytest.mark.rule("CONN-3")
@pytest.mark.parametrize("hook", ["on_connected", "on_disconnected", "on_error", "on_failure", "on_backoff"])
def test_a_hook_that_raises_ends_nothing(broker: ServerHandle, topic: str, hook: str, raises: Any) -> None:
    seen: list[tuple[bytes, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.body, message.attempts))
        if message.attempts == 1:
            raise ValueError("once")

    options: dict[str, Any] = {
        "requeue_delay": 0.0,
        "backoff": BackoffOptions(unit=0.05, longest=0.1),
        hook: raises,
    }
    with reader_on(broker, topic, handle, **options) as reader:
        broker.publish(topic, b"before")
        wait_for(lambda: (b"before", 2) in seen)
        wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0)
        broker.stop()
        wait_for(lambda: not reader.stats().connections)
        broker.restart()
        broker.publish(topic, b"after")
        wait_for(lambda: (b"after", 2) in seen)


@pytest.mark.parametrize("pool", ["greenlet", "thread"])
def test_on_failure_runs_where_the_handler_ran_and_other_hooks_in_the_loop(
    broker: ServerHandle, topic: str, pool: Any
) -> None:
    threads: dict[str, set[int]] = {}

    def note(name: str) -> None:
        threads.setdefault(name, set()).add(native_ident())

    def handle(message: Message) -> None:
        note("handler")
        (gevent.sleep if pool == "greenlet" else time.sleep)(1.5)
        if message.attempts == 1:
            raise ValueError("once")

    names = ("on_connected", "on_disconnected", "on_error", "on_failure", "on_backoff")
    hooks: dict[str, Any] = {name: (lambda *args, name=name: note(name)) for name in names}
    backoff = BackoffOptions(unit=0.05, longest=0.1)
    options = {"requeue_delay": 0.0, "backoff": backoff, "handler_pool": pool}
    with reader_on(broker, topic, handle, **options, **hooks) as reader:
        broker.publish(topic, b"x")
        wait_for(lambda: reader.stats().finished == 1)
        broker.stop()
        wait_for(lambda: set(threads) == {*names, "handler"})
    loop = threads["on_connected"]
    assert len(loop) == 1
    assert all(threads[name] == loop for name in names if name != "on_failure"), threads
    assert threads["on_failure"] <= (loop if is_patched() and pool == "thread" else threads["handler"])


def test_systemexit_in_a_hook_ends_the_reader(broker: ServerHandle, topic: str) -> None:
    def exits(*args: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        reader_on(broker, topic, print, on_connected=exits).start()
    assert caught.value.code == 3
    with Writer(broker.tcp_address) as writer:
        writer.publish(topic, b"the loop still turns")


@pytest.mark.rule("CONN-3")
def test_logging_that_raises_ends_nothing(
    broker: ServerHandle, topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bytes, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.body, message.attempts))
        if message.attempts == 1:
            raise ValueError("once")

    def raises(record: logging.LogRecord) -> bool:
        raise RuntimeError("a filter's mistake")

    for name in ("gnsq_lite.reader", "gnsq_lite.writer"):
        monkeypatch.setattr(logging.getLogger(name), "filters", [raises])
    with (
        reader_on(broker, topic, handle, requeue_delay=0.0, backoff=False) as reader,
        Writer(broker.tcp_address, **QUICK) as writer,
    ):
        writer.publish(topic, b"before")
        wait_for(lambda: (b"before", 2) in seen)
        wait_for(lambda: channel(broker, topic)["in_flight_count"] == 0)
        broker.stop()
        wait_for(lambda: not reader.stats().connections and not writer.stats().connections)
        broker.restart()
        time.sleep(0.05)  # so that the Writer looks whether its connection has ended
        writer.publish(topic, b"after")
        wait_for(lambda: (b"after", 2) in seen)
    assert "a filter's mistake" in capsys.readouterr().err


@pytest.mark.rule("MSG-5")
def test_answers_after_the_loss_of_the_connection_are_counted(broker: ServerHandle, topic: str) -> None:
    held: list[Message] = []

    def hold(message: Message) -> None:
        message.enable_async()
        held.append(message)

    with reader_on(broker, topic, hold, max_in_flight=3) as reader:
        broker.publish(topic, b"1", b"2", b"3")
        wait_for(lambda: len(held) == 3)
        broker.stop()
        wait_for(lambda: not reader.stats().connections)
        held[0].finish()
        held[1].requeue()
        wait_for(lambda: reader.stats().answers_lost == 2)


@pytest.mark.rule("MSG-4")
def test_a_batch_is_requeued_if_on_give_up_raises_gevent_timeout(broker: ServerHandle, topic: str) -> None:
    def fails(messages: list[Message]) -> None:
        raise ValueError("no")

    options: dict[str, Any] = {"max_attempts": 1, "requeue_delay": 0.0, "backoff": False, "on_give_up": odd_timeout}
    with reader_on(broker, topic, fails, batch_size=2, batch_wait=0.05, max_in_flight=2, **options) as reader:
        broker.publish(topic, b"1", b"2")
        wait_for(lambda: reader.stats().requeued >= 6)  # the first attempts, then attempts that could not be given up
        assert reader.stats().given_up == reader.stats().finished == 0


def test_hooks_can_call_the_readers_methods(broker: ServerHandle, topic: str) -> None:
    states: list[tuple[str, str]] = []
    readers: list[Any] = []

    def noting(name: str) -> Any:
        def hook(*args: Any) -> None:
            states.append((name, readers[0].stats().state))
            readers[0].set_max_in_flight(2)

        return hook

    def handle(message: Message) -> None:
        if message.attempts == 1:
            raise ValueError("once")

    names = ("on_connected", "on_disconnected", "on_error", "on_failure", "on_backoff")
    hooks = {name: noting(name) for name in names}
    options: dict[str, Any] = {"requeue_delay": 0.0, "backoff": BackoffOptions(unit=0.05, longest=0.1), **hooks}
    readers.append(reader_on(broker, topic, handle, **options))
    with readers[0] as reader:
        broker.publish(topic, b"x")
        wait_for(lambda: reader.stats().finished == 1)
        broker.stop()
        wait_for(lambda: {name for name, _ in states} == set(names))
        broker.restart()
