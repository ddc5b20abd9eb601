"""Whom the loop resumes, and when; without a network and without waiting."""

from __future__ import annotations

import gevent
import pytest
from greenlet import getcurrent

from gnsq_lite.net.loop import Loop, loop_here


def parked(loop: Loop, order: list[str]) -> gevent.Greenlet[[], None]:
    """Return a greenlet that waits in the loop."""

    def wait() -> None:
        loop.park(getcurrent())
        order.append("resumed")

    waiter = gevent.spawn(wait)
    gevent.sleep(0)
    return waiter


@pytest.mark.parametrize("is_taken", [True, False])
def test_who_is_resumed_by_a_read_runs_before_it_is_over_unless_the_reader_gets_it(is_taken: bool) -> None:
    loop, order = loop_here(), list[str]()
    waiter = parked(loop, order)

    def take(data: bytes) -> bool:
        loop.resume_soon((waiter,))
        return is_taken

    def in_hub() -> None:
        order.append(str(loop.deliver(take, b"data")))

    loop.soon(in_hub)
    waiter.join(5.0)
    assert order == (["resumed", "True"] if is_taken else ["False", "resumed"])


def test_threads_that_are_quicker_than_the_loop_leave_it_its_io() -> None:
    loop, called = loop_here(), list[int]()

    def call() -> None:
        called.append(1)
        if len(called) < 100:
            loop._inbox.append(call)  # as another thread does meanwhile

    loop._inbox.append(call)
    loop._drain()
    assert len(called) == 1
    loop._inbox.clear()
