"""What is told of many errors: a line a second, and none is missing in the count."""

from __future__ import annotations

import logging

import pytest

from gnsq_lite.errors import error_for
from gnsq_lite.net.user_hooks import Complaints
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
