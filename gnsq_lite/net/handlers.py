"""The pools that run user code: greenlets, native threads, or the reading greenlet itself.

Messages come a read at a time and wait in one deque; a worker takes the next as soon as it is free.  No greenlet or
thread is started, and none is woken, for a message that a running worker can take.  A handler's outcome answers the
message: see :func:`make_runner`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol

from greenlet import getcurrent, greenlet

from gnsq_lite.message import EXPIRED, NEW, Message
from gnsq_lite.net.runtime import Loop, is_patched, native_lock, start_native_thread

#: Seconds handlers may run in one turn of the loop before I/O gets its turn.
SLICE = 0.01

#: Handlers at once where the user does not say.
DEFAULT_GREENLETS = 100
DEFAULT_THREADS = 8

Run = Callable[[Any], None]


class Outcomes(Protocol):
    """What is done with a handler's outcome other than "finish it"."""

    def on_exception(self, job: Any, error: BaseException) -> None:
        """The handler raised: requeue, log, tell.  Runs where the handler ran."""

    def on_too_many_attempts(self, message: Message) -> None:
        """Give the message up (MSG-4).  Runs where handlers run; it may wait."""

    def on_left_open(self, message: Message) -> None:
        """The handler returned; it answers later."""

    def on_expired(self, message: Message) -> None:
        """No handler was called: nsqd has taken the message back."""


def make_runner(handler: Callable[[Message], Any], outcomes: Outcomes, max_attempts: int) -> Run:
    """Return the function that handles one message and answers it (MSG-1, MSG-2, MSG-4).

    An exception of any kind is the message's failure; what is no Exception (KeyboardInterrupt, SystemExit,
    GreenletExit, gevent.Timeout) is raised on after that.
    """
    most = max_attempts or 65536

    def run(message: Message) -> None:
        try:
            if message._token == EXPIRED:  # nsqd has taken it back while it was queued here: it comes again
                outcomes.on_expired(message)
                return
            if message.attempts > most:
                outcomes.on_too_many_attempts(message)
                return
            handler(message)
        except BaseException as error:
            outcomes.on_exception(message, error)
            if not isinstance(error, Exception):
                raise
            return
        try:
            if message._token != NEW:
                if message._token == EXPIRED:
                    message.finish()  # too late, but for a message that nsqd has sent here again
                else:
                    outcomes.on_left_open(message)
                return
            del message._token
        except AttributeError:
            return  # the handler has answered
        message._connection.finish(message)

    return run


def make_batch_runner(handler: Callable[[list[Message]], Any], outcomes: Outcomes, max_attempts: int) -> Run:
    """Return the function that handles a list of messages; those it did not answer are finished, or all fail."""
    most = max_attempts or 65536

    def run(batch: list[Message]) -> None:
        live = []
        for message in batch:
            if message._token == EXPIRED:
                continue
            if message.attempts > most:
                outcomes.on_too_many_attempts(message)
            else:
                live.append(message)
        if not live:
            return
        try:
            handler(live)
        except BaseException as error:
            outcomes.on_exception(live, error)
            if not isinstance(error, Exception):
                raise
            return
        for message in live:
            try:
                if message._token != NEW:
                    continue
                del message._token
            except AttributeError:
                continue
            message._connection.finish(message)

    return run


class Pool(Protocol):
    """Runs jobs: messages, or lists of them."""

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs*; in the loop's thread; never waits."""

    def take_queued(self) -> list[Any]:
        """Remove and return the jobs that no handler has begun."""

    def queued(self) -> int:
        """How many jobs no handler has begun."""

    def busy(self) -> int:
        """How many handlers run now."""

    def set_concurrency(self, concurrency: int) -> None:
        """Change how many handlers may run at once."""

    def close(self) -> None:
        """Start no more handlers; workers end when theirs is done."""


