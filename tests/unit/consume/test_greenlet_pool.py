"""GreenletPool runs jobs at once if submit() is called in the hub, and else in a callback of the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from gnsq_lite._core import Runner, twin
from gnsq_lite.consume import pools
from gnsq_lite.consume.pools import GreenletPool
from gnsq_lite.net.loop import loop_here


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[GreenletPool]:
    """A pool of three workers whose jobs are callables.  Its clock does not advance."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(pools, "drain", twin.drain)  # C does not read the time in Python
    failed: list[BaseException] = []
    runner = Runner(print, 5, lambda job: job(), print, print)
    made = GreenletPool(loop_here(), runner, 3, failed.append)
    yield made
    made.close()
    assert failed == []


def in_hub(act: Callable[[], Any]) -> None:
    """Run *act* in the hub, and return afterwards."""
    gevent.get_hub().loop.run_callback(act)
    gevent.sleep(0)


def test_a_job_submitted_in_the_hub_runs_before_submit_returns(pool: GreenletPool) -> None:
    done: list[str] = []

    def act() -> None:
        pool.submit([lambda: done.append("job")])
        done.append("submitted")

    in_hub(act)
    assert done == ["job", "submitted"]
    pool.submit([lambda: done.append("later")])  # as a reading greenlet does
    assert len(done) == 2
    gevent.sleep(0)
    assert done[-1] == "later"


def test_a_job_that_waits_blocks_neither_the_hub_nor_the_next_job(pool: GreenletPool) -> None:
    done: list[str] = []

    def wait() -> None:
        gevent.sleep(0)
        done.append("waited")

    def act() -> None:
        pool.submit([wait])
        done.append("submitted")
        pool.submit([lambda: done.append("job")])

    in_hub(act)
    gevent.sleep(0)
    assert done == ["submitted", "job", "waited"]
    assert pool.busy() == 0


def test_the_loop_polls_its_sockets_if_the_jobs_of_one_iteration_take_long(
    pool: GreenletPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, done, at_once = [1000.0], list[int](), list[int]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def job() -> None:
        now[0] += 0.006
        done.append(1)

    def act() -> None:
        for _ in range(5):  # as if five connections received a message each
            pool.submit([job])
        at_once.append(len(done))

    in_hub(act)
    assert at_once == [2]
    while pool.queued():
        gevent.sleep(0)
    assert len(done) == 5
