"""A signal handler raises in the worker of a handler, but outside the handler."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from gnsq_lite._core import Fins, drain
from gnsq_lite.consume import run_handler
from gnsq_lite.message import EXPIRED, Message
from tests.unit.runners import FakeConnection, FakeOutcomes


@pytest.mark.rule("MSG-1")
def test_an_exception_in_the_check_of_a_message_is_not_a_handlers_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_once(message: Message) -> bool:
        monkeypatch.undo()
        raise KeyboardInterrupt

    outcomes, connection = FakeOutcomes(), FakeConnection(Fins)
    handled: list[Any] = []
    runner = run_handler.HandlerCalls(handled.append, outcomes, 5).runner()
    message = Message(connection, 1, 1, b"i" * 16, b"x")
    message._token = EXPIRED
    queue = deque([message, message])
    monkeypatch.setattr(run_handler, "is_open", raise_once)
    with pytest.raises(KeyboardInterrupt):
        drain(runner, queue, [None, None])
    assert outcomes.told == []
    drain(runner, queue, [None, None])
    assert (handled, outcomes.told, connection.told) == ([], [], [("expired", message.id)])
