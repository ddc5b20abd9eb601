"""What exceeds its time limit, and what becomes of the watch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.consume import time_limits
from gnsq_lite.consume.time_limits import TimeLimits
from gnsq_lite.options import HandlerOptions
from tests.fakes import FakeClock


def test_without_a_thread_to_answer_for_a_handler_the_watch_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(name: str, run: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(time_limits, "start_native_thread", start)
    clock, seat = FakeClock(), [1, []]
    pool: Any = SimpleNamespace(seats=[seat], set_concurrency=lambda count: None, busy=lambda: 1)
    settings: Any = SimpleNamespace(limits=HandlerOptions(time_limit=1.0), pool="thread")
    nothing: Any = None
    limits = TimeLimits(nothing, settings, clock, pool, 1, nothing, nothing)
    limits.look()
    clock.advance(1.5)
    limits.look()
    assert limits.overdue == 1
    assert "can't start new thread" in caplog.text
