"""The pool of native threads that run handlers.

Waking a thread costs far more than a handler that does little, so no more are woken than have work to do: a queued job
wakes one thread, and a thread that was woken wakes the next while more is queued than it takes itself.  While a wake-up
is on its way no second one is sent.  The threads that ran last are woken first, so those beyond what the handlers need
sleep on, or are never started.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.net.forks import end_child
from gnsq_lite.net.io_thread import enter_thread, leave_thread
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.nested import Holding, holds
from gnsq_lite.net.os_threads import (
    living_threads,
    native_held_lock,
    native_ident,
    native_rlock,
    start_native_thread_soon,
)
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.speed import Runner

log = logging.getLogger("gnsq_lite.reader")

#: Seconds for which the system, which has refused a thread, is not asked for another.
_REFUSED = 1.0
#: Seconds between two looks for threads that are gone, and that a thread has to begin at the least.
_LOOK_EVERY = 1.0


class ThreadPool:
    """Handlers in native threads, whatever is patched: they may block in any way."""

    def __init__(self, loop: Loop, runner: Runner, concurrency: int, on_exit: Callable[[BaseException], None]) -> None:
        self._loop, self._runner, self._concurrency, self._on_exit = loop, runner, concurrency, on_exit
        self._queue: deque[Any] = deque()
        #: Queues what the calling thread, one of these, takes itself when it is done with its job.
        self.take_next: Callable[[Any], object] = self._queue.append
        #: Called in each thread that finds the queue empty; True: it has queued something.
        self.read_on: Callable[[], bool] = lambda: False
        # Held as :mod:`gnsq_lite.net.nested` has it, and again by what comes in: a finalizer may ask for stats().
        self._lock = native_rlock()
        #: Locks of the threads that wait; the one that ran last is the last.
        self._idle: list[Any] = []
        #: Each thread and what it is at.
        self.seats: list[list[Any]] = []
        #: Threads that were started and have no seat yet, by their numbers; those of them that had none at the last
        #: look either; and how many were ever started.
        self._coming: set[int] = set()
        self._late: set[int] = set()
        self._started = 0
        self._look_at = 0.0
        #: A thread was woken, or started, and has not looked at the queue yet.
        self._waking = False
        self._closed = False
        self._ask_at = 0.0

    @holds
    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs* and wake a thread for them, unless one is waking."""
        self._queue.extend(jobs)
        # Not without the lock: a thread may have seen an empty queue and not be among the idle yet.
        with Holding(), self._lock:
            thread = None if self._waking or not self._queue else self._next()
        self._wake(thread)

    def take_on(self, jobs: list[Any]) -> None:
        """Queue *jobs*, which one of these threads has brought, who takes the first itself."""
        self._queue.extend(jobs)
        if len(jobs) > 1:
            self.submit([])

    def _next(self) -> Any:
        """Choose the thread to wake: the lock at which it waits, or the number of a new one; None: all are at work."""
        if self._idle:
            self._waking = True
            return self._idle.pop()
        if self._workers() < self._concurrency and not self._closed and self._may_ask():
            self._waking = True
            self._started += 1
            self._coming.add(self._started)
            return self._started
        self._waking = False
        return None

    def _wake(self, thread: Any) -> None:
        """Wake the one that was chosen; not under the lock."""
        if isinstance(thread, int):
            self._start(thread)
        elif thread is not None:
            thread.release()

    def _may_ask(self) -> bool:
        """Whether the system may have another thread; without any it is asked each time."""
        return not self._workers() or SYSTEM_CLOCK.now() >= self._ask_at

    def _start(self, number: int) -> None:
        work, refused = partial(self._work, number), partial(self._on_refused, number)
        try:
            start_native_thread_soon(f"gnsq_lite-handler-{number}", work, refused)
        except RuntimeError as error:
            self._on_refused(number, error)
            if not self._workers():
                raise

    def _on_refused(self, number: int, error: RuntimeError) -> None:
        """The system gives no more threads; those that run do the work."""
        with self._lock:
            self._coming.discard(number)
            self._waking = False
            self._ask_at = SYSTEM_CLOCK.now() + _REFUSED
            left = self._workers()
            self._count()
        said = "no more than %d of %d handler threads: %s"
        log_safely(log, logging.ERROR, said, left, self._concurrency, error)

    @holds
    def _wake_next(self) -> None:
        """Just woken: where more is queued than this thread is about to take, wake the next."""
        with Holding(), self._lock:
            self._waking = False
            thread = self._next() if len(self._queue) > 1 else None
        self._wake(thread)

    def _work(self, number: int) -> None:
        queue, runner = self._queue, self._runner
        parked = native_held_lock()
        failure: BaseException | None = None
        seat = [native_ident(), None]
        try:
            with self._lock:
                if number not in self._coming:
                    return  # so late that another came in its place
                self._coming.remove(number)
                self.seats.append(seat)
            enter_thread(self._loop)
            while True:
                self._wake_next()
                end_child(runner.drain, queue, seat)
                while self.read_on() or not self._park(parked):
                    if self._closed or self._workers() > self._concurrency:
                        return
                    end_child(runner.drain, queue, seat)
                parked.acquire()
        except BaseException as error:
            failure = error
        finally:
            with self._lock:
                self._coming.discard(number)
                if failure is not None:  # maybe between two jobs: idle, or woken without having looked
                    self._idle = [other for other in self._idle if other is not parked]
                    self._waking = False
                self.seats = [other for other in self.seats if other is not seat]
                self._count()
            if failure is not None:
                self._on_exit(failure)  # nor does it count as a running handler any more
            if queue and not self._closed:
                self._loop.call_soon(lambda: self.submit([]))
            leave_thread()

    @holds
    def _park(self, parked: Any) -> bool:
        """Join the idle, unless there is something left to do, or no place for this thread."""
        with Holding(), self._lock:
            if self._queue or self._closed or self._workers() > self._concurrency:
                return False
            self._idle.append(parked)
            return True

    def _workers(self) -> int:
        return len(self.seats) + len(self._coming)

    def _count(self) -> None:
        self._runner.surplus = self._workers() - self._concurrency

    @holds
    def look(self, now: float) -> None:
        """Have others in place of threads that have ended without a word; in the loop.

        An exception that another thread sets in one may hit before its first line, or after its last.
        """
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY
        with Holding(), self._lock:
            living = living_threads()  # under the lock: a thread that took its seat after this would seem to be gone
            seats = [seat for seat in self.seats if seat[0] in living]
            gone = self._coming & self._late
            self._late = self._coming - gone
            lost = len(self.seats) - len(seats) + len(gone)
            idle = self._idle if lost else []
            if lost:
                self.seats, self._coming, self._idle, self._waking = seats, self._coming - gone, [], False
                self._count()
        for parked in idle:  # one of them may have been the lock of a lost one
            parked.release()
        if lost:
            said = "%d handler threads have ended as they began, or without a word; others take their place"
            log_safely(log, logging.ERROR, said, lost)
        if self._queue:
            self.submit([])

    def can_spare_one(self) -> bool:
        """Whether a thread may wait for a moment: nothing is queued, and another could take what comes meanwhile."""
        return not self._queue and not self._closed and bool(self._idle or self._workers() < self._concurrency)

    def take_queued(self) -> list[Any]:
        """Remove and return what was not begun."""
        jobs = []
        while self._queue:
            try:
                jobs.append(self._queue.popleft())
            except IndexError:
                break
        return jobs

    def queued(self) -> int:
        """Jobs not begun."""
        return len(self._queue)

    def jobs(self) -> list[Any]:
        """Return those, and what the threads are at."""
        # In this order, and each at once as far as other threads go: a job that is taken meanwhile is seen twice.
        return [*self._queue, *(seat[1] for seat in tuple(self.seats))]

    def busy(self) -> int:
        """Handlers running."""
        with self._lock:
            return self._workers() - len(self._idle)

    def set_concurrency(self, concurrency: int) -> None:
        """Change the limit; surplus workers end, with their job if they have one."""
        with self._lock:
            self._concurrency = concurrency
            self._count()
            surplus = max(0, min(self._workers() - concurrency, len(self._idle)))
            idle, self._idle = self._idle[:surplus], self._idle[surplus:]
        for parked in idle:
            parked.release()
        self.submit([])

    def close(self) -> None:
        """Wake the idle workers, who then end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for parked in idle:
            parked.release()

    def abandon(self) -> None:
        """In a forked child: all jobs, and whoever held the lock, are the parent's; a thread that forked ends."""
        self._lock = native_rlock()
        self._queue.clear()
        self._closed = True
