"""The time limit of all that the library does when Python exits, on a fake clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.net import at_exit
from tests.fakes import FakeClock


@pytest.mark.rule("PUB-2")
@pytest.mark.rule("CLOSE-1")
def test_threads_loops_and_the_io_thread_share_one_time_limit_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, given = FakeClock(), list[float]()

    def wait(seconds: float) -> None:
        """Take all of the time, as a Writer does whose nsqd sends no response."""
        given.append(seconds)
        clock.advance(seconds)

    loop: Any = SimpleNamespace(is_shared=True, cores=SimpleNamespace(members=lambda: [object()]))
    writers = [SimpleNamespace(close=wait) for _ in range(2)]
    monkeypatch.setattr(at_exit, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(at_exit, "_threads", SimpleNamespace(members=lambda: writers))
    monkeypatch.setattr(at_exit, "all_loops", lambda: [loop])
    monkeypatch.setattr(at_exit, "start_in_loop", lambda *_: SimpleNamespace(result=wait))
    monkeypatch.setattr(at_exit, "stop_io_thread", wait)
    at_exit._close_all()
    until_the_thread_stops = at_exit.TIME_LIMIT - at_exit._TO_STOP
    assert given == pytest.approx([until_the_thread_stops, 0.0, at_exit._GRACE, at_exit._TO_STOP])
