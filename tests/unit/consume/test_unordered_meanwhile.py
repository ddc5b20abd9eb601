"""What comes in while a handler's thread reads where more than one message is in flight: a finalizer, or the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnsq_lite.errors import ConnectionLost
from gnsq_lite.message import Message
from gnsq_lite.net.nested import must_not_wait
from tests.unit.consume.test_read_in_threads import frame
from tests.unit.consume.test_unordered_in_threads import ManyBench, ids

pytestmark = pytest.mark.rule("CONN-2")


@pytest.fixture
def bench() -> ManyBench:
    return ManyBench()


def while_read(bench: ManyBench, act: Callable[[], Any]) -> None:
    """Have *act* called where a thread makes a message of what it has read: in a finalizer, or beside it."""

    def make(*about: Any) -> Message:
        act()
        return Message(*about)

    bench.begin(1)
    bench.turn()
    bench.connection._decoder.make_message = make
    bench.socket.comes.append(frame(2))


def test_nobody_waits_for_a_finalizer_that_runs_in_a_read(bench: ManyBench) -> None:
    """It may wait for the loop, which would wait for the lock."""
    held: list[bool] = []
    while_read(bench, lambda: held.append(bench.connection._lock._is_owned()))
    assert bench.read_on()
    assert held == [False]


@pytest.mark.parametrize("what", ["pause", "close", "tick"])
def test_the_loop_goes_on_with_what_came_while_it_got_more_to_do(bench: ManyBench, what: str) -> None:
    def act() -> None:
        if what == "pause":
            bench.connection.set_ready(0)
        elif what == "close":
            bench.connection.send_close(lambda: None)
        else:
            bench.connection._stop_delivery()

    while_read(bench, act)
    before = len(bench.handled)
    assert not bench.read_on()
    assert bench.next == []
    assert bench.given == [b""]
    bench.turn()
    assert [message.id for message in bench.handled[before:]] == ids(2)
    assert bench.connection.in_flight.count == 1


def test_what_the_loop_goes_on_with_is_counted_while_no_thread_counts(
    bench: ManyBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the loop's reader may have read on, and left the next read to a thread."""
    connection, held = bench.connection, []
    count_in = connection._count_in

    def count(messages: list[Message]) -> bool:
        held.append(connection._lock._is_owned())
        return count_in(messages)

    while_read(bench, connection._stop_delivery)
    monkeypatch.setattr(connection, "_count_in", count)
    assert not bench.read_on()
    bench.turn()
    assert held == [True]


def test_what_came_while_the_connection_was_lost_is_dropped(bench: ManyBench) -> None:
    while_read(bench, lambda: bench.connection.close(ConnectionLost("nsqd:4150", "closed")))
    before = len(bench.handled)
    assert not bench.read_on()
    bench.turn()
    assert (bench.handled[before:], bench.next, bench.given, bench.released) == ([], [], [], 1)


def test_what_is_left_to_the_loop_is_dropped_where_the_connection_is_lost_before_it_goes_on(bench: ManyBench) -> None:
    while_read(bench, bench.connection._stop_delivery)
    before = len(bench.handled)
    assert not bench.read_on()
    bench.connection.opened_at = None  # as if closed
    bench.turn()
    assert bench.handled[before:] == []


def test_a_read_is_the_loop_s_where_it_got_more_to_do_before_that(bench: ManyBench) -> None:
    bench.begin(1)

    def receive(size: int) -> bytes:
        bench.connection._stop_delivery()
        return frame(2)

    bench.connection._receive = receive
    assert not bench.read_on()
    assert (bench.given, bench.next) == ([frame(2)], [])


@pytest.mark.parametrize(("owner", "where"), [("_fins", "take"), ("_threads", "take_on")])
def test_a_finalizer_that_comes_in_under_the_lock_must_not_wait_for_the_loop(
    bench: ManyBench, monkeypatch: pytest.MonkeyPatch, owner: str, where: str
) -> None:
    waits: list[bool] = []
    bench.begin(1)
    bench.socket.comes.append(frame(2))
    real = getattr(bench.connection, owner)

    def look(*about: Any) -> Any:
        waits.append(must_not_wait())
        return getattr(real, where)(*about)

    class Looks:
        def __getattr__(self, name: str) -> Any:
            return look if name == where else getattr(real, name)

        def __len__(self) -> int:
            return len(real)

    monkeypatch.setattr(bench.connection, owner, Looks())
    assert bench.read_on()
    assert waits == [True]
    assert bench.finish() == ids(2)
    assert not must_not_wait()
