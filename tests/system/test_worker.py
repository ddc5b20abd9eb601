"""The Worker inside one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnsq_lite import BackoffOptions, Message, Reader, Requeue, Worker, Writer, errors
from gnsq_lite.contrib import give_up
from gnsq_lite.worker import Handler, Middleware
from tests.programs import wait_for
from tests.servers import ServerHandle

QUICK: dict[str, Any] = {"requeue_delay": 0.0, "backoff": False, "reconnect_delay": 0.05}


def worker_on(broker: ServerHandle, **options: Any) -> Worker:
    return Worker(nsqd_tcp_addresses=broker.tcp_address, **{**QUICK, **options})


@pytest.mark.rule("CFG-6")
def test_one_worker_calls_many_functions_and_returns_them_unchanged(broker: ServerHandle, topic: str) -> None:
    worker = worker_on(broker)
    seen: list[tuple[str, bytes]] = []

    @worker.handler(topic + "a", "ch")
    @worker.handler(topic + "b", "ch", concurrency=4)
    def handle(message: Message) -> str:
        """Doc."""
        seen.append((message.topic, message.body))
        if len(seen) == 2:
            worker.stop()
        return "returned"

    broker.publish(topic + "a", b"1")
    broker.publish(topic + "b", b"2")
    assert worker.run() == 0
    assert sorted(seen) == [(topic + "a", b"1"), (topic + "b", b"2")]
    assert [stats.finished for stats in worker.stats()] == [1, 1]
    assert [reader._settings.max_in_flight for reader in worker.readers] == [4, 1]

    class Plain:
        topic, body = "t", b"x"

    assert handle(Plain()) == "returned"  # type: ignore[arg-type]
    assert handle.__doc__ == "Doc."


@pytest.mark.rule("BACK-1")
@pytest.mark.parametrize(
    ("backoff", "ratio"),
    [
        (None, 0.5),
        (True, 0.5),
        (BackoffOptions(unit=2.0), 0.5),
        (BackoffOptions(failure_ratio=0.0), 0.0),
        (BackoffOptions(failure_ratio=0.2), 0.2),
    ],
)
def test_the_default_failure_ratio_of_a_worker_is_a_half(
    backoff: BackoffOptions | bool | None, ratio: float, broker: ServerHandle, topic: str
) -> None:
    """Failures come first and last: with a ratio above 0 fewer than ten outcomes start no backoff."""
    worker = worker_on(broker, backoff=backoff, max_attempts=3)
    states: list[str] = []

    @worker.handler(topic, "ch", on_give_up="log")
    def handle(message: Message) -> None:
        if message.body == b"bad" and message.attempts == 1:
            raise ValueError
        states.append(worker.stats()[0].state)
        worker.stop()

    broker.publish(topic, b"bad")
    assert worker.run() == 0
    assert worker.readers[0]._settings.backoff.failure_ratio == ratio
    assert states == ["backoff" if ratio == 0.0 else "connected"]


def test_handlers_that_run_at_once_find_the_started_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, seen = Worker(nsqd_tcp_addresses="127.0.0.1:1"), list[list[str]]()
    start = Reader.start

    def start_and_look(reader: Reader, *, block: bool) -> None:
        start(reader, block=block)
        seen.append([each.channel for each in worker.stats()])

    monkeypatch.setattr(Reader, "start", start_and_look)
    worker.add(Handler("t", "one", print))
    worker.add(Handler("t", "two", print))
    worker.start()
    worker.close()
    assert seen == [["one"], ["one", "two"]]


def test_options_of_a_handler_override_options_of_the_worker() -> None:
    worker = Worker(max_in_flight=7, max_attempts=2, nsqd_tcp_addresses="default:1")
    worker.add(Handler("t", "one", print))
    worker.add(Handler("t", "two", print, {"max_in_flight": 3, "nsqd_tcp_addresses": "own:1"}))
    one, two = (handler.merged(worker.defaults) for handler in worker.handlers)
    assert (one["max_in_flight"], one["nsqd_tcp_addresses"]) == (7, "default:1")
    assert (two["max_in_flight"], two["nsqd_tcp_addresses"], two["max_attempts"]) == (3, "own:1", 2)


@pytest.mark.parametrize(
    ("topic", "options", "error"),
    [
        ("t\n", {}, errors.InvalidName),
        ("t", {"max_inflight": 1}, errors.OptionError),
        ("t", {"concurrency": 0}, errors.OptionError),
        ("t", {"on_give_up": "topic:"}, errors.OptionError),
        ("t", {"on_give_up": "topic:a b"}, errors.InvalidName),
        ("t", {"on_give_up": "nowhere"}, errors.OptionError),
        ("t", {"on_give_up": 5}, errors.OptionError),
    ],
    ids=str,
)
def test_an_invalid_handler_is_refused_at_its_decorator(
    topic: str, options: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        Worker().handler(topic, "ch", **options)(print)
    with pytest.raises(errors.OptionError, match=r"max_attemps.*max_attempts"):
        Worker(max_attemps=1)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "30", None, True])
def test_an_invalid_drain_timeout_is_refused(seconds: Any) -> None:
    with pytest.raises(errors.OptionError, match="drain_timeout"):
        Worker(drain_timeout=seconds)
    worker = Worker()
    worker.add(Handler("t", "ch", print))
    worker.drain_timeout = seconds
    with pytest.raises(errors.OptionError, match="drain_timeout"):
        worker.check()
    assert worker.readers == ()


def test_middleware_that_is_a_class_is_refused() -> None:
    wrong: Any = Middleware
    with pytest.raises(errors.OptionError, match="instances"):
        Worker(middleware=[wrong])


def test_a_channel_has_one_handler_and_a_worker_without_any_does_not_run() -> None:
    worker = Worker()
    worker.add(Handler("t", "ch", print))
    with pytest.raises(errors.OptionError, match="print already handles this channel"):
        worker.add(Handler("t", "ch", len))
    with pytest.raises(errors.OptionError, match=r"@worker\.handler"):
        Worker().run()


def test_topics_are_selected_and_an_unknown_one_is_refused() -> None:
    worker = Worker()
    for name in ("a", "b"):
        worker.add(Handler(name, "ch", print))
    with pytest.raises(errors.OptionError, match="topics with a handler: a, b"):
        worker.select(["c"])
    worker.select(["b"])
    assert [handler.topic for handler in worker.handlers] == ["b"]


# -- the end


@pytest.mark.rule("CLOSE-1")
def test_the_first_stop_drains_and_reports_it(broker: ServerHandle, topic: str) -> None:
    worker = worker_on(broker)
    done: list[bytes] = []

    @worker.handler(topic, "ch")
    def slow(message: Message) -> None:
        worker.stop()
        time.sleep(0.5)
        done.append(message.body)

    broker.publish(topic, b"x")
    assert worker.run() == 0
    assert done == [b"x"]
    wait_for(lambda: broker.stats(topic, "ch")["depth"] == 0)


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("how", ["time limit", "second stop"])
def test_messages_that_cannot_be_drained_are_requeued_at_once_with_exit_code_3(
    broker: ServerHandle, topic: str, how: str
) -> None:
    worker = worker_on(broker)
    worker.drain_timeout = 0.5 if how == "time limit" else 60
    release = threading.Event()

    @worker.handler(topic, "ch", max_in_flight=5, concurrency=1)
    def stuck(message: Message) -> None:
        worker.stop()
        release.wait(30)

    broker.publish(topic, b"1", b"2", b"3")
    if how == "second stop":
        second = threading.Timer(1.0, worker.stop)
        second.start()
    began = time.monotonic()
    code = worker.run()
    assert time.monotonic() - began < 15
    assert code == 3
    wait_for(lambda: broker.stats(topic, "ch")["depth"] == 3)
    release.set()


def test_an_error_that_no_retry_can_fix_drains_the_others_and_is_raised(broker: ServerHandle, topic: str) -> None:
    worker = worker_on(broker)
    worker.add(Handler(topic, "ch", print))
    worker.add(Handler(topic, "tls", print, {"tls": True}))
    with pytest.raises(errors.TLSNotGranted):
        worker.run()
    assert [stats.state for stats in worker.stats()] == ["closed", "closed"]


# -- give up


@pytest.mark.rule("MSG-4")
def test_a_message_that_is_given_up_is_kept_in_the_named_store(
    broker: ServerHandle, topic: str, tmp_path: Path
) -> None:
    worker = worker_on(broker, max_attempts=1)

    def fail(message: Message) -> None:
        raise Requeue(0.0, backoff=False)

    called: list[bytes] = []
    worker.add(Handler(topic, "to_topic", fail, {"on_give_up": f"topic:{topic}.dead"}))
    worker.add(Handler(topic, "to_directory", fail, {"on_give_up": f"directory:{tmp_path / 'dead'}"}))
    worker.add(Handler(topic, "to_callable", fail, {"on_give_up": lambda message: called.append(message.body)}))
    worker.add(Handler(topic, "to_log", fail, {"on_give_up": "log"}))
    broker.prepare(topic, "to_topic", "to_directory", "to_callable", "to_log")
    broker.prepare(f"{topic}.dead")
    assert not (tmp_path / "dead").exists()  # nothing is made before it runs
    broker.publish(topic, b"poison")
    running = threading.Thread(target=worker.run)
    running.start()
    wait_for(lambda: len(worker.readers) == 4)  # started, all of them
    wait_for(lambda: all(stats.given_up == 1 for stats in worker.stats()))
    worker.stop()
    running.join(20)
    assert not running.is_alive()
    assert broker.stats(f"{topic}.dead")["depth"] == 1
    assert [kept.body for kept in give_up.read(tmp_path / "dead")] == [b"poison"]
    assert called == [b"poison"]
    assert [writer.stats().state for writer in worker.writers] == ["closed"]


# -- middleware


class Noting(Middleware):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def before(self, message: Any) -> None:
        self.notes.append(f"{self.name} before")

    def after(self, message: Any) -> None:
        self.notes.append(f"{self.name} after")

    def failed(self, message: Any, error: BaseException) -> None:
        self.notes.append(f"{self.name} failed {type(error).__name__}")

    def started(self, worker: Worker) -> None:
        self.notes.append(f"{self.name} started")

    def stopped(self, worker: Worker) -> None:
        self.notes.append(f"{self.name} stopped")


def test_the_first_middleware_is_the_outermost(broker: ServerHandle, topic: str) -> None:
    notes: list[str] = []
    worker = worker_on(broker, middleware=[Noting("outer", notes), Noting("inner", notes)])

    @worker.handler(topic, "ch")
    def handle(message: Message) -> None:
        notes.append(f"handler {message.attempts}")
        if message.attempts == 1:
            raise ValueError("not today")
        worker.stop()

    broker.prepare(topic, "ch")
    broker.publish(topic, b"x")
    assert worker.run() == 0
    around = ["outer before", "inner before"]
    assert notes == [
        *("outer started", "inner started"),
        *(*around, "handler 1", "inner failed ValueError", "outer failed ValueError"),
        *(*around, "handler 2", "inner after", "outer after"),
        *("inner stopped", "outer stopped"),
    ]


def wrapped_by(middleware: Middleware, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return middleware.wrap(function, Handler("t", "ch", function))


def test_middleware_without_hooks_leaves_the_function_itself() -> None:
    assert wrapped_by(Middleware(), print) is print


def test_an_exception_of_before_or_after_fails_the_message_but_not_one_of_failed() -> None:
    notes: list[str] = []

    class Breaks(Noting):
        def before(self, message: Any) -> None:
            if message == "before":
                raise KeyError(message)

        def after(self, message: Any) -> None:
            raise LookupError(message)

        def failed(self, message: Any, error: BaseException) -> None:
            raise RuntimeError("no matter")

    def fail(message: Any) -> None:
        raise ValueError(message)

    outer = Noting("outer", notes)
    call = outer.wrap(wrapped_by(Breaks("x", notes), lambda message: notes.append("called")), Handler("t", "c", print))
    with pytest.raises(KeyError):
        call("before")
    with pytest.raises(LookupError):
        call("after")
    with pytest.raises(ValueError):
        wrapped_by(Breaks("x", notes), fail)("x")
    assert notes == ["outer before", "outer failed KeyError", "outer before", "called", "outer failed LookupError"]


def test_a_handler_may_publish_with_the_workers_writer(broker: ServerHandle, topic: str) -> None:
    worker = worker_on(broker)

    @worker.handler(topic, "ch")
    def relay(message: Message) -> None:
        worker.writer().publish(topic + "out", message.body)
        worker.stop()

    broker.publish(topic, b"x")
    assert worker.run() == 0
    assert broker.stats(topic + "out")["depth"] == 1
    assert len(worker.writers) == 1
    with pytest.raises(errors.ClosedError):
        worker.writer().publish(topic, b"late")
    with pytest.raises(errors.ClosedError):
        worker.configure(max_in_flight=2)


def test_batches_work_through_middleware(broker: ServerHandle, topic: str) -> None:
    notes: list[str] = []
    worker = worker_on(broker, middleware=[Noting("m", notes)])
    sizes: list[int] = []

    @worker.handler(topic, "ch", batch_size=3, batch_wait=5.0, max_in_flight=3)
    def handle(batch: list[Message]) -> None:
        sizes.append(len(batch))
        if sum(sizes) == 3:
            worker.stop()

    broker.prepare(topic, "ch")
    broker.publish(topic, b"1", b"2", b"3")
    assert worker.run() == 0
    assert sum(sizes) == 3
    assert notes.count("m before") == notes.count("m after") == len(sizes)
    with Writer(broker.tcp_address) as writer:
        assert writer.is_idle


@pytest.mark.rule("CLOSE-1")
def test_a_worker_drains_if_the_system_gives_no_more_threads(broker: ServerHandle, topic: str) -> None:
    worker = worker_on(broker)

    @worker.handler(topic, "ch")
    def handle(message: Message) -> None:
        threading.stack_size(1 << 45)
        worker.stop()

    broker.publish(topic, b"x")
    try:
        assert worker.run() == 0
    finally:
        threading.stack_size(0)
    assert broker.stats(topic, "ch")["depth"] == 0
