"""Enforces the time limit of handlers.

In a greenlet, TimeLimitExceeded is raised at the point where the handler waits.  A thread cannot be ended: an exception
set by another thread could be raised at any line, even in a ``finally``, and would not end a call that hangs in C.  So
the library answers the messages of such a thread, ignores its later answers, and replaces it by another thread.

Nothing is recorded when a handler begins or ends.  Each check reads the job of each worker.  A job's age is
the time since the first check that saw it.  The Reader checks once a second, so limits act at most two seconds late.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.consume.pools import Pool, Seat, messages_of
from gnsq_lite.consume.run_handler import HandlerOutcomes, HandlerRaised
from gnsq_lite.consume.settings import ConsumerSettings, message_fields
from gnsq_lite.message import TimeLimitExceeded
from gnsq_lite.net.io_thread import enter_thread, leave_thread
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import start_native_thread
from gnsq_lite.net.user_hooks import log_safely

log = logging.getLogger("gnsq_lite.reader")


class TimeLimits:
    """Watches the handlers of a pool with *concurrency* workers.  Call it in the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        settings: ConsumerSettings,
        clock: Clock,
        pool: Pool,
        concurrency: int,
        outcomes: HandlerOutcomes,
    ) -> None:
        self._loop, self._settings, self._pool, self._concurrency = loop, settings, pool, concurrency
        self._clock, self._outcomes = clock, outcomes
        self._limit = settings.limits.time_limit
        #: Number of threads whose handler exceeded the time limit; other threads replace them.
        self.overdue = 0

    def busy(self) -> int:
        """Return the number of running handlers, except overdue handlers."""
        return self._pool.busy() - self.overdue

    def set_concurrency(self, count: int) -> None:
        """Change the maximum number of running handlers, except overdue handlers."""
        self._concurrency = count
        self._pool.set_concurrency(count + min(self.overdue, count))

    def look(self) -> float:
        """Enforce the limit; return the age of the oldest running handler in seconds."""
        now, oldest, overdue = self._clock.now(), 0.0, 0
        for seat in tuple(self._pool.seats):
            job = seat[1]
            if seat.seen is not job:
                seat.see(job, now)
            if job is not None:
                self._act(seat, job, now - seat.since)
                oldest = max(oldest, now - seat.since)
                overdue += seat.is_over
        if overdue != self.overdue and self._settings.pool == "thread":
            self.overdue = overdue
            self.set_concurrency(self._concurrency)
        return oldest

    def _act(self, seat: Seat, job: Any, age: float) -> None:
        if self._limit is not None and age >= self._limit and not seat.is_over:
            seat.is_over = True
            if self._settings.pool == "thread":
                self._write_off(job)
            else:
                self._loop.soon(self._interrupt, seat, job)

    def _interrupt(self, seat: Seat, job: Any) -> None:
        """Raise TimeLimitExceeded in the handler.  Called in the hub, so the handler is waiting."""
        if seat[1] is job:
            seat[0].throw(self._error())

    def _write_off(self, job: Any) -> None:
        """Answer the messages of *job* in a new thread, because on_give_up may block.  look() replaces the worker."""
        for message in messages_of(job):
            said = "the handler of %r exceeded its time limit; another thread replaces its thread"
            log_safely(log, logging.ERROR, said, message.id, extra=message_fields(message))
        try:
            start_native_thread("gnsq_lite-time-limit", partial(self._answer, job))
        except RuntimeError as reason:  # the system starts no thread
            said = "no thread can be started to answer the messages; nsqd sends them again after msg_timeout: %s"
            log_safely(log, logging.ERROR, said, reason)

    def _answer(self, job: Any) -> None:
        enter_thread(self._loop)
        try:
            self._outcomes.on_exception(job, self._error())
        except HandlerRaised as raised:  # on_give_up raised
            self._outcomes.on_exit(raised.__cause__ or raised)
        finally:
            leave_thread()

    def _error(self) -> TimeLimitExceeded:
        return TimeLimitExceeded(self._limit or 0.0)
