"""What a Reader's connection writes, and when it schedules a callback.  The tests use no network and do not wait."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite.message import Message
from gnsq_lite.policy.delivery import SPAN
from gnsq_lite.wire import commands
from tests.unit.consume.fake_loop import Bench


@pytest.mark.rule("RDY-1")
def test_a_message_answered_at_once_schedules_one_flush_and_no_timer() -> None:
    bench = Bench()
    for _ in range(5):
        bench.clock.advance(0.05)
        message = bench.message()
        message.finish()
        assert len(bench.due) == 1
        assert bench.turn() == b"FIN " + message.id + b"\n"
        assert bench.running() == []


@pytest.mark.rule("RDY-1")
def test_rdy_changes_with_the_answers_of_fast_handlers_and_with_the_reads_of_slow_ones() -> None:
    bench = Bench()
    bench.clock.advance(0.05)
    first = bench.message()
    assert bench.due == []
    assert bench.running() == [SPAN]
    bench.clock.advance(SPAN)
    bench.timers[-1].act()  # the handler is slow
    assert bench.turn() == commands.ready(2)
    bench.message()
    assert len(bench.due) == 1
    assert bench.turn() == commands.ready(3)
    first.finish()
    assert bench.turn() == commands.ready(2) + commands.finish(first.id)


@pytest.mark.rule("RDY-4")
def test_messages_are_reported_while_flow_control_watches_or_if_they_exceed_the_share() -> None:
    bench = Bench()
    bench.connection.set_ready(2)
    messages = [bench.message() for _ in range(3)]
    assert bench.told == [1]
    for message in messages:
        message.finish()
        bench.turn()
    assert bench.told == [1, -1]
    bench.watches = True
    bench.message().finish()
    bench.turn()
    assert bench.told == [1, -1, 1, -1]


def test_a_new_share_counts_a_message_in_flight() -> None:
    bench = Bench()
    bench.clock.advance(0.05)
    bench.message()
    bench.connection.set_ready(1)
    assert bench.turn() == b""
    assert bench.running() == []  # with a share of 1 there is only one RDY


def frame(kind: int, body: bytes) -> bytes:
    return (len(body) + 4).to_bytes(4, "big") + kind.to_bytes(4, "big") + body


def message_frame(bench: Bench, id: int = 0) -> bytes:
    head = int(bench.clock.wall() * 1e9).to_bytes(8, "big") + (1).to_bytes(2, "big")
    return frame(2, head + b"%016d" % id + b"body")


def test_the_hub_handles_a_read_of_messages_and_leaves_other_reads_to_the_greenlet() -> None:
    bench = Bench()
    whole = message_frame(bench)
    for other in (
        b"",
        whole[:-1],
        whole + whole[:3],
        frame(0, b"_heartbeat_"),
        whole + frame(0, b"_heartbeat_"),
        b"HTTP",
    ):
        assert not bench.connection._take_messages(other)
        assert (bench.held, bench.connection.received) == ([], 0)
    bench.clock.advance(3.0)
    assert bench.connection._take_messages(whole + message_frame(bench, 1))
    assert [message.id for message in bench.held] == [b"%016d" % n for n in (0, 1)]
    assert bench.connection.read_at == bench.clock.now()  # nsqd is alive
    assert bench.connection.in_flight == 2


def test_at_full_speed_the_hub_leaves_reads_to_the_greenlet() -> None:
    bench = Bench()
    delivery = bench.connection._delivery
    assert delivery is not None
    delivery.is_full = True
    assert not bench.connection._take_messages(message_frame(bench))


@pytest.mark.rule("BACK-1")
def test_a_failure_is_reported_with_all_earlier_successes_including_queued_fins() -> None:
    bench = Bench()
    for _ in range(3):
        bench.message().finish()
    bench.message().requeue(0.0)
    bench.message().finish()  # before the loop handles the failure
    bench.turn()
    bench.message().requeue(0.0)
    bench.turn()
    bench.message().requeue(0.0, backoff=False)
    bench.turn()
    assert bench.failures == [3, 4]


def hold(bench: Bench, count: int) -> list[Message]:
    """Return *count* messages whose FINs a thread holds, as drain() in C leaves them."""
    messages = [bench.message() for _ in range(count)]
    for message in messages:
        message._claim("finish")
        bench.connection._fins.ids.append(message.id)
    return messages


def full(bench: Bench) -> None:
    """Make RDY the whole share, as for a backlog."""
    delivery: Any = bench.connection._delivery
    delivery.is_full, delivery.tick_after = True, SPAN
    bench.connection._schedule_tick(delivery)


def test_a_thread_writes_the_fins_that_it_holds_without_the_loop() -> None:
    bench = Bench(writes_fins=True)
    messages = hold(bench, 3)
    full(bench)
    assert bench.connection._fins.is_held
    bench.due.clear()
    bench.connection._write_held()
    assert bench.sent_here == [b"".join(commands.finish(message.id) for message in messages)]
    assert bench.due == []
    assert (bench.connection.in_flight, bench.connection.finished, bench.connection._fins.ids) == (0, 3, [])


@pytest.mark.parametrize("reason", ["watches", "a write is due", "unsent bytes", "share", "not full"])
def test_a_thread_leaves_the_fins_to_the_loop_if_it_cannot_write(reason: str) -> None:
    bench = Bench(writes_fins=True)
    messages = hold(bench, 3)
    full(bench)
    bench.due.clear()
    bench.connection._due = False
    if reason == "watches":
        bench.watches = True
    elif reason == "a write is due":
        bench.connection._flush_soon()
    elif reason == "unsent bytes":
        bench.unsent = 1
    elif reason == "share":
        bench.connection._share = 2
    else:
        bench.connection._fins.is_held = False
    bench.connection._write_held()
    assert bench.sent_here == []
    assert len(bench.due) == 1
    bench.unsent = 0
    assert bench.turn().endswith(b"".join(commands.finish(message.id) for message in messages))
    assert bench.connection.in_flight == 0


def test_the_next_tick_writes_the_fins_of_a_thread_that_a_handler_blocks() -> None:
    bench = Bench(writes_fins=True)
    (message,) = hold(bench, 1)
    full(bench)
    bench.due.clear()
    bench.connection._due = False
    bench.clock.advance(SPAN)
    bench.timers[-1].act()
    assert commands.finish(message.id) in bench.turn()


def test_after_cls_no_thread_holds_fins() -> None:
    bench = Bench(writes_fins=True)
    (message,) = hold(bench, 1)
    full(bench)
    bench.due.clear()
    bench.connection._due = False
    bench.connection.send_close()
    assert not bench.connection._fins.is_held
    assert commands.finish(message.id) in bench.turn()


def test_a_thread_never_writes_beside_tls() -> None:
    bench = Bench(writes_fins=True, tls=object())
    bench.connection.set_ready(1)
    assert not bench.connection._fins.is_alone
    full(bench)
    assert not bench.connection._fins.is_held
