"""The pools that run user code: greenlets, native threads, or the reading greenlet itself.

Messages come a read at a time and wait in one deque; a worker takes the next as soon as it is free.  No greenlet or
thread is started, and none is woken, for a message that a running worker can take.  A handler's outcome answers the
message: see :func:`make_runner`.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Literal, Protocol

import gevent
from greenlet import getcurrent, greenlet

from gnsq_lite.message import EXPIRED, NEW, Message
from gnsq_lite.net.native import is_patched
from gnsq_lite.net.runtime import SLICE, Loop, after_io, let_io
from gnsq_lite.net.threads import ThreadPool
from gnsq_lite.speed import TURN_OVER, Runner

#: Handlers at once where the user does not say.
DEFAULT_GREENLETS = 100
DEFAULT_THREADS = 8


class Outcomes(Protocol):
    """What is done with a handler's outcome other than "finish it"."""

    def on_exception(self, job: Any, error: BaseException) -> None:
        """The handler raised: requeue, log, tell.  Runs where the handler ran."""

    def gives_up(self, message: Message) -> bool:
        """Whether a message that came more than max_attempts times is not to be handled."""

    def on_too_many_attempts(self, message: Message) -> None:
        """Give the message up (MSG-4).  Runs where handlers run; it may wait."""

    def on_left_open(self, message: Message) -> None:
        """The handler returned; it answers later."""

    def on_expired(self, message: Message) -> None:
        """No handler was called: nsqd has taken the message back."""


#: As in _speed_run.c.
RETURNED_FALSE = (
    "the handler returned False, and its message is finished all the same: raise Requeue() to have it again"
)


def refuse_unrun(returned: object, by: str = "the handler") -> None:
    """Raise TypeError for a coroutine or a generator: what returned it has run nothing, and nobody will.

    A handler's False, which was a failure to pynsq, gets a warning, by default once.
    """
    if returned is False and by == "the handler":
        warnings.warn(RETURNED_FALSE, RuntimeWarning, stacklevel=2)
    if isinstance(returned, (CoroutineType, GeneratorType, AsyncGeneratorType)):
        if not isinstance(returned, AsyncGeneratorType):
            returned.close()
        raise TypeError(f"{by} returned a {type(returned).__name__}, which nobody runs")


def make_runner(handler: Callable[[Message], Any], outcomes: Outcomes, max_attempts: int) -> Runner:
    """Return what handles messages one by one and answers them (MSG-1, MSG-2, MSG-4).

    An exception of any kind is the message's failure; what is no Exception (KeyboardInterrupt, SystemExit,
    GreenletExit, gevent.Timeout) is raised on after that.
    """
    most = max_attempts or 65536

    def run(message: Message) -> None:
        try:
            if message._token == EXPIRED:  # nsqd has taken it back while it was queued here: it comes again
                outcomes.on_expired(message)
                return
            if message.attempts > most and outcomes.gives_up(message):
                outcomes.on_too_many_attempts(message)
                return
            returned = handler(message)
            if returned is not None:
                refuse_unrun(returned)
        except BaseException as error:
            outcomes.on_exception(message, error)
            if not isinstance(error, Exception):
                raise
            return
        try:
            if message._token != NEW:
                settled(message)
                return
            del message._token
        except AttributeError:
            return  # the handler has answered
        connection = message._connection
        if connection.fins is None:
            connection.finish(message)
        else:
            connection.fins.add(message.id)

    def failed(message: Message, error: BaseException) -> None:
        try:
            raise error  # so that what is told of it can ask for the current exception
        except BaseException:
            outcomes.on_exception(message, error)
            if not isinstance(error, Exception):
                raise

    def settled(message: Message) -> None:
        try:
            if message._token == EXPIRED:
                message.finish()  # too late, but for a message that nsqd has sent here again
            else:
                outcomes.on_left_open(message)
        except AttributeError:
            pass  # it was answered meanwhile

    return Runner(handler, most, run, failed, settled)


