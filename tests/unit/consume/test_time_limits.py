"""Handlers that exceed their time limit.  The clock is a fake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnsq_lite.consume import time_limits
from gnsq_lite.consume.pools import Worker
from gnsq_lite.consume.time_limits import TimeLimits
from gnsq_lite.options import HandlerOptions
from tests.unit.fake_loop import FakeLoop


class Job:
    """A message."""

    _rows = 1
    id, attempts, topic, channel, nsqd_address = b"id", 1, "t", "c", "nsqd:4150"


def a_worker(worker: object) -> Worker:
    worker = Worker(worker)
    worker[1] = Job()
    return worker


class FakePool:
    """A pool whose workers run nothing, with time limits.  It is also the greenlet and the outcomes of each job."""

    def __init__(self, pool: str, **limits: float) -> None:
        self.loop, self.workers, self.unit = FakeLoop(), list[Worker](), "thread"
        self.clock = self.loop.clock
        self.concurrency = 1
        self.acts: list[tuple[float, str]] = []
        settings: Any = SimpleNamespace(limits=HandlerOptions(**limits), pool=pool)
        me: Any = self
        self.limits = TimeLimits(cast(Any, self.loop), settings, self.clock, me, 1, me)
        self._began = self.clock.now()

    def _note(self, act: str) -> None:
        self.acts.append((self.clock.now() - self._began, act))

    def pass_seconds(self, seconds: int) -> None:
        """Advance the clock, and check the limits every second."""
        for _ in range(seconds):
            self.limits.enforce()
            self.loop.turn()
            self.clock.advance(1.0)

    # -- worker, outcomes and pool

    def throw(self, error: BaseException) -> None:
        self._note("interrupt")

    def on_exception(self, job: Any, error: BaseException) -> None:
        self._note("write off")

    def busy(self) -> int:
        return sum(worker[1] is not None for worker in self.workers)

    def set_concurrency(self, count: int) -> None:
        self.concurrency = count


def test_the_age_of_a_job_begins_at_the_first_check_also_without_a_limit() -> None:
    pool = FakePool("greenlet")
    assert pool.limits.oldest() == 0.0
    first, second = a_worker(1), a_worker(2)
    pool.workers.append(first)
    pool.limits.enforce()
    pool.clock.advance(7.0)
    pool.workers.append(second)
    assert pool.limits.oldest() == 7.0
    first[1] = Job()  # the worker has taken the next job
    assert pool.limits.oldest() == 0.0
    pool.limits.enforce()
    pool.clock.advance(86400.0)
    assert (pool.limits.oldest(), pool.acts) == (86400.0, [])


def test_asking_for_the_oldest_call_changes_nothing() -> None:
    pool = FakePool("greenlet", time_limit=10.0)
    pool.workers.append(a_worker(pool))
    pool.limits.enforce()
    pool.clock.advance(20.0)
    assert (pool.limits.oldest(), pool.acts) == (20.0, [])
    pool.pass_seconds(1)
    assert pool.acts == [(20.0, "interrupt")]


@pytest.mark.parametrize("pool", ["greenlet", "inline"])
def test_a_handler_in_a_greenlet_is_interrupted_once(pool: str) -> None:
    pool = FakePool(pool, time_limit=10.0)
    pool.workers.append(a_worker(pool))
    pool.pass_seconds(40)
    assert pool.acts == [(10.0, "interrupt")]
    assert (pool.limits.overdue, pool.limits.busy(), pool.concurrency) == (0, 1, 1)


def test_only_the_thread_at_its_limit_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "start_native_thread", lambda name, run: run())
    monkeypatch.setattr(time_limits, "enter_thread", lambda loop: None)
    pool = FakePool("thread", time_limit=10.0)
    hung, quick = a_worker(1), a_worker(2)
    pool.workers += [hung, quick]
    for _ in range(20):
        quick[1] = Job()
        pool.pass_seconds(1)
    assert pool.acts == [(10.0, "write off")]
    assert (pool.limits.overdue, pool.limits.busy(), pool.concurrency) == (1, 1, 2)
    pool.workers.remove(hung)  # its thread has ended
    pool.limits.enforce()
    assert (pool.limits.overdue, pool.concurrency) == (0, 1)


def test_checks_continue_if_no_thread_can_be_started_to_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(name: str, run: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(time_limits, "start_native_thread", start)
    pool = FakePool("thread", time_limit=1.0)
    pool.workers.append(a_worker(1))
    pool.pass_seconds(3)
    assert pool.limits.overdue == 1
    assert "can't start new thread" in caplog.text
