"""What happens to a handler that exceeds its time limit, in each pool.

Greenlets: TimeLimitExceeded is raised in the handler, where it waits.  Threads cannot be ended, and nothing is tried:
an exception set from outside would hit the next line of Python, even in a ``finally``, and never a call hanging in C.
The messages of such a thread are answered for it, its own answers are ignored, and another thread takes its place.
"""

from __future__ import annotations

import logging
from typing import Any

from gnsq_lite.clock import Clock
from gnsq_lite.consume.pools import Pool
from gnsq_lite.consume.run_handler import HandlerOutcomes, HandlerRaised
from gnsq_lite.consume.settings import ConsumerSettings
from gnsq_lite.message import Message, TimeLimitExceeded
from gnsq_lite.net.io_thread import enter_thread, leave_thread
from gnsq_lite.net.loop import Loop, sleep
from gnsq_lite.net.os_threads import start_native_thread
from gnsq_lite.net.user_hooks import UserHooks, log_safely
from gnsq_lite.policy.handler_times import Act, HandlerTimes, Running

log = logging.getLogger("gnsq_lite.reader")


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
        self._outcomes, self._hooks = outcomes, hooks
        self._times = HandlerTimes(settings.limits, clock, interruptible=settings.pool != "thread")
        #: Whether there is a limit; without one, :meth:`look` is called on demand only.
        self.is_needed = (settings.limits.time_limit, settings.limits.soft_time_limit) != (None, None)
        #: Handlers that still run after they were written off.
        self.overdue = 0

    def busy(self) -> int:
        """Running handlers, without those that were written off."""
        return self._pool.busy() - self.overdue

    def set_concurrency(self, count: int) -> None:
        """Change how many handlers may run at once; those written off do not count."""
        self._concurrency = count
        self._pool.set_concurrency(count + min(self.overdue, count))

    def run(self) -> None:
        """Watch until killed."""
        while True:
            sleep(self._times.look_every)
            self.look()

    def look(self) -> float:
        """Act on exceeded limits; return the age of the oldest running handler, seconds."""
        for act, run in self._times.look(tuple(self._pool.seats)):
            if act is Act.WARN:
                self._warn(run)
            elif act is Act.INTERRUPT:
                self._loop.soon(self._interrupt, run)
            else:
                self._write_off(run)
        overdue = self._times.overdue
        if overdue != self.overdue:
            self.overdue = overdue
            self.set_concurrency(self._concurrency)
        return self._times.oldest()

    def _warn(self, run: Running) -> None:
        limit = self._settings.limits.soft_time_limit
        for message in _messages(run.job):
            said = "the handler of %r (attempt %d) has run for %g s"
            log_safely(log, logging.WARNING, said, message.id, message.attempts, limit, extra=self._fields(message))
            self._hooks.call("on_slow", message, limit)

    def _interrupt(self, run: Running) -> None:
        """Runs in the hub: a handler in a greenlet is waiting then."""
        if run.still_runs():
            run.seat[0].throw(self._error())

    def _write_off(self, run: Running) -> None:
        """Answer its messages, in a place where on_give_up may wait."""
        error = self._error()
        for message in _messages(run.job):
            said = "the handler of %r does not end; another takes its place"
            log_safely(log, logging.ERROR, said, message.id, extra=self._fields(message))
        if self._settings.pool != "thread":
            self._loop.spawn("answers for a handler", self._answer, run, error)
            return

        def answer_in_thread() -> None:
            enter_thread(self._loop)
            try:
                self._answer(run, error)
            finally:
                leave_thread()

        try:
            start_native_thread("gnsq_lite-time-limit", answer_in_thread)  # on_give_up may not block the loop
        except RuntimeError as reason:  # the system gives no thread
            said = "no answer to what the handler had, which nsqd sends again after msg_timeout: %s"
            log_safely(log, logging.ERROR, said, reason)

    def _answer(self, run: Running, error: TimeLimitExceeded) -> None:
        try:
            self._outcomes.on_exception(run.job, error)
        except HandlerRaised as raised:  # by on_give_up
            self._outcomes.on_exit(raised.__cause__ or raised)

    def _error(self) -> TimeLimitExceeded:
        return TimeLimitExceeded(self._settings.limits.time_limit or 0.0)

    def _fields(self, message: Message) -> dict[str, Any]:
        return {"topic": message.topic, "channel": message.channel, "nsqd": message.nsqd_address}


def _messages(job: Any) -> list[Message]:
    return job if isinstance(job, list) else [job]
