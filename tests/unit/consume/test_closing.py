"""The end of a Reader's core.  The tests use no network and do not wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite import Reader
from gnsq_lite._core import Fins
from gnsq_lite.consume.closing import Closing
from gnsq_lite.consume.consumer import Consumer
from gnsq_lite.message import Message
from gnsq_lite.net.loop import loop_here
from tests.fakes import FakeClock
from tests.unit.runners import FakeConnection


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("batch_size", [None, 2])
def test_messages_that_arrive_during_close_are_requeued(batch_size: int | None) -> None:
    handled: list[Any] = []
    more: Any = {} if batch_size is None else {"batch_size": batch_size}
    reader = Reader("t", "c", handled.append, nsqd_tcp_addresses="127.0.0.1:1", handler_pool="greenlet", **more)
    core, connection = Consumer(loop_here(), reader._settings), FakeConnection(Fins)
    messages = [Message(connection, 1, 1, b"%016d" % number, b"") for number in range(4)]
    core.handle(messages[:1])
    assert core.queue.queued() == 1
    core.close(0.0)
    core.handle(messages[1:])
    assert connection.told == [("requeue", message.id, 0.0, False) for message in messages[1:]]
    assert core.ended.wait(5.0)
    assert [message.has_responded for message in messages] == [True] * 4


@pytest.mark.rule("CLOSE-1")
def test_closing_waits_for_20_ms_without_a_byte_and_for_unanswered_messages() -> None:
    clock = FakeClock()
    closing = Closing(clock, busy=lambda: 0)
    connection: Any = SimpleNamespace(
        is_open=lambda: True, in_flight=0, read_at=clock.now(), close_waited=True, unsent=lambda: 0
    )
    assert not closing._are_done([connection])
    clock.advance(0.015)
    connection.in_flight, connection.read_at = 1, clock.now()  # nsqd sent it while it answered CLS
    clock.advance(0.1)
    assert not closing._are_done([connection])
    connection.in_flight = 0
    assert closing._are_done([connection])
    connection.close_waited = False
    assert not closing._are_done([connection])
    connection.is_open, connection.in_flight = lambda: False, 1
    assert closing._are_done([connection])
