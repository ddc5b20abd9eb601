"""Pools that run a Reader's handlers in greenlets of the loop, in the reading greenlet, or in native threads.

A pool appends the messages of each read to one deque, from which its workers take them.  It starts or wakes a worker
only if no running worker can take the message soon.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from gnsq_lite._core import Runner, drain
from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.consume.rows import parts_of
from gnsq_lite.consume.run_handler import HandlerRaised
from gnsq_lite.message import Message, TimeLimitExceeded, is_expired, unless_answered
from gnsq_lite.net.io_thread import enter_thread, exit_forked_handler, leave_thread
from gnsq_lite.net.loop import SLICE, Loop, current_greenlet, let_io
from gnsq_lite.net.os_threads import (
    WeakGroup,
    native_held_lock,
    native_ident,
    native_rlock,
    start_native_thread,
)
from gnsq_lite.net.user_hooks import log_safely

log = logging.getLogger("gnsq_lite.reader")

#: Seconds until the next attempt to start a thread, if the system could not start one.
_RETRY_AFTER = 1.0
#: Handlers are short if a thread has run all queued jobs within this many seconds.
_SHORT = 0.001
#: Seconds after which a queued job gets another thread although handlers are short.
_WAIT = 0.002


#: All pools of the process.  :mod:`gnsq_lite.consume.calls` reads their tables of workers.
pools = WeakGroup()


def messages_of(job: Any) -> list[Message]:
    """Return the messages of a job, which is a message or a list of messages or Rows."""
    return parts_of(job) if isinstance(job, list) else [job]


class Worker(list[Any]):
    """A greenlet or thread that runs handlers, as the list [greenlet or thread ident, current job or None].

    ``drain()`` sets the job.

    Attributes:
        seen, since: The job at the last check by TimeLimits, and the time of the first check that saw the job.
        is_over: Whether the handler has exceeded its time limit for that job.
        is_hung: Whether it runs on although its messages are answered, so that another worker takes its place.
    """

    __slots__ = ("is_hung", "is_over", "seen", "since")

    def __init__(self, ident: object) -> None:
        super().__init__((ident, None))
        self.see(None, 0.0)

    def see(self, job: Any, now: float) -> None:
        """Record a job that began after the last check."""
        self.seen, self.since, self.is_over, self.is_hung = job, now, False, False


class Pool:
    """Runs handlers for jobs.  A job is a message or a list of messages.

    ``unit`` names what a worker is.

    Args:
        on_exit: Called with the error of a handler if the error is not an Exception, for example SystemExit.
    """

    unit = "greenlet"

    def __init__(self, runner: Runner, on_exit: Callable[[BaseException], None]) -> None:
        self._runner, self._on_exit = runner, on_exit
        self._queue: deque[Any] = deque()
        #: All workers.  Other threads read this list.
        self.workers: list[Worker] = []
        self._closed = False
        pools.add(self)

    def me(self) -> object:
        """Return the caller as a worker names it: a greenlet, the ident of a thread, or a task."""
        return current_greenlet()

    def has_ended(self) -> bool:
        """Return whether nothing of the pool runs any more that a closing Reader must wait for."""
        return True

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs* for the workers.  Call it in the loop's thread.  Only InlinePool blocks."""
        raise NotImplementedError

    def take_queued(self) -> list[Message]:
        """Remove and return the messages that no handler has begun."""
        return [message for job in self._take_jobs() for message in messages_of(job)]

    def purge(self) -> list[Message]:
        """Remove and return the messages that timed out at nsqd before a handler began them.

        The other messages keep their order.  Call it in the loop's thread.
        """
        gone: list[Message] = []
        kept: list[Any] = []
        for job in self._take_jobs():
            messages = messages_of(job)
            left = [message for message in messages if not is_expired(message)]
            gone += filter(is_expired, messages)
            if left:
                kept.append(left if isinstance(job, list) else job)
        if kept:
            self.submit(kept)
        return gone

    def _take_jobs(self) -> list[Any]:
        jobs = []
        while self._queue:
            try:
                jobs.append(self._queue.popleft())
            except IndexError:  # a worker's thread has taken the last job
                break
        return jobs

    def queued(self) -> int:
        """Return the number of jobs that no handler has begun."""
        return len(self._queue)

    def running(self) -> list[Message]:
        """Return the messages of the running handlers.  Thread-safe."""
        jobs = [worker[1] for worker in tuple(self.workers)]
        return [message for job in jobs if job is not None for message in messages_of(job)]

    def busy(self) -> int:
        """Return the number of running handlers.  Thread-safe."""
        return sum(worker[1] is not None for worker in tuple(self.workers))

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of running handlers."""

    def retry_threads(self) -> None:
        """Try again to start threads that the system could not start.  Call it about once a second."""

    def close(self) -> None:
        """End each worker when its handler returns.  The caller has removed the queued messages."""
        self._closed = True

    def abandon(self) -> None:
        """Drop the parent's jobs in a forked child.  If a handler forked, the child ends when that handler returns."""
        self._queue.clear()
        self._closed = True


