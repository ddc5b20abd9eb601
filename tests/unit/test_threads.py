"""ThreadPool loses no wake-up, and wakes no thread without need."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from gnsq_lite._core import Runner
from gnsq_lite.consume import pools
from gnsq_lite.consume.pools import ThreadPool
from gnsq_lite.net.loop import loop_here
from gnsq_lite.net.os_threads import start_native_thread
from tests.fakes import FakeClock
from tests.native import is_patched, native_held_lock, native_ident, native_lock
from tests.profiles import repeats

#: Seconds after which a test fails.
PATIENCE = 30.0
MAIN = native_ident()


class PoolLoop:
    """The loop of a pool.  It is the test's hub in a patched process; if not, it calls at once."""

    def __init__(self) -> None:
        self.hub = gevent.get_hub()
        self._loop = loop_here()
        #: Callbacks that were scheduled while :attr:`is_held` was true.
        self.asked: list[Callable[[], Any]] = []
        self.is_held = False
        self.timers: list[Callable[[], Any]] = []

    def timer(self, seconds: float, act: Callable[[], Any]) -> None:
        self.timers.append(act)

    def fire_timers(self) -> None:
        """Call what waits for a timer, as the loop does after its seconds."""
        timers, self.timers = self.timers, []
        for act in timers:
            act()

    def release_before_poll(self, lock: Any) -> None:
        lock.release()

    def call_soon(self, act: Callable[[], Any]) -> None:
        if self.is_held:
            self.asked.append(act)
        elif is_patched():
            self._loop.call_soon(act)
        else:
            act()


