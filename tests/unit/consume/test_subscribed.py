"""The commands that a Reader's connection writes, and its callbacks.  The tests use no network and do not wait."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite.message import Message
from gnsq_lite.policy.delivery import SPAN
from gnsq_lite.wire import commands
from tests import frames
from tests.frames import HEARTBEAT, ID
from tests.unit.consume.fake_reader import FakeReader


def subscribed(**options: Any) -> FakeReader:
    """Return the Reader of a connection with a share of 10, whose first RDY is sent."""
    reader = FakeReader(**options)
    reader.connection.set_ready(10)
    reader.turn()
    return reader


@pytest.mark.rule("RDY-1")
def test_a_message_answered_at_once_schedules_one_flush_and_no_timer() -> None:
    reader = subscribed()
    for _ in range(5):
        reader.clock.advance(0.05)
        message = reader.receive()
        message.finish()
        assert len(reader.loop.callbacks) == 1
        assert reader.turn() == b"FIN " + message.id + b"\n"
        assert reader.loop.running() == []


@pytest.mark.rule("RDY-1")
def test_rdy_changes_with_the_answers_of_fast_handlers_and_with_the_reads_of_slow_ones() -> None:
    reader = subscribed()
    reader.clock.advance(0.05)
    first = reader.receive()
    assert reader.loop.callbacks == []
    assert reader.loop.running() == [SPAN]
    reader.clock.advance(SPAN)
    reader.loop.timers[-1].act()  # the handler is slow
    assert reader.turn() == commands.ready(2)
    reader.receive()
    assert len(reader.loop.callbacks) == 1
    assert reader.turn() == commands.ready(3)
    first.finish()
    assert reader.turn() == commands.ready(2) + commands.finish(first.id)


@pytest.mark.rule("RDY-4")
def test_messages_are_reported_while_flow_control_watches_or_if_they_exceed_the_share() -> None:
    reader = subscribed()
    reader.connection.set_ready(2)
    messages = [reader.receive() for _ in range(3)]
    assert reader.reported == [1]
    for message in messages:
        message.finish()
        reader.turn()
    assert reader.reported == [1, -1]
    reader.watches = True
    reader.receive().finish()
    reader.turn()
    assert reader.reported == [1, -1, 1, -1]


def test_a_new_share_counts_a_message_in_flight() -> None:
    reader = subscribed()
    reader.clock.advance(0.05)
    reader.receive()
    reader.connection.set_ready(1)
    assert reader.turn() == b""
    assert reader.loop.running() == []  # with a share of 1 there is only one RDY


def test_the_hub_handles_a_read_of_messages_and_leaves_other_reads_to_the_greenlet() -> None:
    reader = subscribed()
    whole = frames.message(b"body", int(reader.clock.wall() * 1e9))
    for other in (
        b"",
        whole[:-1],
        whole + whole[:3],
        HEARTBEAT,
        whole + HEARTBEAT,
        b"HTTP",
    ):
        assert not reader.connection._take_messages(other)
        assert (reader.handled, reader.connection.received) == ([], 0)
    reader.clock.advance(3.0)
    assert reader.connection._take_messages(whole * 2)
    assert [message.id for message in reader.handled] == [ID, ID]
    assert reader.connection.read_at == reader.clock.now()  # nsqd is alive
    assert reader.connection.in_flight == 2


def test_at_full_speed_the_hub_leaves_reads_to_the_greenlet() -> None:
    reader = subscribed()
    delivery = reader.connection._delivery
    assert delivery is not None
    delivery.is_full = True
    assert not reader.connection._take_messages(frames.message(b"body"))


@pytest.mark.rule("BACK-1")
def test_a_failure_is_reported_with_all_earlier_successes_including_queued_fins() -> None:
    reader = subscribed()
    for _ in range(3):
        reader.receive().finish()
    reader.receive().requeue(0.0)
    reader.receive().finish()  # before the loop handles the failure
    reader.turn()
    reader.receive().requeue(0.0)
    reader.turn()
    reader.receive().requeue(0.0, backoff=False)
    reader.turn()
    assert reader.failures == [3, 4]


def hold(reader: FakeReader, count: int) -> list[Message]:
    """Return *count* messages whose FINs a thread holds, as drain() in C leaves them."""
    messages = [reader.receive() for _ in range(count)]
    for message in messages:
        message._claim("finish")
        reader.connection._fins.ids.append(message.id)
    return messages


def full(reader: FakeReader) -> None:
    """Make RDY the whole share, as for a backlog."""
    delivery: Any = reader.connection._delivery
    delivery.is_full, delivery.tick_after = True, SPAN
    reader.connection._schedule_tick(delivery)


def test_a_thread_writes_the_fins_that_it_holds_without_the_loop() -> None:
    reader = subscribed(writes_fins=True)
    messages = hold(reader, 3)
    full(reader)
    assert reader.connection._fins.is_held
    reader.loop.callbacks.clear()
    reader.connection._write_held()
    assert reader.sent_by_threads == [b"".join(commands.finish(message.id) for message in messages)]
    assert reader.loop.callbacks == []
    assert (reader.connection.in_flight, reader.connection.finished, reader.connection._fins.ids) == (0, 3, [])


@pytest.mark.parametrize("reason", ["watches", "a write is due", "unsent bytes", "share", "not full"])
def test_a_thread_leaves_the_fins_to_the_loop_if_it_cannot_write(reason: str) -> None:
    reader = subscribed(writes_fins=True)
    messages = hold(reader, 3)
    full(reader)
    reader.loop.callbacks.clear()
    reader.connection._due = False
    if reason == "watches":
        reader.watches = True
    elif reason == "a write is due":
        reader.connection._flush_soon()
    elif reason == "unsent bytes":
        reader.unsent = 1
    elif reason == "share":
        reader.connection._share = 2
    else:
        reader.connection._fins.is_held = False
    reader.connection._write_held()
    assert reader.sent_by_threads == []
    assert len(reader.loop.callbacks) == 1
    reader.unsent = 0
    assert reader.turn().endswith(b"".join(commands.finish(message.id) for message in messages))
    assert reader.connection.in_flight == 0


def test_the_next_tick_writes_the_fins_of_a_thread_that_a_handler_blocks() -> None:
    reader = subscribed(writes_fins=True)
    (message,) = hold(reader, 1)
    full(reader)
    reader.loop.callbacks.clear()
    reader.connection._due = False
    reader.clock.advance(SPAN)
    reader.loop.timers[-1].act()
    assert commands.finish(message.id) in reader.turn()


def test_after_cls_no_thread_holds_fins() -> None:
    reader = subscribed(writes_fins=True)
    (message,) = hold(reader, 1)
    full(reader)
    reader.loop.callbacks.clear()
    reader.connection._due = False
    reader.connection.send_close()
    assert not reader.connection._fins.is_held
    assert commands.finish(message.id) in reader.turn()


def test_a_thread_never_writes_beside_tls() -> None:
    reader = subscribed(writes_fins=True, tls=object())
    reader.connection.set_ready(1)
    assert not reader.connection._fins.is_alone
    full(reader)
    assert not reader.connection._fins.is_held
