"""The pool of native threads: no wake-up is lost, none is wasted."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from gnsq_lite.consume import thread_pool as threads
from gnsq_lite.consume.thread_pool import ThreadPool
from gnsq_lite.net.nested import must_not_wait
from gnsq_lite.net.os_threads import start_native_thread_soon
from gnsq_lite.speed import Runner
from tests.fakes import FakeClock
from tests.native import is_patched, native_held_lock, native_ident, native_lock, start_native_thread
from tests.profiles import repeats

#: Seconds after which a test gives up: far more than anything here takes.
PATIENCE = 30.0


class FakeLoop:
    """Acts at once: only what a dying worker asks for."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], None]] = []

    def call_soon(self, act: Callable[[], Any]) -> None:
        act()

    def queue_call(self, act: Callable[[], None]) -> None:
        """Have it called in the test's thread, as the loop's would be: patched, a log record takes patched locks."""
        self.queued.append(act)


def until(condition: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait, in this native thread, until *condition* is so."""
    limit = time.monotonic() + patience
    nap = native_held_lock()
    while not condition():
        assert time.monotonic() < limit
        nap.acquire(True, 0.0002)


class Tally:
    """Counts in any thread."""

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
    """Return what makes a pool of *concurrency* threads around a function of one job; ended with the test."""
    made: list[ThreadPool] = []

    def a_pool(run: Callable[[Any], Any], concurrency: int, on_exit: Any = None) -> ThreadPool:
        runner = Runner(lambda message: None, 1, run, lambda job, error: None, lambda job: None)
        made.append(ThreadPool(FakeLoop(), runner, concurrency, on_exit or (lambda error: None)))  # type: ignore[arg-type]
        return made[-1]

    yield a_pool
    for pool in made:
        pool.take_queued()
        pool.close()
        until(lambda: not pool._workers())  # noqa: B023 - called at once


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Threads switch a thousand times as often, so that races are met."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Threads:
    """Stands for the system: notes which threads were to be started, and starts none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Callable[[], None]] = []
        monkeypatch.setattr(threads, "start_native_thread_soon", lambda name, run, refused: self.asked.append(run))


