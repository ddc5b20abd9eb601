"""What is told of many errors: a line a second, and none is missing in the count."""

from __future__ import annotations

import logging

import pytest

from gnsq_lite.errors import NSQError, error_for
from gnsq_lite.net.user_hooks import Complaints, LossLog
from tests.fakes import FakeClock

log = logging.getLogger("gnsq_lite.test")


@pytest.mark.rule("ERR-1")
def test_errors_are_told_at_once_then_counted_for_a_second(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    complaints = Complaints(clock)

    def add(count: int) -> list[str]:
        caplog.clear()
        for number in range(count):
            complaints.add(log, error_for(b"E_FIN_FAILED %d" % number, "nsqd:4150"), {"nsqd": "nsqd:4150"})
        return [record.getMessage() for record in caplog.records]

    assert add(3) == ["nsqd:4150: E_FIN_FAILED 0"]
    clock.advance(0.9)
    complaints.log_due(clock.now())
    assert add(1) == []
    clock.advance(0.1)
    complaints.log_due(clock.now())
    assert [record.getMessage() for record in caplog.records] == [
        "nsqd:4150: E_FIN_FAILED 0 (and 2 more errors since the last line)"
    ]
    assert add(4) == []
    complaints.log_due()  # the connection ends: nothing is left out
    assert caplog.records[-1].getMessage().endswith("E_FIN_FAILED 3 (and 3 more errors since the last line)")
    caplog.clear()
    complaints.log_due()
    assert not caplog.records


def test_a_hundred_losses_a_minute_are_warnings_and_the_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    losses = LossLog(logging.getLogger("gnsq_lite.test"), clock)

    def lose(count: int, is_news: bool = True) -> list[str]:
        caplog.clear()
        for number in range(count):
            losses.add(NSQError(f"nsqd {number}"), is_news=is_news)
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    assert lose(1000, is_news=False) == []
    assert lose(100) == [f"nsqd {number}" for number in range(100)]
    (said,) = lose(5000)
    assert "more than 100 losses" in said
    clock.advance(59.9)
    assert lose(10) == []
    clock.advance(0.2)
    assert lose(2) == ["nsqd 0", "nsqd 1"]
