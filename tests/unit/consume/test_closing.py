"""The end of a Reader's core; without a network and without waiting."""

from __future__ import annotations

from typing import Any

import pytest

from gnsq_lite import Reader
from gnsq_lite.consume.consumer import Consumer
from gnsq_lite.message import Message
from gnsq_lite.net.loop import loop_here
from gnsq_lite.speed import Fins
from tests.unit.test_runner import FakeConnection


@pytest.mark.rule("CLOSE-1")
@pytest.mark.parametrize("batch_size", [None, 2])
def test_what_comes_once_the_end_has_begun_goes_back(batch_size: int | None) -> None:
    handled: list[Any] = []
    more: Any = {} if batch_size is None else {"batch_size": batch_size}
    reader = Reader("t", "c", handled.append, nsqd_tcp_addresses="127.0.0.1:1", handler_pool="greenlet", **more)
    core, connection = Consumer(loop_here(), reader._settings), FakeConnection(Fins)
    messages = [Message(connection, 1, 1, b"%016d" % number, b"") for number in range(4)]
    core.handle(messages[:1])
    assert core.queued() == 1
    core.end.close(0.0)
    core.handle(messages[1:])
    assert connection.told == [("requeue", message.id, 0.0, False) for message in messages[1:]]
    assert core.ended.wait(5.0)
    assert [message.has_responded for message in messages] == [True] * 4
