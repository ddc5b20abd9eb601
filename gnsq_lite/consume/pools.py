"""Pools that run a Reader's handlers in greenlets of the loop, in the reading greenlet, or in native threads.

The messages of each read are appended to one deque, from which free workers take them.  No worker is started or woken
for a message that a running worker can take.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from gnsq_lite._core import Runner, drain
from gnsq_lite.clock import SYSTEM_CLOCK
from gnsq_lite.consume.run_handler import HandlerRaised
from gnsq_lite.message import Message, TimeLimitExceeded, is_expired
from gnsq_lite.net.io_thread import enter_thread, exit_forked_handler, leave_thread
from gnsq_lite.net.loop import SLICE, Loop, current_greenlet, let_io
from gnsq_lite.net.os_threads import is_patched, native_held_lock, native_ident, native_rlock, start_native_thread
from gnsq_lite.net.user_hooks import log_safely

log = logging.getLogger("gnsq_lite.reader")

#: Default concurrency of a GreenletPool and of a ThreadPool.
DEFAULT_GREENLETS = 100
DEFAULT_THREADS = 8
#: Seconds until the next attempt after the system failed to start a thread.
_REFUSED = 1.0


def messages_of(job: Any) -> list[Message]:
    """Return the messages of a job, which is a message or a list of messages."""
    return job if isinstance(job, list) else [job]


class Seat(list[Any]):
    """State of a worker: the list [greenlet or thread ident, job or None].  The C code sets the job.

    Attributes:
        seen, since: The job at the last check by TimeLimits, and the time of the first check that saw the job.
        is_over: Whether the handler has exceeded its time limit for that job.
    """

    __slots__ = ("is_over", "seen", "since")

    def __init__(self, worker: object) -> None:
        super().__init__((worker, None))
        self.see(None, 0.0)

    def see(self, job: Any, now: float) -> None:
        """Record a job that began since the last check."""
        self.seen, self.since, self.is_over = job, now, False


class Pool:
    """Runs handlers for jobs.  A job is a message or a list of messages.

    Args:
        on_exit: Called with the error of a handler if the error is no Exception, for example SystemExit.
    """

    def __init__(self, runner: Runner, on_exit: Callable[[BaseException], None]) -> None:
        self._runner, self._on_exit = runner, on_exit
        self._queue: deque[Any] = deque()
        #: The workers; other threads read this list.
        self.seats: list[Seat] = []
        self._closed = False

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs*.  Call it in the loop's thread; it does not block."""
        raise NotImplementedError

    def take_queued(self) -> list[Message]:
        """Remove and return the messages that no handler has begun."""
        return [message for job in self._take_jobs() for message in messages_of(job)]

    def purge(self) -> list[Message]:
        """Remove and return the messages that timed out at nsqd before a handler began them.

        Call it in the loop's thread.  The other messages keep their order.  Meanwhile a handler's thread may find the
        queue empty and wait; :meth:`submit` wakes it again.
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
            except IndexError:  # a thread took the last job meanwhile
                break
        return jobs

    def queued(self) -> int:
        """Return the number of jobs that no handler has begun."""
        return len(self._queue)

    def running(self) -> list[Message]:
        """Return the messages of the running handlers.  Thread-safe."""
        jobs = [seat[1] for seat in tuple(self.seats)]
        return [message for job in jobs if job is not None for message in messages_of(job)]

    def busy(self) -> int:
        """Return the number of running handlers.  Thread-safe."""
        return sum(seat[1] is not None for seat in tuple(self.seats))

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of running handlers."""

    def look(self) -> None:
        """Retry to start threads.  Called in the loop's thread about once a second."""

    def close(self) -> None:
        """Start no more handlers; each worker ends after its handler has returned."""
        self._closed = True

    def abandon(self) -> None:
        """Drop the parent's jobs in a forked child.  If a handler forked, its worker ends when the handler returns."""
        self._queue.clear()
        self._closed = True


