"""Runs ``async def`` handlers in one asyncio event loop, for which each process starts a native thread.

A task of the event loop calls one handler after the other, like a greenlet of :class:`~.pools.GreenletPool`.  The pool
wakes another task only if a handler awaits something while messages are queued, so handlers that await nothing cost no
switch of tasks.  Functions that may block, such as on_give_up and the hooks, run in native threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import types
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any

from gnsq_lite._core import Runner, drain
from gnsq_lite.consume.pools import Pool, Worker, messages_of
from gnsq_lite.consume.run_handler import HandlerCalls, HandlerRaised
from gnsq_lite.message import TimeLimitExceeded, unless_answered
from gnsq_lite.net.io_thread import enter_thread, leave_thread
from gnsq_lite.net.loop import SLICE, Loop
from gnsq_lite.net.os_threads import event_loop_threads, native_ident, start_native_thread
from gnsq_lite.net.user_hooks import log_safely

log = logging.getLogger("gnsq_lite.reader")

#: A function without arguments that returns an async context manager, which is open while handlers run.
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]


class EventLoopThread:
    """The thread with the event loop.  All Readers of a process share it, and the last one ends it."""

    def __init__(self, io: Loop) -> None:
        self.io, self.pid = io, os.getpid()
        self.loop = asyncio.new_event_loop()
        self.ident = 0
        #: Number of pools that use the thread.
        self.users = 0
        #: For each lifespan the number of pools that use it, and the task that keeps it open.
        self._lifespans: dict[Lifespan, list[Any]] = {}
        start_native_thread("gnsq_lite-asyncio", self._run)

    def _run(self) -> None:
        self.ident = native_ident()
        enter_thread(self.io)
        event_loop_threads.add(self.ident)
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            event_loop_threads.discard(self.ident)
            self.loop.close()
            leave_thread()

    def call(self, act: Callable[..., Any], *args: Any) -> None:
        """Call *act* in the event loop, unless the loop has ended.  Thread-safe."""
        try:
            self.loop.call_soon_threadsafe(act, *args)
        except RuntimeError:
            pass

    async def enter(self, lifespan: Lifespan) -> None:
        """Open a lifespan, unless another pool has opened it.  Raises its error."""
        held = self._lifespans.get(lifespan)
        if held is None:
            opened, over = self.loop.create_future(), asyncio.Event()
            held = self._lifespans[lifespan] = [0, opened, over, None]
            held[3] = self.loop.create_task(self._hold(lifespan, opened, over))  # one task opens it and closes it
        held[0] += 1
        await asyncio.shield(held[1])

    async def _hold(self, lifespan: Lifespan, opened: Any, over: Any) -> None:
        try:
            async with lifespan():
                opened.set_result(None)
                await over.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            else:
                log_safely(log, logging.ERROR, "closing the lifespan of async handlers failed", exc_info=error)

    async def leave(self, lifespan: Lifespan) -> None:
        """Close a lifespan if no other pool uses it."""
        held = self._lifespans[lifespan]
        held[0] -= 1
        if not held[0]:
            del self._lifespans[lifespan]
            held[2].set()
            await held[3]

    def release(self) -> None:
        """End the thread if no pool uses it.  Call it in the event loop."""
        global _shared
        self.users -= 1
        if not self.users:
            if _shared is self:
                _shared = None
            self.loop.stop()


_shared: EventLoopThread | None = None


def shared_thread(io: Loop) -> EventLoopThread:
    """Return the process's thread, with one more user.  Call it in the I/O loop's thread."""
    global _shared
    if _shared is None or _shared.pid != os.getpid():
        _shared = EventLoopThread(io)
    _shared.users += 1
    return _shared


class Task:
    """A task that calls handlers.  For TimeLimits and running calls it has the methods of a greenlet."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool
        self.task: Any = None
        #: The future on which the task waits for a message.
        self.idle: Any = None
        #: The coroutine of the running handler.
        self.coroutine: Any = None
        #: The error with which the running handler is cancelled, or None.
        self.limit: TimeLimitExceeded | None = None

    def throw(self, error: TimeLimitExceeded) -> None:
        """Cancel the running handler, whose message fails with *error*.  Call it in the I/O loop."""
        job = next((worker[1] for worker in tuple(self._pool.workers) if worker[0] is self), None)
        self._pool.thread.call(self._cancel, job, error)

    def _cancel(self, job: Any, error: TimeLimitExceeded) -> None:
        running = any(worker[0] is self and worker[1] is job for worker in self._pool.workers)
        if running and job is not None and self.coroutine is not None and self.limit is None:
            self.limit = error
            self.task.cancel()

    def frames(self) -> list[Any]:
        """Return the frames of the coroutines in which the running handler waits, the innermost first."""
        found, each = list[Any](), self.coroutine
        while each is not None:
            frame = getattr(each, "cr_frame", None) or getattr(each, "gi_frame", None)
            found[:0] = [] if frame is None else [frame]
            each = getattr(each, "cr_await", None) or getattr(each, "gi_yieldfrom", None)
        return found


