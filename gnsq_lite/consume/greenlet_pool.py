"""The pools whose handlers run in the loop's thread: in greenlets of their own, or in the reading one.

Messages come a read at a time and wait in one deque; a worker takes the next as soon as it is free.  No greenlet is
started, and none is woken, for a message that a running worker can take.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from gnsq_lite.consume.run_handler import HandlerRaised
from gnsq_lite.message import TimeLimitExceeded
from gnsq_lite.net.forks import end_child
from gnsq_lite.net.loop import SLICE, Loop, after_io, current_greenlet, let_io
from gnsq_lite.speed import TURN_OVER, Runner


class _LoopPool:
    """What both have: a queue that one thread alone uses."""

    def __init__(self, runner: Runner, on_exit: Callable[[BaseException], None]) -> None:
        self._runner, self._on_exit = runner, on_exit
        self._queue: deque[Any] = deque()
        #: Each worker and what it is at.
        self.seats: list[list[Any]] = []
        self._closed = False

    def take_queued(self) -> list[Any]:
        """Remove and return what was not begun."""
        jobs = list(self._queue)
        self._queue.clear()
        return jobs

    def queued(self) -> int:
        """Jobs not begun."""
        return len(self._queue)

    def jobs(self) -> list[Any]:
        """Return those, and what the workers are at."""
        return [*self._queue, *(seat[1] for seat in self.seats)]

    def look(self, now: float) -> None:
        """Do nothing: a greenlet that is to end says so."""

    def reset(self) -> None:
        """Forget what was not begun."""
        self._queue.clear()

    def abandon(self) -> None:
        """In a forked child: the jobs are the parent's."""
        self._queue.clear()
        self._closed = True


class GreenletPool(_LoopPool):
    """Handlers in greenlets of the loop; they must cooperate (gevent's sockets and sleep, or a patched process)."""

    def __init__(self, loop: Loop, runner: Runner, concurrency: int, on_exit: Callable[[BaseException], None]) -> None:
        super().__init__(runner, on_exit)
        self._loop, self._concurrency = loop, concurrency
        self._idle: list[Any] = []
        #: Workers whose turn was over before the queue was empty.
        self._gave_way: deque[Any] = deque()
        self._pump_due = False
        #: How often it was reset: workers end that were there before.
        self._generation = 0
        #: The turn of the loop in which handlers ran last, by the loop's own clock.
        self._turn, self._now = 0.0, loop.now

    def submit(self, jobs: list[Any]) -> None:
        """Queue *jobs*; in the hub, have them handled now, while this turn of the loop is not over."""
        self._queue.extend(jobs)
        if self._pump_due:
            return
        if current_greenlet() is not self._loop.hub:
            self._pump_soon()
            return
        turn = self._now()
        if turn != self._turn:
            self._turn = turn
            self._runner.begin_turn(SLICE)
        self._run_workers()

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.soon(self._pump)

    def _pump_later(self) -> None:
        """Pump when the loop has looked after its sockets: it runs many callbacks of ``soon()`` before it does."""
        if not self._pump_due:
            self._pump_due = True
            after_io(self._loop, self._pump)

    def _pump(self) -> None:
        """In the hub: have one worker after the other work until it waits for something or the queue is empty.

        So a handler that never waits costs one switch per read, and one that waits leaves the rest to the next worker.
        """
        self._pump_due = False
        self._runner.begin_turn(SLICE)
        self._run_workers()

    def _run_workers(self) -> None:
        ends = time.monotonic() + SLICE
        while self._queue or self._gave_way:
            if self._gave_way:
                self._gave_way.popleft().switch()
            elif self._idle:
                self._idle.pop().switch()
            elif len(self.seats) < self._concurrency and not self._closed:
                self._loop.begin(self._work)
            else:
                return  # whoever is done first takes the next
            if time.monotonic() > ends:
                self._pump_later()
                return

    def _work(self) -> None:
        queue, runner = self._queue, self._runner
        me, suspend, generation = current_greenlet(), self._loop.suspend, self._generation
        seat = [me, None]
        try:
            self.seats.append(seat)
            while generation == self._generation:
                if end_child(runner.drain, queue, seat) == TURN_OVER:
                    self._pump_later()
                    self._gave_way.append(me)
                    suspend()
                elif self._closed or len(self.seats) > self._concurrency:
                    return
                else:
                    self._idle.append(me)
                    suspend()
        except (HandlerRaised, TimeLimitExceeded) as raised:
            self._on_exit(raised.__cause__ or raised)
        except BaseException as error:
            self._loop.fail(error)
        finally:
            if seat in self.seats:
                self.seats.remove(seat)
            self._count()
            if queue:
                self._pump_soon()

    def reset(self) -> None:
        """Forget what was not begun, and end all workers; those that run a handler end after it."""
        super().reset()
        self._generation += 1
        ended = [seat[0] for seat in self.seats if seat[1] is None]
        self.seats = [seat for seat in self.seats if seat[1] is not None and not seat[0].dead]
        self._idle.clear()
        self._gave_way.clear()
        self._pump_due = False
        self._count()
        for worker in ended:
            self._loop.resume(worker)

    def _count(self) -> None:
        self._runner.surplus = len(self.seats) - self._concurrency

    def busy(self) -> int:
        """Handlers running."""
        return len(self.seats) - len(self._idle) - len(self._gave_way)

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


class InlinePool(_LoopPool):
    """Handlers in the reading greenlet itself: nothing is read until they return.

    Between two of them the loop has its turn where they take long: answers go out, and what was not answered in time
    is found.
    """

    def __init__(self, runner: Runner, on_exit: Callable[[BaseException], None]) -> None:
        super().__init__(runner, on_exit)
        self._busy = 0

    def submit(self, jobs: list[Any]) -> None:
        """Run *jobs* now, one after the other."""
        queue = self._queue
        queue.extend(jobs)
        if self._busy:
            return  # a handler that gave way: it takes these when it is done
        try:
            self._busy = 1
            self.seats = [[current_greenlet(), None]]
            while queue:
                try:
                    self._runner.begin_turn(SLICE)
                    why = end_child(self._runner.drain, queue, self.seats[0])
                except (HandlerRaised, TimeLimitExceeded) as raised:
                    self._on_exit(raised.__cause__ or raised)
                    if self._closed or isinstance(raised.__cause__, (KeyboardInterrupt, SystemExit)):
                        return  # the Reader ends, and sends back what is queued
                else:
                    if why == TURN_OVER:
                        let_io()
        finally:
            self._busy = 0
            self.seats = []

    def busy(self) -> int:
        """Handlers running."""
        return self._busy

    def set_concurrency(self, concurrency: int) -> None:
        """There is always one."""

    def close(self) -> None:
        """Begin no more."""
        self._closed = True
