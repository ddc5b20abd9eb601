"""What programs of pynsq and gnsq do, and what would otherwise mean something else here without a word."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

import pytest

from gnsq_lite.consume import run_handler
from gnsq_lite.consume.run_handler import HandlerCalls
from gnsq_lite.message import Message
from tests.unit.runners import BOTH, MOST, FakeConnection, FakeOutcomes, taken


@BOTH
def test_a_handler_that_returns_false_is_warned_of_and_its_message_finished(runner: Any, fins: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_handler, "Runner", runner)
        made = HandlerCalls(lambda message: False, FakeOutcomes(), MOST).runner()
    connection = FakeConnection(fins)
    with pytest.warns(RuntimeWarning, match=re.escape(run_handler.RETURNED_FALSE)) as caught:
        assert made.drain(deque([Message(connection, 1, 1, b"%016d" % n, b"") for n in range(3)])) is False
    assert len(taken(connection.box)) == 3
    assert len({(each.filename, each.lineno) for each in caught}) == 1  # so that the usual filter shows one
