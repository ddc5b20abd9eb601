"""Handlers that exceed their time limit.  The clock is a fake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnsq_lite.consume import time_limits
from gnsq_lite.consume.pools import Worker
from gnsq_lite.consume.time_limits import TimeLimits
from gnsq_lite.options import HandlerOptions
from tests.fakes import FakeClock


class Job:
    """A message."""

    id, attempts, topic, channel, nsqd_address = b"id", 1, "t", "c", "nsqd:4150"


def a_worker(worker: object) -> Worker:
    worker = Worker(worker)
    worker[1] = Job()
    return worker


class Bench:
    """Time limits of a pool without real workers.  This object is also the loop, the pool and the outcomes."""

    def __init__(self, pool: str, **limits: float) -> None:
        self.clock, self.workers = FakeClock(), list[Worker]()
        self.concurrency = 1
        self.acts: list[tuple[float, str]] = []
        settings: Any = SimpleNamespace(limits=HandlerOptions(**limits), pool=pool)
        me: Any = self
        self.limits = TimeLimits(me, settings, self.clock, me, 1, me)
        self._began = self.clock.now()

    def _note(self, act: str) -> None:
        self.acts.append((self.clock.now() - self._began, act))

    def pass_seconds(self, seconds: int) -> None:
        """Advance the clock, and check the limits every second."""
        for _ in range(seconds):
            self.limits.check()
            self.clock.advance(1.0)

    # -- loop, worker, outcomes and pool

    def soon(self, act: Any, *args: Any) -> None:
        act(*args)

    def throw(self, error: BaseException) -> None:
        self._note("interrupt")

    def spawn(self, name: str, act: Any, *args: Any) -> None:
        act(*args)

    def on_exception(self, job: Any, error: BaseException) -> None:
        self._note("write off")

    def busy(self) -> int:
        return sum(worker[1] is not None for worker in self.workers)

    def set_concurrency(self, count: int) -> None:
        self.concurrency = count


def test_the_age_of_a_job_begins_at_the_first_check_also_without_a_limit() -> None:
    bench = Bench("greenlet")
    assert bench.limits.check() == 0.0
    first, second = a_worker(1), a_worker(2)
    bench.workers.append(first)
    bench.limits.check()
    bench.clock.advance(7.0)
    bench.workers.append(second)
    assert bench.limits.check() == 7.0
    first[1] = Job()  # the worker has taken the next job
    assert bench.limits.check() == 0.0
    bench.clock.advance(86400.0)
    assert (bench.limits.check(), bench.acts) == (86400.0, [])


@pytest.mark.parametrize("pool", ["greenlet", "inline"])
def test_a_handler_in_a_greenlet_is_interrupted_once(pool: str) -> None:
    bench = Bench(pool, time_limit=10.0)
    bench.workers.append(a_worker(bench))
    bench.pass_seconds(40)
    assert bench.acts == [(10.0, "interrupt")]
    assert (bench.limits.overdue, bench.limits.busy(), bench.concurrency) == (0, 1, 1)


def test_only_the_thread_at_its_limit_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "start_native_thread", lambda name, run: run())
    monkeypatch.setattr(time_limits, "enter_thread", lambda loop: None)
    bench = Bench("thread", time_limit=10.0)
    hung, quick = a_worker(1), a_worker(2)
    bench.workers += [hung, quick]
    for _ in range(20):
        quick[1] = Job()
        bench.pass_seconds(1)
    assert bench.acts == [(10.0, "write off")]
    assert (bench.limits.overdue, bench.limits.busy(), bench.concurrency) == (1, 1, 2)
    bench.workers.remove(hung)  # its thread has ended
    bench.limits.check()
    assert (bench.limits.overdue, bench.concurrency) == (0, 1)


def test_checks_continue_if_no_thread_can_be_started_to_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(name: str, run: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(time_limits, "start_native_thread", start)
    bench = Bench("thread", time_limit=1.0)
    bench.workers.append(a_worker(1))
    bench.pass_seconds(3)
    assert bench.limits.overdue == 1
    assert "can't start new thread" in caplog.text