def test_any_number_of_jobs_wakes_one_thread(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    system, done = Threads(monkeypatch), Tally()
    pool = make(done.add, 1000)
    for _ in range(50):
        pool.submit(list(range(20)))
    assert len(system.asked) == 1
    start_native_thread("first", system.asked[0])
    done.wait_for(1000)
    assert len(system.asked) == 2  # it asked for the next as long as more was queued than it took, once
    start_native_thread("second", system.asked[1])  # finds nothing, and wakes nobody
    until(lambda: len(pool._idle) == 2)
    assert len(system.asked) == 2


def test_a_woken_thread_wakes_no_other_for_the_job_it_takes_itself(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    system, done = Threads(monkeypatch), Tally()
    pool = make(done.add, 1000)
    pool.submit([1])
    start_native_thread("only", system.asked[0])
    for number in range(1, 200):
        done.wait_for(number)
        pool.submit([1])
    done.wait_for(200)
    assert len(system.asked) <= 2  # the second where the first was not idle again in time


def test_a_thread_that_finds_nothing_queued_may_queue_more_itself_and_wakes_others_for_it(make: Made) -> None:
    done, met = Tally(), Tally()

    def run(job: str) -> None:
        if job == "meets another":
            met.add()
            met.wait_for(2)
        done.add()

    pool = make(run, 4)
    more = [["meets another", "meets another"], ["alone"], []]

    def read_on() -> bool:
        jobs = more.pop(0) if more else []
        pool.take_on(jobs)
        return bool(jobs)

    pool.read_on = read_on
    pool.submit(["alone"])
    done.wait_for(4)
    until(lambda: more == [] and len(pool._idle) == len(pool.seats))


def test_the_jobs_of_a_pool_are_those_at_its_threads_and_those_queued(make: Made) -> None:
    gate = native_held_lock()
    pool = make(lambda job: gate.acquire() and gate.release(), 1)
    pool.submit(["first", "second"])
    until(lambda: "first" in pool.jobs() and pool.queued() == 1)
    assert sorted(pool.jobs()) == ["first", "second"]
    gate.release()
    until(lambda: not any(pool.jobs()))


@pytest.mark.parametrize("step", [("submit", []), ("look", 1.0), ("_wake_next",), ("_park", native_held_lock())])
def test_a_finalizer_that_comes_in_under_the_lock_neither_waits_for_the_loop_nor_for_itself(
    make: Made, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, ...]
) -> None:
    Threads(monkeypatch)
    pool, seen = make(print, 1), list[tuple[bool, int]]()
    lock = pool._lock

    class Finalized:  # a lock under which garbage is collected
        def __enter__(self) -> None:
            lock.acquire()
            pool._lock = lock
            seen.append((must_not_wait(), pool.busy()))
            pool._lock = self

        def __exit__(self, *error: object) -> None:
            lock.release()

    pool._lock = Finalized()
    getattr(pool, step[0])(*step[1:])
    pool._lock = lock
    assert seen == [(True, 0)]
    assert not must_not_wait()


def test_a_thread_that_ends_leaves_no_hub_behind(make: Made) -> None:
    """A handler that waits as gevent does, patched sockets and sleeps among it, makes one: two descriptors each."""
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


@pytest.mark.parametrize("at_once", [True, False])
def test_handlers_that_block_all_get_their_thread(make: Made, at_once: bool) -> None:
    """Each waits for all the others: one wake-up too few, and none returns."""
    begun, done = Tally(), Tally()

    def run(_job: Any) -> None:
        begun.add()
        begun.wait_for(60)
        done.add()

    pool = make(run, 60)
    for _ in range(3):
        begun.count = done.count = 0
        if at_once:
            pool.submit([None] * 60)
        else:
            for _ in range(60):
                pool.submit([None])
        done.wait_for(60)


def test_no_job_waits_behind_one_that_runs_while_a_thread_is_free(make: Made) -> None:
    """All threads but one are held until that one has done the rest."""
    others, done = Tally(), Tally()

    def run(job: Any) -> None:
        if job < 3:
            others.wait_for(37)
        else:
            others.add()
        done.add()

    pool = make(run, 4)
    for _ in range(3):
        others.count = done.count = 0
        pool.submit(list(range(40)))
        done.wait_for(40)


def test_no_wake_up_is_lost_where_threads_park_as_jobs_come(make: Made, busy_switching: None) -> None:
    jobs = repeats(1500, 250)
    for concurrency in (1, 2, 5):
        done = Tally()
        pool = make(done.add, concurrency)
        for number in range(1, jobs):
            pool.submit([number])
            if number % 3:
                done.wait_for(number)
        done.wait_for(jobs - 1)


def test_a_job_that_comes_while_a_thread_is_about_to_park_wakes_it(make: Made) -> None:
    done, begun = Tally(), Tally()
    pool = make(done.add, 1)

    def submit() -> None:
        pool.submit([2])

    class Watched(deque[Any]):
        """Where the pool's thread has just found it empty, another thread submits, as far as it gets."""

        def __bool__(self) -> bool:
            found = len(self) > 0
            if not found and done.count == 1 and not begun.count:
                begun.add()
                start_native_thread("submits", submit)
                until(lambda: len(self) > 0)
                waited = native_held_lock()
                waited.acquire(True, 0.05)  # it waits for the pool's lock now, or looks at the idle without it
            return found

    pool._queue = Watched()
    pool.submit([1])
    done.wait_for(2)


@pytest.mark.parametrize("step", ["_wake_next", "_park"])
def test_a_thread_that_is_ended_between_jobs_takes_no_wake_up_with_it(make: Made, step: str) -> None:
    """As by an exception that another thread sets, and that a handler's return was quicker than."""
    done, ended = Tally(), Tally()
    pool = make(done.add, 1, ended.add)
    pool.submit([1])
    until(lambda: len(pool._idle) == 1)
    usual = getattr(pool, step)

    def end(*parked: Any) -> None:
        setattr(pool, step, usual)
        if parked:
            usual(*parked)
        raise SystemExit

    setattr(pool, step, end)
    pool.submit([2])
    ended.wait_for(1)
    until(lambda: not pool.queued())
    pool.submit([3])
    done.wait_for(3)
    until(lambda: (len(pool._idle), pool.busy()) == (1, 0))


def test_a_thread_that_never_begins_is_replaced(
    make: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one in which another thread has set an exception before its first line."""
    system, done = Threads(monkeypatch), Tally()
    pool = make(done.add, 1)
    pool.submit([1])
    for now in (0.0, 0.9, 1.0):  # it may just be slow
        pool.look(now)
        assert len(system.asked) == 1 + (now == 1.0)
    for act in pool._loop.queued:  # type: ignore[attr-defined]
        act()
    assert "1 handler threads have ended" in caplog.text
    start_native_thread("late", system.asked[0])
    start_native_thread("in its place", system.asked[1])
    done.wait_for(1)
    until(lambda: (len(pool._idle), pool.busy()) == (1, 0))
    pool.submit([2])
    done.wait_for(2)
    pool.look(2.0)
    pool.look(3.0)
    assert (len(system.asked), len(pool.seats)) == (2, 1)


def test_a_thread_that_is_gone_without_a_word_is_replaced(make: Made) -> None:
    """As one in which another thread has set an exception while it ended."""
    done = Tally()
    pool = make(done.add, 2)
    pool.submit([1])
    until(lambda: len(pool._idle) == 1)
    pool.seats.append([-1, None])
    pool._idle.append(native_held_lock())
    pool.submit([2])  # wakes that one
    pool.look(0.0)
    done.wait_for(2)
    until(lambda: not pool.busy())
    assert -1 not in [ident for ident, _ in pool.seats]


def test_nobody_waits_for_a_thread_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may never: another thread has set an exception in it."""
    began, ends, errors = Tally(), native_held_lock(), deque[RuntimeError]()

    def never(thread: Any) -> None:
        began.add()
        ends.acquire()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", never)
    start_native_thread_soon("never", print, errors.append)
    if not is_patched():
        began.wait_for(1)
        ends.release()
        until(lambda: bool(errors))


def test_more_threads_come_with_more_concurrency_and_go_with_less(make: Made) -> None:
    gate, started, done = native_held_lock(), Tally(), Tally()

    def run(_job: Any) -> None:
        started.add()
        gate.acquire()
        gate.release()
        done.add()

    pool = make(run, 2)
    pool.submit([None] * 6)
    started.wait_for(2)
    assert (pool.queued(), pool.busy()) == (4, 2)
    pool.set_concurrency(5)
    started.wait_for(5)
    assert (pool.queued(), pool.busy()) == (1, 5)
    pool.set_concurrency(1)
    gate.release()
    done.wait_for(6)
    until(lambda: pool._workers() == 1 and not pool.busy())
    pool.submit([None])
    done.wait_for(7)
    pool.set_concurrency(4)
    pool.submit([None] * 8)
    done.wait_for(15)
    pool.set_concurrency(1)  # idle ones go too
    until(lambda: pool._workers() == 1)


def test_a_handler_that_ends_its_thread_leaves_the_other_jobs_to_a_new_one(make: Made) -> None:
    done, told = Tally(), []

    def run(job: int) -> None:
        done.add()
        if job % 2:
            raise KeyboardInterrupt

    pool = make(run, 1, told.append)
    pool.submit(list(range(10)))
    done.wait_for(10)
    until(lambda: len(told) == 5)


@pytest.mark.parametrize("how", ["at once", "later"])
def test_where_the_system_gives_no_more_threads_the_others_do_the_work(
    make: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    given = []

    def start(name: str, run: Callable[[], None], refused: Callable[[RuntimeError], None]) -> None:
        if given:
            error = RuntimeError("can't start new thread")
            if how == "at once":
                raise error
            refused(error)
            return
        given.append(name)
        start_native_thread(name, run)

    monkeypatch.setattr(threads, "start_native_thread_soon", start)
    done = Tally()
    pool = make(done.add, 10)
    pool.submit([None] * 50)
    done.wait_for(50)
    for act in pool._loop.queued:  # type: ignore[attr-defined]
        act()
    pool.submit([None] * 50)
    done.wait_for(100)
    assert pool._workers() == 1
    assert "no more than 1 of 10 handler threads" in caplog.text


def test_a_system_that_refuses_a_thread_is_asked_again_a_second_later(
    make: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, asked, blocks = FakeClock(), [], native_held_lock()

    def start(name: str, run: Callable[[], None], refused: Callable[[RuntimeError], None]) -> None:
        asked.append(name)
        if len(asked) > 1:
            raise RuntimeError("can't start new thread")
        start_native_thread(name, run)

    monkeypatch.setattr(threads, "start_native_thread_soon", start)
    monkeypatch.setattr(threads, "SYSTEM_CLOCK", clock)
    done = Tally()
    pool = make(lambda job: blocks.acquire() and blocks.release() is None and done.add(), 10)
    pool.submit([None])
    until(lambda: not pool._waking)
    for _ in range(50):
        pool.submit([None])
    assert len(asked) == 2
    clock.advance(1.0)
    pool.submit([None])
    assert len(asked) == 3
    blocks.release()
    done.wait_for(52)
    for act in pool._loop.queued:  # type: ignore[attr-defined]
        act()
    assert len(caplog.records) == 2


def test_without_a_single_thread_the_error_is_raised(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(name: str, *_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "start_native_thread_soon", start)
    pool = make(print, 10)
    with pytest.raises(RuntimeError):
        pool.submit([None])
    assert pool._workers() == 0
