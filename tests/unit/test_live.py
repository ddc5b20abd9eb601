"""What a Worker's process tells of itself, with the clock in hand."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite import Requeue
from gnsq_lite.http import LookupdClient, NsqdClient
from gnsq_lite.net.waiting import Completion
from gnsq_lite.stats import ConnectionStats, ReaderStats
from gnsq_lite.supervise.merged import ERRORS
from gnsq_lite.testing import make_message
from gnsq_lite.worker import Handler
from gnsq_lite.worker.depths import LINGER, MOST, Depths
from gnsq_lite.worker.live import KEPT, LastErrors, Live
from tests.fakes import FakeClock


def connection(address: str) -> ConnectionStats:
    return ConnectionStats(address=address, ready=3, share=3, in_flight=2, last_read_ago=0.5)


def stats(topic: str = "t", finished: int = 0, failures: int = 0, state: str = "connected", **more: Any) -> ReaderStats:
    values: dict[str, Any] = {"topic": topic, "channel": "ch", "connections": (connection("n:4150"),), "state": state}
    return ReaderStats(**{**values, "finished": finished, "failures": failures, **more})


class FakeReader:
    def __init__(self, topic: str, told: list[tuple[str, str]]) -> None:
        self.topic, self.channel, self._told = topic, "ch", told

    def pause(self) -> None:
        self._told.append(("pause", self.topic))

    def resume(self) -> None:
        self._told.append(("resume", self.topic))


class FakeWorker:
    def __init__(self, *topics: str) -> None:
        self.handlers = tuple(Handler(topic, "ch", print) for topic in topics)
        self.told: list[tuple[str, str]] = []
        self.readers = tuple(FakeReader(topic, self.told) for topic in topics)
        self.stages = SimpleNamespace(drain=Completion())
        self.paused: frozenset[tuple[str, str]] = frozenset()
        self.defaults: dict[str, Any] = {"lookupd_http_addresses": "lookupd:4161"}
        self.now: tuple[ReaderStats, ...] | None = ()

    def stats(self, timeout: float) -> tuple[ReaderStats, ...]:
        if self.now is None:
            raise TimeoutError
        return self.now


def live(worker: Any, clock: FakeClock, errors: LastErrors | None = None) -> Live:
    return Live(worker, errors or LastErrors(clock), lambda stats: {("n:4150", "t", "ch"): 7}, clock)


def test_a_rate_is_of_the_last_seconds_and_lines_are_of_the_last_minutes() -> None:
    clock, worker = FakeClock(), FakeWorker("t")
    shown = live(worker, clock)
    for second in range(KEPT + 50):
        worker.now = (stats(finished=10 * second, failures=2 * second),)
        shown.look()
        shown.look()  # too early for another sample
        clock.advance(1.0)
    worker.now = (stats(finished=10 * (KEPT + 50), failures=2 * (KEPT + 50)),)
    (handler,) = shown.document("history")["handlers"]
    assert (handler["rate"], handler["failing"]) == (10.0, 2.0)
    assert handler["history"]["rate"] == [10.0] * (KEPT - 1)
    assert "history" not in shown.document()["handlers"][0]


def test_depths_are_left_out_where_another_process_tells_them() -> None:
    clock, worker = FakeClock(), FakeWorker("t")
    worker.now = (stats(),)
    assert live(worker, clock).document()["handlers"][0]["depth"] == 7
    assert live(worker, clock).document("brief")["handlers"][0]["depth"] is None


def test_a_blocked_loop_shows_what_was_seen_last() -> None:
    clock, worker = FakeClock(), FakeWorker("t", "u")
    shown = live(worker, clock)
    worker.now = (stats("t", finished=5),)
    assert [each["state"] for each in shown.document()["handlers"]] == ["connected", "starting"]
    worker.now = None
    shown.look()
    told = shown.document()
    assert [(each["state"], each["finished"]) for each in told["handlers"]] == [("blocked", 5), ("starting", 0)]
    assert told["processes"][0]["state"] == "blocked"


def test_pausing_tells_each_reader_once_and_draining_is_shown() -> None:
    worker = FakeWorker("t", "u")
    shown = live(worker, FakeClock())
    assert shown.act("pause", "t", "ch")
    assert shown.act("pause", "t", "ch")
    assert shown.act("pause", "u", "ch")
    assert shown.act("resume", "t", "ch")
    assert not shown.act("pause", "t", "other")
    assert worker.told == [("pause", "t"), ("pause", "u"), ("resume", "t")]
    assert shown.act("drain", "", "")
    assert shown.document()["draining"]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_the_last_errors_are_kept_and_the_same_one_is_counted() -> None:
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


def test_of_many_errors_the_oldest_go() -> None:
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
    """Runs no thread until it is told to."""

    def __init__(self) -> None:
        self.started: list[Any] = []

    def __call__(self, name: str, run: Any) -> None:
        self.started.append(run)


def test_depths_are_asked_for_while_somebody_looks_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, threads, asked = FakeClock(), Threads(), []
    nodes = [SimpleNamespace(tcp_address=("n", 4150), http_address=("n", 9))]
    monkeypatch.setattr(LookupdClient, "lookup", lambda self, topic: SimpleNamespace(producers=nodes))

    def told(self: NsqdClient, topic: str, channel: str, **options: Any) -> Any:
        asked.append((self._host, self._port, topic))
        return SimpleNamespace(depth=lambda topic, channel: len(asked))

    monkeypatch.setattr(NsqdClient, "stats", told)
    worker: Any = FakeWorker("t")
    depths = Depths(worker, threads, clock, clock.advance)
    assert depths.look([stats()]) == {}
    depths.look([stats()])
    (run,) = threads.started
    run()
    assert asked[0] == ("n", 9, "t")
    assert LINGER / 2 - 1 <= len(asked) <= LINGER / 2 + 1
    assert depths.look([stats()]) == {("n:4150", "t", "ch"): len(asked)}
    assert len(threads.started) == 2


def test_of_many_channels_some_are_asked_for_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, threads, asked = FakeClock(), Threads(), []
    monkeypatch.setattr(LookupdClient, "lookup", lambda self, topic: SimpleNamespace(producers=[]))

    def told(self: NsqdClient, topic: str, channel: str, **options: Any) -> Any:
        asked.append(self._host)
        return SimpleNamespace(depth=lambda topic, channel: None)

    monkeypatch.setattr(NsqdClient, "stats", told)
    worker: Any = FakeWorker("t")
    names: Sequence[str] = [f"n{number}:4150" for number in range(2 * MOST)]
    depths = Depths(worker, threads, clock, lambda seconds: clock.advance(LINGER / 2))
    assert depths.look([stats(connections=tuple(map(connection, names)))]) == {}
    threads.started[0]()
    assert len(asked) == 2 * MOST == len(set(asked))
