"""Enforces the time limit of handlers.

In a greenlet, the library raises TimeLimitExceeded where the handler waits.  A thread cannot be stopped: an
exception from another thread could appear at any line, even in a ``finally``, and would not end a call that hangs in C.
So the library answers the messages of such a thread, refuses later answers of its handler, and starts another thread.

Nothing is recorded when a handler begins or ends.  Each check reads the job of each worker.  The age of a job is the
time since the first check that saw the job.  The Reader checks once a second, so limits act at most two seconds late.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.consume.calls import RunningCall, running_calls
from gnsq_lite.consume.pools import Pool, Worker, messages_of
from gnsq_lite.consume.run_handler import HandlerOutcomes, HandlerRaised
from gnsq_lite.consume.settings import ConsumerSettings, message_fields
from gnsq_lite.message import TimeLimitExceeded, is_open, unless_answered
from gnsq_lite.net.io_thread import enter_thread, leave_thread
from gnsq_lite.net.loop import Loop
from gnsq_lite.net.os_threads import start_native_thread
from gnsq_lite.net.user_hooks import log_safely

log = logging.getLogger("gnsq_lite.reader")

#: Seconds from time_limit to nsqd's deadline after the last TOUCH.  A limit acts at most two seconds late.
AFTER_LIMIT = 5.0
#: Seconds from time_limit until an async handler that runs on after its cancellation counts as hung.
_CANCELLED = 2.0
#: Shortest msg_timeout with ``touch``, in seconds.  A TOUCH may be a second late, as each check.
SHORTEST = 2.0


class TimeLimits:
    """Checks the handlers of a pool with *concurrency* workers.  Call it in the loop's thread."""

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
        #: Time of the last check.
        self._checked_at = clock.now()
        #: Number of threads or tasks whose handler has exceeded the time limit and still runs.
        self.overdue = 0

    def busy(self) -> int:
        """Return the number of running handlers, not counting overdue ones."""
        return self._pool.busy() - self.overdue

    def set_concurrency(self, count: int) -> None:
        """Change the maximum number of running handlers.  At most *count* overdue handlers run in addition."""
        self._concurrency = count
        self._pool.set_concurrency(count + min(self.overdue, count))

    def running(self, at_least: float = 0.0) -> list[RunningCall]:
        """Return the calls that have run for *at_least* seconds, oldest first.  Thread-safe."""
        return running_calls(self._pool, self._loop.ident, self._clock.now(), self._checked_at, at_least)

    def enforce(self) -> None:
        """Note which calls are new, and act on each call that exceeds the limit."""
        now, overdue = self._clock.now(), 0
        self._checked_at = now
        for worker in tuple(self._pool.workers):
            job = worker[1]
            if worker.seen is not job:
                worker.see(job, now)
            if job is not None:
                self._act(worker, job, now - worker.since)
                if self._settings.limits.touch and self._limit is not None and not worker.is_over:
                    self._touch(job, now, worker.since + self._limit + AFTER_LIMIT)
                overdue += worker.is_hung
        if overdue != self.overdue:
            self.overdue = overdue
            self.set_concurrency(self._concurrency)

    def oldest(self) -> float:
        """Return for how many seconds the oldest call runs.  A call begins at the first :meth:`enforce` that saw it."""
        now = self._clock.now()
        return max((now - w.since for w in tuple(self._pool.workers) if w.seen is w[1] is not None), default=0.0)

    def _act(self, worker: Worker, job: Any, age: float) -> None:
        if self._limit is None or age < self._limit:
            return
        is_interrupted, worker.is_over = worker.is_over, True
        kind = self._settings.pool
        if kind == "thread" or (kind == "async" and age >= self._limit + _CANCELLED):
            if not worker.is_hung:
                worker.is_hung = True
                self._answer_in_thread(job)
        elif not is_interrupted:
            self._loop.soon(self._interrupt, worker, job)

    def _touch(self, job: Any, now: float, until: float) -> None:
        """Send TOUCH for each open message of *job* whose nsqd's deadline is near, and is to be extended to *until*."""
        for message in messages_of(job):
            connection, deadline = message._connection, message.deadline
            ends = min(until, message._received_at + connection.max_msg_timeout)
            due = min(deadline - max(connection.msg_timeout / 2, SHORTEST * 0.75), ends - connection.msg_timeout)
            if is_open(message) and due <= now and deadline < ends:
                unless_answered(message.touch)

    def _interrupt(self, worker: Worker, job: Any) -> None:
        """Raise TimeLimitExceeded in the handler.  Called in the hub, so the handler is waiting."""
        if worker[1] is job:
            worker[0].throw(self._error())

    def _answer_in_thread(self, job: Any) -> None:
        """Answer the messages of *job* in a new thread, because on_give_up may block."""
        where = next((call.stack for call in self.running() if call.id.encode() == messages_of(job)[0].id[:16]), "")
        for message in messages_of(job):
            said = "the handler of %r exceeded its time limit and still runs at %s; another %s is started instead"
            log_safely(
                log,
                logging.ERROR,
                said,
                message.id[:16],
                where or "(unknown)",
                self._pool.unit,
                extra=message_fields(message),
            )
        try:
            start_native_thread("gnsq_lite-time-limit", partial(self._answer, job))
        except RuntimeError as reason:  # the system starts no thread
            said = (
                "the system cannot start a thread for the answers; nsqd sends the messages again after msg_timeout: %s"
            )
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