def until(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait until *condition* is true."""
    limit = time.monotonic() + patience
    nap, is_in_hub = native_held_lock(), is_patched() and native_ident() == MAIN
    while not condition():
        assert time.monotonic() < limit
        nap.acquire(True, 0.0002)
        if is_in_hub:
            gevent.sleep(0)


class Tally:
    """A thread-safe counter."""

    def __init__(self) -> None:
        self._lock = native_lock()
        self.count = 0

    def add(self, _job: Any = None) -> None:
        with self._lock:
            self.count += 1

    def wait_for(self, count: int) -> None:
        until(lambda: self.count >= count)


Made = Callable[..., ThreadPool]


@pytest.fixture
def make() -> Iterator[Made]:
    """Return a function that creates a ThreadPool.  The pools end with the test."""
    made: list[ThreadPool] = []

    def a_pool(run: Callable[[Any], Any], concurrency: int) -> ThreadPool:
        runner = Runner(lambda message: None, 1, run, lambda job, error: None, lambda job: None)
        made.append(ThreadPool(PoolLoop(), runner, concurrency, lambda error: None))  # type: ignore[arg-type]
        return made[-1]

    yield a_pool
    for pool in made:
        pool.take_queued()
        pool.close()
        until(lambda: not pool.workers)  # noqa: B023 - called at once


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Make threads switch a thousand times as often, to provoke races."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_any_number_of_jobs_wakes_one_thread(make: Made) -> None:
    done = Tally()
    pool = make(done.add, 1000)
    loop: Any = pool._loop
    loop.is_held = True
    for _ in range(50):
        pool.submit(list(range(20)))
    assert len(loop.asked) == 1
    loop.asked[0]()
    done.wait_for(1000)
    assert len(loop.asked) == 2  # the thread requested one more thread, because more jobs were queued
    loop.asked[1]()  # it finds no job, and wakes no thread
    until(lambda: len(pool.workers) == 2 and not pool.busy())
    assert len(loop.asked) == 2


def test_running_and_queued_jobs_are_reported(make: Made) -> None:
    gate = native_held_lock()
    pool = make(lambda job: gate.acquire() and gate.release(), 1)
    pool.submit(["first", "second"])
    until(lambda: "first" in pool.running() and pool.queued() == 1)
    gate.release()
    until(lambda: not pool.running())


def test_a_thread_that_ends_leaves_no_hub_behind(make: Made) -> None:
    """A handler that waits with gevent creates a hub, which has two descriptors."""
    hubs, done = [], Tally()

    def run(job: int) -> None:
        gevent.sleep(0)
        hubs.append(gevent.get_hub())
        done.add()

    pool = make(run, 2)
    pool.submit([1])
    done.wait_for(1)
    assert hubs[0].loop is not None
    pool.close()
    until(lambda: hubs[0].loop is None)


def test_the_thread_that_ran_last_is_woken_first(make: Made) -> None:
    held = [native_lock() for _ in range(3)]
    for lock in held:
        lock.acquire()
    done, ran = Tally(), []

    def run(job: int) -> None:
        if job >= 0:
            held[job].acquire()
        ran.append(native_ident())
        done.add()

    pool = make(run, 3)
    pool.submit([0, 1, 2])
    for number in range(3):
        until(lambda: not pool.queued() and len(pool._idle) == number)  # noqa: B023 - called at once
        held[number].release()
        done.wait_for(number + 1)
    until(lambda: len(pool._idle) == 3)
    pool.submit([-1])
    done.wait_for(4)
    assert ran[3] == ran[2]


def test_short_handlers_get_a_second_thread_only_when_one_blocks(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gate, done = FakeClock(), native_held_lock(), Tally()
    monkeypatch.setattr(pools, "SYSTEM_CLOCK", clock)  # no handler takes long

    def run(job: Any) -> None:
        if job == "blocks":
            gate.acquire()
        done.add()

    pool = make(run, 8)
    loop: Any = pool._loop
    pool.submit([None])
    done.wait_for(1)
    until(lambda: len(pool._idle) == 1)
    pool.submit([None] * 50)
    done.wait_for(51)
    until(lambda: len(pool._idle) == 1)
    assert len(pool.workers) == 1
    (check,) = loop.timers
    check()
    assert len(loop.timers) == 1  # the queue was empty
    pool.submit(["blocks", None, None])
    until(lambda: pool.queued() == 2 and pool.busy() == 1)
    assert len(pool.workers) == 1
    loop.timers[1]()
    done.wait_for(53)
    assert pool.busy() == 1
    gate.release()
    done.wait_for(54)


@pytest.mark.parametrize("at_once", [True, False])
def test_each_blocking_handler_gets_a_thread(make: Made, at_once: bool) -> None:
    """Each handler waits for all others, so that a lost wake-up blocks all."""
    begun, done = Tally(), Tally()

    def run(_job: Any) -> None:
        begun.add()
        begun.wait_for(30)
        done.add()

    pool = make(run, 30)
    loop: Any = pool._loop

    def are_done() -> bool:
        # If a woken thread finds the queue empty, the pool takes handlers for short.  Then a timer wakes the next one.
        loop.fire_timers()
        return done.count >= 30

    for _ in range(3):
        begun.count = done.count = 0
        if at_once:
            pool.submit([None] * 30)
        else:
            for _ in range(30):
                pool.submit([None])
        until(are_done)


def test_no_wake_up_is_lost_if_threads_become_idle_while_jobs_arrive(make: Made, busy_switching: None) -> None:
    jobs = repeats(1500, 250)
    for concurrency in (1, 2, 5):
        done = Tally()
        pool = make(done.add, concurrency)
        for number in range(1, jobs):
            pool.submit([number])
            if number % 3:
                done.wait_for(number)
        done.wait_for(jobs - 1)


def test_threads_start_and_end_with_the_concurrency(make: Made) -> None:
    gate, started, done = native_held_lock(), Tally(), Tally()

    def run(_job: Any) -> None:
        started.add()
        gate.acquire()
        gate.release()
        done.add()

    pool = make(run, 2)
    pool.submit([1] * 6)
    started.wait_for(2)
    assert (pool.queued(), pool.busy()) == (4, 2)
    pool.set_concurrency(5)
    started.wait_for(5)
    assert (pool.queued(), pool.busy()) == (1, 5)
    pool.set_concurrency(1)
    gate.release()
    done.wait_for(6)
    until(lambda: len(pool.workers) == 1 and not pool.busy())
    pool.submit([None])
    done.wait_for(7)
    pool.set_concurrency(4)
    pool.submit([None] * 8)
    done.wait_for(15)
    pool.set_concurrency(1)  # idle threads end too
    until(lambda: len(pool.workers) == 1)


def test_if_the_system_starts_no_more_threads_the_others_work_and_the_pool_tries_again(
    make: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, done, gate = FakeClock(), Tally(), native_held_lock()
    monkeypatch.setattr(pools, "SYSTEM_CLOCK", clock)

    def run(job: Any) -> None:
        if job == "blocks":
            gate.acquire()
        done.add()

    pool = make(run, 10)
    pool.submit(["blocks"])
    until(lambda: pool.busy() == 1 and not pool.queued())
    asked = Tally()

    def refuse(name: str, run: Callable[[], None]) -> None:
        asked.add()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pools, "start_native_thread", refuse)
    for _ in range(50):
        pool.submit(["job"])
    until(lambda: asked.count == 1)
    clock.advance(0.9)
    pool.retry_threads()
    gevent.sleep(0)
    assert (asked.count, done.count) == (1, 0)
    clock.advance(0.1)
    monkeypatch.setattr(pools, "start_native_thread", start_native_thread)
    pool.retry_threads()
    done.wait_for(50)
    gate.release()
    done.wait_for(51)
    assert "only 1 of 10 handler threads" in caplog.text