class GreenletPool(Pool):
    """Runs handlers in greenlets of the loop.  A handler that blocks without gevent blocks all I/O."""

    def __init__(self, loop: Loop, runner: Runner, concurrency: int, on_exit: Callable[[BaseException], None]) -> None:
        super().__init__(runner, on_exit)
        self._loop, self._concurrency = loop, concurrency
        self._idle: list[Any] = []
        #: Greenlets of workers whose time slice ended before the queue was empty.
        self._interrupted: deque[Any] = deque()
        #: Whether _run_workers() is scheduled.
        self._is_scheduled = False
        #: Start time of the loop iteration in which handlers last ran.
        self._iteration = 0.0

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs*.  In the hub, also run workers now, unless they are scheduled to run later."""
        self._queue.extend(jobs)
        if self._is_scheduled:
            return
        if current_greenlet() is self._loop.hub:
            self._run_workers()
        else:
            self._run_soon()

    def _run_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.soon(self._run_workers)

    def _run_after_poll(self) -> None:
        """Schedule _run_workers() after the next poll of sockets.  A callback of ``soon()`` may run before the poll."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.timer(0.0, self._run_workers)

    def _run_workers(self) -> None:
        """Switch to workers until no job or no free worker is left, or the time slice ends.  Call it in the hub.

        A worker returns to the hub when its handler waits.  If handlers never wait, one switch handles a whole read.
        """
        self._is_scheduled = False
        runner, iteration = self._runner, self._loop.now()
        if iteration != self._iteration:
            self._iteration, runner.slice_ends = iteration, time.monotonic() + SLICE
        while self._queue or self._interrupted:
            if self._interrupted:
                self._interrupted.popleft().switch()
            elif self._idle:
                self._idle.pop().switch()
            elif len(self.workers) < self._concurrency and not self._closed:
                self._loop.begin(self._work)
            else:
                return  # the first worker whose handler returns takes the next job
            if time.monotonic() > runner.slice_ends:
                self._run_after_poll()
                return

    def _work(self) -> None:
        queue, runner = self._queue, self._runner
        me, suspend = current_greenlet(), self._loop.suspend
        worker = Worker(me)
        try:
            self.workers.append(worker)
            while True:
                is_slice_over = drain(runner, queue, worker)
                if self._closed and not queue:
                    return
                if is_slice_over:
                    self._run_after_poll()
                    self._interrupted.append(me)
                else:
                    self._idle.append(me)
                suspend()
        except (HandlerRaised, TimeLimitExceeded) as raised:
            self._on_exit(raised.__cause__ or raised)
        except BaseException as error:
            self._loop.fail(error)
        finally:
            if self._closed:
                exit_forked_handler()
            self.workers.remove(worker)
            if queue:
                self._run_soon()

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of workers.  Surplus workers stay: the lower max_in_flight limits handlers too."""
        self._concurrency = concurrency
        self._run_soon()

    def close(self) -> None:
        """Wake the idle workers, so that they end."""
        self._closed = True
        idle, self._idle = self._idle, []
        for worker in idle:
            self._loop.soon(worker.switch)


class InlinePool(Pool):
    """Runs handlers in the greenlet that reads the connection.  This greenlet reads nothing until they return.

    If handlers take long, the loop runs between two handlers, sends answers and detects late messages.
    """

    def submit(self, jobs: list[Any]) -> None:
        """Run *jobs* now, one after the other."""
        queue = self._queue
        queue.extend(jobs)
        if self.workers:
            return  # another call runs handlers, and will take these jobs too
        try:
            self.workers = [Worker(current_greenlet())]
            while queue:
                try:
                    self._runner.slice_ends = time.monotonic() + SLICE
                    is_slice_over = drain(self._runner, queue, self.workers[0])
                except (HandlerRaised, TimeLimitExceeded) as raised:
                    self.workers[0][1] = None
                    self._on_exit(raised.__cause__ or raised)
                    if self._closed or isinstance(raised.__cause__, (KeyboardInterrupt, SystemExit)):
                        return  # the Reader ends, and requeues the queued messages
                else:
                    if is_slice_over:
                        let_io()
        finally:
            if self._closed:
                exit_forked_handler()
            self.workers = []


class ThreadPool(Pool):
    """Runs handlers in native threads, even in a monkey-patched process, so handlers may block in any way.

    Waking a thread costs far more than a short handler, so the pool wakes few threads.  A queued job wakes one thread.
    If more than one job is queued, the woken thread wakes the next thread.  If handlers are short, it does not: then
    the loop checks the queue after _WAIT seconds, because a handler may block unexpectedly.  At most one wake-up is
    under way.  The pool first wakes the thread that ran last, so surplus threads stay idle or are never started.

    The pool does not use gevent's ThreadPool, because its threads run in a greenlet.  If such a thread waits for the
    GIL while Python exits, it crashes the process.
    """

    unit = "thread"

    def __init__(self, loop: Loop, runner: Runner, concurrency: int, on_exit: Callable[[BaseException], None]) -> None:
        super().__init__(runner, on_exit)
        self._loop, self._concurrency = loop, concurrency
        runner.writes_fins = True
        self._lock = native_rlock()
        #: The locks on which the idle threads wait.  The last lock belongs to the thread that ran last.
        self._idle: list[Any] = []
        #: Number of threads that are starting, and of all threads that were started.
        self._starting = self._started = 0
        #: Whether a woken or starting thread has not checked the queue yet.
        self._waking = False
        #: Whether handlers are short, and whether the loop will check the queue.
        self._is_short = self._will_check = False
        #: Time before which no thread is started, because the system could not start one.
        self._start_at = 0.0

    def me(self) -> object:
        """Return the ident of the calling thread."""
        return native_ident()

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs* and wake a thread, unless a wake-up is under way."""
        self._queue.extend(jobs)
        # Without the lock, a thread that has just found the queue empty could join _idle after this check, and sleep.
        with self._lock:
            if not self._waking and self._queue:
                self._wake_one(in_loop=True)
        if self._is_short and not self._will_check and len(self._queue) > 1:
            self._check_later()

    def can_spare(self, count: int) -> bool:
        """Return whether no job is queued and *count* more threads could run jobs.  Thread-safe."""
        free = len(self._idle) + self._concurrency - self._thread_count()
        return free >= count and not self._queue and not self._closed

    def take_next(self, job: Any) -> None:
        """Queue *job* for the calling thread of the pool, which is about to look for its next job."""
        self._queue.append(job)

    def _check_later(self) -> None:
        self._will_check = True
        self._loop.timer(_WAIT, self._check)

    def _check(self) -> None:
        """Wake another thread if jobs are queued, and check again later.  Call it in the loop."""
        self._will_check = False
        with self._lock:
            if self._queue and not self._waking:
                self._is_short = False
                self._wake_one()
            must_check = bool(self._queue) and self._waking
        if must_check:
            self._check_later()

    def _wake_one(self, *, in_loop: bool = False) -> None:
        """Wake an idle thread, or start a new one if that is allowed now.  Call it under the lock."""
        if self._idle:
            self._waking = True
            idle = self._idle[-1]
            del self._idle[-1]  # not pop(): an asynchronous exception may follow a call, and the thread would sleep on
            if in_loop:
                self._loop.release_before_poll(idle)
            else:
                idle.release()
        elif self._thread_count() < self._concurrency and not self._closed and SYSTEM_CLOCK.now() >= self._start_at:
            self._waking = True
            self._loop.call_soon(self._start)
        else:
            self._waking = False

    def _start(self) -> None:
        """Start a thread, unless enough threads run.  Call it in the loop."""
        with self._lock:
            if self._thread_count() >= self._concurrency or self._closed:
                self._waking = False
                return
            self._starting += 1
        self._started += 1
        try:
            start_native_thread(f"gnsq_lite-handler-{self._started}", self._work)
        except RuntimeError as error:  # the system cannot start another thread; the running threads continue
            with self._lock:
                self._starting -= 1
                self._waking = False
                self._start_at = SYSTEM_CLOCK.now() + _RETRY_AFTER
                count = self._thread_count()
                self._update_surplus()
            said = "only %d of %d handler threads run, because the system cannot start another thread: %s"
            log_safely(log, logging.ERROR, said, count, self._concurrency, error)

    def _work(self) -> None:
        idle, worker = native_held_lock(), Worker(native_ident())
        with self._lock:
            self._starting -= 1
            self.workers.append(worker)
        enter_thread(self._loop)
        try:
            self._serve(idle, worker)
        except BaseException as error:  # an asynchronous exception, which another thread has set
            self._loop.call_soon(partial(self._replace, idle, worker, error))
        exit_forked_handler()
        leave_thread()
        if self._queue and not self._closed:
            self._loop.call_soon(lambda: self.submit([]))

    def _serve(self, idle: Any, worker: Worker) -> None:
        """Run handlers until the thread must end.  While it waits, *idle* is in ``_idle``."""
        while True:
            with self._lock:
                self._waking = False
                if len(self._queue) > 1:  # this thread runs only one job at a time
                    if not self._is_short:
                        self._wake_one()
                    elif not self._will_check:
                        self._will_check = True
                        self._loop.call_soon(self._check_later)
            began = SYSTEM_CLOCK.now()
            try:
                drain(self._runner, self._queue, worker)
                self._is_short = SYSTEM_CLOCK.now() - began < _SHORT
            except HandlerRaised as raised:
                worker[1] = None
                self._on_exit(raised.__cause__ or raised)
            with self._lock:
                if self._closed or self._thread_count() > self._concurrency:
                    self.workers.remove(worker)
                    self._update_surplus()
                    return
                if self._queue:
                    continue
                self._idle.append(idle)
            idle.acquire()

    def _replace(self, idle: Any, worker: Worker, error: BaseException) -> None:
        """Requeue the messages of a thread that *error* has ended, and let another thread start.  Call it in the loop.

        Timeout decorators raise such exceptions with ``PyThreadState_SetAsyncExc``, at any line of the thread.
        """
        said = "%s ended a handler thread outside the handler; its message is requeued, and another thread is started"
        log_safely(log, logging.ERROR, said, type(error).__name__, exc_info=error)
        with self._lock:
            if worker in self.workers:
                self.workers.remove(worker)
            if idle in self._idle:
                self._idle.remove(idle)
            self._update_surplus()
            self._waking = self._will_check = False  # the thread may have been woken, or about to ask for a check
        for message in [] if worker[1] is None else messages_of(worker[1]):
            message._connection.flush()  # the exception may have prevented the write of an answer
            unless_answered(message.requeue)
        self.submit([])

    def _thread_count(self) -> int:
        return len(self.workers) + self._starting

    def _update_surplus(self) -> None:
        self._runner.surplus = self._thread_count() - self._concurrency

    def retry_threads(self) -> None:
        """Try again to start threads that the system could not start."""
        self.submit([])

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of threads.  A surplus thread ends after its current job."""
        with self._lock:
            self._concurrency = concurrency
            self._update_surplus()
            surplus = max(0, min(self._thread_count() - concurrency, len(self._idle)))
            idle, self._idle = self._idle[:surplus], self._idle[surplus:]
        for each in idle:
            each.release()
        self.submit([])

    def close(self) -> None:
        """Wake the idle workers, so that they end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for each in idle:
            each.release()

    def abandon(self) -> None:
        """Drop the parent's jobs in a forked child."""
        self._lock = native_rlock()  # a thread of the parent may hold the old lock
        super().abandon()