class AsyncPool(Pool):
    """Calls ``async def`` handlers in tasks, at most *concurrency* at once.

    Args:
        calls: What happens before and after each call of a handler.
        lifespan: Opened before the first call, and closed after the last one.  None: nothing is opened.
    """

    unit = "task"

    def __init__(
        self,
        loop: Loop,
        calls: HandlerCalls,
        concurrency: int,
        on_exit: Callable[[BaseException], None],
        lifespan: Lifespan | None = None,
    ) -> None:
        most = calls.runner().most
        # drain() makes the first step of each handler.  If the handler then waits, or its message needs a thread,
        # drain() returns, and the task goes on with the job in _left.
        super().__init__(Runner(self._first_step, most, self._leave, self._leave, self._returned), on_exit)
        self._runner.writes_fins = True
        self._io, self._calls, self._concurrency, self._lifespan = loop, calls, concurrency, lifespan
        #: The job with which the task goes on after drain(), and the started handler or its error, or None for neither.
        self._left: tuple[Any, Any] | None = None
        self._idle: list[Task] = []
        self._is_pumping = self._has_ended = False
        self.thread = shared_thread(loop)
        self._opening: Any = None
        self.thread.call(self._open)

    @property
    def thread_ident(self) -> int:
        """The ident of the thread with the event loop."""
        return self.thread.ident

    def me(self) -> object:
        """Return the calling task as the workers name it, or None."""
        if native_ident() != self.thread.ident or asyncio._get_running_loop() is not self.thread.loop:
            return None
        task = asyncio.current_task()
        return next((worker[0] for worker in self.workers if worker[0].task is task), None)

    # -- in the I/O loop

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs*, and let the event loop begin them."""
        self._queue.extend(jobs)
        if self._queue and not self._is_pumping:
            self._is_pumping = True
            self.thread.call(self._pump)

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of tasks.  A surplus task ends after its current job."""
        self._concurrency = concurrency
        self.submit([])

    def close(self) -> None:
        """End the tasks when their handlers return, and then close the lifespan."""
        if not self._closed:
            self._closed = True
            self.thread.call(self._wake_all)

    def has_ended(self) -> bool:
        """Return whether all handlers have returned and the lifespan is closed."""
        return self._has_ended or self.thread.pid != os.getpid()

    # -- in the event loop

    def _open(self) -> None:
        self._opening = self.thread.loop.create_task(self._enter())

    async def _enter(self) -> None:
        if self._lifespan is None:
            return
        try:
            await self.thread.enter(self._lifespan)
        except BaseException as error:
            self._lifespan = None
            said = "the lifespan of async handlers raised %s; the Reader ends"
            log_safely(log, logging.ERROR, said, type(error).__name__, exc_info=error)
            self._on_exit(SystemExit(f"the lifespan of async handlers raised {type(error).__name__}: {error}"))
            self._closed = True

    def _pump(self) -> None:
        """Wake or start a task if jobs are queued, and again after its first step, which may take them all."""
        self._is_pumping = False
        if not self._queue:
            return
        if self._idle:
            self._wake(self._idle.pop())
        elif len(self.workers) < self._concurrency and not self._closed:
            task = Task(self)
            worker = Worker(task)
            self.workers.append(worker)
            task.task = self.thread.loop.create_task(self._work(worker))
        else:
            return
        self._is_pumping = True
        self.thread.loop.call_soon(self._pump)

    def _wake(self, task: Task) -> None:
        if not task.idle.done():
            task.idle.set_result(None)

    def _wake_all(self) -> None:
        while self._idle:
            self._wake(self._idle.pop())
        if not self.workers:
            self._end_soon()

    def _end_soon(self) -> None:
        if not self._has_ended:
            self.thread.loop.create_task(self._end())

    async def _end(self) -> None:
        await self._opening
        if self._lifespan is not None:
            lifespan, self._lifespan = self._lifespan, None
            await self.thread.leave(lifespan)
        if not self._has_ended:
            self._has_ended = True
            self.thread.release()

    def _first_step(self, message: Any) -> Any:
        coroutine = self._calls.handler(message)
        try:
            return _Started(coroutine, coroutine.send(None))
        except StopIteration as done:
            return done.value

    def _returned(self, message: Any, value: Any) -> None:
        if type(value) is _Started:
            self._leave(message, value)
        else:
            self._calls.returned(message, value)

    def _leave(self, job: Any, what: Any = None) -> None:
        self._left = job, what
        self._runner.surplus = 1  # drain() returns

    async def _work(self, worker: Worker) -> None:
        task, queue, runner, monotonic = worker[0], self._queue, self._runner, time.monotonic
        try:
            await asyncio.shield(self._opening)
            while len(self.workers) <= self._concurrency:
                runner.slice_ends = monotonic() + SLICE
                is_slice_over = drain(runner, queue, worker)
                left, self._left = self._left, None
                runner.surplus = 0
                if left is not None:
                    worker[1] = left[0]
                    await self._go_on(task, *left)
                    worker[1] = None
                elif is_slice_over:
                    await asyncio.sleep(0)
                elif not queue:
                    if self._closed:
                        return
                    task.idle = self.thread.loop.create_future()
                    self._idle.append(task)
                    await task.idle
        except BaseException as error:  # a bug, or a cancellation of all tasks by the user
            said = "%s ended a task of async handlers outside the handler; its messages are requeued"
            log_safely(log, logging.ERROR, said, type(error).__name__, exc_info=error)
            for message in [] if worker[1] is None else messages_of(worker[1]):
                unless_answered(message.requeue)
        finally:
            self.workers.remove(worker)
            if self._closed and not self.workers:
                self._end_soon()
            elif queue and not self._is_pumping:
                self._is_pumping = True
                self.thread.loop.call_soon(self._pump)

    async def _go_on(self, task: Task, job: Any, what: Any) -> None:
        """Call the handler with a job, or go on with its started handler, and answer the messages."""
        calls, ready, value = self._calls, job, None
        error: BaseException | None = None
        try:
            if isinstance(what, BaseException):
                raise what
            if isinstance(what, _Started):
                task.coroutine = what.coroutine
                value = await what.rest()
            else:
                ready = await in_thread(self._io, calls.begin, job) if calls.may_give_up(job) else calls.begin(job)
                if ready is None:
                    return
                task.coroutine = calls.handler(ready)
                value = await task.coroutine
        except HandlerRaised as raised:  # of on_give_up, in a thread
            self._on_exit(raised.__cause__ or raised)
            return
        except BaseException as raised:
            error = raised
        finally:
            task.coroutine = None
        limit, task.limit = task.limit, None
        if limit is not None:
            _uncancel(task.task)
            if not isinstance(error, asyncio.CancelledError):
                said = "the handler of %r caught the CancelledError of its time limit"
                log_safely(log, logging.ERROR, said, messages_of(ready)[0].id)
            error = limit
        if error is None:
            calls.returned(ready, value)
            return
        try:
            await in_thread(self._io, calls.failed, ready, error)
        except HandlerRaised as raised:
            self._on_exit(raised.__cause__ or raised)