class GreenletPool(Pool):
    """Runs handlers in greenlets of the loop.  Handlers must cooperate: wait with gevent, or in a patched process."""

    def __init__(self, loop: Loop, runner: Runner, concurrency: int, on_exit: Callable[[BaseException], None]) -> None:
        super().__init__(runner, on_exit)
        self._loop, self._concurrency = loop, concurrency
        self._idle: list[Any] = []
        #: Workers whose time slice ended before the queue was empty.
        self._gave_way: deque[Any] = deque()
        self._pump_due = False
        #: Start time of the loop iteration in which handlers last ran; function that returns the current start time.
        self._turn, self._now = 0.0, loop.now

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs*.  In the hub, also run workers now, until the time slice of this iteration ends."""
        self._queue.extend(jobs)
        if self._pump_due:
            return
        if current_greenlet() is self._loop.hub:
            self._run_workers()
        else:
            self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.soon(self._pump)

    def _pump_later(self) -> None:
        """Schedule _pump() after the next poll; the loop may run a callback of ``soon()`` before it polls."""
        if not self._pump_due:
            self._pump_due = True
            self._loop.timer(0.0, self._pump)

    def _pump(self) -> None:
        """Switch to one worker after another until the queue is empty or the time slice ends.  Called in the hub.

        A worker returns to the hub when its handler waits.  If handlers never wait, one switch handles a whole read.
        """
        self._pump_due = False
        self._run_workers()

    def _run_workers(self) -> None:
        runner, turn = self._runner, self._now()
        if turn != self._turn:
            self._turn, runner.turn_ends = turn, time.monotonic() + SLICE
        while self._queue or self._gave_way:
            if self._gave_way:
                self._gave_way.popleft().switch()
            elif self._idle:
                self._idle.pop().switch()
            elif len(self.seats) < self._concurrency and not self._closed:
                self._loop.begin(self._work)
            else:
                return  # the first worker whose handler returns takes the next job
            if time.monotonic() > runner.turn_ends:
                self._pump_later()
                return

    def _work(self) -> None:
        queue, runner = self._queue, self._runner
        me, suspend = current_greenlet(), self._loop.suspend
        seat = Seat(me)
        try:
            self.seats.append(seat)
            while True:
                is_turn_over = drain(runner, queue, seat)
                if self._closed and not queue:
                    return
                if is_turn_over:
                    self._pump_later()
                    self._gave_way.append(me)
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
            self.seats.remove(seat)
            if queue:
                self._pump_soon()

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of workers.  A lower maximum does not end idle workers; they stay asleep."""
        self._concurrency = concurrency
        self._pump_soon()

    def close(self) -> None:
        """Wake the idle workers, so that they end."""
        self._closed = True
        idle, self._idle = self._idle, []
        for worker in idle:
            self._loop.soon(worker.switch)


class InlinePool(Pool):
    """Runs handlers in the greenlet that reads the connection, so nothing is read until the handlers return.

    If handlers take long, the loop runs between two handlers: it sends answers and detects late messages.
    """

    def submit(self, jobs: list[Any]) -> None:
        """Run *jobs* now, one after the other."""
        queue = self._queue
        queue.extend(jobs)
        if self.seats:
            return  # another call is running handlers, and takes these jobs
        try:
            self.seats = [Seat(current_greenlet())]
            while queue:
                try:
                    self._runner.turn_ends = time.monotonic() + SLICE
                    is_turn_over = drain(self._runner, queue, self.seats[0])
                except (HandlerRaised, TimeLimitExceeded) as raised:
                    self._on_exit(raised.__cause__ or raised)
                    if self._closed or isinstance(raised.__cause__, (KeyboardInterrupt, SystemExit)):
                        return  # the Reader ends, and requeues the queued messages
                else:
                    if is_turn_over:
                        let_io()
        finally:
            if self._closed:
                exit_forked_handler()
            self.seats = []


