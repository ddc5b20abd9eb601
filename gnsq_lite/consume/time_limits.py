"""What happens to a handler that exceeds its time limit, in each pool.

Greenlets: TimeLimitExceeded is raised in the handler, where it waits.  Threads cannot be ended, and nothing is tried:
an exception set from outside would hit the next line of Python, even in a ``finally``, and never a call hanging in C.
The messages of such a thread are answered for it, its own answers are ignored, and another thread takes its place.

Nothing is recorded when a handler begins or ends.  Each look sees the job of each worker, and the age of a job counts
from the first look that saw it.  So an age is too short by at most the time between two looks.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.consume.pools import Pool, messages_of
from gnsq_lite.consume.run_handler import HandlerOutcomes, HandlerRaised
from gnsq_lite.consume.settings import ConsumerSettings, message_fields
from gnsq_lite.message import TimeLimitExceeded
from gnsq_lite.net.io_thread import enter_thread, leave_thread
from gnsq_lite.net.loop import Loop, sleep
from gnsq_lite.net.os_threads import start_native_thread
from gnsq_lite.net.user_hooks import UserHooks, log_safely

log = logging.getLogger("gnsq_lite.reader")

#: Seconds between two looks, at the most and at the least; in between a twentieth of the shortest limit.
_SELDOM, _OFTEN = 1.0, 0.01


@dataclass(eq=False, slots=True)
class _Running:
    """A job that a worker was seen to run.  *seat* is the worker's list of itself and its job, or None."""

    seat: list[Any]
    job: Any
    since: float
    is_slow: bool = False
    is_over: bool = False

    def still_runs(self) -> bool:
        """Return whether the worker still runs the same job."""
        return self.seat[1] is self.job


class TimeLimits:
    """Watches the handlers of one pool, which has *concurrency* places; in the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        settings: ConsumerSettings,
        clock: Clock,
        pool: Pool,
        concurrency: int,
        outcomes: HandlerOutcomes,
        hooks: UserHooks,
    ) -> None:
        self._loop, self._settings, self._pool, self._concurrency = loop, settings, pool, concurrency
        self._clock, self._outcomes, self._hooks = clock, outcomes, hooks
        self._soft, self._hard = settings.limits.soft_time_limit, settings.limits.time_limit
        #: Whether there is a limit; without one, :meth:`look` is called on demand only.
        self.is_needed = (self._soft, self._hard) != (None, None)
        #: The running jobs, by the id of their seat.
        self._running: dict[int, _Running] = {}
        #: Handlers that still run after they were written off.
        self.overdue = 0

    def busy(self) -> int:
        """Return how many handlers run, without those that were written off."""
        return self._pool.busy() - self.overdue

    def set_concurrency(self, count: int) -> None:
        """Change how many handlers may run at once; those written off do not count."""
        self._concurrency = count
        self._pool.set_concurrency(count + min(self.overdue, count))

    def run(self) -> None:
        """Watch until killed."""
        shortest = min((limit for limit in (self._soft, self._hard) if limit is not None), default=_SELDOM * 20)
        while True:
            sleep(min(_SELDOM, max(_OFTEN, shortest / 20)))
            self.look()

    def look(self) -> float:
        """Act on exceeded limits; return the age of the oldest running handler, seconds."""
        now, before, self._running = self._clock.now(), self._running, {}
        for seat in tuple(self._pool.seats):
            job = seat[1]
            if job is None:
                continue
            run = before.get(id(seat))
            if run is None or run.seat is not seat or run.job is not job:
                run = _Running(seat, job, now)
            self._running[id(seat)] = run
            self._act(run, now - run.since)
        runs = [run for run in self._running.values() if run.still_runs()]
        overdue = sum(run.is_over for run in runs) if self._settings.pool == "thread" else 0
        if overdue != self.overdue:
            self.overdue = overdue
            self.set_concurrency(self._concurrency)
        return max((now - run.since for run in runs), default=0.0)

    def _act(self, run: _Running, age: float) -> None:
        if self._hard is not None and age >= self._hard:
            if not run.is_over:
                run.is_over = True
                if self._settings.pool == "thread":
                    self._write_off(run)
                else:
                    self._loop.soon(self._interrupt, run)
        elif self._soft is not None and age >= self._soft and not run.is_slow:
            run.is_slow = True
            self._warn(run)

    def _warn(self, run: _Running) -> None:
        for message in messages_of(run.job):
            said = "the handler of %r (attempt %d) has run for %g s"
            log_safely(
                log, logging.WARNING, said, message.id, message.attempts, self._soft, extra=message_fields(message)
            )
            self._hooks.call("on_slow", message, self._soft)

    def _interrupt(self, run: _Running) -> None:
        """Runs in the hub: a handler in a greenlet is waiting then."""
        if run.still_runs():
            run.seat[0].throw(self._error())

    def _write_off(self, run: _Running) -> None:
        """Answer its messages, in a thread where on_give_up may block; look() gives its place to another."""
        for message in messages_of(run.job):
            said = "the handler of %r does not end; another takes its place"
            log_safely(log, logging.ERROR, said, message.id, extra=message_fields(message))
        try:
            start_native_thread("gnsq_lite-time-limit", partial(self._answer, run.job))
        except RuntimeError as reason:  # the system gives no thread
            said = "no answer to what the handler had, which nsqd sends again after msg_timeout: %s"
            log_safely(log, logging.ERROR, said, reason)

    def _answer(self, job: Any) -> None:
        enter_thread(self._loop)
        try:
            self._outcomes.on_exception(job, self._error())
        except HandlerRaised as raised:  # by on_give_up
            self._outcomes.on_exit(raised.__cause__ or raised)
        finally:
            leave_thread()

    def _error(self) -> TimeLimitExceeded:
        return TimeLimitExceeded(self._hard or 0.0)