def make_batch_runner(handler: Callable[[list[Message]], Any], outcomes: Outcomes, max_attempts: int) -> Runner:
    """Return what handles lists of messages; those the handler did not answer are finished, or all fail."""
    most = max_attempts or 65536

    def run(batch: list[Message]) -> None:
        live = []
        for message in batch:
            if message._token == EXPIRED:
                outcomes.on_expired(message)
                continue
            if message.attempts <= most or not outcomes.gives_up(message):
                live.append(message)
                continue
            try:
                outcomes.on_too_many_attempts(message)
            except BaseException as error:  # no Exception: it ends this worker, so the others go back too
                outcomes.on_exception([each for each in batch if not each.has_responded], error)
                raise
        if not live:
            return
        try:
            returned = handler(live)
            if returned is not None:
                refuse_unrun(returned)
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

    return Runner(handler, most, run, lambda batch, error: None, lambda batch: None)


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

    def __init__(self, loop: Loop, runner: Runner, concurrency: int, on_exit: Callable[[BaseException], None]) -> None:
        self._loop, self._runner, self._concurrency, self._on_exit = loop, runner, concurrency, on_exit
        self._queue: deque[Any] = deque()
        self._idle: list[Any] = []
        #: Workers whose turn was over before the queue was empty.
        self._gave_way: deque[Any] = deque()
        self._workers = 0
        self._pump_due = False
        self._closed = False

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs*."""
        self._queue.extend(jobs)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.soon(self._pump)

    def _pump_later(self) -> None:
        """Pump when the loop has looked after its sockets: it runs many callbacks of ``soon()`` before it does."""
        if not self._pump_due:
            self._pump_due = True
            after_io(self._loop.hub, self._pump)

    def _pump(self) -> None:
        """In the hub: have one worker after the other work until it waits for something or the queue is empty.

        So a handler that never waits costs one switch per read, and one that waits leaves the rest to the next worker.
        """
        self._pump_due = False
        self._runner.begin_turn(SLICE)
        ends = time.monotonic() + SLICE
        while self._queue or self._gave_way:
            if self._gave_way:
                self._gave_way.popleft().switch()
            elif self._idle:
                self._idle.pop().switch()
            elif self._workers < self._concurrency and not self._closed:
                self._workers += 1
                greenlet(self._work, self._loop.hub).switch()
            else:
                return  # whoever is done first takes the next
            if time.monotonic() > ends:
                self._pump_later()
                return

    def _work(self) -> None:
        queue, runner = self._queue, self._runner
        me, hub = getcurrent(), self._loop.hub
        try:
            while True:
                if runner.drain(queue) == TURN_OVER:
                    self._gave_way.append(me)
                    self._pump_later()
                    hub.switch()
                elif self._closed or self._workers > self._concurrency:
                    return
                else:
                    self._idle.append(me)
                    hub.switch()
        except BaseException as error:
            self._on_exit(error)
        finally:
            self._workers -= 1
            self._count()
            if queue:
                self._pump_soon()

    def _count(self) -> None:
        self._runner.surplus = self._workers - self._concurrency

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
        return self._workers - len(self._idle) - len(self._gave_way)

    def set_concurrency(self, concurrency: int) -> None:
        """Change the limit; surplus workers end with their job."""
        self._concurrency = concurrency
        self._count()
        self._pump_soon()

    def close(self) -> None:
        """Wake the idle workers, who then end."""
        self._closed = True
        idle, self._idle = self._idle, []
        for worker in idle:
            self._loop.soon(worker.switch)


class InlinePool:
    """Handlers in the reading greenlet itself: nothing is read until they return.

    Between two of them the loop has its turn where they take long: answers go out, and what was not answered in time
    is found.
    """

    def __init__(self, runner: Runner, on_exit: Callable[[BaseException], None]) -> None:
        self._runner, self._on_exit = runner, on_exit
        self._queue: deque[Any] = deque()
        self._busy = 0
        self._closed = False

    def submit(self, jobs: list[Any]) -> None:
        """Run *jobs* now, one after the other."""
        queue = self._queue
        queue.extend(jobs)
        if self._busy:
            return  # a handler that gave way: it takes these when it is done
        self._busy = 1
        try:
            while queue:
                try:
                    self._runner.begin_turn(SLICE)
                    why = self._runner.drain(queue)
                except (KeyboardInterrupt, SystemExit) as error:
                    self._on_exit(error)
                    return  # the Reader ends, and sends back what is queued
                except BaseException as error:
                    self._on_exit(error)  # a kill at the Reader's end comes after close()
                    if self._closed:
                        return
                else:
                    if why == TURN_OVER:
                        let_io(gevent.get_hub())
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
        """Begin no more."""
        self._closed = True


def pool_kind(asked: Literal["auto", "greenlet", "thread", "inline"]) -> Literal["greenlet", "thread", "inline"]:
    """Return the pool that *asked* means in this process: "auto" is greenlets where it is monkey-patched."""
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
    """Return a pool; *on_exit* is told what a handler raised beyond Exception."""
    if kind == "inline":
        return InlinePool(runner, on_exit)
    if kind == "greenlet":
        return GreenletPool(loop, runner, concurrency, on_exit)
    return ThreadPool(loop, runner, concurrency, on_exit)


def default_concurrency(kind: str, max_in_flight: int) -> int:
    """Return how many handlers run at once where the user does not say: never more than messages can be here."""
    most = DEFAULT_GREENLETS if kind == "greenlet" else DEFAULT_THREADS
    return 1 if kind == "inline" else max(1, min(max_in_flight, most))
