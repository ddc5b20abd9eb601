"""Publishes scheduled messages.  Of the processes of a supervisor, one is elected to publish."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gnsq_lite.clock import SYSTEM_CLOCK, Clock
from gnsq_lite.errors import ClosedError, NSQError
from gnsq_lite.net.waiting import Completion, wait_any
from gnsq_lite.supervise.election import Election
from gnsq_lite.wire.commands import check_body
from gnsq_lite.wire.names import check_topic
from gnsq_lite.worker.intervals import Schedule, as_schedule, due

log = logging.getLogger("gnsq_lite.worker")

#: Maximum seconds between two checks of the clock.
_CHECK_EVERY = 0.5
#: Seconds from the due time to the start of a late publish, and from the start of a publish until it counts as hung.
_LATE, _HUNG = 5.0, 30.0
#: Seconds for running publishes to end when the worker stops.
_FINISH = 2.0

#: A body, or a function that returns the body for a due time in seconds since 1970.
Body = bytes | Callable[[float], bytes]


def checked(when: Any, topic: str, body: Any) -> Entry:
    """Check the arguments, and return the entry.  Raises OptionError, InvalidName, BodyTypeError, InvalidBody."""
    check_topic(topic)
    if not callable(body):
        check_body(body)
    return Entry(as_schedule(when), topic, body)


@dataclass(frozen=True)
class Entry:
    """One scheduled message."""

    schedule: Schedule
    topic: str
    body: Body

    @property
    def name(self) -> str:
        """Return the entry's name, which is the same in every process.  Two entries may have the same name."""
        body = hashlib.sha256(self.body).hexdigest() if isinstance(self.body, bytes) else ""
        return f"{self.schedule!r} {self.topic} {body}"


@dataclass(eq=False)
class _Job:
    """One entry and its progress."""

    name: str
    entry: Entry
    #: The due time of the last publish, and the monotonic time at which this process read that due time.
    last: float = 0.0
    since: float = 0.0
    #: The due time of the latest publish.  The monotonic time at which the running publish began, or None.
    when: float = 0.0
    began: float | None = None
    #: Whether the last error or the hanging publish was logged.
    is_logged: bool = False


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="gnsq_lite-schedule", daemon=True).start()


class Publishing:
    """Publishes each due entry in a new thread while this process is elected.

    Args:
        publish: Function that publishes a body to a topic, and returns after nsqd's OK.
        start: Function that runs another function in a new thread.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        publish: Callable[[str, bytes], Any],
        election: Election,
        clock: Clock = SYSTEM_CLOCK,
        start: Callable[[Callable[[], None]], None] = _start_thread,
    ) -> None:
        self._publish, self._election, self._clock, self._start = publish, election, clock, start
        self._jobs: list[_Job] = []
        alike = Counter[str]()  # numbers entries of the same name, in the same order in every process
        for entry in entries:
            alike[entry.name] += 1
            self._jobs.append(_Job(f"{entry.name} {alike[entry.name]}", entry))
        #: Start time of this process.  If no publish of an entry is recorded, earlier due times are ignored.
        self._began = clock.wall()
        self._recording = threading.Lock()

    def check(self) -> None:
        """If this process is elected, start to publish each due entry.  The next call repeats a failed publish."""
        if not self._election.is_elected():
            return
        done = self._election.last_runs()
        for job in self._jobs:
            try:
                self._check(job, done.get(job.name, self._began))
            except Exception as error:  # raised by the user's next_after(), or by the start of a thread
                job.began = None
                self._log_error(job, error)

    def last_runs(self) -> dict[tuple[str, str], float]:
        """Return a dict from (schedule, topic) to the due time of the last publish.

        Of several entries with the same key, the earliest due time counts.  A process that is not elected returns {}.
        """
        done, found = self._election.last_runs(), dict[tuple[str, str], float]()
        for job in self._jobs:
            if job.name in done:
                key = (repr(job.entry.schedule), job.entry.topic)
                found[key] = min(done[job.name], found.get(key, done[job.name]))
        return found

    def is_busy(self) -> bool:
        """Return whether a thread creates or publishes a body."""
        return any(job.began is not None for job in self._jobs)

    def _check(self, job: _Job, last: float) -> None:
        now, wall, extra = self._clock.now(), self._clock.wall(), {"topic": job.entry.topic}
        if job.began is not None:
            if now - job.began >= _HUNG and not job.is_logged:
                job.is_logged = True
                text = "publishing schedule %r to %s has taken %.0f s; its later due times wait"
                log.error(text, job.entry.schedule, job.entry.topic, now - job.began, extra=extra)
            return
        if last != job.last:
            job.last, job.since = last, now
        when, missed = due(job.entry.schedule, last, wall, now - job.since)
        if when is None:
            return
        if when != job.when and (missed or wall - when >= _LATE):
            text = "publishing schedule %r to %s %.0f s late; %d earlier due times are omitted"
            log.warning(text, job.entry.schedule, job.entry.topic, wall - when, missed, extra=extra)
        job.when, job.last, job.since, job.began = when, when, now, now
        self._start(partial(self._run, job, when))

    def _run(self, job: _Job, when: float) -> None:
        entry = job.entry
        try:
            try:
                self._publish(entry.topic, entry.body if isinstance(entry.body, bytes) else entry.body(when))
                job.is_logged = False
            except Exception as error:  # an NSQError, or raised by the user's function
                self._log_error(job, error)
                if isinstance(error, NSQError):
                    return  # check() retries until the next due time
            with self._recording:
                self._election.record(job.name, when)
        finally:
            job.began = None

    def _log_error(self, job: _Job, error: Exception) -> None:
        if not job.is_logged and not isinstance(error, ClosedError):  # the Writer is closed when Python exits
            job.is_logged = True
            text = "publishing schedule %r to %s failed: %s: %s"
            topic = job.entry.topic
            log.error(text, job.entry.schedule, topic, type(error).__name__, error, extra={"topic": topic})


def start(
    entries: Sequence[Entry], publish: Callable[[str, bytes], Any], election: Election | None, over: Completion
) -> Publishing:
    """Start a thread that publishes until *over* is done, and return its :class:`Publishing`."""
    elected = election or Election()
    publishing = Publishing(entries, publish, elected)

    def run() -> None:
        try:
            while not wait_any([over], _CHECK_EVERY):
                publishing.check()
            ends = SYSTEM_CLOCK.now() + _FINISH
            while publishing.is_busy() and SYSTEM_CLOCK.now() < ends:
                time.sleep(0.05)
        except ClosedError:  # the Writer is closed when Python exits
            pass
        finally:
            if publishing.is_busy():  # another process would publish the same due time again
                log.warning("a scheduled publish has not ended; no other process publishes until this process ends")
            else:
                elected.resign()

    threading.Thread(target=run, name="gnsq_lite-schedules", daemon=True).start()
    return publishing
