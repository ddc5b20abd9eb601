"""The inbox of the loop, without a network."""

from __future__ import annotations

from gnsq_lite.net.loop import loop_here


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
