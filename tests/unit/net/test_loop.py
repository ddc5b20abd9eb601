"""The inbox of the loop, without a network."""

from __future__ import annotations

import pytest
from gevent.event import Event

from gnsq_lite.net.loop import loop_here
from gnsq_lite.net.os_threads import WeakGroup


def test_callbacks_queued_by_callbacks_run_after_the_next_poll() -> None:
    loop, called = loop_here(), list[int]()

    def call() -> None:
        called.append(1)
        if len(called) < 100:
            loop._inbox.append(call)  # as another thread may do now

    loop._inbox.append(call)
    loop._drain()
    assert len(called) == 1
    loop._inbox.clear()


def test_an_error_in_a_timer_resets_the_cores_and_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error may be what a signal handler raises.  The timer has closed itself before."""

    class Core:
        resets = 0

        def reset(self) -> None:
            self.resets += 1

    def act() -> None:
        raise ZeroDivisionError

    loop, core = loop_here(), Core()
    monkeypatch.setattr(loop, "cores", WeakGroup())
    loop.cores.add(core)
    loop.timer(0.0, act)
    with pytest.raises(ZeroDivisionError):
        Event().wait(10.0)
    assert core.resets == 1
