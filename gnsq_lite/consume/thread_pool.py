"""The pool of native threads that run handlers.

Waking a thread costs far more than a handler that does little, so no more are woken than have work to do: a queued job
wakes one thread, and a thread that was woken wakes the next while more is queued than it takes itself.  While a wake-up
is on its way no second one is sent.  The threads that ran last are woken first, so those beyond what the handlers need
sleep on, or are never started.

In a monkey-patched process the threads are those of a gevent ThreadPool of the Reader's own.  gevent's resolver uses
the hub's ThreadPool; handlers that block there would block every name resolution.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.consume.run_handler import HandlerRaised
from gnsq_lite.net.forks import end_child
from gnsq_lite.net.io_thread import enter_thread, leave_thread
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import has_patched_threads, native_held_lock, native_ident, native_rlock
from gnsq_lite.net.user_hooks import log_safely
from gnsq_lite.speed import Runner

log = logging.getLogger("gnsq_lite.reader")

#: Seconds for which the system, which has refused a thread, is not asked for another.
_REFUSED = 1.0


class ThreadPool:
    """Handlers in native threads, whatever is patched: they may block in any way."""

    def __init__(self, loop: Loop, runner: Runner, concurrency: int, on_exit: Callable[[BaseException], None]) -> None:
        self._loop, self._runner, self._concurrency, self._on_exit = loop, runner, concurrency, on_exit
        self._queue: deque[Any] = deque()
        self._lock = native_rlock()
        #: Locks of the threads that wait; the one that ran last is the last.
        self._idle: list[Any] = []
        #: Each thread and what it is at.
        self.seats: list[list[Any]] = []
        #: Threads that were asked for and have no seat yet; how many were ever started.
        self._coming = self._started = 0
        #: A thread was woken, or asked for, and has not looked at the queue yet.
        self._waking = False
        self._closed = False
        self._ask_at = 0.0
        self._gevent_pool: Any = None
        if has_patched_threads():
            self._gevent_pool = loop.thread_pool(concurrency)

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs* and wake a thread for them, unless one is waking."""
        self._queue.extend(jobs)
        # Not without the lock: a thread may have seen an empty queue and not be among the idle yet.
        with self._lock:
            if not self._waking and self._queue:
                self._wake_one()

    def _wake_one(self) -> None:
        """Under the lock: wake an idle thread, or have one started; nothing where all are at work."""
        if self._idle:
            self._waking = True
            self._idle.pop().release()
        elif self._workers() < self._concurrency and not self._closed and SYSTEM_CLOCK.now() >= self._ask_at:
            self._waking = True
            self._coming += 1
            self._loop.call_soon(self._start)
        else:
            self._waking = False

    def _start(self) -> None:
        """In the loop: start a thread."""
        if self._gevent_pool is not None:
            self._gevent_pool.maxsize = max(self._gevent_pool.maxsize, self._concurrency)
            self._loop.spawn("handler thread", self._start_with, self._gevent_pool.spawn, self._work)
        else:
            self._started += 1
            name = f"gnsq_lite-handler-{self._started}"
            self._start_with(threading.Thread(target=self._work, name=name, daemon=True).start)

    def _start_with(self, start: Callable[..., Any], *args: Any) -> None:
        try:
            start(*args)
        except RuntimeError as error:  # the system gives no more threads; those that run do the work
            with self._lock:
                self._coming -= 1
                self._waking = False
                self._ask_at = SYSTEM_CLOCK.now() + _REFUSED
                left = self._workers()
                self._count()
            said = "no more than %d of %d handler threads: %s"
            log_safely(log, logging.ERROR, said, left, self._concurrency, error)

    def _work(self) -> None:
        parked, seat = native_held_lock(), [native_ident(), None]
        with self._lock:
            self._coming -= 1
            self.seats.append(seat)
        enter_thread(self._loop)
        while True:
            with self._lock:
                self._waking = False
                if len(self._queue) > 1:
                    self._wake_one()  # more is queued than this thread is about to take
            try:
                end_child(self._runner.drain, self._queue, seat)
            except HandlerRaised as raised:
                self._on_exit(raised.__cause__ or raised)
            with self._lock:
                if self._closed or self._workers() > self._concurrency:
                    self.seats.remove(seat)
                    self._count()
                    break
                if self._queue:
                    continue
                self._idle.append(parked)
            parked.acquire()
        leave_thread()
        if self._queue and not self._closed:
            self._loop.call_soon(lambda: self.submit([]))

    def _workers(self) -> int:
        return len(self.seats) + self._coming

    def _count(self) -> None:
        self._runner.surplus = self._workers() - self._concurrency

    def look(self, now: float) -> None:
        """Ask again for threads that the system has refused; in the loop."""
        self.submit([])

    def reset(self) -> None:
        """Forget what was not begun."""
        self._queue.clear()
        with self._lock:
            self._waking = False

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
        if self._gevent_pool is not None:
            self._loop.spawn("handler threads", self._gevent_pool.kill)

    def abandon(self) -> None:
        """In a forked child: all jobs, and whoever held the lock, are the parent's; a thread that forked ends."""
        self._lock = native_rlock()
        self._queue.clear()
        self._closed = True
