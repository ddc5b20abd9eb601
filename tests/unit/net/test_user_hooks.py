"""ErrorLog limits the number of warnings about errors of nsqds."""

from __future__ import annotations

import logging

import pytest

from gnsq_lite.errors import NSQError
from gnsq_lite.net.user_hooks import ErrorLog
from tests.fakes import FakeClock


def test_a_hundred_errors_a_minute_are_logged_as_warnings_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    losses = ErrorLog(logging.getLogger("gnsq_lite.test"), clock)

    def lose(count: int, is_news: bool = True) -> list[str]:
        caplog.clear()
        for number in range(count):
            losses.add(NSQError(f"nsqd {number}"), is_news=is_news)
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    assert lose(1000, is_news=False) == []
    assert lose(100) == [f"nsqd {number}" for number in range(100)]
    (said,) = lose(5000)
    assert "more than 100 errors" in said
    clock.advance(59.9)
    assert lose(10) == []
    clock.advance(0.2)
    assert lose(2) == ["nsqd 0", "nsqd 1"]