class ThreadPool(Pool):
    """Runs handlers in native threads, even in a monkey-patched process, so handlers may block in any way.

    Waking a thread costs far more than a short handler, so few threads are woken.  A queued job wakes one thread.  If
    more than one job is queued, the woken thread wakes the next thread.  At most one wake-up is under way.  The thread
    that ran last is woken first, so surplus threads keep sleeping or are never started.

    gevent's ThreadPool is not used, because its threads run in a greenlet: a thread that waits for the GIL in a
    greenlet while Python exits crashes the process.
    """

    def __init__(self, loop: Loop, runner: Runner, concurrency: int, on_exit: Callable[[BaseException], None]) -> None:
        super().__init__(runner, on_exit)
        self._loop, self._concurrency = loop, concurrency
        self._lock = native_rlock()
        #: Locks on which the idle threads wait; the last lock belongs to the thread that ran last.
        self._idle: list[Any] = []
        #: Number of requested threads without a seat; number of threads started so far.
        self._coming = self._started = 0
        #: Whether a woken or requested thread has not checked the queue yet.
        self._waking = False
        self._ask_at = 0.0

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs* and wake a thread, unless a wake-up is under way."""
        self._queue.extend(jobs)
        # The lock is needed because a thread may have found the queue empty and not be in _idle yet.
        with self._lock:
            if not self._waking and self._queue:
                self._wake_one()

    def _wake_one(self) -> None:
        """Wake an idle thread or request a new one; do nothing if all threads work.  Called under the lock."""
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
        """Start a thread.  Called in the loop."""
        self._started += 1
        try:
            start_native_thread(f"gnsq_lite-handler-{self._started}", self._work)
        except RuntimeError as error:  # the system starts no more threads; the running threads do the work
            with self._lock:
                self._coming -= 1
                self._waking = False
                self._ask_at = SYSTEM_CLOCK.now() + _REFUSED
                left = self._workers()
                self._count()
            said = "no more than %d of %d handler threads: %s"
            log_safely(log, logging.ERROR, said, left, self._concurrency, error)

    def _work(self) -> None:
        parked, seat = native_held_lock(), Seat(native_ident())
        with self._lock:
            self._coming -= 1
            self.seats.append(seat)
        enter_thread(self._loop)
        while True:
            with self._lock:
                self._waking = False
                if len(self._queue) > 1:
                    self._wake_one()  # this thread takes only one job
            try:
                drain(self._runner, self._queue, seat)
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
        exit_forked_handler()
        leave_thread()
        if self._queue and not self._closed:
            self._loop.call_soon(lambda: self.submit([]))

    def _workers(self) -> int:
        return len(self.seats) + self._coming

    def _count(self) -> None:
        self._runner.surplus = self._workers() - self._concurrency

    def look(self) -> None:
        """Retry to start threads that the system refused.  Called in the loop's thread."""
        self.submit([])

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of threads.  Surplus idle threads end now, surplus busy threads after their job."""
        with self._lock:
            self._concurrency = concurrency
            self._count()
            surplus = max(0, min(self._workers() - concurrency, len(self._idle)))
            idle, self._idle = self._idle[:surplus], self._idle[surplus:]
        for parked in idle:
            parked.release()
        self.submit([])

    def close(self) -> None:
        """Wake the idle workers, so that they end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for parked in idle:
            parked.release()

    def abandon(self) -> None:
        """Drop the parent's jobs and lock in a forked child.  If a handler forked, its thread ends in the child."""
        self._lock = native_rlock()
        super().abandon()


def pool_kind(asked: Literal["auto", "greenlet", "thread", "inline"]) -> Literal["greenlet", "thread", "inline"]:
    """Return *asked*.  For "auto", return "greenlet" in a monkey-patched process, else "thread"."""
    if asked == "auto":
        return "greenlet" if is_patched() else "thread"
    return asked


def make_pool(
    kind: Literal["greenlet", "thread", "inline"],
    loop: Loop,
    runner: Runner,
    concurrency: int,
    on_exit: Callable[[BaseException], None],
) -> Pool:
    """Return a pool of *kind*."""
    if kind == "inline":
        return InlinePool(runner, on_exit)
    return (GreenletPool if kind == "greenlet" else ThreadPool)(loop, runner, concurrency, on_exit)


def default_concurrency(kind: str, max_in_flight: int) -> int:
    """Return the default concurrency of a pool, at most *max_in_flight*."""
    most = DEFAULT_GREENLETS if kind == "greenlet" else DEFAULT_THREADS
    return 1 if kind == "inline" else max(1, min(max_in_flight, most))