class GreenletPool:
    """Handlers in greenlets of the loop; they must cooperate (gevent's sockets and sleep, or a patched process)."""

    def __init__(self, loop: Loop, run: Run, concurrency: int, on_exit: Callable[[BaseException], None]) -> None:
        self._loop, self._run, self._concurrency, self._on_exit = loop, run, concurrency, on_exit
        self._queue: deque[Any] = deque()
        self._idle: list[Any] = []
        self._workers = 0
        self._pump_due = False
        self._turn_ends = 0.0
        self._closed = False

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs*."""
        self._queue.extend(jobs)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.soon(self._pump)

    def _pump(self) -> None:
        """In the hub: have one worker after the other work until it waits for something or the queue is empty.

        So a handler that never waits costs one switch per read, and one that waits leaves the rest to the next worker.
        """
        self._pump_due = False
        ends = self._turn_ends = time.monotonic() + SLICE
        while self._queue:
            if self._idle:
                self._idle.pop().switch()
            elif self._workers < self._concurrency and not self._closed:
                self._workers += 1
                greenlet(self._work, self._loop.hub).switch()
            else:
                return  # whoever is done first takes the next
            if time.monotonic() > ends:
                self._pump_soon()
                return

    def _work(self) -> None:
        queue, run, monotonic = self._queue, self._run, time.monotonic
        me, hub, soon = getcurrent(), self._loop.hub, self._loop.soon
        try:
            while True:
                while queue and self._workers <= self._concurrency:
                    run(queue.popleft())
                    if monotonic() > self._turn_ends:
                        soon(me.switch)
                        hub.switch()
                        self._turn_ends = monotonic() + SLICE
                if self._closed or self._workers > self._concurrency:
                    return
                self._idle.append(me)
                hub.switch()
        except BaseException as error:
            self._on_exit(error)
        finally:
            self._workers -= 1
            if queue:
                self._pump_soon()

    def take_queued(self) -> list[Any]:
        """Remove and return what was not begun."""
        jobs = list(self._queue)
        self._queue.clear()
        return jobs

    def queued(self) -> int:
        """Jobs not begun."""
        return len(self._queue)

    def busy(self) -> int:
        """Handlers running."""
        return self._workers - len(self._idle)

    def set_concurrency(self, concurrency: int) -> None:
        """Change the limit; surplus workers end with their job."""
        self._concurrency = concurrency
        self._pump_soon()

    def close(self) -> None:
        """Wake the idle workers, who then end."""
        self._closed = True
        idle, self._idle = self._idle, []
        for worker in idle:
            self._loop.soon(worker.switch)


class ThreadPool:
    """Handlers in native threads, whatever is patched: they may block in any way."""

    def __init__(self, loop: Loop, run: Run, concurrency: int, on_exit: Callable[[BaseException], None]) -> None:
        self._loop, self._run, self._concurrency, self._on_exit = loop, run, concurrency, on_exit
        self._queue: deque[Any] = deque()
        self._lock = native_lock()
        self._idle: list[Any] = []
        self._workers = 0
        self._closed = False

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs* and wake as many idle workers as have something to do."""
        self._queue.extend(jobs)
        if self._idle or self._workers < self._concurrency:
            self._wake(len(self._queue))

    def _wake(self, wanted: int) -> None:
        with self._lock:
            woken = self._idle[-wanted:] if wanted else []
            del self._idle[len(self._idle) - len(woken) :]
            fresh = 0 if self._closed else max(0, min(wanted - len(woken), self._concurrency - self._workers))
            self._workers += fresh
        for parked in woken:
            parked.release()
        for number in range(fresh):
            start_native_thread(f"gnsq_lite-handler-{self._workers - number}", self._work)

    def _work(self) -> None:
        queue, run = self._queue, self._run
        parked = native_lock()
        parked.acquire()
        try:
            while True:
                while self._workers <= self._concurrency:
                    try:
                        job = queue.popleft()
                    except IndexError:
                        break
                    run(job)
                with self._lock:
                    if self._closed or self._workers > self._concurrency:
                        return
                    if queue:
                        continue
                    self._idle.append(parked)
                parked.acquire()
        except BaseException as error:
            self._on_exit(error)
        finally:
            with self._lock:
                self._workers -= 1
            if queue and not self._closed:
                self._loop.call_soon(lambda: self.submit([]))

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

    def busy(self) -> int:
        """Handlers running."""
        with self._lock:
            return self._workers - len(self._idle)

    def set_concurrency(self, concurrency: int) -> None:
        """Change the limit; surplus workers end with their job."""
        self._concurrency = concurrency
        if self._queue:
            self._wake(len(self._queue))

    def close(self) -> None:
        """Wake the idle workers, who then end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for parked in idle:
            parked.release()


class InlinePool:
    """Handlers in the reading greenlet itself: nothing else happens on the connection until they return."""

    def __init__(self, run: Run, on_exit: Callable[[BaseException], None]) -> None:
        self._run, self._on_exit = run, on_exit
        self._queue: deque[Any] = deque()
        self._busy = 0

    def submit(self, jobs: list[Any]) -> None:
        """Run *jobs* now, one after the other."""
        queue, run = self._queue, self._run
        queue.extend(jobs)
        if self._busy:
            return  # a handler that gave way: it takes these when it is done
        self._busy = 1
        try:
            while queue:
                run(queue.popleft())
        except BaseException as error:
            self._on_exit(error)
        finally:
            self._busy = 0

    def take_queued(self) -> list[Any]:
        """Remove and return what was not begun."""
        jobs = list(self._queue)
        self._queue.clear()
        return jobs

    def queued(self) -> int:
        """Jobs not begun."""
        return len(self._queue)

    def busy(self) -> int:
        """Handlers running."""
        return self._busy

    def set_concurrency(self, concurrency: int) -> None:
        """There is always one."""

    def close(self) -> None:
        """Nothing to end."""


def pool_kind(asked: Literal["auto", "greenlet", "thread", "inline"]) -> Literal["greenlet", "thread", "inline"]:
    """Return the pool that *asked* means in this process: "auto" is greenlets where it is monkey-patched."""
    if asked == "auto":
        return "greenlet" if is_patched() else "thread"
    return asked


def make_pool(
    kind: Literal["greenlet", "thread", "inline"],
    loop: Loop,
    run: Run,
    concurrency: int,
    on_exit: Callable[[BaseException], None],
) -> Pool:
    """Return a pool; *on_exit* is told what a handler raised beyond Exception."""
    if kind == "inline":
        return InlinePool(run, on_exit)
    if kind == "greenlet":
        return GreenletPool(loop, run, concurrency, on_exit)
    return ThreadPool(loop, run, concurrency, on_exit)


def default_concurrency(kind: str, max_in_flight: int) -> int:
    """Return how many handlers run at once where the user does not say: never more than messages can be here."""
    most = DEFAULT_GREENLETS if kind == "greenlet" else DEFAULT_THREADS
    return 1 if kind == "inline" else max(1, min(max_in_flight, most))
