"""The live page's document of one Worker process, with a fake clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite import Requeue
from gnsq_lite.http import LookupdClient, NsqdClient
from gnsq_lite.net.depths import EVERY
from gnsq_lite.net.waiting import Completion
from gnsq_lite.stats import ConnectionStats, ReaderStats
from gnsq_lite.supervise.merged import ERRORS
from gnsq_lite.testing import make_message
from gnsq_lite.worker import Handler
from gnsq_lite.worker.depths import depths_of
from gnsq_lite.worker.live import LastErrors, WorkerPages
from tests.fakes import FakeClock


def connection(address: str) -> ConnectionStats:
    return ConnectionStats(address=address, ready=3, share=3, in_flight=2, last_read_ago=0.5)


def stats(topic: str = "t", finished: int = 0, failures: int = 0, state: str = "connected", **more: Any) -> ReaderStats:
    values: dict[str, Any] = {"topic": topic, "channel": "ch", "connections": (connection("n:4150"),), "state": state}
    return ReaderStats(**{**values, "finished": finished, "failures": failures, **more})


class FakeWorker:
    def __init__(self, *topics: str) -> None:
        self.handlers = tuple(Handler(topic, "ch", print) for topic in topics)
        self.stages = SimpleNamespace(drain=Completion())
        self.defaults: dict[str, Any] = {"lookupd_http_addresses": "lookupd:4161"}
        self.now: tuple[ReaderStats, ...] | None = ()
        self.readers: list[Any] = []

    def stats(self, timeout: float) -> tuple[ReaderStats, ...]:
        if self.now is None:
            raise TimeoutError
        return self.now


def pages_of(worker: Any, clock: FakeClock) -> WorkerPages:
    return WorkerPages(worker, lambda: ("", b""), LastErrors(clock), lambda stats: {("n:4150", "t", "ch"): 7}, clock)


def test_a_brief_document_has_no_depths() -> None:
    clock, worker = FakeClock(), FakeWorker("t")
    worker.now = (stats(),)
    assert pages_of(worker, clock).live(brief=False)["handlers"][0]["depth"] == 7
    assert pages_of(worker, clock).live(brief=True)["handlers"][0]["depth"] is None


def test_the_store_of_messages_that_are_given_up_is_shown_unless_it_is_a_function() -> None:
    clock, worker = FakeClock(), FakeWorker("t")
    worker.now = (stats(),)
    for store, shown in (("topic:dead,log", "topic:dead,log"), (print, ""), (None, "")):
        worker.defaults["on_give_up"] = store
        assert pages_of(worker, clock).live(brief=True)["handlers"][0]["kept_in"] == shown


def test_a_blocked_loop_shows_the_last_known_state() -> None:
    clock, worker = FakeClock(), FakeWorker("t", "u")
    pages = pages_of(worker, clock)
    worker.now = (stats("t", finished=5),)
    assert [each["state"] for each in pages.live(False)["handlers"]] == ["connected", "starting"]
    worker.now = None
    told = pages.live(False)
    assert [(each["state"], each["finished"]) for each in told["handlers"]] == [("blocked", 5), ("starting", 0)]
    assert told["processes"][0]["state"] == "blocked"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_the_last_errors_are_kept_and_equal_errors_are_counted() -> None:
    clock = FakeClock()
    errors = LastErrors(clock)
    failing: list[BaseException] = [ValueError("x" * 5000), Unprintable(), Requeue(), Requeue(backoff=False)]

    def handle(message: Any) -> None:
        raise failing[message.attempts - 1]

    call = errors.wrap(handle, Handler("t", "ch", print))
    for attempts in (1, 1, 2, 3, 4):
        clock.advance(1.0)
        with pytest.raises((ValueError, Unprintable, Requeue)):
            call(make_message(attempts=attempts))
    found = [(each["type"], len(each["text"]), each["count"]) for each in errors.of(("t", "ch"))]
    assert found == [("ValueError", 300, 2), ("Unprintable", 40, 1), ("Requeue", 12, 1)]


def test_the_oldest_of_many_errors_are_dropped() -> None:
    errors = LastErrors(FakeClock())

    def handle(messages: Any) -> None:
        raise ValueError(messages[0].attempts)

    call = errors.wrap(handle, Handler("t", "ch", print))
    for number in range(1, 50):
        with pytest.raises(ValueError):
            call([make_message(attempts=number), make_message()])
    kept = errors.of(("t", "ch"))
    assert (len(kept), kept[-1]["text"]) == (ERRORS, "49")
    assert kept[-1]["message"].endswith("and 1 more")


class Threads:
    """Keeps the functions of started threads; the test runs them."""

    def __init__(self) -> None:
        self.started: list[Any] = []

    def __call__(self, name: str, run: Any) -> None:
        self.started.append(run)


def test_depths_are_polled_in_rounds_while_clients_request_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, threads, asked = FakeClock(), Threads(), []
    nodes = [SimpleNamespace(tcp_address=("n", 4150), http_address=("n", 9))]
    monkeypatch.setattr(LookupdClient, "lookup", lambda self, topic: SimpleNamespace(producers=nodes))

    def stats_of_nsqd(self: NsqdClient, topic: str, channel: str, **options: Any) -> Any:
        asked.append((self._host, self._port, topic))
        return SimpleNamespace(depth=lambda topic, channel: len(asked))

    monkeypatch.setattr(NsqdClient, "stats", stats_of_nsqd)
    worker: Any = FakeWorker("t")
    look = depths_of(worker, start_thread=threads, clock=clock)
    assert look([stats()]) == {}
    clock.advance(10.0)
    look([stats()])  # one round runs: no second one starts
    threads.started.pop()()
    assert threads.started == []
    assert asked == [("n", 9, "t")]
    assert look([stats()]) == {("n:4150", "t", "ch"): 1}
    assert threads.started == []  # it is too early
    clock.advance(EVERY)
    look([stats()])
    threads.started.pop()()
    assert look([stats()]) == {("n:4150", "t", "ch"): 2}