class _Started:
    """A handler that has made its first step and waits for *awaited*."""

    __slots__ = ("awaited", "coroutine")

    def __init__(self, coroutine: Any, awaited: Any) -> None:
        self.coroutine, self.awaited = coroutine, awaited

    @types.coroutine
    def rest(self) -> Generator[Any, Any, Any]:
        """Run the handler to its end in the task that made the first step, and return what it returns."""
        awaited = self.awaited
        while True:
            try:
                yield awaited
            except BaseException as error:  # for example the CancelledError of the time limit
                try:
                    awaited = self.coroutine.throw(error)
                except StopIteration as done:
                    return done.value
            else:
                return (yield from self.coroutine)


def _uncancel(task: Any) -> None:
    """Take back a cancellation, so that asyncio.timeout() in the next handler works (Python 3.11)."""
    if hasattr(task, "uncancel"):
        task.uncancel()


async def in_thread(io: Loop | None, act: Callable[..., Any], *args: Any) -> Any:
    """Call *act* in a new native thread, and return its result or raise its error.

    An executor of asyncio would do, but Python waits at exit for its threads, without a limit.
    """
    loop = asyncio.get_running_loop()
    future: Any = loop.create_future()

    def set_result(value: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result((value, error))

    def run() -> None:
        if io is not None:
            enter_thread(io)
        value, error = None, None
        try:
            value = act(*args)
        except BaseException as raised:
            error = raised
        finally:
            if io is not None:
                leave_thread()
        try:
            loop.call_soon_threadsafe(set_result, value, error)
        except RuntimeError:  # the event loop has ended
            pass

    start_native_thread("gnsq_lite-async-call", run)
    value, error = await future
    if error is not None:
        raise error
    return value
